"""The docstrings of public names: examples that run, and the sections that a signature needs."""

from __future__ import annotations

import doctest
import inspect
import re

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.plugins import registry

NAMES = sorted(set(bridge.__all__) - {"__version__", "ffi"})
SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n(-+)$", re.MULTILINE)
KNOWN = {
    *("Parameters", "Returns", "Yields", "Raises", "Attributes", "See Also", "Notes", "Examples"),
}


def public_things():
    """``"Tensor.reshape"`` -> the object, for all names, methods and properties."""
    found = {}
    for name in NAMES:
        thing = getattr(bridge, name)
        found[name] = thing
        if not isinstance(thing, type) or issubclass(thing, BaseException):
            continue
        for cls in reversed(thing.__mro__):
            if cls.__module__.partition(".")[0] == "dlbridge":
                for member, value in vars(cls).items():
                    if not member.startswith("_"):
                        found[f"{name}.{member}"] = value
    return found


THINGS = public_things()


def plain(thing):
    """The function inside a static or class method."""
    return inspect.unwrap(getattr(thing, "__func__", thing))


FUNCTIONS = {
    name: plain(thing) for name, thing in THINGS.items() if inspect.isfunction(plain(thing))
}
CLASSES = {name: thing for name, thing in THINGS.items() if isinstance(thing, type)}
PROPERTIES = {name: thing for name, thing in THINGS.items() if isinstance(thing, property)}


def doc(thing):
    return inspect.cleandoc(thing.__doc__ or "")


def sections(text):
    return dict(SECTION.findall(text))


def missing(function):
    """The sections that the docstring of *function* lacks, by its signature."""
    signature = inspect.signature(function)
    wanted = {"Examples"}
    if set(signature.parameters) - {"self", "cls"}:
        wanted.add("Parameters")
    result = str(signature.return_annotation)
    if result.startswith(("Iterator", "Generator")):
        wanted.add("Yields")
    elif result != "None":
        wanted.add("Returns")
    return sorted(wanted - set(sections(doc(function))))


def undescribed(function):
    """The parameters that the section Parameters does not name."""
    _, _, rest = doc(function).partition("Parameters\n----------\n")
    described = set()
    for line in SECTION.split(rest)[0].splitlines():
        if line and not line.startswith(" "):
            described |= {name.strip(" *") for name in line.partition(":")[0].split(",")}
    return set(inspect.signature(function).parameters) - {"self", "cls"} - described


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_sections_that_their_signature_needs(name):
    assert missing(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described(name):
    assert undescribed(FUNCTIONS[name]) == set()


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_an_example(name):
    assert "Examples" in sections(doc(CLASSES[name]))


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_say_what_they_are(name):
    assert doc(PROPERTIES[name]).split("\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("name", FUNCTIONS | CLASSES)
def test_headings_are_those_of_numpydoc(name):
    for heading, rule in sections(doc((FUNCTIONS | CLASSES)[name])).items():
        assert heading in KNOWN
        assert len(rule) == len(heading)


@pytest.mark.parametrize("name", FUNCTIONS | CLASSES | PROPERTIES)
def test_the_examples_run(name, monkeypatch):
    monkeypatch.setattr(registry, "_registered", registry._registered.copy())
    thing = (FUNCTIONS | CLASSES | PROPERTIES)[name]
    globs = {"bridge": bridge, "np": np}
    (found,) = doctest.DocTestFinder(recurse=False).find(
        thing, name, module=False, globs=globs
    ) or [None]
    if found is None:
        assert ">>>" not in doc(thing)
        return
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(found, out=told.append)
    assert runner.failures == 0, "".join(told)


# The checks above can fail ------------------------------------------------------


def undocumented(self, x: int, *rest: int) -> int:
    """Do something.

    Parameters
    ----------
    x : int
        A number.
    """


def test_the_reader_sees_what_is_missing():
    assert missing(undocumented) == ["Examples", "Returns"]
    assert undescribed(undocumented) == {"rest"}


def test_the_walk_reaches_methods_of_every_kind():
    assert {"Tensor.reshape", "DType.of", "Device.of", "Tensor.data_ptr"} <= set(FUNCTIONS)
    assert {"Tensor.shape", "DType.itemsize", "Operand.strides", "Tensor.mT"} <= set(PROPERTIES)
    assert {"Tensor", "DeviceMemoryError", "HostView"} <= set(CLASSES)
