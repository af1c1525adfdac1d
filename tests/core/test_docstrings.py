"""The docstrings of public names: examples that run, and the sections that a signature needs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge import extending
from tests.support.docstrings import described, missing, parameters, run_examples, sections
from tests.support.known_backends import forget_registered

NAMES = sorted(set(bridge.__all__) - {"__version__", "ffi"})
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
    return found | {
        f"extending.{name}": getattr(extending, name)
        for name in extending.__all__
        if not name.isupper()
    }


THINGS = public_things()


def plain(thing):
    """The function inside a static or class method."""
    return inspect.unwrap(getattr(thing, "__func__", thing))


FUNCTIONS = {
    name: plain(thing) for name, thing in THINGS.items() if inspect.isfunction(plain(thing))
}
CLASSES = {name: thing for name, thing in THINGS.items() if isinstance(thing, type)}
PROPERTIES = {name: thing for name, thing in THINGS.items() if isinstance(thing, property)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_sections_that_their_signature_needs(name):
    assert missing(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exactly_the_parameters_are_described(name):
    assert set(described(FUNCTIONS[name])) == set(parameters(FUNCTIONS[name]))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_an_example(name):
    assert "Examples" in sections(CLASSES[name])


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_say_what_they_are(name):
    assert inspect.getdoc(PROPERTIES[name]).split("\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("name", FUNCTIONS | CLASSES)
def test_headings_are_those_of_numpydoc(name):
    for heading, rule in sections((FUNCTIONS | CLASSES)[name]).items():
        assert heading in KNOWN
        assert len(rule) == len(heading)


@pytest.mark.parametrize("name", FUNCTIONS | CLASSES | PROPERTIES)
def test_the_examples_run(name, monkeypatch):
    forget_registered(monkeypatch)
    thing = (FUNCTIONS | CLASSES | PROPERTIES)[name]
    run_examples(thing, name, {"bridge": bridge, "np": np})
