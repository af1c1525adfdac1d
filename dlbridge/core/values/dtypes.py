"""Data types: DLDataType as a value, and its names in every array library.

A `DType` is the three numbers of ``dlpack.h``: type code, bits of one lane, and
lanes. `dtype` converts from another library's dtype, `DType.numpy` to numpy's.
This module imports no library; numpy is imported when first needed.
"""

from __future__ import annotations

import operator
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from dlbridge._absent_names import DTYPE_NAMES
from dlbridge.core.public import OpenEnum, Value, for_guests, public
from dlbridge.errors import ExchangeError

from .text import AbsentNames, did_you_mean, with_article

if TYPE_CHECKING:
    import builtins

    import numpy as np

    from dlbridge.typing import DTypeLike


@public
class DLDataTypeCode(OpenEnum):
    """The kind of a dtype, as a number: DLDataTypeCode of ``dlpack.h`` 1.3.

    kDLBcomplex is in DLPack's main branch only, and not released: its name is known, and its
    tensors are refused. A number that ``dlpack.h`` does not list becomes a member named
    ``type_code(42)``, which equals the number.

    Examples
    --------
    >>> bridge.DLDataTypeCode(2).name
    'kDLFloat'
    """

    kDLInt = 0
    kDLUInt = 1
    kDLFloat = 2
    kDLOpaqueHandle = 3
    kDLBfloat = 4
    kDLComplex = 5
    kDLBool = 6
    kDLFloat8_e3m4 = 7
    kDLFloat8_e4m3 = 8
    kDLFloat8_e4m3b11fnuz = 9
    kDLFloat8_e4m3fn = 10
    kDLFloat8_e4m3fnuz = 11
    kDLFloat8_e5m2 = 12
    kDLFloat8_e5m2fnuz = 13
    kDLFloat8_e8m0fnu = 14
    kDLFloat6_e2m3fn = 15
    kDLFloat6_e3m2fn = 16
    kDLFloat4_e2m1fn = 17
    kDLBcomplex = 18  # not released: dlpack.h of DLPack's main branch, 2026-11

    @staticmethod
    def _unlisted(value: int) -> str:
        return f"type_code({value:d})"


_FAMILIES: Final[dict[str, tuple[int, set[int]]]] = {
    "int": (DLDataTypeCode.kDLInt, {*range(1, 9), 16, 32, 64}),
    "uint": (DLDataTypeCode.kDLUInt, {*range(1, 9), 16, 32, 64}),
    "float": (DLDataTypeCode.kDLFloat, {16, 32, 64}),
    "handle": (DLDataTypeCode.kDLOpaqueHandle, {64}),
    "bfloat": (DLDataTypeCode.kDLBfloat, {16}),
    "complex": (DLDataTypeCode.kDLComplex, {32, 64, 128}),
    "bool": (DLDataTypeCode.kDLBool, {8}),
    "bcomplex": (DLDataTypeCode.kDLBcomplex, set()),
}
"""Codes whose names end in the bits, as ``int8`` and ``complex64``, and the bits that an exchange
accepts (``dlpack.h`` 1.3, DLDataTypeCode and the examples at DLDataType)."""

_WORDS: Final = {word: code for word, (code, _) in _FAMILIES.items()}

_SMALL_FLOATS: Final = {
    code.name[3:].lower(): (code, int(code.name[8]))
    for code in DLDataTypeCode
    if code.name.startswith("kDLFloat") and code is not DLDataTypeCode.kDLFloat
}
"""Codes with one width each, by name: ``float8_e4m3fn`` is kDLFloat8_e4m3fn, 8 bits."""

_SPECIAL: Final[dict[str, tuple[int, int, int]]] = {
    "bool": (DLDataTypeCode.kDLBool, 8, 1),
    "handle": (DLDataTypeCode.kDLOpaqueHandle, 64, 1),
    "void": (DLDataTypeCode.kDLOpaqueHandle, 0, 0),  # TVM-FFI's name for no value
    "float4_e2m1fn_x2": (DLDataTypeCode.kDLFloat4_e2m1fn, 4, 2),  # torch's spelling
}

_WIDTHS: Final[dict[int, set[int]]] = {
    **{code: widths for code, widths in _FAMILIES.values() if widths},
    **{code: {bits} for code, bits in _SMALL_FLOATS.values()},
}
"""Bits that an exchange accepts, by code."""

_KNOWN_LATER: Final = {
    int(DLDataTypeCode.kDLBcomplex): " (kDLBcomplex is in DLPack's main branch, not released)"
}
"""What to say of codes that are named already, and whose tensors no release describes."""

NUMPY_OWN: Final = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The dtypes that numpy has by itself, under their common name."""

_PYTHON_TYPES: Final = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}

_ONE_LANE = r"([a-z]+|type_code\(([0-9]+)\)_)([0-9]+)"
_LANES = r"(.+?)(xvscale)?x([0-9]+)"
_SCALABLE = 0x8000
"""TVM-FFI stores the lanes of a scalable vector as a negative 16-bit number: -4 is 'xvscalex4'."""


@public
class DType(AbsentNames, Value, absent=DTYPE_NAMES):
    """The type of one element: DLDataType (``dlpack.h`` 1.3). An immutable value.

    Equal types are one object. ``==`` also compares with everything that
    `dlbridge.dtype` accepts (``t.dtype == "float32"``). ``str(d)`` is the name
    in numpy, ml_dtypes and TVM-FFI, which `dlbridge.dtype` accepts. Any numbers
    that fit the struct make a `DType`; a tensor of a type that ``dlpack.h``
    does not list is refused when it is made or imported, and `dlbridge.dtype`
    does not take a name such as ``"float8"`` or ``"int9"``.

    Parameters
    ----------
    code : int
        The DLDataTypeCode, 0 to 255.
    bits : int
        The bits of one lane, 0 to 255.
    lanes : int
        The values per element, 0 to 65535; 1 except for vector types.

    Raises
    ------
    ValueError
        If DLDataType cannot hold the numbers.

    Examples
    --------
    >>> bridge.DType(2, 32)
    dlbridge.dtype('float32')
    >>> bridge.dtype("float32x4").itemsize
    16
    """

    __slots__ = ("_numpy", "bits", "code", "itemsize", "lanes", "name")

    code: int
    """The DLDataTypeCode; it may be one that ``dlpack.h`` does not list."""
    bits: int
    """The bits of one lane."""
    lanes: int
    """The values per element, 1 or the length of a vector type."""
    name: str
    """``"float32"``, ``"float8_e4m3fn"``, ``"float32x4"``, ``"type_code(42)_8"``."""
    itemsize: int
    """The bytes of one element that is stored alone, rounded up."""

    _numpy: np.dtype[Any] | None

    def __new__(cls, code: int, bits: int, lanes: int = 1) -> DType:
        """Like `of`."""
        return cls.of(code, bits, lanes)

    @classmethod
    def of(cls, code: int, bits: int, lanes: int = 1) -> DType:
        """Return the DType of these numbers; `DType` itself does the same.

        Parameters
        ----------
        code : int
            The DLDataTypeCode, 0 to 255.
        bits : int
            The bits of one lane, 0 to 255.
        lanes : int
            The values per element, 0 to 65535; 1 except for vector types.

        Returns
        -------
        DType
            The one object of that value.

        Raises
        ------
        ValueError
            If DLDataType cannot hold the numbers.

        Examples
        --------
        >>> bridge.DType.of(4, 16)
        dlbridge.dtype('bfloat16')
        """
        known = _interned.get((code, bits, lanes))
        return _intern(code, bits, lanes) if known is None else known

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self.code, self.bits, self.lanes)  # cloudpickle cannot name DType.of

    def __eq__(self, other: object) -> bool:
        """Whether `dtype` of *other* is this type."""
        if other is self or other is None or isinstance(other, DType):
            return other is self
        if type(other) is str and other == self.name:  # `dtype` may not take the name
            return True
        anything: Any = other
        try:
            return dtype(anything) is self
        except (TypeError, ValueError, ExchangeError):
            return NotImplemented

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dlbridge.dtype({self.name!r})"

    def __dlpack_data_type__(self) -> tuple[int, int, int]:
        """Return ``(code, bits, lanes)``, the protocol of TVM-FFI for dtype arguments."""
        return self.code, self.bits, self.lanes

    @property
    def is_subbyte(self) -> bool:
        """Whether an element is not a whole number of bytes, as in ``int4``."""
        return self.bits * self.lanes % 8 != 0

    def nbytes(self, count: int, *, padded: bool = False) -> int:
        """Return the bytes of *count* elements.

        Parameters
        ----------
        count : int
            The number of elements.
        padded : bool
            Whether each element takes `itemsize` bytes; otherwise they are
            packed. Only sub-byte types differ (``dlpack.h`` 1.3,
            DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED).

        Returns
        -------
        int
            In bytes, rounded up.

        Examples
        --------
        >>> bridge.dtype("int4").nbytes(3), bridge.dtype("int4").nbytes(3, padded=True)
        (2, 3)
        """
        return count * self.itemsize if padded else (count * self.bits * self.lanes + 7) // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of exactly this type, numpy's own or that of ml_dtypes.

        A sub-byte type has one byte per element in numpy. ExchangeError if
        neither has the type; the message names the way to the raw bytes.
        """
        return self._numpy or _find_numpy(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same as `numpy`, under the name that ``numpy.dtype(t.dtype)`` looks for."""
        return self.numpy

    @property
    def type(self) -> builtins.type[Any]:
        """The class of numpy's scalars of this type, by whose name jaxtyping knows it."""
        try:
            return self.numpy.type
        except ExchangeError as exc:
            raise AttributeError(str(exc)) from exc


_interned: dict[tuple[int, int, int], DType] = {}
NUMPY_DTYPES: dict[Any, DType] = {}
"""Cache: numpy's dtypes. `from_numpy` and `fill_numpy_dtypes` add to it."""


def _intern(code: int, bits: int, lanes: int) -> DType:
    """A new DType in the table, or the one that another thread put there first."""
    code, bits, lanes = operator.index(code), operator.index(bits), operator.index(lanes)
    if not (0 <= code < 256 and 0 <= bits < 256 and 0 <= lanes < 65536):
        raise ValueError(
            f"(code={code}, bits={bits}, lanes={lanes}) does not fit DLDataType:"
            " code and bits are uint8, lanes is uint16 (dlpack.h 1.3)"
        )
    new = object.__new__(DType)
    values = None, bits, code, (bits * lanes + 7) // 8, lanes, _name(code, bits, lanes)
    for slot, value in zip(DType.__slots__, values, strict=True):
        object.__setattr__(new, slot, value)
    return _interned.setdefault((code, bits, lanes), new)


def _name(code: int, bits: int, lanes: int) -> str:
    for name in ("bool", "handle", "void"):
        if _SPECIAL[name] == (code, bits, lanes):
            return name
    if lanes >= _SCALABLE:
        return f"{_name(code, bits, 1)}xvscalex{0x10000 - lanes}"
    if lanes != 1:
        return f"{_name(code, bits, 1)}x{lanes}"
    word = next((word for word, its_code in _WORDS.items() if its_code == code), None)
    if word is not None:
        return f"{word}{bits}"
    small = (name for name, numbers in _SMALL_FLOATS.items() if numbers == (code, bits))
    return next(small, f"type_code({code})_{bits}")


@for_guests
def alignment_of(dtype: DType) -> int:
    """Return what the address of an element is a multiple of in C.

    Parameters
    ----------
    dtype : DType
        The type of the element.

    Returns
    -------
    int
        Bytes: as one part of one lane.

    Examples
    --------
    >>> from dlbridge.extending import alignment_of
    >>> alignment_of(bridge.dtype("complex64")), alignment_of(bridge.dtype("int4"))
    (4, 1)
    """
    lane = dtype.bits >> (4 if dtype.code == DLDataTypeCode.kDLComplex else 3) or 1
    return lane & -lane


@cache
def check_numbers(code: int, bits: int, lanes: int = 1) -> DType:
    """The DType of numbers that came from outside, if a tensor of it can be exchanged.

    ExchangeError names the rule of ``dlpack.h`` 1.3 that they break: an unknown
    code, bits that the code does not have, or 0 lanes.
    """
    given = f"DLDataType(code={code:d}, bits={bits:d}, lanes={lanes:d})"
    widths = _WIDTHS.get(code)
    if widths is None:
        raise ExchangeError(
            f"{given}: type code {code:d} is not in dlpack.h 1.3"
            f"{_KNOWN_LATER.get(code, ', so the elements have no known meaning')};"
            " export them as unsigned integers of the same size instead"
        )
    if bits not in widths:
        name = DLDataTypeCode(code).name
        raise ExchangeError(
            f"{given}: {name} comes in {_widths_text(code)} bits, not {bits:d} (dlpack.h 1.3,"
            " DLDataTypeCode); convert the elements, or export them as unsigned integers"
        )
    if lanes == 0:
        raise ExchangeError(f"{given}: lanes must be at least 1 (dlpack.h 1.3, DLDataType)")
    return DType.of(code, bits, lanes)


@for_guests
def check_dtype(dtype: DType) -> None:
    """Raise unless tensors of a dtype can be exchanged.

    Parameters
    ----------
    dtype : DType
        A type from outside: its code, bits and lanes can be any numbers.

    Raises
    ------
    ExchangeError
        If ``dlpack.h`` 1.3 has no such type. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import check_dtype
    >>> check_dtype(bridge.dtype("float32"))
    """
    check_numbers(dtype.code, dtype.bits, dtype.lanes)


@public
def dtype(obj: DTypeLike) -> DType:
    """Return the `DType` of the dtype of any array library.

    Parameters
    ----------
    obj : DTypeLike
        A `DType`; a name (``"float32"``, ``"bfloat16"``, ``"int4"``,
        ``"float32x4"``, numpy's ``"<f4"``, and ``"int"`` and ``"float"``, which
        are 64 bits as in numpy); Python's ``bool``, ``int``, ``float`` or
        ``complex``; a dtype or scalar type of numpy, ml_dtypes or jax; a
        ``torch.dtype``; a ``tvm_ffi.dtype`` or another object with
        ``__dlpack_data_type__()``; or ``(code, bits, lanes)``.

    Returns
    -------
    DType
        The one object of that value.

    Raises
    ------
    TypeError
        If *obj* is not a dtype.
    ValueError
        For numbers that DLDataType cannot hold.
    ExchangeError
        For a type that DLPack does not have.

    Examples
    --------
    >>> bridge.dtype(np.float32)
    dlbridge.dtype('float32')
    >>> bridge.dtype("int4").bits
    4
    """
    if isinstance(obj, DType):
        return obj
    theirs: Any = obj
    kind = type(obj)
    if kind is str:
        return _from_name(theirs)
    if kind.__name__ == "dtype" and kind.__module__ == "torch":
        return _from_torch(str(obj))
    if isinstance(obj, str):
        # A tvm_ffi.dtype is a str whose text may mean something else to numpy:
        # its "float" has 32 bits.
        if hasattr(theirs, "type_code"):
            # libtvm_ffi's scalable lanes are negative.
            return DType.of(theirs.type_code, theirs.bits, theirs.lanes & 0xFFFF)
        return _from_name(obj)
    if isinstance(obj, tuple):
        return _from_numbers(obj)
    if isinstance(obj, type):
        return _from_type(obj)
    if hasattr(kind, "__dlpack_data_type__"):
        return _from_numbers(theirs.__dlpack_data_type__())
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(obj, "newbyteorder"):
        return from_numpy(theirs)
    raise _no_dtype(obj)


def _no_dtype(obj: object) -> TypeError:
    cls = obj if isinstance(obj, type) else type(obj)
    # With the module: a class may be called "dtype" too.
    home = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    name = f"{home}{cls.__qualname__}"
    what = f"the class {name}" if cls is obj else with_article(name)
    return TypeError(
        f"{what} is not a dtype: give a name such as 'float32', a dtype of numpy, torch, jax,"
        " ml_dtypes or tvm_ffi, or (code, bits, lanes)"
    )


def _from_numbers(numbers: tuple[Any, ...]) -> DType:
    try:
        code, bits, lanes = map(operator.index, numbers)
    except (TypeError, ValueError):
        raise TypeError(
            f"{numbers!r} is not a dtype: (code, bits, lanes) is three integers"
        ) from None
    return DType.of(code, bits, lanes)


@lru_cache(maxsize=512)
def _from_name(text: str) -> DType:
    """The DType of a name: by our own table first, then by numpy."""
    numbers = _parse(text)
    if numbers is not None:
        code, bits, _ = numbers
        if "(" not in text and text != "void" and bits not in _WIDTHS.get(code, {bits}):
            raise _no_width(text, code)
        return DType.of(*numbers)
    import numpy as np

    from .devices import type_names  # for the message only

    try:
        theirs = np.dtype(text)
    except (TypeError, ValueError, SyntaxError) as error:
        if text.partition(":")[0] in type_names():
            raise TypeError(
                f"{text!r} is not the name of a dtype; that is a device, and this argument is the "
                "dtype"
            ) from error
        usual = [*NUMPY_OWN, *_SMALL_FLOATS, "bfloat16", "int4", "uint4", "float4_e2m1fn"]
        raise TypeError(
            f"{text!r} is not the name of a dtype{did_you_mean(text, usual)}: the names"
            " are those of numpy, ml_dtypes and TVM-FFI ('float32', 'bfloat16', 'float8_e4m3fn',"
            " 'int4', 'float32x4')"
        ) from error
    if meant := {"f16": "float16", "c32": "complex32"}.get(text):  # numpy's long doubles
        raise TypeError(f"{text!r} is a number of bytes to numpy; for {text[1:]} bits, {meant!r}")
    return from_numpy(theirs)


def is_name(text: str) -> bool:
    """Whether *text* is the name of a dtype, for messages about other arguments.

    numpy's codes of one letter are not meant there.
    """
    if len(text) < 2:
        return False
    try:
        _from_name(text)
    except (TypeError, ValueError, ExchangeError):
        return False
    return True


def _no_width(text: str, code: int) -> TypeError:
    """The error for a known word with bits that it does not come in: "float8", "int0"."""
    word = next(word for word, its_code in _WORDS.items() if its_code == code)
    number = text[len(word) :].partition("x")[0]
    near = [repr(name) for name in _SMALL_FLOATS if name.startswith(f"{word}{number}_")]
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    widths = _widths_text(code)
    return TypeError(f"{text!r} is not the name of a dtype: {word} comes in {widths} bits{meant}")


def _widths_text(code: int) -> str:
    return " or ".join(str(width) for width in sorted(_WIDTHS[code]))


def _parse(text: str) -> tuple[int, int, int] | None:
    """``(code, bits, lanes)`` of a name in our own spelling, else None."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    one = _parse_lane(text)
    if one is not None:
        return (*one, 1)
    several = re.fullmatch(_LANES, text)
    one = _parse_lane(several[1]) if several else None
    if several is None or one is None:
        return None
    lanes = int(several[3])
    # Scalable vectors: libtvm_ffi stores the factor negated.
    if not 0 < lanes <= (_SCALABLE if several[2] else 0xFFFF):
        raise ValueError(
            f"{text!r} does not fit DLDataType: lanes are 1 to 65535 (dlpack.h 1.3), and factors "
            "of scalable lanes, as in 'float32xvscalex4', 1 to 32768 (TVM-FFI)"
        )
    return (*one, 0x10000 - lanes if several[2] else lanes)


def _parse_lane(text: str) -> tuple[int, int] | None:
    if text in _SMALL_FLOATS:
        return _SMALL_FLOATS[text]
    if text in ("bool", "handle"):
        return _SPECIAL[text][:2]
    match = re.fullmatch(_ONE_LANE, text)
    if match is None:
        return None
    code = int(match[2]) if match[2] else _WORDS.get(match[1])
    return None if code is None else (code, int(match[3]))


def _from_torch(text: str) -> DType:
    """The DType of a ``torch.dtype``, from its ``str``."""
    name = text.removeprefix("torch.")
    numbers = _parse(name)
    if numbers is None or numbers[0] in _KNOWN_LATER:  # bits8, quint4x2 and the like
        raise ExchangeError(
            f"{text} has no DLPack type (torch refuses to export it too): exchange its raw"
            " values, tensor.view(torch.uint8) or tensor.int_repr() for a quantized one"
        )
    return DType.of(*numbers)


def _from_type(cls: type) -> DType:
    """The DType of a Python type, or of a scalar type of numpy, ml_dtypes or jax."""
    if cls in _PYTHON_TYPES:
        return _from_name(_PYTHON_TYPES[cls])
    import numpy as np

    if cls in (object, str, bytes) or cls in np.sctypeDict.values():
        return from_numpy(np.dtype(cls))
    if cls.__module__ == "numpy" and issubclass(cls, np.generic):
        raise TypeError(f"{cls.__name__} is not a dtype: it stands for several; name one of them")
    # jax's scalar types are not numpy types, but carry the dtype.
    theirs = np.dtype(cls) if issubclass(cls, np.generic) else getattr(cls, "dtype", None)
    if not isinstance(theirs, np.dtype):
        raise _no_dtype(cls)
    return from_numpy(theirs)


def fill_numpy_dtypes() -> dict[Any, DType]:
    """`NUMPY_DTYPES`, with numpy's own dtypes in it."""
    import numpy as np

    for name in NUMPY_OWN:
        NUMPY_DTYPES[np.dtype(name)] = _from_name(name)
    return NUMPY_DTYPES


class ForeignByteOrder(ExchangeError):
    """The elements are not in the byte order of this machine. Nothing else need hinder."""

    # For users it is the class that they know.
    __module__ = ExchangeError.__module__
    __qualname__ = ExchangeError.__qualname__


ForeignByteOrder.__name__ = ExchangeError.__name__


def from_numpy(np_dtype: np.dtype[Any]) -> DType:
    """The `DType` of a ``numpy.dtype``, ml_dtypes' included.

    ExchangeError with the way out for what DLPack cannot carry: foreign byte
    order, objects, strings, dates, structures, extended precision.
    """
    ours = NUMPY_DTYPES.get(np_dtype)
    if ours is None:
        ours = fill_numpy_dtypes().get(np_dtype)
    if ours is None and np_dtype.type.__module__ == "ml_dtypes" and np_dtype.isnative:
        numbers = _parse(np_dtype.name)
        if numbers is not None and numbers[0] not in _KNOWN_LATER:
            ours = NUMPY_DTYPES[np_dtype] = DType.of(*numbers)
    if ours is None:
        # (A type with fields has other obstacles, too.)
        kind = ExchangeError if np_dtype.isnative or np_dtype.names else ForeignByteOrder
        raise kind(f"numpy dtype {np_dtype!r} cannot be exchanged: {_obstacle(np_dtype)}")
    return ours


def limits_of(np_dtype: np.dtype[Any]) -> Any:
    """Return what numpy or ml_dtypes says of the range of a type of floats.

    Parameters
    ----------
    np_dtype : numpy.dtype
        A type of floats.

    Returns
    -------
    numpy.finfo or ml_dtypes.finfo
        It has ``min``, ``max``, ``eps`` and more.

    Examples
    --------
    >>> from dlbridge.extending import limits_of
    >>> float(limits_of(np.dtype("float16")).max)
    65504.0
    """
    if np_dtype.type.__module__ == "numpy":  # by its letter, float8_e5m2 would be numpy's, too
        import numpy as np

        return np.finfo(np_dtype)
    import ml_dtypes

    return ml_dtypes.finfo(np_dtype)


def _obstacle(np_dtype: np.dtype[Any]) -> str:
    """The reason why DLPack cannot describe *np_dtype*, and what to do instead.

    The object may be of any class that becomes numpy's array: numpy's methods are named on that.
    """
    if np_dtype.fields is not None or np_dtype.subdtype is not None:
        return "it is structured; exchange each field (numpy.asarray(x)['name']) by itself"
    if not np_dtype.isnative:
        native = np_dtype.str[1:] if np_dtype.kind in "SUMm" else np_dtype.name
        return (
            "its byte order (endianness) is not this machine's, and DLPack has native byte order"
            f" only; pass numpy.asarray(x).astype({native!r})"
        )
    time = "pass numpy.asarray(x).view('int64'), and keep the unit beside it"
    long_double = "its format differs between machines (long double); pass numpy.asarray(x).astype"
    kinds = {
        "O": "it holds Python objects, which are addresses; convert it to numbers",
        "S": "it holds strings; pass numpy.ascontiguousarray(x).view('uint8')",
        "U": "it holds strings; pass numpy.ascontiguousarray(x).view('uint32')",
        "T": "it holds strings; encode them to numbers",
        "M": f"it holds dates; {time}",
        "m": f"it holds time spans; {time}",
        "f": f"{long_double}('float64')",
        "c": f"{long_double}('complex128')",
        "V": "it is raw memory; pass numpy.ascontiguousarray(x).view('uint8')",
    }
    return kinds.get(
        np_dtype.kind, "DLPack has no such type; pass numpy.ascontiguousarray(x).view('uint8')"
    )


def _find_numpy(ours: DType) -> np.dtype[Any]:
    """The numpy dtype of *ours*, looked up once and kept in it."""
    import numpy as np

    if ours.name in NUMPY_OWN:
        theirs = np.dtype(ours.name)
    else:
        way_out = (
            "use the raw bytes: t.view('uint8'), or t.tobytes(), of a tensor t gives them, and "
            f"dlbridge.asarray(raw).view('{ours}') takes them"
        )
        if ours.lanes != 1:
            raise ExchangeError(f"numpy has no vector types, so none for {ours}: {way_out}")
        try:
            import ml_dtypes
        except ImportError as error:
            raise ExchangeError(
                f"numpy has no {ours} by itself: pip install ml_dtypes, or {way_out}"
            ) from error
        scalar = getattr(ml_dtypes, ours.name, None)
        if scalar is None:
            raise ExchangeError(
                f"neither numpy nor ml_dtypes {ml_dtypes.__version__} has {ours}: {way_out}"
            )
        theirs = np.dtype(scalar)
    object.__setattr__(ours, "_numpy", theirs)
    return theirs
