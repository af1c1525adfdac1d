"""Feeds malformed tensors to dlbridge until the time is up: ``python fuzz_malformed.py SECONDS NOTE``,
with tests/support on the path.

Every struct goes in by every way: as a producer, as a capsule, through another
library's exchange table, through ours, as an argument of the FFI, by tvm_ffi; and
what it says goes in by the interfaces that can say it. It is refused with one of
three errors or accepted, by all ways alike, and its deleter runs exactly once. What
is about to be tried is written to the file NOTE first, for the case that the process
dies of it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import re
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import tvm_ffi
from hypothesis import HealthCheck, given, seed, settings, strategies as st

import dlbridge
import dlbridge.ffi
from dlbridge.abi import ffi, table_of
from dlbridge.conformance.producer import COMPACT
from dlbridge.core.dlpack.foreign_tables import CAPSULE_NAME
from dlbridge.core.plugins import registry
from dlbridge.core.values.dtypes import check_numbers
from dlbridge.core.values.layout import reach
from dlbridge.extending import MAX_NBYTES
from dlbridge.interop.array_interfaces import parse
from tests.support import arrow_structs
from tests.support.raw_producer import Producer, address, deleted_twice, new_capsule
from tests.support.table_calls import wrapped

REFUSALS = (BufferError, TypeError, ValueError)

INT64 = st.one_of(
    st.integers(-6, 6),
    st.sampled_from([-(2**63), -(2**62), 2**31, 2**32, 2**61, 2**62, 2**63 - 1]),
    st.integers(-(2**63), 2**63 - 1),
)
INT32 = st.one_of(st.integers(-2, 22), st.integers(-(2**31), 2**31 - 1))
SHAPE = st.lists(st.integers(0, 4), max_size=5).map(tuple)

# What may be wrong with a field. An ndim beyond the shape that is there is left
# out up to numpy's limit: nobody could tell.
WRONG = {
    "shape": st.one_of(
        st.lists(INT64, max_size=6), st.lists(st.integers(0, 2), min_size=60, max_size=70)
    ).map(tuple),
    "strides": st.one_of(st.none(), st.lists(INT64, min_size=70, max_size=70).map(tuple)),
    "dtype": st.tuples(
        st.one_of(st.integers(0, 18), st.integers(0, 255)),
        st.one_of(st.sampled_from([0, 1, 4, 6, 8, 16, 32, 64, 128]), st.integers(0, 255)),
        st.one_of(st.integers(0, 4), st.integers(0, 65535)),
    ),
    "device": st.tuples(INT32, INT32),
    "says": st.one_of(
        st.tuples(INT32, INT32),
        st.tuples(st.just(1), INT64),
        st.sampled_from([None, (), (1,), (1, 0, 1), (1, None), "cpu", 1]),
    ),
    "data": st.sampled_from([0, 1, 7, 2**63, 2**64 - 1, 2**64 - 4, 2**64 - 4096]),
    "byte_offset": st.one_of(
        st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1])
    ),
    "version": st.one_of(
        st.none(), st.tuples(st.integers(0, 3), st.integers(0, 9)), st.just((2**32 - 1, 2**32 - 1))
    ),
    "flags": st.one_of(st.integers(0, 15), st.integers(0, 2**64 - 1)),
    "deleter": st.just(False),
    "ndim": st.sampled_from([-1, -(2**31), 65, 66, 2**31 - 1, 0]),
    "null_shape": st.just(True),
}
TENSORS = st.lists(st.sampled_from(sorted(WRONG)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({"shape": SHAPE, **{name: WRONG[name] for name in names}})
)


class Tabled:
    """An object of another library, whose type has an exchange table."""

    raw: Producer

    def __dlpack__(self, **keywords):
        raise BufferError("by the table only")

    def __dlpack_device__(self):
        return (1, 0)


@ffi.callback("int(intptr_t, DLManagedTensorVersioned **)", error=-1)
def _from_py_object(_identity, out):
    out[0] = ffi.cast("DLManagedTensorVersioned *", Tabled.raw.build())
    return 0


@ffi.callback("int(DLManagedTensorVersioned *, void **)", error=-1)
def _to_py_object(_managed, _out):
    return -1


@ffi.callback("int(DLDeviceType, int32_t, void **)", error=-1)
def _current_work_stream(_type, _index, out):
    out[0] = ffi.NULL
    return 0


_table = ffi.new("DLPackExchangeAPI *")
_table.header.version.major, _table.header.version.minor = 1, 3
for _name, _function in (
    ("managed_tensor_from_py_object_no_sync", _from_py_object),
    ("managed_tensor_to_py_object_no_sync", _to_py_object),
    ("current_work_stream", _current_work_stream),
):
    setattr(_table, _name, ffi.cast(ffi.typeof(getattr(_table, _name)), _function))
Tabled.__dlpack_c_exchange_api__ = new_capsule(address(_table), CAPSULE_NAME)


class Unread:
    """A producer whose structs nobody else reads, as those of tvm_ffi, jax and torch."""

    def __init__(self, raw):
        self.raw = raw

    def __dlpack__(self, **keywords):
        return self.raw.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.raw.says


Unread.__module__ = "tvm_ffi.of_a_test"

WAYS = {
    "capsule": lambda raw: dlbridge.from_dlpack(raw.capsule()),
    "producer": dlbridge.from_dlpack,
    "unread": lambda raw: dlbridge.from_dlpack(Unread(raw)),
    "asarray": dlbridge.asarray,
    "no copy": lambda raw: dlbridge.from_dlpack(raw, copy=False),
    "to the cpu": lambda raw: dlbridge.from_dlpack(raw, device="cpu", copy=False),
    "their table": lambda raw: dlbridge.from_dlpack(Tabled()),
    "our table": lambda raw: wrapped(table_of(dlbridge.Tensor), raw.build()),
    "ffi": dlbridge.ffi.convert,
    "ffi by table": lambda raw: dlbridge.ffi.convert(Tabled()),
    "tvm_ffi": lambda raw: dlbridge.from_dlpack(by_tvm_ffi(raw)),
}
ONLY_SAFER = {"no copy", "to the cpu", "ffi", "ffi by table", "tvm_ffi", "our table"}
"""Ways that may refuse more: libtvm_ffi has rules of its own, and copy=False forbids copies."""


class RefusedThere(BufferError):
    """tvm_ffi has not taken the struct."""


def by_tvm_ffi(raw):
    try:
        return tvm_ffi.from_dlpack(raw)
    except Exception as exc:
        raise RefusedThere("data") from exc


class Buffer(ctypes.Structure):
    """Py_buffer of CPython's pybuffer.h."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_view_of = ctypes.pythonapi.PyMemoryView_FromBuffer
_view_of.restype = ctypes.py_object


def by_buffer(said):
    shape, strides = (
        (ctypes.c_int64 * len(said.shape))(*part) for part in (said.shape, said.steps)
    )
    form = np.lib.format.descr_to_dtype(said.typestr).char.encode()
    fields = Buffer(
        buf=said.address,
        len=prod(said.shape) * said.itemsize,
        itemsize=said.itemsize,
        ndim=len(said.shape),
        format=form,
        shape=ctypes.addressof(shape),
        strides=ctypes.addressof(strides),
    )
    return dlbridge.asarray(_view_of(ctypes.byref(fields)))


class Interface:
    def __init__(self, said):
        self.__array_interface__ = said.interface()


class Said:
    """What a struct says, where the interfaces can say it, too; strides in bytes."""

    def __init__(self, raw):
        dtype = check_numbers(*raw.dtype)
        theirs = dtype.numpy
        self.typestr, self.itemsize = theirs.str, theirs.itemsize
        self.shape, self.address = raw.shape, raw.data + raw.byte_offset
        self.compact = raw.strides is None or raw.strides == COMPACT
        steps = self.compact_steps() if self.compact else raw.strides[: len(raw.shape)]
        self.steps = tuple(step * self.itemsize for step in steps)

    def compact_steps(self):
        return [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]

    def interface(self):
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.address, False),
            "strides": self.steps,
        }


INTERFACES = {
    "array interface": lambda said: dlbridge.asarray(Interface(said)),
    "cuda array interface": lambda said: parse(said.interface()),
    "buffer": by_buffer,
    "arrow": lambda said: dlbridge.asarray(
        arrow_structs.Node(
            length=said.shape[0],
            buffers=[None, said.address],
            schema={"format": ARROW[said.typestr[1:]]},
        )
    ),
}
ARROW = {"f4": b"f", "f8": b"g", "i4": b"i", "i8": b"l", "u1": b"C", "i2": b"s", "u8": b"L"}


def interfaces_for(raw):
    """Names of the interfaces that can say what *raw* does, and what they get."""
    if raw.version is not None and raw.version[0] != 1:
        return {}, None
    if raw.device != (1, 0) or raw.null_shape or raw.ndim not in (None, len(raw.shape)):
        return {}, None
    if prod(raw.shape) == 0 or raw.byte_offset >= MAX_NBYTES or raw.flags & 4:
        return {}, None
    if not raw.data and raw.byte_offset:  # an interface has the sum only
        return {}, None
    try:
        said = Said(raw)
    except BufferError:
        return {}, None
    if len(raw.shape) > 64 or said.typestr[1] not in "fiu":
        return {}, None
    names = {"cuda array interface"}
    if all(-(2**63) <= step < 2**63 for step in said.steps):  # of C
        names.add("array interface")
        whole = said.address, prod(said.shape) * said.itemsize
        if max(whole) < 2**63 and min(said.shape, default=1) > 0 and raw.data:
            names.add("buffer")
    fits_pointer = said.address < 2**64  # else Arrow's struct would hold another address
    if len(said.shape) == 1 and said.compact and said.typestr[1:] in ARROW and fits_pointer:
        names.add("arrow")
    return {name: INTERFACES[name] for name in names}, said


def inside(tensor, raw):
    """Whether all that *tensor* reaches is memory that *raw* really has."""
    low, high = reach(tensor.shape, tensor.strides)
    size = max(tensor.itemsize, 1)
    first = tensor.data_ptr() - address(raw.memory)
    return (
        tensor.device.is_host
        and first + low * size >= 0
        and first + high * size <= ffi.sizeof(raw.memory) - size
        and tensor.size < 10_000
    )


def use(tensor, raw):
    """What a script would do next; elements are only read where there are some."""
    assert repr(tensor)
    assert len(tensor.shape) == len(tensor.strides) == tensor.ndim
    assert tensor.nbytes >= 0
    tensor.is_contiguous()
    actions = [
        lambda: tensor[...],
        lambda: tensor[None, ..., None] if tensor.ndim < 60 else tensor,
        lambda: tensor[1:, ::-1] if tensor.ndim > 1 else tensor,
        tensor.transpose,
        lambda: tensor.reshape(-1),
        tensor.numpy,
        lambda: tensor.view("uint32"),
        lambda: dlbridge.from_dlpack(tensor.__dlpack__(max_version=(1, 3), copy=False)),
        lambda: tensor.__dlpack__(copy=False),
        lambda: dlbridge.explain(tensor, "ext_dev:0"),
    ]
    if inside(tensor, raw):
        actions += [
            tensor.tolist,
            lambda: dlbridge.to_device(tensor, "ext_dev:0").tolist(),
            lambda: dlbridge.from_dlpack(tensor, copy=True).tolist(),
        ]
    for act in actions:
        with suppress(*REFUSALS, dlbridge.BackendUnavailable):
            act()


NAMED = re.compile(
    r"ndim|shape|extent|stride|dtype|bits|lane|code|device|byte_offset|data|DLPack|padded|ids|type"
    r"|length|offset|dimension|address|copy|backend|memory"
)


def take_one(way, take, given, raw, outcomes):
    """The class and text of the error of *take*, or None if it accepts *given*, which is used."""
    before = raw.exported
    refusal = None
    try:
        tensor = take(given)
    except REFUSALS as exc:
        refusal = type(exc), str(exc)
    else:
        outcomes["accepted"] += 1
        if isinstance(tensor, dlbridge.Tensor):
            with suppress(*REFUSALS):
                use(tensor, raw)
        del tensor
    outcomes[way] += raw.exported - before
    if refusal is None:
        return None
    outcomes["refused"] += 1
    # (A callback of cffi cannot hand an exception on, so our table has no words.)
    assert way == "our table" or NAMED.search(refusal[1]), f"{way} names no field: {refusal}"
    return refusal


def one(description, outcomes):
    """One tensor by every way."""
    if prod(max(abs(extent), 1) for extent in description["shape"]) >= 2**63:
        description = {"strides": None, **description}  # no compact ones could be written down
    raw = Producer(**description)
    Tabled.raw = raw
    found = {}
    for way, take in WAYS.items():
        if (raw.version is None and "table" in way) or (raw.version and way == "tvm_ffi"):
            continue  # tables know one struct only; tvm_ffi tells the version, and then asks again
        if way == "tvm_ffi" and (raw.ndim is not None or raw.null_shape):
            continue  # it reads the shape itself
        found[way] = take_one(way, take, raw, raw, outcomes)
    ways, said = interfaces_for(raw)
    for way, take in ways.items():
        found[way] = take_one(way, take, said, raw, outcomes)
        outcomes[way] += 1
    agree(found, raw)
    if raw.alive:
        gc.collect()
    assert raw.alive == 0, f"{raw.alive} tensors of {description} leaked"
    assert not deleted_twice


def agree(found, raw):
    """All ways give the verdict that the bare capsule gets, unless there is a reason."""
    first = found.pop("capsule")
    assert first is None or first[0] is dlbridge.ExchangeError, first
    asking = {way: found[way] is None for way in ("producer", "unread", "asarray")}
    assert len(set(asking.values())) == 1, f"{raw.says}: {asking}"
    for way, refusal in found.items():
        if way in {"producer", "unread", "asarray", "no copy", "to the cpu", "ffi", "tvm_ffi"}:
            if raw.says != raw.device:
                continue  # refused for what __dlpack_device__ says
            if way == "to the cpu" and raw.device[0] != 1:
                continue
        else:
            assert refusal is None or issubclass(refusal[0], BufferError), f"{way}: {refusal}"
        if refusal is not None and first is None and way in ONLY_SAFER:
            continue
        assert (refusal is None) == (first is None), f"a capsule: {first}; {way}: {refusal}"


def main(seconds, note):
    faulthandler.enable()
    # Looking for the backend of a device that has none takes most of the time.
    registry._entry_points = cache(registry._entry_points)
    outcomes = Counter()
    end = time.monotonic() + seconds
    running = 0

    def shown(description):
        nonlocal running
        note.write_text(repr(description))
        one(description, outcomes)
        running += 1

    while running < 300 or time.monotonic() < end:  # of fewer some outcomes are rare
        run = settings(
            max_examples=100,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )(given(TENSORS)(shown))
        seed(time.time_ns())(run)()
    live = dlbridge.backend("ext_dev").live_allocations()
    assert live == 0, f"{live} allocations of the device leaked"
    print(running, dict(outcomes))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
