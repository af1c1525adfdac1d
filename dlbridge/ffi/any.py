"""TVMFFIAny as two 64-bit integers: plain values, both ways, and references to objects.

A value is a *tag* (type index in the low 32 bits, a small string's length in
the high ones) and a *payload* (the eight bytes of the union, as a signed
integer). `pack` gives both for a Python value; `unpack` takes ownership of what
C returned.

`VALUES` has the classes of plain values. `conversions` joins them with all others: this module
asks for its tables by `_methods`.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import operator
import struct
import sys
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # private, see _sweep
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from dlbridge import Device, DType, dtype
from dlbridge.abi import python_api, undisguised
from dlbridge.extending import public_in, unless_handler, with_article

from . import _methods
from ._lib import C, address, ffi, has, py

Packer = Callable[[Any, "Temporaries"], tuple[int, int]]
"""Tag and payload of a Python value, borrowed: good while the `Temporaries` live."""
Constructor = Callable[["Handle", int], Any]
"""The value of an object and its type index, whose reference it takes over."""
Rule = Callable[[type], "Packer | None"]
"""The packer for instances of a class, if this rule has one."""
Work = tuple[Device, Callable[[], "int | None"]]
"""``(DLDeviceType, device_id, stream)`` of an argument that lies on a device.

``stream()`` is asked when the call begins; None where no stream is known.
"""
View = Callable[[int, int], Any]
"""The value of a tag and a payload, which C may own still."""

OBJECT_BEGIN: Final[int] = C.kTVMFFIStaticObjectBegin
HEADER: Final[int] = ffi.sizeof("TVMFFIObject")
"""Bytes of an object's header; its own fields begin there."""
INDEX_MASK: Final = 0xFFFFFFFF
"""The bits of a tag that are the type index."""
LAST_INDEX: Final = 0x7FFFFFFF
_DLTENSOR: Final[int] = C.kTVMFFIDLTensorPtr
CACHED_CLASSES: Final = 2048


class Temporaries(list[Any]):
    """The objects to which packed arguments point; they must live until the call has returned."""

    streams: list[Work] | None = None
    """That of each argument that lies on a device."""

    reading = False
    """Whether the callee is known to read only, so that read-only tensors may be passed."""

    checking = False
    """Whether `own` may refuse an object, and is to see those of the tvm_ffi package, too."""

    def on_device(self, device: Device, stream: Callable[[], int | None]) -> None:
        """Note that an argument lies on a device, whose work goes to ``stream()``."""
        self.streams = [*(self.streams or ()), (device, stream)]

    def own(self, index: int, handle: Handle) -> tuple[int, Handle]:
        """Tag and payload of an object of type *index*, whose reference lives as long as this."""
        self.append(handle)
        return index, handle


class Members(Temporaries):
    """Temporaries of a call that runs no kernel: streams do not matter."""


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
    if not array.size:  # its pointer may be NULL
        return b""
    return ffi.unpack(array.data, array.size)  # type: ignore[no-any-return]


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
"""Cache: exact class -> packer, as `packer_of` chose it."""
numpy_classes: Final[set[type]] = set()
torch_classes: Final[
    dict[type, tuple[Callable[[Any], bool], Callable[[Any, Any], int], frozenset[Any]]]
] = {}
"""Classes in `packers` whose tensors a call lends without their packer: numpy's, and torch's,
with ``is_neg``, what writes the DLTensor, and the types that are integers of 8 bits."""


def packer_of(cls: type) -> Packer:
    """The packer for instances of *cls*, kept for the next one."""
    packer = packers.get(cls)
    if packer is not None:
        return packer
    if len(packers) > CACHED_CLASSES:  # the cache keeps classes alive: it must not grow for ever
        packers.clear()
        torch_classes.clear()
    packer = packers[cls] = next(filter(None, (rule(cls) for rule in _methods.RULES)))
    return packer


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
        # The library's function itself, as a method of C: a Python function could be
        # interrupted by a Ctrl-C before its first instruction, and drop nothing. This kind of
        # method (it caches nothing) is called without being bound, which takes memory: where
        # a destructor cannot be bound, CPython leaves it out and says nothing.
        __del__ = lru_cache(maxsize=0)(py.TVMFFIObjectDecRef)

    def is_lent(self) -> bool:
        """Whether something else has a reference, too: C, or a container."""
        return use_count(self) > 1

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # An integer made from the pickle would own a reference that was never taken.
        raise TypeError(
            "objects of libtvm_ffi are neither pickled nor deep-copied by Python; "
            "dlbridge.ffi.serialization.to_json_graph_str makes text of many"
        )


class Unowned(int):
    """The address of an object of libtvm_ffi; when its class becomes `Handle`, it owns a reference.

    That assignment needs no memory and makes no call, so nothing is raised while the reference
    changes its owner. What had it before forgets it in the same line of Python: a trace function
    may raise between two lines.

    ``+address`` takes a reference. No signal handler runs between an operator and an assignment,
    as it may after a call.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __pos__(self) -> int: ...

    else:
        __pos__ = _instance_method(py.TVMFFIObjectIncRef)


_untrack: Final = python_api("PyObject_GC_UnTrack", None, ctypes.py_object)


def untrack(handle: Handle) -> None:
    """Hide a `Handle` from the garbage collector: it refers to nothing, and so loses nothing.

    It then dies with its last referrer, after all finalizers of a cycle have run.
    """
    try:
        _untrack(handle)
    except ctypes.ArgumentError as exc:
        raise undisguised(exc) from None


constructors: Final[dict[int, Constructor]] = {}
"""Cache: type index -> constructor ``(handle, index)``."""


def shared(handle: int) -> Handle:
    """A reference of our own to the live object at *handle*, which somebody else owns."""
    owner: Any = Unowned(handle)
    try:
        _, owner.__class__ = +owner, Handle
    except ctypes.ArgumentError as exc:  # before the call of C, which cannot fail
        raise undisguised(exc) from None
    return owner  # type: ignore[no-any-return]


def new_slot() -> Any:
    """A slot for the address of an object that a C function makes; NULL."""
    return ffi.new("intptr_t[1]")


def made(slot: Any, function: Callable[..., int], *arguments: Any) -> tuple[int, Handle | None]:
    """Call the C *function* with *arguments* and *slot*, where it writes a new object.

    Returns its status, and the owner of the object or None. Afterwards *slot*
    is NULL if no object was made, whatever exception has come meanwhile.
    """
    return _own_result(slot, function, *arguments, ffi.cast("void **", slot))


def made_with_gil(
    slot: Any, function: Callable[..., int], *arguments: Any
) -> tuple[int, Handle | None]:
    """Like `made`, for a function of `py`, which keeps the GIL."""
    return _own_result(slot, function, *arguments, address(slot))


def _own_result(slot: Any, function: Any, *arguments: Any) -> tuple[int, Handle | None]:
    owner: Any = None
    try:
        status = function(*arguments)
        if slot[0]:
            owner = Unowned(slot[0])
            owner.__class__ = Handle
    except BaseException:  # no memory, or a Ctrl-C that came meanwhile
        if slot[0] and type(owner) is not Handle:
            Handle(slot[0])
        raise
    return status, owner


def owned(words: Any) -> Any:
    """The object in *words*, an owned TVMFFIAny as two integers, which has None afterwards."""
    owner: Any = Unowned(words[1])
    owner.__class__, words[0] = Handle, 0
    return owner


def release(words: Any) -> None:
    """Write None to *words*, an owned TVMFFIAny as two integers, and drop what was there."""
    if OBJECT_BEGIN <= words[0] & INDEX_MASK <= LAST_INDEX:
        owned(words)
    words[0] = words[1] = 0


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
    if index == _DLTENSOR:
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
    if index == _DLTENSOR:
        reader = views[index] = _methods.borrowed_tensor
        return reader
    raise TypeError(f"a value with the unknown TVM-FFI type index {index}")


def _constructor_of(index: int) -> Constructor:
    """The constructor of the type or of its nearest ancestor that has one, kept for *index*."""
    if index > LAST_INDEX:  # the library would end the process
        raise _impossible(index)
    table = _methods.CONSTRUCTORS
    constructor = table.get(index)
    if constructor is None:
        info = ffi.cast("TVMFFITypeInfo *", py.TVMFFIGetTypeInfo(index))
        ancestors = [info.type_ancestors[i].type_index for i in range(info.type_depth)]
        # The last is the nearest one; kTVMFFIObject is an ancestor of every type.
        constructor = next(table[above] for above in reversed(ancestors) if above in table)
    constructors[index] = constructor
    return constructor


_Value = TypeVar("_Value")
_MIN_SWEEP = 1024


class WeakTable(Generic[_Value]):
    """Integer -> object, without keeping the object alive.

    Like a `weakref.WeakValueDictionary`, but without a callback when an object is
    freed: a Ctrl-C would interrupt the callback, and be lost. Entries of dead objects
    are replaced when their key comes again, and removed from time to time.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[_Value]] = {}
        self._limit = _MIN_SWEEP

    def get(self, key: int) -> _Value | None:
        """The object for *key*; None if there is none or it is dead."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def add(self, key: int, value: _Value) -> _Value:
        """Enter *value*; the result is *value*, or the live one that was there before."""
        if len(self._references) > self._limit:
            self._sweep()
        reference = weakref.ref(value)
        while True:
            known = self._references.setdefault(key, reference)  # atomic
            if known is reference:
                return value
            other = known()
            if other is not None:
                return other
            _remove_dead_weakref(self._references, key)

    def remove(self, key: int) -> None:
        """Forget the object for *key*, if there is one."""
        self._references.pop(key, None)

    def __len__(self) -> int:
        self._sweep()
        return len(self._references)

    def _sweep(self) -> None:
        for key, reference in self._references.copy().items():
            if reference() is None:
                # Atomic, and leaves an entry alone that another thread has made meanwhile:
                # the function is private to CPython's weakref, which exists for this.
                _remove_dead_weakref(self._references, key)
        self._limit = max(_MIN_SWEEP, 2 * len(self._references))


# Copied: an attribute of a cffi library costs 30 ns, a global 2.
_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_BOOL: Final[int] = C.kTVMFFIBool
_SMALL_STR: Final[int] = C.kTVMFFISmallStr
_SMALL_BYTES: Final[int] = C.kTVMFFISmallBytes
_LOW: Final = 0xFFFFFFFF
_WORD: Final = (1 << 64) - 1

# The same texts are passed again and again: names, options, keys.
short_texts: Final[dict[str, tuple[int, int]]] = {}
"""Cache of `pack_str` for texts of up to 7 bytes, which own nothing."""
_texts: Final[dict[str, tuple[int, int]]] = {}
_CACHED_TEXTS: Final = 512
_CACHED_BYTES: Final = 128

_from_double = struct.Struct("=d").pack
_to_double = struct.Struct("=d").unpack
_from_word = struct.Struct("=q").pack
_to_word = struct.Struct("=q").unpack


# --- Python to C ---------------------------------------------------------------


def pack_int(value: int, keep: Temporaries) -> tuple[int, int]:
    """An integer: inline where it has 64 bits, else a BigInt object."""
    value = int(value)
    if -(1 << 63) <= value < 1 << 63:
        return _INT, value
    if not has("TVMFFIBigIntFromByteArray"):
        raise OverflowError(
            "the integer has more than 64 bits; this libtvm_ffi has no BigInt (it came in 0.1.15)"
        )
    words = value.bit_length() // 64 + 1
    digits = ByteArray(value.to_bytes(8 * words, "little", signed=True))
    return _new_object(C.TVMFFIBigIntFromByteArray, digits, keep)


def _new_object(make: Any, content: ByteArray, keep: Temporaries) -> tuple[int, int]:
    words = ffi.new("int64_t[2]")
    try:
        if make(content.pointer, ffi.cast("TVMFFIAny *", words)):
            raise MemoryError("libtvm_ffi could not allocate an object")
        index = words[0] & INDEX_MASK
        return keep.own(index, owned(words))
    except BaseException:  # that one, or a Ctrl-C that came meanwhile
        release(words)
        raise


def _pack_bool(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A truth value."""
    return _BOOL, 1 if value else 0


def _pack_float(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A floating-point number, as a double."""
    return _FLOAT, _to_word(_from_double(value))[0]


def _pack_real(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A real number of another class than float, as a double."""
    cls = type(value)
    return _real(value, f"the {cls.__module__}.{cls.__qualname__}")


def _method_float(result: Any, cls: type, name: str) -> tuple[int, int]:
    """What the method *name* of a *cls* gave, as a double."""
    return _real(result, f"what {cls.__name__}.{name} gave, {with_article(type(result).__name__)},")


def _real(value: Any, what: str) -> tuple[int, int]:
    try:
        # Not float(), which reads text; nor the struct alone, which hides the error of __float__.
        number = math.ldexp(value, 0)
    except unless_handler(OverflowError) as exc:
        raise OverflowError(
            f"{what} is too large for a 64-bit float ({exc}); pass an int, or the number as text"
        ) from exc
    except unless_handler(TypeError) as exc:
        raise TypeError(f"{what} is no real number ({exc}); give a float") from exc
    return _FLOAT, _to_word(_from_double(number))[0]


def pack_str(value: str, keep: Temporaries) -> tuple[int, int]:
    """Text as UTF-8: inline up to 7 bytes, else a String object.

    Bytes from C that are not UTF-8 came as surrogate escapes, and go back unchanged.
    """
    known = short_texts.get(value)
    if known is not None:
        return known
    known = _texts.get(value)
    if known is not None:
        keep.append(known[1])  # another thread may clear the cache during the call
        return known
    data = value.encode("utf-8", "surrogateescape")
    size = len(data)
    cache = short_texts
    if size < 8:
        packed = _SMALL_STR | size << 32, int.from_bytes(data, "little")
    else:
        cache = _texts
        packed = _new_object(C.TVMFFIStringFromByteArray, ByteArray(data), keep)
        if size > _CACHED_BYTES:
            return packed
    if len(cache) >= _CACHED_TEXTS:
        cache.clear()
    cache[value if type(value) is str else str(value)] = packed
    return packed


def _pack_bytes(value: Any, keep: Temporaries) -> tuple[int, int]:
    """Bytes: inline up to 7, else a Bytes object."""
    size = len(value)
    if size < 8:
        return _SMALL_BYTES | size << 32, int.from_bytes(value, "little")
    return _new_object(C.TVMFFIBytesFromByteArray, ByteArray(bytes(value)), keep)


def _pack_opaque_pointer(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """A pointer that is only passed on: an integer, or a `ctypes.c_void_p`."""
    return C.kTVMFFIOpaquePtr, signed(getattr(value, "value", value) or 0)


def _method_pointer(result: Any, cls: type, name: str) -> tuple[int, int]:
    """What the method *name* of a *cls* gave, as a pointer that is only passed on."""
    rule = "a pointer is an int of 64 bits, or a ctypes.c_void_p; give one of these"
    try:
        word = operator.index(getattr(result, "value", result) or 0)
    except unless_handler(TypeError) as exc:
        raise TypeError(
            f"{cls.__name__}.{name} gave {with_article(type(result).__name__)}: {rule}"
        ) from exc
    if not -(1 << 63) <= word < 1 << 64:
        raise ValueError(f"{cls.__name__}.{name} gave {word:#x}: {rule}")
    return C.kTVMFFIOpaquePtr, signed(word)


def _pack_dtype(value: DType, _keep: Temporaries) -> tuple[int, int]:
    """A DLDataType."""
    return C.kTVMFFIDataType, value.code | value.bits << 8 | value.lanes << 16


def _pack_device(value: Device, _keep: Temporaries) -> tuple[int, int]:
    """A DLDevice."""
    return C.kTVMFFIDevice, signed((value.type & _LOW) | (value.index & _LOW) << 32)


def signed(word: int) -> int:
    """The signed integer with the 64 bits of *word*."""
    return word - (1 << 64) if word >= 1 << 63 else word


class Unchanged:
    """The class of `UNCHANGED`."""

    __module__ = "dlbridge.ffi"  # where pickles find UNCHANGED

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"  # by its name: there is one


UNCHANGED: Final = Unchanged()
"""The value kTVMFFIUnchanged: rewrites of C++ take it from a callback that changes nothing."""


# --- C to Python ---------------------------------------------------------------


def _view_rvalue(_tag: int, payload: int) -> Any:
    """The object that a caller moves to us: its slot holds the reference, which is taken."""
    slot = ffi.cast("void **", payload)
    handle = address(slot[0])
    if not handle:
        raise ValueError("the argument has been moved away already")
    index, owner, nothing = native_type_index(handle), Unowned(handle), ffi.NULL
    owner.__class__, slot[0] = Handle, nothing  # type: ignore[assignment]
    return unpack(index, owner)


def _heap_bytes(handle: int, _index: int) -> bytes:
    """A copy of the bytes in a Bytes object."""
    return bytes_of(ffi.cast("TVMFFIByteArray *", handle + HEADER))


def heap_text(handle: int, _index: int = C.kTVMFFIStr) -> str:
    """A copy of the text in a String object."""
    return text_of(ffi.cast("TVMFFIByteArray *", handle + HEADER))


def _big_int(handle: Handle, index: int) -> int:
    """The value of a BigInt object."""
    word = ffi.new("TVMFFIAny *")
    word.type_index = index
    word.v_int64 = handle
    return int.from_bytes(bytes_of(C.TVMFFIBigIntGetContentByteArray(word)), "little", signed=True)


def _view_raw_str(_tag: int, payload: int) -> str:
    text: bytes = ffi.string(ffi.cast("char *", payload))
    return text.decode("utf-8", "surrogateescape")


def _view_small_str(tag: int, payload: int) -> str:
    return _from_word(payload)[: tag >> 32].decode("utf-8", "surrogateescape")


def _view_dtype(_tag: int, payload: int) -> DType:
    return DType.of(payload & 0xFF, payload >> 8 & 0xFF, payload >> 16 & 0xFFFF)


views: Final[dict[int, View]] = {
    C.kTVMFFINone: lambda _tag, _payload: None,
    C.kTVMFFIInt: lambda _tag, payload: payload,
    C.kTVMFFIBool: lambda _tag, payload: payload != 0,
    C.kTVMFFIFloat: lambda _tag, payload: _to_double(_from_word(payload))[0],
    C.kTVMFFIOpaquePtr: lambda _tag, payload: ctypes.c_void_p(payload & _WORD),
    C.kTVMFFIDataType: _view_dtype,
    C.kTVMFFIDevice: lambda _tag, payload: Device.of(payload & _LOW, payload >> 32),
    C.kTVMFFIRawStr: _view_raw_str,
    C.kTVMFFIByteArrayPtr: lambda _tag, at: bytes_of(ffi.cast("TVMFFIByteArray *", at)),
    C.kTVMFFIObjectRValueRef: _view_rvalue,
    # Stored inline, the number of bytes in the tag.
    C.kTVMFFISmallStr: _view_small_str,
    C.kTVMFFISmallBytes: lambda tag, payload: _from_word(payload)[: tag >> 32],
    C.kTVMFFIUnchanged: lambda _tag, _payload: UNCHANGED,
}
"""Plain values, which C may own still: type index -> value of ``(tag, payload)``."""

TEXTS_AND_NUMBERS: Final[Mapping[int, Constructor]] = {
    C.kTVMFFIStr: heap_text,
    C.kTVMFFIBytes: _heap_bytes,
    C.kTVMFFIBigInt: _big_int,
}
"""Objects that are plain values in Python: type index -> function of ``(handle, index)``."""


# --- Which Python class becomes which plain value -----------------------------------


def subclasses(base: type | tuple[type, ...], packer: Packer) -> Rule:
    """A rule for *base* and the classes that are derived from it."""
    return lambda cls: packer if issubclass(cls, base) else None


def subclasses_of(module: str, name: str, packer: Packer) -> Rule:
    """`subclasses` of a class of another library, if that has been imported."""

    def rule(cls: type) -> Packer | None:
        base = getattr(sys.modules.get(module), name, None)
        return packer if isinstance(base, type) and issubclass(cls, base) else None

    return rule


def defining(name: str, packer: Packer) -> Rule:
    """A rule for classes with the method *name*."""
    return lambda cls: packer if defines(cls, name) else None


def by_method(name: str, packer: Packer) -> Packer:
    """A packer of objects as what their method *name* gives."""

    def pack_result(value: Any, keep: Temporaries) -> tuple[int, int]:
        result = getattr(value, name)()
        keep.append(result)  # there may be no other reference
        return packer(result, keep)

    return pack_result


def _protocol(name: str, packer: Packer) -> Rule:
    return defining(name, by_method(name, packer))


def _number_protocol(name: str, convert: Callable[[Any, type, str], tuple[int, int]]) -> Rule:
    """A rule for classes with the method *name*, whose result *convert* makes a word of."""
    return defining(name, lambda value, _: convert(getattr(value, name)(), type(value), name))


def _pack_foreign_dtype(value: Any, keep: Temporaries) -> tuple[int, int]:
    return _pack_dtype(dtype(value), keep)


def _pack_text(value: str, keep: Temporaries) -> tuple[int, int]:
    # As a str proper: what the subclass says of equality must not reach a cache.
    return pack_str(str.__getitem__(value, slice(None)), keep)


def _cuda_stream(result: tuple[int, int], cls: type, name: str) -> tuple[int, int]:
    return _method_pointer(result[1], cls, name)  # (protocol version, handle)


OBJECT_PROTOCOL: Final[Rule] = _protocol("__tvm_ffi_object__", pack)

VALUES: Final[tuple[Rule, ...]] = (
    subclasses(type(None), lambda _value, _keep: (C.kTVMFFINone, 0)),
    subclasses(bool, _pack_bool),
    _number_protocol("__cuda_stream__", _cuda_stream),
    subclasses_of("numpy", "bool_", _pack_bool),
    subclasses(numbers.Integral, pack_int),
    subclasses(float, _pack_float),
    # Its __float__ is of C, and always succeeds.
    subclasses_of("numpy", "floating", _pack_float),
    subclasses(numbers.Real, _pack_real),
    lambda cls: pack_str if cls is str else None,
    subclasses(str, _pack_text),
    subclasses((bytes, bytearray), _pack_bytes),
    subclasses(ctypes.c_void_p, _pack_opaque_pointer),
    subclasses(DType, _pack_dtype),
    subclasses(Device, _pack_device),
    subclasses(Unchanged, lambda _value, _keep: (C.kTVMFFIUnchanged, 0)),
    _number_protocol("__tvm_ffi_opaque_ptr__", _method_pointer),
    subclasses_of("torch", "dtype", _pack_foreign_dtype),
    subclasses_of("numpy", "dtype", _pack_foreign_dtype),
    _protocol("__tvm_ffi_int__", pack_int),
    _number_protocol("__tvm_ffi_float__", _method_float),
    _protocol("__tvm_ffi_value__", pack),
)
"""Rules for the classes of plain values: a class -> its packer, or None."""


@public_in("dlbridge.ffi")
def convert(value: Any) -> Any:  # anybody's: the value itself where nothing changes
    """*value* as it arrives on the other side.

    A list or tuple as an Array, a dict as a Map, a function as a Function, an
    array as a Tensor on the same memory; a value that has no other form as itself.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    object
        What a callee would get.

    Examples
    --------
    >>> ffi.convert([1, "two", None])
    (1, "two", None)
    >>> ffi.convert(np.ones(3)).shape
    (3,)
    """
    keep = Temporaries()  # what is packed lives until it has been read again
    keep.reading = True  # no function is called, and a Tensor remembers that it is read-only
    return view(*pack(value, keep))
