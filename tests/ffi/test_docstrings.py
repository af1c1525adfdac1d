"""The docstrings of the public names: their sections, and their examples, which run."""

from __future__ import annotations

import inspect
from collections.abc import MutableMapping, MutableSequence

import numpy as np
import pytest

import dlbridge
from dlbridge import ffi
from tests.support.docstrings import described, missing, parameters, run_examples, sections

MODULES = ("dataclasses", "serialization", "structural")
OWN = {name: getattr(ffi, name) for name in ffi.__all__ if ffi._HOMES.get(name) != "dlbridge"}
PUBLIC = {name: thing for name, thing in OWN.items() if callable(thing)} | {
    f"{module}.{name}": getattr(getattr(ffi, module), name)
    for module in MODULES
    for name in getattr(ffi, module).__all__
}


PLAIN = {"None", "bool", "int", "str", "list[str]"}


def methods():
    """``"List.insert"`` -> the function, for each class that defines one."""
    found = {}
    for thing in PUBLIC.values():
        for cls in thing.__mro__ if inspect.isclass(thing) else ():
            if cls.__module__.partition(".")[0] == "dlbridge":
                for name, member in vars(cls).items():
                    function = getattr(member, "__func__", member)
                    # What Python's own abstract classes have, too, need not be told again.
                    retold = hasattr(MutableSequence, name) or hasattr(MutableMapping, name)
                    if inspect.isfunction(function) and not (name.startswith("_") or retold):
                        found[f"{cls.__name__}.{name}"] = function
    return found


METHODS = methods()
FUNCTIONS = {name: thing for name, thing in PUBLIC.items() if not inspect.isclass(thing)}


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_has_an_example(name):
    assert "\nExamples\n--------\n>>> " in inspect.getdoc(PUBLIC[name])


@pytest.mark.parametrize("name", FUNCTIONS | METHODS)
def test_functions_have_the_sections_that_their_signature_needs(name):
    function = (FUNCTIONS | METHODS)[name]
    if name in METHODS and not parameters(function):
        returns = inspect.signature(function).return_annotation
        if returns in PLAIN:  # one sentence says all
            assert inspect.getdoc(function)
            return
    assert missing(function) == []
    # Exactly the parameters are described, each with its type.
    found = described(function)
    assert set(found) == set(parameters(function))
    assert [parameter for parameter, kind in found.items() if not kind] == []
    # No section says that nothing is returned.
    if inspect.signature(function).return_annotation in ("None", "Iterator[None]"):
        assert not {"Returns", "Yields"} & set(sections(function))


def test_the_walk_reaches_methods_of_every_class():
    names = {"Object.same_as", "BoundCall.replace", "Module.get_function"}
    assert names <= set(METHODS)


@pytest.mark.parametrize("name", PUBLIC)
def test_results_that_may_be_anything_say_why(name):
    thing = PUBLIC[name]
    functions = [thing]
    if inspect.isclass(thing):
        functions = [member for key, member in vars(thing).items() if not key.startswith("_")]
    for member in functions:
        function = getattr(member, "fget", member)
        if inspect.isfunction(function) and function.__annotations__.get("return") == "Any":
            if name.startswith("register_"):
                continue  # decorators, typed by their overloads
            assert "anybody's" in inspect.getsource(function).partition('"""')[0], function


@pytest.fixture
def _no_class_is_left_registered(monkeypatch):
    from dlbridge.ffi import classes

    monkeypatch.setattr(classes, "_classes", dict(classes._classes))


@pytest.mark.usefixtures("_no_class_is_left_registered")
@pytest.mark.parametrize("name", PUBLIC | METHODS)
def test_examples(name):
    names = {"ffi": ffi, "np": np, "bridge": dlbridge}
    run_examples((PUBLIC | METHODS)[name], name, names)
