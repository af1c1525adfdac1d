"""Values across the C interface: TVMFFIAny as two 64-bit integers, and back.

A value is a *tag* (type index in the low 32 bits, a small string's length in
the high ones) and a *payload* (the eight bytes of the union, as a signed
integer). `pack` gives both for a Python value; `unpack` takes ownership of what
C returned. `packers`, `constructors` and `views` here are caches. What they do
not know yet is looked up in the tables of `objects.rules` (Python class to
packer) and `objects.results` (type index to Python value), which name functions
of nearly all modules and are therefore imported at the first miss.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dlbridge.core.implementation_details.python_api import python_api

from .._lib import C, address, ffi, py

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType

    from .wrappers import Object

    Packer = Callable[[Any, "Temporaries"], tuple[int, int]]
    Constructor = Callable[["Handle", int], Any]
    View = Callable[[int, int], Any]

    # What comes back from C as it went: an element of a container has this type, too.
    Same: TypeAlias = int | float | str | bytes | DType | Device | Object | None

__all__ = [
    "CACHED_CLASSES",
    "HEADER",
    "INDEX_MASK",
    "LAST_INDEX",
    "OBJECT_BEGIN",
    "ByteArray",
    "Handle",
    "Temporaries",
    "bytes_of",
    "constructors",
    "defines",
    "made",
    "made_with_gil",
    "native_type_index",
    "new_place",
    "pack",
    "packer_of",
    "packers",
    "release",
    "shared",
    "text_of",
    "unpack",
    "untrack",
    "use_count",
    "view",
    "views",
]

OBJECT_BEGIN: Final[int] = C.kTVMFFIStaticObjectBegin
HEADER: Final[int] = ffi.sizeof("TVMFFIObject")
"""Bytes of an object's header; its own fields begin there."""
INDEX_MASK: Final = 0xFFFFFFFF
"""The bits of a tag that are the type index."""
LAST_INDEX: Final = 0x7FFFFFFF
_LENT: Final[int] = C.kTVMFFIDLTensorPtr
CACHED_CLASSES: Final = 2048


class Temporaries(list[Any]):
    """The objects to which packed arguments point; they must live until the call has returned."""

    streams: list[tuple[int, int, Callable[[], int | None]]] | None = None
    """``(DLDeviceType, device_id, stream)`` of each argument that lies on a device.

    ``stream()`` is asked when the call begins; None where no stream is known.
    """

    reading = False
    """Whether the callee is known to read only, so that read-only tensors may be passed."""

    def on_device(self, device_type: int, device_id: int, stream: Callable[[], int | None]) -> None:
        """Note that an argument lies on a device, whose work goes to ``stream()``."""
        if self.streams is None:
            self.streams = []
        self.streams.append((device_type, device_id, stream))


class ByteArray:
    """A TVMFFIByteArray over the bytes of *data*.

    `pointer` is for cffi; ctypes takes the object itself, and keeps it alive.
    """

    __slots__ = ("_as_parameter_", "_bytes", "pointer")

    def __init__(self, data: str | bytes) -> None:
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        try:
            self._bytes = ffi.from_buffer(data)
        except TypeError:
            raise TypeError(f"text is needed here, not {data!r}") from None
        self.pointer: Any = ffi.new("TVMFFIByteArray *", (self._bytes, len(self._bytes)))
        self._as_parameter_ = address(self.pointer)


def bytes_of(array: Any) -> bytes:
    """A copy of the bytes that a TVMFFIByteArray (struct or pointer) describes."""
    return bytes(ffi.buffer(array.data, array.size)) if array.size else b""


def text_of(array: Any) -> str:
    """The text that a TVMFFIByteArray describes; wrong UTF-8 is kept as surrogates."""
    return bytes_of(array).decode("utf-8", "surrogateescape")


def native_type_index(handle: int) -> int:
    """The type index in the header of the live object at *handle*."""
    return ffi.cast("TVMFFIObject *", handle).type_index  # type: ignore[no-any-return]


def use_count(handle: int) -> int:
    """How many strong references the live object at *handle* has."""
    count: int = ffi.cast("TVMFFIObject *", handle).combined_ref_count & 0xFFFFFFFF
    return count


# --- Python to C ---------------------------------------------------------------

packers: Final[dict[type, Packer]] = {}
"""Cache: exact class -> packer, as `packer_of` found it."""


def packer_of(cls: type) -> Packer:
    """The packer for instances of *cls*, kept for the next one."""
    found = packers.get(cls)
    if found is not None:
        return found
    from ..objects.rules import find_packer  # names functions of most modules

    if len(packers) > CACHED_CLASSES:  # the cache keeps classes alive: it must not grow for ever
        packers.clear()
    found = packers[cls] = find_packer(cls)
    return found


def defines(cls: type, name: str) -> bool:
    """Whether instances of *cls* have *name* by their class (not by its metaclass)."""
    return any(name in vars(base) for base in cls.__mro__)


def pack(value: Any, keep: Temporaries) -> tuple[int, int]:
    """Tag and payload of *value*, borrowed: they are good while *keep* lives."""
    cls = type(value)
    return (packers.get(cls) or packer_of(cls))(value, keep)


# --- C to Python ---------------------------------------------------------------


_instance_method: Final = ctypes.pythonapi.PyInstanceMethod_New
_instance_method.restype = ctypes.py_object
_instance_method.argtypes = [ctypes.py_object]


class Handle(int):
    """The address of an object of libtvm_ffi, and one strong reference to it.

    Python objects that keep one give it to `untrack`. The collector would run its
    finalizer before those of other objects in the same cycle, which may still use
    the object of libtvm_ffi.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __del__(self) -> None: ...

    else:
        # The library's function itself, bound as a method: a Python function could be
        # interrupted by a Ctrl-C before its first instruction, and drop nothing.
        __del__ = _instance_method(py.TVMFFIObjectDecRef)

    def is_lent(self) -> bool:
        """Whether something else has a reference, too: C, or a container."""
        return use_count(self) > 1

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # An integer made from the pickle would own a reference that was never taken.
        raise TypeError(
            "objects of libtvm_ffi are neither pickled nor deep-copied by Python; "
            "dlbridge.ffi.serialization.to_json_graph_str makes text of many"
        )


untrack: Final = python_api("PyObject_GC_UnTrack", None, ctypes.py_object)
"""Hide a `Handle` from the garbage collector: it refers to nothing, and so loses nothing.

It then dies with its last referrer, after all finalizers of a cycle have run.
"""


constructors: Final[dict[int, Constructor]] = {}
"""Cache: type index -> constructor ``(handle, index)``."""

views: Final[dict[int, View]] = {}
"""Cache: type index below 64 -> value of ``(tag, payload)``, for what C may own still."""


def shared(handle: int) -> Handle:
    """A reference of our own to the live object at *handle*, which somebody else owns."""
    try:
        py.TVMFFIObjectIncRef(handle)
    except BaseException:  # a Ctrl-C that came meanwhile; the call itself cannot fail
        Handle(handle)
        raise
    return Handle(handle)


def new_place() -> Any:
    """A place for the address of an object that a C function makes; NULL."""
    return ffi.new("intptr_t[1]")


def made(place: Any, function: Callable[..., int], *arguments: Any) -> tuple[int, Handle | None]:
    """Call the C *function* with *arguments* and *place*, where it writes a new object.

    Returns its status, and the owner of the object or None. Afterwards *place*
    is NULL if no object was made, whatever exception has come meanwhile.
    """
    return _own_result(place, function, *arguments, ffi.cast("void **", place))


def made_with_gil(
    place: Any, function: Callable[..., int], *arguments: Any
) -> tuple[int, Handle | None]:
    """Like `made`, for a function of `py`, which keeps the GIL."""
    return _own_result(place, function, *arguments, address(place))


def _own_result(place: Any, function: Any, *arguments: Any) -> tuple[int, Handle | None]:
    try:
        status = function(*arguments)
        if not place[0]:
            return status, None
    except BaseException:  # a Ctrl-C that came meanwhile
        if place[0]:
            Handle(place[0])
        raise
    # No call and no jump comes before the making of the owner, hence no Ctrl-C.
    return status, Handle(place[0])


def release(tag: int, payload: int) -> None:
    """Drop the reference of an owned TVMFFIAny that is not used."""
    if OBJECT_BEGIN <= tag & INDEX_MASK <= LAST_INDEX:
        Handle(payload)


def unpack(tag: int, payload: int) -> Any:
    """The value of an owned TVMFFIAny; its reference is taken over.

    *payload* may be a `Handle`, which owns the reference already.
    """
    index = tag & INDEX_MASK
    if index >= OBJECT_BEGIN:
        if index > LAST_INDEX:
            raise _impossible(index)
        handle = payload if type(payload) is Handle else Handle(payload)
        return (constructors.get(index) or _constructor_of(index))(handle, index)
    if index == _LENT:
        raise TypeError(
            "the function returned a DLTensor *, which is somebody else's memory for an unknown "
            "time: a result must be a Tensor object (TVMFFITensorFromDLPackVersioned)"
        )
    return (views.get(index) or _view_of(index))(tag, payload)


def view(tag: int, payload: int) -> Any:
    """The value of a borrowed TVMFFIAny (an argument); C keeps its own reference."""
    index = tag & INDEX_MASK
    if index >= OBJECT_BEGIN:
        construct = constructors.get(index) or _constructor_of(index)
        return construct(shared(payload), index)
    return (views.get(index) or _view_of(index))(tag, payload)


def _impossible(index: int) -> TypeError:
    return TypeError(
        f"a value with the impossible TVM-FFI type index {index - (1 << 32)}: "
        "whoever made it wrote no value there"
    )


def _view_of(index: int) -> View:
    """The decoder of plain values with the type *index*, kept for the next one."""
    from ..objects.results import VIEWS  # names functions of most modules

    found = VIEWS.get(index)
    if found is None:
        raise TypeError(f"a value with the unknown TVM-FFI type index {index}")
    views[index] = found
    return found


def _constructor_of(index: int) -> Constructor:
    """The constructor of the type or of its nearest ancestor that has one, kept for *index*."""
    if index > LAST_INDEX:  # the library would end the process
        raise _impossible(index)
    from ..objects.results import CONSTRUCTORS  # names functions of most modules

    found = CONSTRUCTORS.get(index)
    if found is None:
        info = ffi.cast("TVMFFITypeInfo *", py.TVMFFIGetTypeInfo(index))
        ancestors = [info.type_ancestors[i].type_index for i in range(info.type_depth)]
        # The last is the nearest one; kTVMFFIObject is an ancestor of every type.
        found = next(CONSTRUCTORS[above] for above in reversed(ancestors) if above in CONSTRUCTORS)
    constructors[index] = found
    return found
