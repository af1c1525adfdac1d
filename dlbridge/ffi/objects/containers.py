"""The common part of the library's four containers, and how they are passed."""

from __future__ import annotations

import os
import sys
import threading
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Self

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.tensor.tensor import Tensor

from ..values.errors import Error
from ..values.words import Handle, Temporaries, pack, unpack, view
from ..values.wrappers import Object, handle_of, new_wrapper, pack_object
from .elements import Members, method
from .peers import pack_peer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from ..values.words import Packer

__all__ = ["Container", "changing", "container_rule", "same", "tensors_in"]

# This lock makes several calls into C one step for other threads. There is one for all
# containers: it is held for microseconds. It is reentrant, as a finalizer of what a change
# removes may take it. Read it from this module: a forked child gets a new one.
changing: AbstractContextManager[bool] = threading.RLock()


def _renew_lock() -> None:
    # A thread that held it does not exist in the child.
    global changing
    changing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Container(Object):
    """The common part of the library's four containers: equality, hash, repr and copies.

    Elements are equal if they have the same type and value; tensors, functions
    and modules if they are the same one; Python objects if Python says so.
    """

    __slots__ = ()

    if not TYPE_CHECKING:
        # Array[int] in annotations. To a type checker its bases say that it is generic.
        __class_getitem__ = classmethod(GenericAlias)

    @classmethod
    def _make(cls, index: int, handle: Handle) -> Self:
        """The wrapper of a new object of type *index*."""
        return new_wrapper(handle, index, cls)

    @classmethod
    def _of(cls, values: Any) -> Any:
        """A new container of this class."""
        return cls(values)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The result of the library's function *name* on this object, with the GIL held."""
        return unpack(*method(name, self._index, handle_of(self), *arguments))

    def _nested(self) -> list[Any]:
        """The values in the container, if any of them may be more than a plain value."""
        raise NotImplementedError

    def _paired(self, other: Any) -> Iterable[tuple[Any, Any]]:
        """The values that may be more than plain ones, each with *other*'s in its place."""
        raise NotImplementedError

    def _same_kind(self, other: object) -> Any:
        """*other* as a container that can be compared with this one, or None."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        comparable = self._same_kind(other)
        if comparable is None:
            return NotImplemented
        return self._call("ffi.RecursiveEq", comparable) and _agree(self, comparable)

    def __hash__(self) -> int:
        return self._call("ffi.RecursiveHash")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if self._handle is None:
            return super().__repr__()
        from ..graphs.bounds import MAX_DEPTH, bounded  # needs the containers

        try:
            bounded(self)
        except ValueError as exc:  # it contains itself, which the library prints as "..."
            if is_from_handler(exc.__traceback__):
                raise
        except RecursionError as exc:  # the library would take minutes, or overflow the stack
            if is_from_handler(exc.__traceback__):
                raise
            name = type(self).__name__
            return f"<{name} of size {len(self)}, nested more than {MAX_DEPTH} levels deep>"
        try:
            return self._call("ffi.ReprPrint")  # type: ignore[no-any-return]
        except ValueError as exc:  # of a complex tensor, whose dtype the library cannot print
            if is_from_handler(exc.__traceback__):
                raise
            return self._python_repr()

    def __len__(self) -> int:
        raise NotImplementedError

    def _python_repr(self) -> str:
        """The repr in Python's own way."""
        raise NotImplementedError

    def _pickled(self, content: Any) -> tuple[Any, ...]:
        """The result of `__reduce__`; ValueError if the container contains itself."""
        from ..graphs.bounds import bounded  # needs the containers

        bounded(self)
        return type(self), (content,)

    def __deepcopy__(self, _memo: Any = None) -> Self:
        return self._call("ffi.DeepCopy")  # type: ignore[no-any-return]


def _agree(ours: Container, theirs: Container) -> bool:
    """Whether objects without a value are the same in both.

    To the library any two tensors are equal, any two functions, and so on.
    """
    waiting, seen = [(ours, theirs)], set()
    while waiting:
        one, other = waiting.pop()
        for x, y in one._paired(other):
            if x is y:
                continue
            if isinstance(x, Container):
                pair = handle_of(x), handle_of(y)
                if pair not in seen:
                    seen.add(pair)
                    waiting.append((x, y))
            elif not _same_object(x, y):
                return False
    return True


def same(x: Any, y: Any) -> bool:
    """Whether two elements are equal: in type and value, as containers compare them."""
    if x is y:
        return True
    if type(x) is not type(y):
        return isinstance(x, Container) and isinstance(y, Container) and x == y
    if isinstance(x, float):
        return x == y or (x != x and y != y)  # NaN, to the library, equals itself
    return bool(_same_object(x, y))


def _same_object(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor):
        return x is y
    if isinstance(x, Error) and isinstance(y, Error):
        # An exception becomes a new Error each time that it is passed.
        exception = x.extra_context
        return x == y or (exception is not None and exception is y.extra_context)
    return bool(x == y)


def _pack_container(value: Container, keep: Temporaries) -> tuple[int, int]:
    """The object itself; the streams of tensors anywhere inside are noted for the call."""
    packed = pack_object(value, keep)
    if not isinstance(keep, Members):
        for tensor in tensors_in(value):
            pack(tensor, keep)
    return packed


def tensors_in(value: Container) -> list[Tensor]:
    """The tensors in *value* and the containers in it, each container looked at once."""
    found, seen, waiting = [], {handle_of(value)}, [value]
    while waiting:
        for item in waiting.pop()._nested():
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, Container) and handle_of(item) not in seen:
                seen.add(handle_of(item))
                waiting.append(item)
    return found


def _pack_peer_container(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A container of the tvm_ffi package, which is the same object for us."""
    ours = view(*pack_peer(value, keep))
    keep.append(ours)
    return _pack_container(ours, keep)


def container_rule(cls: type) -> Packer | None:
    """Packers for the library's own containers, in our wrapper or in tvm_ffi's."""
    if issubclass(cls, Container):
        return _pack_container
    peer = sys.modules.get("tvm_ffi")
    peers = [getattr(peer, name, Container) for name in ("Array", "List", "Map", "Dict")]
    return _pack_peer_container if issubclass(cls, tuple(peers)) else None
