"""The docstrings of the public names: their sections, and their examples, which run."""

from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest

import dlbridge
from dlbridge import ffi

MODULES = ("dataclasses", "serialization", "structural")
OWN = {name: getattr(ffi, name) for name in ffi.__all__ if ffi._HOMES.get(name) != "dlbridge"}
PUBLIC = {name: thing for name, thing in OWN.items() if callable(thing)} | {
    f"{module}.{name}": getattr(getattr(ffi, module), name)
    for module in MODULES
    for name in getattr(ffi, module).__all__
}


@pytest.mark.parametrize("name", PUBLIC)
def test_sections(name):
    thing = PUBLIC[name]
    text = inspect.getdoc(thing)
    assert "\nExamples\n--------\n>>> " in text
    if not inspect.isclass(thing):
        assert ("\nParameters\n" in text) == bool(inspect.signature(thing).parameters)
        returns = inspect.signature(thing).return_annotation
        assert ("\nReturns\n" in text or "\nYields\n" in text) == (
            returns not in ("None", "Iterator[None]")
        ), returns


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
    from dlbridge.ffi.objects import classes

    monkeypatch.setattr(classes, "_classes", dict(classes._classes))


@pytest.mark.usefixtures("_no_class_is_left_registered")
@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name):
    finder = doctest.DocTestFinder(recurse=False)
    names = {"ffi": ffi, "np": np, "bridge": dlbridge}
    tests = finder.find(PUBLIC[name], name, module=False, globs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report = []
    for test in tests:
        runner.run(test, out=report.append)
    assert tests
    assert runner.failures == 0, "".join(report)
