"""Readers of docstrings in numpydoc's form: their sections, their parameters, their examples."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from typing import Any

SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n(-+)$", re.MULTILINE)


def sections(thing: object) -> dict[str, str]:
    """Heading -> the line below it, for each section of the docstring of *thing*."""
    return dict(SECTION.findall(inspect.getdoc(thing) or ""))


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, without the object of a method."""
    names = list(inspect.signature(function).parameters)
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def described(function: Callable[..., Any]) -> dict[str, str]:
    """Name -> type of the parameters that the section Parameters lists."""
    _, _, rest = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")
    found = {}
    for line in SECTION.split(rest)[0].splitlines():
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            found |= {name.strip(" *"): kind.strip() for name in names.split(",")}
    return found


def missing(function: Callable[..., Any]) -> list[str]:
    """The sections that the docstring of *function* lacks, by its signature."""
    result = str(inspect.signature(function).return_annotation)
    wanted = {"Examples"}
    if parameters(function):
        wanted.add("Parameters")
    if result.startswith(("Iterator", "Generator")):
        wanted |= {"Yields"} - ({"Yields"} if result == "Iterator[None]" else set())
    elif result != "None":
        wanted.add("Returns")
    return sorted(wanted - set(sections(function)))


def run_examples(thing: object, name: str, names: dict[str, Any]) -> None:
    """Run the examples of *thing*, in which *names* are known; AssertionError if one fails."""
    finder = doctest.DocTestFinder(recurse=False)
    tests = [test for test in finder.find(thing, name, module=False, globs=names) if test.examples]
    assert bool(tests) == (">>>" in (inspect.getdoc(thing) or ""))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    for test in tests:
        runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)
