"""Graphs of objects as text, and back."""

from __future__ import annotations

from typing import Any

from .call import call_with_gil
from .function import builtin
from .graph import bounded

__all__ = ["from_json_graph_str", "to_json_graph_str"]


def to_json_graph_str(obj: Any, metadata: dict[str, Any] | None = None) -> str:
    """*obj* and all objects in it as JSON; what is shared stays shared.

    ValueError if it contains itself, or something that has no text, such as a function.
    """
    return call_with_gil(builtin("ffi.ToJSONGraphString"), bounded(obj), metadata)  # type: ignore[no-any-return]


def from_json_graph_str(json_str: str) -> Any:
    """The value that `to_json_graph_str` made text of."""
    return call_with_gil(builtin("ffi.FromJSONGraphString"), json_str)
