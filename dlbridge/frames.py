"""Frames of PyAV: the planes of a picture, and samples of sound, as tensors on their own memory.

`LIBRARY` is found by the entry point ``av`` of ``dlbridge.libraries``: with it `asarray` and
`to_device` take frames of one plane.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.extending import memory_of, public_in, tensor_on, with_article
from dlbridge.libraries import Library

if TYPE_CHECKING:
    from dlbridge import Tensor

_SAMPLES = {
    "u8": "uint8", "s16": "int16", "s32": "int32", "s64": "int64",
    "flt": "float32", "dbl": "float64",
}  # fmt: skip
"""PyAV's names of types of samples; those of planes have a p behind them."""

_SWAPPED = ("nv21", "nv42")
"""The formats whose second plane begins with v."""

_PACKED_NAME = re.compile(r"(f?(8|\d\d+))?(le|be)?$")
"""What follows the letters in the name of a packed format: ``rgb24``, ``ya16le``, ``rgbaf32be``."""


@public_in("dlbridge")
def planes(frame: Any, /) -> dict[str, Tensor]:
    """Return the planes of a frame of PyAV by their names, each a Tensor on the frame's memory.

    Parameters
    ----------
    frame : av.VideoFrame or av.AudioFrame
        In host memory. It is kept as long as a tensor of it is used.

    Returns
    -------
    dict of str to Tensor
        Of a picture: ``y``, ``u`` and ``v`` of ``yuv420p``; ``y`` and ``uv`` of ``nv12``; ``g``,
        ``b`` and ``r`` of ``gbrp``; and the one plane of a packed format by its letters, ``rgb``
        or ``bgra``. The shape is (height, width), with the channels behind where a plane has
        several. Rows are as far apart as in the frame.
        Of sound: each channel by its name (``FL``), of shape (samples,); or ``samples``, of shape
        (samples, channels), where they take turns.

    Raises
    ------
    TypeError
        If *frame* is no frame of PyAV.
    ExchangeError
        If a picture's format has pixels that are no whole elements (``rgb565``, ``pal8``,
        ``monow``), or it is in the memory of a decoder's hardware. It is also a BufferError.

    Notes
    -----
    Nothing is copied but elements of the other byte order (``gray16be``). A decoder may still read
    a frame that it has given: call ``frame.make_writable()`` before you write to it.

    Examples
    --------
    >>> def luminance(frame):  # av.VideoFrame
    ...     return bridge.planes(frame)["y"]
    """
    kind = _kind_of(frame)
    if not kind:
        raise TypeError(
            f"planes() takes an av.VideoFrame or an av.AudioFrame, and was given "
            f"{with_article(type(frame).__qualname__)}; dlbridge.asarray takes arrays and buffers"
        )
    return _of_picture(frame) if kind == "VideoFrame" else _of_sound(frame)


def _kind_of(x: Any) -> str:
    """The class of PyAV's frames that *x* is of; empty if it is no frame."""
    av = sys.modules.get("av")
    for name in ("VideoFrame", "AudioFrame"):
        if av is not None and isinstance(x, getattr(av, name, ())):
            return name
    return ""


# Pictures ---------------------------------------------------------------------------------


def _of_picture(frame: Any) -> dict[str, Tensor]:
    form = frame.format
    found = {}
    for number, plane in enumerate(frame.planes):
        dtype, channels = _element(form, number)
        shape = plane.height, plane.width, *([channels] if channels > 1 else [])
        if (
            not form.is_planar
            and len({part.width for part in form.components}) > 1
            and plane.width % 2
        ):
            raise _refused(frame, "has an odd width, so that its last pixel lacks one of u and v")
        if plane.line_size < 0:
            raise _refused(frame, "has its rows from the last to the first")
        steps = plane.line_size, channels * dtype.itemsize, dtype.itemsize
        found[_name(form, number)] = _on(frame, plane, dtype, shape, steps[: len(shape)])
    if not found:
        raise _refused(frame, "has no memory yet")
    return found


def _element(form: Any, number: int) -> tuple[np.dtype[Any], int]:
    """The type of the elements of a plane, and how many of them a pixel has."""
    parts = [part for part in form.components if part.plane == number]
    bits = {part.bits for part in parts}
    most = max(bits, default=0)
    itemsize = next((size for size in (1, 2, 4) if most <= 8 * size), 0)
    if not parts or form.has_palette or not itemsize or (itemsize == 1 and bits != {8}):
        raise _refused_format(form)
    channels = len(parts)
    if not form.is_planar:
        channels, rest = divmod(form.padded_bits_per_pixel, 8 * itemsize)
        # Where two pixels have one u and one v, each pixel has one of them.
        needed = len(parts) if parts[-1].width == parts[0].width else 2
        if rest or channels < needed:
            raise _refused_format(form)
    is_float = re.search(r"f(16|32)(le|be)?$", form.name) is not None
    order = ">" if form.is_big_endian else "<"
    return np.dtype(f"{order}{'f' if is_float else 'u'}{itemsize}"), channels


def _name(form: Any, number: int) -> str:
    if not form.is_planar:
        short: str = _PACKED_NAME.sub("", form.name)
        return short if len(short) > 1 and set(short) <= set("rgbayuvx0") else str(form.name)
    letters = "rgba" if form.is_rgb else "yuva"
    name = "".join(
        "a" if part.is_alpha else letters[part.index]
        for part in form.components
        if part.plane == number
    )
    return name[::-1] if form.name in _SWAPPED and number else name


def _refused_format(form: Any) -> ExchangeError:
    return ExchangeError(
        f"the pixels of a frame of the format {form.name!r} are no elements of memory of the host: "
        "pass frame.reformat(format='rgb24'), which converts them; of a frame on a GPU pass each "
        "of frame.planes to dlbridge.from_dlpack"
    )


def _refused(frame: Any, why: str) -> ExchangeError:
    return ExchangeError(
        f"a frame of the format {frame.format.name!r} {why}; pass frame.to_ndarray(), which "
        "copies it, or a frame that was reformatted to another format"
    )


# Sound ------------------------------------------------------------------------------------


def _of_sound(frame: Any) -> dict[str, Tensor]:
    names = [channel.name for channel in frame.layout.channels]
    dtype = np.dtype(_SAMPLES[frame.format.packed.name])
    if not frame.format.is_planar:
        shape = frame.samples, len(names)
        return {"samples": _on(frame, frame.planes[0], dtype, shape, None)}
    if len(set(names)) < len(names):  # of a layout that says their number only
        names = [str(number) for number in range(len(names))]
    planes = frame.planes
    if len(planes) != len(names) or not frame.samples:
        counts = f"{len(names)} channels, {len(planes)} planes and {frame.samples} samples"
        raise ExchangeError(
            f"a frame of sound with {counts}: pass frame.to_ndarray(), which copies what PyAV has"
        )
    return {
        name: _on(frame, plane, dtype, (frame.samples,), None)
        for name, plane in zip(names, planes, strict=True)
    }


# Both -------------------------------------------------------------------------------------


def _on(
    frame: Any,
    plane: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    steps: tuple[int, ...] | None,
) -> Tensor:
    """The tensor on a plane, whose buffer keeps the frame; *steps* in bytes, None for compact."""
    # numpy checks that the elements are inside the buffer.
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memoryview(plane), 0, steps)
    if not dtype.isnative:
        return bridge.asarray(array)
    strides = tuple(step // dtype.itemsize for step in array.strides)
    origin = f"{type(frame).__module__}.{type(frame).__qualname__}"
    return tensor_on(
        memory_of(array, origin),
        bridge.dtype(dtype),
        shape,
        strides,
        readonly=not array.flags.writeable,
    )


def _expose(x: Any, _copy: bool | None) -> Any:
    """The tensor on a frame of one plane."""
    if not _kind_of(x):
        return x
    found = planes(x)
    if len(found) == 1:
        return found.popitem()[1]
    way = "frame.reformat(format='rgb24')" if _kind_of(x) == "VideoFrame" else "its to_ndarray()"
    raise ExchangeError(
        f"{with_article(type(x).__qualname__)} of the format {x.format.name!r} has the planes "
        f"{', '.join(found)}: dlbridge.planes(frame) gives a tensor of each, without a copy; {way} "
        "makes one array of them"
    )


LIBRARY = Library("av", ("av.VideoFrame", "av.AudioFrame"), expose=_expose)
