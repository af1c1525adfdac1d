"""Graphs of objects as text and back, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ._lib import C
from .any import OBJECT_BEGIN
from .frames import ask
from .objects import MAX_DEPTH, checked
from .reflection import index_of, info_of

__all__ = ["from_json_graph_str", "to_json_graph_str"]

_CONTAINERS: Final = frozenset(
    {C.kTVMFFIArray, C.kTVMFFIList, C.kTVMFFIMap, C.kTVMFFIDict},
)
# Fields of these types are written where they are, not as nodes of their own.
_IN_PLACE: Final = frozenset(
    {C.kTVMFFINone, C.kTVMFFIInt, C.kTVMFFIBool, C.kTVMFFIFloat, C.kTVMFFIDataType}
)


def to_json_graph_str(obj: Any, metadata: dict[str, Any] | None = None) -> str:
    """*obj* and all objects in it as JSON; what is shared stays shared.

    Parameters
    ----------
    obj : object
        Any value whose parts have a text, as functions have not.
    metadata : dict, optional
        Written beside the graph.

    Returns
    -------
    str
        For `from_json_graph_str`.

    Raises
    ------
    ValueError
        If *obj* contains itself, or something that has no text.

    Examples
    --------
    >>> text = ffi.serialization.to_json_graph_str([1, "two"])
    >>> ffi.serialization.from_json_graph_str(text)
    (1, "two")
    """
    return ask("ffi.ToJSONGraphString", checked(obj), metadata)  # type: ignore[no-any-return]


def from_json_graph_str(json_str: str) -> Any:  # anybody's: what the text describes
    """The value that `to_json_graph_str` made text of.

    Parameters
    ----------
    json_str : str
        The text.

    Returns
    -------
    object
        A new value.

    Raises
    ------
    ValueError
        If the text is not such a graph.

    Examples
    --------
    >>> ffi.serialization.from_json_graph_str(ffi.serialization.to_json_graph_str({"a": 1}))
    {"a": 1}
    """
    import json

    _check_graph(json.loads(json_str))
    return ask("ffi.FromJSONGraphString", json_str)


def _check_graph(graph: Any) -> None:
    """Refuse a graph in which the library would descend without end.

    In one that it wrote a node refers to nodes before it only.
    """
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    depths: list[int] = []
    for index, node in enumerate(nodes if isinstance(nodes, list) else ()):
        inner = [other for other in _references(node) if isinstance(other, int)]
        if any(other >= index for other in inner):
            raise ValueError(f"node {index} of the JSON graph refers to itself or a later one")
        depths.append(1 + max((depths[other] for other in inner if other >= 0), default=0))
        if depths[index] > MAX_DEPTH:
            raise RecursionError(f"the JSON graph is nested more than {MAX_DEPTH} levels deep")


def _references(node: Any) -> Iterable[Any]:
    """The indices of the nodes to which *node* refers."""
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        return ()  # the library says what is wrong with it
    index, data = index_of(node["type"]), node.get("data")
    if index in _CONTAINERS:
        return data if isinstance(data, list) else ()
    if index < OBJECT_BEGIN or not isinstance(data, dict):
        return ()
    return [
        data[field.name]
        for field in info_of(index).all_fields()
        if field.name in data and field.static_type_index not in _IN_PLACE
    ]
