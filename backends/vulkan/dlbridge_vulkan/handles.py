"""Vulkan objects of one owner: the owner exists before the driver makes them.

The driver writes each new handle into memory that the owner already has, so an
exception at any moment (a Ctrl-C too) leaves no object without an owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import check
from .library import ffi, load

__all__ = ["Handles"]


class Handles:
    """Objects of one VkDevice, destroyed together and in reverse order."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[Callable[..., None], tuple[Any, ...], Any, Any]] = []

    def make(self, kind: str, create: Callable[[Any], int], *parent: Any, call: str = "") -> Any:
        """The cell (a C array of one handle) of a new object.

        *create* is given the cell and returns a VkResult; the object is
        destroyed with ``vkDestroy<kind>(*parent, handle, NULL)``.
        """
        cell = ffi.new(f"Vk{kind}[1]")
        none = cell[0]
        self._made.append((getattr(load(), f"vkDestroy{kind}"), parent, cell, none))
        result = create(cell)
        if result < 0:
            cell[0] = none  # what a failed call leaves there is not defined
        check(result, call or f"vkCreate{kind}")
        return cell

    def create(self, device: Any, kind: str, info: Any) -> Any:
        """The cell of a new object, by ``vkCreate<kind>``."""
        function = getattr(load(), f"vkCreate{kind}")
        return self.make(kind, lambda cell: function(device, info, ffi.NULL, cell), device)

    def destroy(self) -> None:
        """Destroy all objects that are left; nothing may be using them.

        Two threads may do so at once, and an interrupted call may be repeated.
        """
        for function, parent, cell, none in reversed(self._made.copy()):
            if cell[0]:
                # Python runs no signal handler and no other thread between these two lines.
                handle, cell[0] = cell[0], none
                function(*parent, handle, ffi.NULL)
        self._made.clear()

    def forget(self) -> None:
        """Leave the objects to the driver: they may be in use, or are another process's."""
        self._made.clear()

    def __len__(self) -> int:
        return len(self._made)
