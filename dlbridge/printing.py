"""The elements of a tensor as text, as numpy prints them; of a large one only some are copied."""

from __future__ import annotations

from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import DType, to_device, unpack_bits
from dlbridge.errors import ExchangeError
from dlbridge.extending import CPU, html_table, unless_handler

if TYPE_CHECKING:
    from dlbridge import Tensor

Array = np.ndarray[Any, Any]


def text_of(tensor: Tensor) -> str:
    """What ``print(tensor)`` shows: the elements and their type, or why they cannot be had.

    It does not fail: somebody prints a tensor to learn what is wrong.
    """
    try:
        elements = _elements(tensor)
        described = f"{tensor.dtype} {tensor.shape} on {tensor.device}"
        return f"{elements}\n{described}" if "\n" in elements else f"{elements}  {described}"
    except unless_handler(Exception) as exc:
        return f"{tensor!r}, whose elements cannot be shown: {type(exc).__name__}: {exc}"


def html_of(tensor: Tensor) -> str:
    """What a notebook shows: one or two dimensions as a table of the first and last elements.

    It does not fail, as `text_of`.
    """
    packed = tensor.dtype.is_subbyte and not tensor.is_padded
    if tensor.ndim not in (1, 2) or not tensor.size or tensor.dtype.lanes > 1 or packed:
        return f"<pre>{escape(text_of(tensor))}</pre>"
    try:
        shown = np.atleast_2d(_summary(tensor, _EDGE))
    except unless_handler(Exception):
        return f"<pre>{escape(text_of(tensor))}</pre>"
    downwards, across = [_numbers_of(extent) for extent in (1, *tensor.shape)[-2:]]
    rows = []
    for number, line in zip(downwards, shown, strict=True):
        cells = zip(across, line, strict=True)
        rows.append((number, *(_GAP if _GAP in (number, at) else _cell(x) for at, x in cells)))
    described = f"{tensor.dtype} {tensor.shape} on {tensor.device}"
    return html_table(described, ("", *across), rows)


_EDGE, _GAP = 5, "..."
"""Elements at each end of a dimension that are shown, and what stands for those between."""


def _numbers_of(extent: int) -> list[str]:
    """The numbers of the elements that `_summary` shows of a dimension."""
    if extent <= 2 * _EDGE:
        return [str(number) for number in range(extent)]
    first, last = range(_EDGE), range(extent - _EDGE, extent)
    return [*map(str, first), _GAP, *map(str, last)]


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, complex, np.inexact)) else str(value)


def _elements(tensor: Tensor) -> str:
    options: dict[str, Any] = dict(np.get_printoptions())
    packed = tensor.dtype.is_subbyte and not tensor.is_padded
    if packed and tensor.nbytes > _UNPACKED:
        raise ExchangeError(
            f"{tensor.dtype} elements are packed, and at most {_UNPACKED} bytes of them are "
            "unpacked for that; print a part, t.reshape(-1)[:1000]"
        )
    if packed or tensor.size <= options["threshold"]:
        return str(host_elements(tensor))
    edge = options["edgeitems"]
    # numpy shows the last element also where edgeitems is 0
    return np.array2string(_summary(tensor, max(edge, 1)), threshold=0, edgeitems=edge)


_UNPACKED = 1 << 20


def _summary(tensor: Tensor, edge: int) -> Array:
    """The first and last *edge* elements along each axis, and one more in the middle.

    The one in the middle makes the axis long enough for numpy to leave it out, and shows
    that it did: no element of the tensor stands there.
    """
    parts = [
        [((0, edge), (0, edge)), ((extent - edge, extent), (edge + 1, 2 * edge + 1))]
        if extent > 2 * edge
        else [((0, extent), (0, extent))]
        for extent in tensor.shape
    ]
    shape = [axis[-1][1][1] for axis in parts]
    shown: Array | None = None
    for corner in product(*parts):
        values = host_elements(tensor[tuple([slice(*taken) for taken, _ in corner])])
        if shown is None:
            tail = values.shape[tensor.ndim :]  # the lanes
            shown = np.zeros((*shape, *tail), values.dtype)
        shown[tuple([slice(*place) for _, place in corner])] = values
    assert shown is not None  # product() gives one corner at least
    return shown


def host_elements(tensor: Tensor) -> Array:
    """The elements as an array of numpy; the lanes of vectors as one more dimension."""
    host = to_device(tensor, CPU)
    if not host.is_contiguous():
        host = to_device(host, CPU, copy=True)
    dtype = host.dtype
    if dtype.lanes == 1 and (host.is_padded or not dtype.is_subbyte):
        return host.numpy()
    shape = (*host.shape, dtype.lanes) if dtype.lanes > 1 else host.shape
    lane = DType.of(dtype.code, dtype.bits, 1)
    raw = host.tobytes()
    if dtype.bits < 8 and not host.is_padded:  # also int4x2, which is whole bytes
        codes = unpack_bits(raw, dtype, host.size)
        if dtype.code == 0:  # kDLInt: bring the sign, the highest bit of the code, to its place
            signed = (codes << (8 - dtype.bits)).astype("u1").view("i1") >> (8 - dtype.bits)
            return signed.reshape(shape)
        if dtype.code == 1:
            return codes.reshape(shape)
        return codes.view(lane.numpy).reshape(shape)
    return np.frombuffer(raw, lane.numpy).reshape(shape)
