"""A DLPack producer that exports exactly what a test tells it, legal or not, and counts deletions.

The structs are made by hand through cffi. Their deleter only forgets the address:
it runs while a consumer's exception is pending and must not disturb it, so it
calls C directly. A Python function would first run the handlers of signals.
"""

from __future__ import annotations

import ctypes

from dlbridge.conformance.producer import COMPACT, Described, destructor_of
from dlbridge.core._cdefs import ffi

__all__ = [
    "COMPACT",
    "Producer",
    "address",
    "capsule_name",
    "deleted_twice",
    "legacy_struct",
    "new_capsule",
    "pointer_in",
    "struct_in",
    "versioned_struct",
]

_api = ctypes.pythonapi


def _function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, _api))


_new = _function(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_get_name = _function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_get_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
get_destructor = _function("PyCapsule_GetDestructor", ctypes.c_void_p, ctypes.py_object)
set_name = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

# A capsule keeps the pointer to its name: the buffers stay for ever.
_names: dict[bytes, ctypes.Array] = {}


def immortal(name: bytes) -> int:
    """The address of *name* in memory that outlives the interpreter."""
    if name not in _names:
        _names[name] = ctypes.create_string_buffer(name)
        _api.Py_IncRef(ctypes.py_object(_names[name]))
    return ctypes.addressof(_names[name])


live: dict[int, object] = {}
"""Exported structs whose deleter has not run, by address: handles of cffi, which own them."""

_static: list[object] = []  # exports without a deleter, which nobody frees

deleted_twice: list[int] = []
"""Addresses whose deleter ran a second time: something is very wrong."""


def _second(_type, error, _traceback):
    deleted_twice.extend(error.args)


# Its result, the handle, is not used; a callback for void may only return None.
_deleter = ffi.callback("void *(intptr_t)", live.pop, onerror=_second)
_api.Py_IncRef(ctypes.py_object(_deleter))  # C may call it after the module is gone


def address(pointer) -> int:
    """A cffi pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


class Producer(Described):
    """``from_dlpack`` takes it; each ``__dlpack__`` call makes one struct as described.

    *strides* in elements, `COMPACT`, or None for a NULL pointer. *data* is an
    address, None for 256-byte aligned memory of our own that holds *content*.
    *version* None makes legacy structs. *says* is what ``__dlpack_device__``
    answers, the struct's device if not given. *ndim* overrides the shape's.
    *destructor* is whether capsules free what nobody consumed.
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

    def capsule(self):
        """A new capsule, freed by numpy's own C destructor if nobody consumes it."""
        destructor = destructor_of(versioned=self.version is not None)
        return _new(self.build(), immortal(self.name), destructor)

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


def capsule_name(capsule) -> str:
    """The name that the capsule has now."""
    return _get_name(capsule).decode()


def pointer_in(capsule) -> int:
    """The address in a capsule, whatever its name."""
    return _get_pointer(capsule, _get_name(capsule))


def versioned_struct(at: int):
    """The struct at an address, as cffi sees it."""
    return ffi.cast("DLManagedTensorVersioned *", at)


def legacy_struct(at: int):
    """Likewise, from before DLPack 1.0."""
    return ffi.cast("DLManagedTensor *", at)


def struct_in(capsule):
    """The managed struct in a capsule."""
    cast = versioned_struct if "versioned" in capsule_name(capsule) else legacy_struct
    return cast(pointer_in(capsule))
