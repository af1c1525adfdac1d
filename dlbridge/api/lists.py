"""Python numbers and nested lists of them as arrays: no value is changed in silence."""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any

from dlbridge import DLDataTypeCode, DType
from dlbridge.extending import is_array_of, library_of, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    Array = np.ndarray[Any, Any]

_WHOLE = {DLDataTypeCode.kDLInt, DLDataTypeCode.kDLUInt, DLDataTypeCode.kDLBool}
_EXACT = 2.0**53
"""The integers below it are exact in a float64."""


def array_of(x: Any, wanted: DType | None, read: Callable[[Any], Array]) -> Array:
    """The numbers in *x* as elements of *wanted*; None: of the type that numpy gives them.

    *read* gives the values of an array of another library in *x*, or refuses it.
    Integers and bools keep their exact value. Floats are rounded, but a finite
    number stays finite and in the range of the type, and nan and infinities stay
    what they are. ValueError names the first value for which that is impossible,
    TypeError an element that is not a number.
    """
    import numpy as np

    x, plain = _read_rectangle(x, read)
    if wanted is None:
        kind = plain.dtype.kind
        if kind not in "biufc":
            _require_numbers(x, plain, None)
        wide = kind in "fc" and plain.itemsize >= 8 and (np.abs(plain) >= _EXACT).any()
        if wide or (kind in "fV" and plain.itemsize == 1):
            # numpy makes float64 of integers that no integer type holds together, and a float
            # of 8 bits of small integers beside such a float.
            whole = np.asarray(x, object)
            both = zip(whole.flat, plain.flat, strict=True)
            lost = [_is_other_integer(value, made) for value, made in both]
            differs = np.array(lost).reshape(plain.shape)
            _refuse(whole, differs, plain.dtype.name, ", their common type,")
        return plain
    _require_numbers(x, plain, wanted)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is refused below
        try:
            made = np.asarray(x, wanted.numpy)
        except (OverflowError, TypeError, ValueError) as exc:
            raise ValueError(
                f"{x!r:.80} cannot become {wanted}: {exc}; {_way_out('float64')}"
            ) from exc
        changed = _changed_whole if wanted.code in _WHOLE else _changed_float
        _refuse(plain, changed(plain, made), str(wanted))
    return made


def _read_rectangle(x: Any, read: Callable[[Any], Array]) -> tuple[Any, Array]:
    """*x* with all arrays as numpy's, and the array that numpy makes of it."""
    import numpy as np

    try:
        x = _read_arrays(x, read)
        return x, np.asarray(x)
    except RecursionError as exc:
        raise ValueError(
            "the list contains itself, or lists in lists beyond every limit; a tensor has at most "
            "64 dimensions"
        ) from exc
    except ValueError as exc:
        if "maximum number of dimension" in str(exc):
            raise ValueError(
                "the lists in the list are deeper than the 64 dimensions that a tensor has at "
                "most; make one flat list of the numbers, and fewer dimensions of that: "
                f"dlbridge.asarray(flat).reshape(shape) ({exc})"
            ) from exc
        if "inhomogeneous" not in str(exc):
            raise
        shapes = sorted({part.shape for part in x if isinstance(part, np.ndarray)})
        if shapes:
            all_arrays = all(isinstance(part, np.ndarray) for part in x)
            what = "the arrays in the list have" if all_arrays else "the list holds arrays of"
            others = "" if all_arrays else ", and other things"
            raise ValueError(
                f"{what} the shapes {', '.join(map(str, shapes[:4]))}{others}, and a list of "
                "arrays is stacked: dlbridge.tree_to_device(x, device) moves each by itself"
            ) from exc
        raise ValueError(
            "the lists in the list differ in length, or in depth, and a tensor is a rectangle; "
            f"pad them, or make one tensor of each ({exc})"
        ) from exc


def _read_arrays(x: Any, read: Callable[[Any], Array]) -> Any:
    """*x* with the arrays of other libraries in it as numpy's.

    By itself numpy would drop masks and null values, compute lazy arrays, and miss bfloat16.
    """
    if not isinstance(x, (list, tuple)):
        return x
    kinds = set(map(type, x)) - _NUMBERS  # as fast as numpy reads a list of numbers
    ways = {kind: way for kind in kinds if (way := _way_to_read(kind, read)) is not None}
    if not ways:
        return x
    return [ways[type(part)](part) if type(part) in ways else part for part in x]


def _way_to_read(kind: type, read: Callable[[Any], Array]) -> Callable[[Any], Any] | None:
    """The function that reads a *kind* of things in a list; None: numpy does."""
    if issubclass(kind, (list, tuple)):
        return lambda part: _read_arrays(part, read)
    library = library_of(kind)
    if library is None:
        return read if hasattr(kind, "__dlpack__") else None
    known = library.expose is not None or is_array_of(library, kind)
    if library.name != "numpy" and (known or hasattr(kind, "__dlpack__")):
        return read
    refuse = library.refuse
    return None if refuse is None else lambda part: refuse(part) or part


_NUMBERS = {bool, int, float, complex}


def _is_other_integer(value: Any, made: Any) -> bool:
    """Whether *value* is an integer, Python's or an array's, and *made* of it is not the same."""
    try:
        whole = operator.index(value)
    except TypeError:  # no integer
        return False
    try:
        return whole != int(made.real)
    except (OverflowError, ValueError):  # it has become an infinity or nan
        return True


def _way_out(name: str) -> str:
    return f"change it before, in the way you mean, such as numpy.asarray(x).astype({name!r})"


def _require_numbers(x: Any, plain: Array, wanted: DType | None) -> None:
    """TypeError for the first thing in *x* that is no number.

    Without *wanted* also ValueError for an integer that no integer type has.
    """
    import numpy as np

    if plain.dtype.kind in "biufc" or plain.dtype.type.__module__ == "ml_dtypes":
        return
    goal = "an element of a tensor" if wanted is None else str(wanted)
    values = np.asarray(x, object)  # numpy makes texts of the numbers beside a text
    for index, value in np.ndenumerate(values):
        if not _is_number(value):
            way_out = _WAYS_OUT.get(plain.dtype.kind, "make a number of it before")
            raise TypeError(
                f"{value!r:.80} {_at(index)}is not a number, and cannot become {goal}; {way_out}"
            )
        if wanted is None and isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            bits = value.bit_length()
            shown = str(value) if bits < 256 else f"of {bits} bits"
            raise ValueError(
                f"the integer {shown} {_at(index)}is beyond every integer type (-2^63 to 2^64 - 1);"
                " make it smaller before, or have it rounded: dlbridge.asarray(x, dtype='float64')"
            )
    if wanted is None:
        raise TypeError(
            "the list holds arrays of Python objects, whose type says nothing about numbers; say "
            "what they shall become: dlbridge.asarray(x, dtype='float64'), for example"
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, (int, float, complex)) or type(value).__module__ == "ml_dtypes":
        return True
    return type(value).__module__ == "numpy" and value.dtype.kind in "biufc"


_WAYS_OUT = dict.fromkeys("mM", "numpy.asarray(x).view('int64') makes numbers of dates and times")


def _at(index: tuple[int, ...]) -> str:
    return f"at {list(index)} " if index else ""


def _refuse(plain: Array, changed: Array, name: str, what: str = "") -> None:
    """Raise ValueError for the first value where *changed*, if any; *what* the dtype *name* is."""
    import numpy as np

    if not changed.any():
        return
    index = tuple(map(int, np.argwhere(changed)[0]))
    value = f"{plain[index]}"
    raise ValueError(
        f"the value {value:.80} {_at(index)}cannot become {name}{what} without being changed; "
        f"{_way_out(name)}"
    )


def _changed_whole(plain: Array, made: Array) -> Array:
    import numpy as np

    if plain.dtype.kind == "O":  # scalars of several libraries: as numbers of Python
        item = np.frompyfunc(lambda v: v.item() if isinstance(v, np.generic) else v, 1, 1)
        plain = np.asarray(item(plain), object)  # of one number numpy gives no array
    changed: Array = np.asarray(made.astype(plain.dtype) != plain)
    if plain.dtype.kind in "iuV":  # V: integers of ml_dtypes, too
        # The same bits are another number where only one of the types has a sign.
        changed |= (made < 0) != (plain < 0)
    return changed


def _changed_float(plain: Array, made: Array) -> Array:
    """Where a value has changed by more than rounding."""
    import numpy as np

    # The real part and the imaginary, as a last dimension.
    before, after = (side.astype("c16")[..., None].view("f8") for side in (plain, made))
    information = limits_of(made.dtype)
    # What rounds to the largest number of the type is half a step beyond it at most.
    limit = float(information.max) * (1 + float(information.eps) / 4)
    finite = np.isfinite(before)
    changed = np.isnan(before) != np.isnan(after)
    changed |= finite & ~(np.isfinite(after) & (np.abs(before) <= limit))
    changed |= np.isinf(before) & (before != after)
    if made.dtype.kind not in "cW":  # W: complex32 of ml_dtypes
        changed[..., 1] = before[..., 1] != 0
    either: Array = changed.any(-1)
    return either
