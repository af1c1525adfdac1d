"""The elements of containers: many values to C at once, and back at once."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from .._lib import C, address, ffi, py
from ..calls.registry import builtin
from ..values.errors import raised
from ..values.words import (
    HEADER,
    INDEX_MASK,
    LAST_INDEX,
    OBJECT_BEGIN,
    Handle,
    Temporaries,
    pack,
    release,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Checked",
    "Members",
    "Packed",
    "build",
    "build_by",
    "decode",
    "method",
    "nested",
    "pack_checked",
    "pack_packed",
]

_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_RAW_STR: Final[int] = C.kTVMFFIRawStr
_STR: Final[int] = C.kTVMFFIStr
ANY_SIZE: Final[int] = ffi.sizeof("TVMFFIAny")


class Members(Temporaries):
    """Temporaries of a call that runs no kernel: streams do not matter."""


class Packed:
    """A value packed ahead of the call that it is for.

    Packing may run the value's own code (``__tvm_ffi_value__``, ``__dlpack__``),
    which must not happen with a lock held that other threads wait for.
    """

    __slots__ = ("_keep", "words")

    def __init__(self, value: Any) -> None:
        self._keep = Members()
        self.words: tuple[int, int] = pack(value, self._keep)


def pack_packed(value: Packed, _keep: Temporaries) -> tuple[int, int]:
    """The words that were made ahead; the caller keeps *value*."""
    return value.words


class Checked:
    """A value that *look* gets as C will see it, when it is packed; what *look* raises is raised.

    Where packing it takes too many levels, *look* gets the value itself before that is raised.
    """

    __slots__ = ("look", "value")

    def __init__(self, value: Any, look: Callable[[Any], Any]) -> None:
        self.value: Any = value
        self.look: Callable[[Any], Any] = look


def pack_checked(value: Checked, keep: Temporaries) -> tuple[int, int]:
    """The value, looked at."""
    try:
        tag, payload = pack(value.value, keep)
    except RecursionError:
        value.look(value.value)
        raise
    if tag & INDEX_MASK >= OBJECT_BEGIN and tag != C.kTVMFFITensor:
        value.look(view(tag, payload))
    return tag, payload


def decode(data: Any, size: int) -> list[Any]:
    """The values of the *size* TVMFFIAny at the cffi pointer *data*, which C goes on owning."""
    if not size:
        return []
    words = array("q")
    words.frombytes(ffi.buffer(data, ANY_SIZE * size))
    tags, payloads = words[::2], words[1::2]
    # Numbers of one kind are what large arrays hold: one comparison for all of them.
    if tags == array("q", (_INT,)) * size:
        return payloads.tolist()
    if tags == array("q", (_FLOAT,)) * size:
        return memoryview(payloads).cast("B").cast("d").tolist()
    return [
        payload if tag == _INT else _text(payload) if tag == _STR else view(tag, payload)
        for tag, payload in zip(tags, payloads, strict=True)
    ]


def _text(handle: int) -> str:
    """The text of the String object at *handle*, which the container holds meanwhile."""
    content = ffi.cast("TVMFFIByteArray *", handle + HEADER)
    if not content.size:  # its pointer may be NULL
        return ""
    return ffi.unpack(content.data, content.size).decode("utf-8", "surrogateescape")  # type: ignore[no-any-return]


# Containers, and objects that have no value to compare. The low byte of a tag
# is enough to rule them out; what else has it does no harm.
_NESTED: Final = bytes(
    (
        C.kTVMFFIError,
        C.kTVMFFIFunction,
        C.kTVMFFITensor,
        C.kTVMFFIArray,
        C.kTVMFFIMap,
        C.kTVMFFIModule,
        C.kTVMFFIOpaquePyObject,
        C.kTVMFFIList,
        C.kTVMFFIDict,
    )
)


def nested(data: Any, size: int) -> list[Any]:
    """Like `decode`, but empty where all values are plain: 2 us for a thousand."""
    kinds = ffi.buffer(data, ANY_SIZE * size)[:][::ANY_SIZE] if size else b""
    return [] if kinds == kinds.translate(None, _NESTED) else decode(data, size)


def _alike(values: Sequence[Any], keep: Temporaries) -> tuple[int, array[int]] | None:
    """The tag and the payloads of values that are all `int`, all `float` or all `str`."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return _INT, array("q", values)
        except OverflowError:  # a BigInt among them
            return None
    if kinds == {float}:
        return _FLOAT, array("q", array("d", values).tobytes())
    if kinds == {str}:
        parts = [value.encode("utf-8", "surrogateescape") for value in values]
        texts = b"\0".join([*parts, b""])
        if texts.count(0) == len(parts):  # none has a NUL of its own
            buffer = ffi.from_buffer(texts)
            keep.append(buffer)
            ends = accumulate([len(part) + 1 for part in parts], initial=address(buffer))
            return _RAW_STR, array("q", list(ends)[:-1])
    return None


def _pack_all(values: Sequence[Any], keep: Temporaries) -> Any:
    """A TVMFFIAny array with *values*, borrowed: good while *keep* lives."""
    size = len(values)
    memory = ffi.new("TVMFFIAny[]", size)
    words = memoryview(ffi.buffer(memory)).cast("B").cast("q")
    alike = _alike(values, keep)
    if alike is not None:
        tag, payloads = alike
        words[::2] = memoryview(array("q", (tag,)) * size)
        words[1::2] = memoryview(payloads)
        return memory
    place = 0
    for value in values:
        words[place], words[place + 1] = pack(value, keep)
        place += 2
    return memory


def _call(function: int, arguments: Any, count: int) -> tuple[int, int]:
    """Tag and payload of the result, owned. The GIL is held: other threads change nothing."""
    result = ffi.new("int64_t[2]")
    try:
        failed = py.TVMFFIFunctionCall(function, address(arguments), count, address(result))
        owner = Handle if OBJECT_BEGIN <= result[0] <= LAST_INDEX else int
        if failed:
            raise raised()
    except BaseException:  # its own, or a Ctrl-C that came meanwhile
        release(result[0], result[1])
        raise
    # In line: a Ctrl-C before the first instruction of a function would leave it without owner.
    return result[0], owner(result[1])


def build_by(
    function: int, values: Sequence[Any], keep: Temporaries | None = None
) -> tuple[int, int]:
    """Tag and payload, owned, of what the function at the address *function* makes of *values*.

    *keep* notes the streams of tensors among them, for the call that they are for.
    """
    keep = Members() if keep is None else keep
    return _call(function, _pack_all(values, keep), len(values))


def build(constructor: str, values: Sequence[Any], keep: Temporaries | None = None) -> Handle:
    """The new object that the library's function *constructor* makes of *values*."""
    made = build_by(builtin(constructor), values, keep)[1]
    assert isinstance(made, Handle)  # constructors make objects
    return made


def method(name: str, index: int, handle: int, *arguments: Any) -> tuple[int, int]:
    """Call the library's function *name* on the object at *handle*, with the GIL held.

    Tag and payload of the result, owned by the caller.
    """
    keep = Members()
    words = ffi.new("int64_t[]", 2 * len(arguments) + 2)
    words[0], words[1] = index, handle
    place = 2
    for argument in arguments:
        words[place], words[place + 1] = pack(argument, keep)
        place += 2
    return _call(builtin(name), words, len(arguments) + 1)
