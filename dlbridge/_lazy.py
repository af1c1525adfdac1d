"""Modules whose names are in other modules, each loaded when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def looked_up(module: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a *module*, its ``globals()``: name -> the module that has it.

    The homes are relative to its package. What was found stays: the next use is a look-up (15 ns).
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        home = importlib.import_module(f".{homes[name]}", module["__package__"])
        module[name] = getattr(home, name)
        return module[name]

    return find
