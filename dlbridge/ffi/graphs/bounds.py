"""Values as graphs, looked at before C++ descends into them by recursion.

libtvm_ffi's structural functions and its JSON graphs overflow the stack of the
process on what contains itself, or is nested some ten thousand levels deep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.values.suggestions import with_article

from ..objects.elements import Checked
from ..objects.mappings import Dict, Map
from ..objects.sequences import Array, List
from ..values.wrappers import MovedObject, Object

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Seen", "bounded", "checked"]

MAX_DEPTH: Final = 2000
"""Levels that are passed on to C++: a tenth of what was seen to crash with 8 MiB of stack."""


class Seen:
    """What has been looked at, with everything below it."""

    def __init__(self) -> None:
        self.levels: dict[int, int] = {}
        """Identity -> levels below it. Shared parts may lie deeper elsewhere."""
        self.kept: list[Any] = []
        """The same objects, alive, so that identities stay unique."""


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, (Array, List, list, tuple)):
        return iter(value)
    if isinstance(value, (Map, Dict, dict)):
        return (part for pair in value.items() for part in pair)
    info = getattr(value, "__tvm_ffi_type_info__", None)
    if isinstance(value, Object) and info is not None:
        return (field.__get__(value) for field in info.all_fields())
    return iter(())


def _identity(value: Any) -> int:
    return value._handle or 0 if isinstance(value, Object) else id(value)


def bounded(value: Any, seen: Seen | None = None) -> Any:  # anybody's: the value itself
    """*value*; ValueError if it contains itself, RecursionError if it is nested too deep.

    What *seen* has is not looked at again; what is looked at is added there.
    """
    seen = seen or Seen()
    levels, kept = seen.levels, seen.kept
    if isinstance(value, Object) and _identity(value) in levels:
        return value
    # From the value down to what is looked at now: value, its children, levels below it.
    path: list[list[Any]] = [[value, _children(value), 0]]
    above = {_identity(value)}
    while path:
        parent, children, _below = path[-1]
        for child in children:
            if not isinstance(child, (Object, list, tuple, dict)):
                continue
            identity = _identity(child)
            if identity in above:
                raise ValueError(f"{with_article(type(child).__name__)} contains itself")
            known = levels.get(identity)
            if len(path) + (known or 0) >= MAX_DEPTH:
                raise RecursionError(f"the value is nested more than {MAX_DEPTH} levels deep")
            if known is not None:
                path[-1][2] = max(path[-1][2], known + 1)
                continue
            above.add(identity)
            path.append([child, _children(child), 0])
            break
        else:
            below = path.pop()[2]
            identity = _identity(parent)
            above.discard(identity)
            levels[identity] = below
            kept.append(parent)
            if path:
                path[-1][2] = max(path[-1][2], below + 1)
    return value


def checked(value: Any, seen: Seen | None = None) -> Any:
    """An argument for C: *value*, which is `bounded` in the form that C will see.

    An object of ours is looked at now, any other value when it is packed: only then is it
    known what it becomes (`readonly`, ``asobject``, a container of tvm_ffi).
    """
    if isinstance(value, Object):
        return bounded(value, seen)
    if isinstance(value, MovedObject):
        bounded(value.moved, seen)
        return value
    return Checked(value, lambda found: bounded(found, seen))
