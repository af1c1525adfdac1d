"""A DLPack producer that exports exactly what a test tells it, legal or not, and counts deletions.

It is that of the conformance suite; but what was deleted is freed. Its deleter only forgets the
address: it runs while a consumer's exception is pending and must not disturb it, so it calls C
directly. A Python function would first run the handlers of signals.
"""

from __future__ import annotations

import ctypes
from functools import cache

from dlbridge.abi import (
    address_in as pointer_in,
    ffi,
    get_destructor,
    immortal as _immortal,
    new_capsule as _new,
    set_name,
)
from dlbridge.conformance.producer import (
    Described,
    integer as address,
    managed_in as struct_in,
    name_of as capsule_name,
)

__all__ = [
    "OldProducer",
    "Producer",
    "address",
    "capsule_name",
    "deleted_twice",
    "get_destructor",
    "immortal",
    "live",
    "new_capsule",
    "pointer_in",
    "set_name",
    "struct_in",
]


@cache
def immortal(name: bytes) -> int:
    """The address of *name* in memory that outlives the interpreter: a capsule keeps the pointer."""
    return ctypes.addressof(_immortal(ctypes.create_string_buffer(name)))


live: dict[int, object] = {}
"""Exported structs whose deleter has not run, by address: handles of cffi, which own them."""

_static: list[object] = []  # exports without a deleter, which nobody frees

deleted_twice: list[int] = []
"""Addresses whose deleter ran a second time: something is very wrong."""


def _second(_type, error, _traceback):
    deleted_twice.extend(error.args)


# Its result, the handle, is not used; a callback for void may only return None. C may call it
# after the module is gone.
_deleter = _immortal(ffi.callback("void *(intptr_t)", live.pop, onerror=_second))


class Producer(Described):
    """``from_dlpack`` takes it; each ``__dlpack__`` call makes one struct as described.

    *version* None makes legacy structs, whatever is asked for. Each of `calls` is its keywords.
    """

    def __init__(self, shape=(4,), *, version=(1, 3), **described):
        super().__init__(shape, version=version, **described)
        self.calls: list[dict[str, object]] = []
        self.structs: dict[int, object] = {}

    def build(self) -> int:
        """The address of a new managed struct; it and its memory live until it is deleted."""
        managed, shape, strides = self.new_struct()
        if self.deleter:
            managed.deleter = ffi.cast(ffi.typeof(managed.deleter), _deleter)
        at = address(managed)
        self.structs[at] = managed, shape, strides, self.memory
        if self.deleter:
            live[at] = ffi.new_handle(self.structs[at])
        else:
            _static.append(self.structs[at])
        return at

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        return self.capsule()

    def __dlpack_device__(self):
        return self.says

    @property
    def exported(self) -> int:
        """How many structs were made."""
        return len(self.structs)

    @property
    def alive(self) -> int:
        """How many of them have not been deleted. Fails if one was deleted twice."""
        assert not self.structs.keys() & set(deleted_twice)
        return sum(at in live for at in self.structs)


class OldProducer(Producer):
    """One from before DLPack 1.0: a legacy struct, and no keyword but *stream*."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, version=None, **keywords)

    def __dlpack__(self, stream=None):
        self.calls.append({} if stream is None else {"stream": stream})
        return self.capsule()


def new_capsule(at: int, name: bytes):
    """A capsule without a destructor around the pointer *at*."""
    return _new(at, immortal(name), None)
