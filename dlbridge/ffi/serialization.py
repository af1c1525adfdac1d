"""Graphs of objects as text and back, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from .classes import from_json_graph_str, to_json_graph_str

__all__ = ["from_json_graph_str", "to_json_graph_str"]
