"""Feeds malformed tensors to dlbridge until the time is up: ``python fuzz_malformed.py SECONDS NOTE``,
with tests/support on the path.

Every struct goes in by every way: as a producer, as a capsule, through another
library's exchange table, and through ours. It is refused with one of three
errors or accepted, and its deleter runs exactly once. What is about to be tried
is written to the file NOTE first, for the case that the process dies of it.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings, strategies as st
from raw_producer import Producer, address, deleted_twice, new_capsule

import dlbridge
from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.foreign_tables import CAPSULE_NAME, table_of
from dlbridge.core.plugins import registry
from dlbridge.core.values.layout import reach

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
        st.tuples(INT32, INT32), st.sampled_from([None, (), (1,), (1, 0, 1), (1, None), "cpu", 1])
    ),
    "data": st.sampled_from([0, 1, 7, 2**63, 2**64 - 1, 2**64 - 4096]),
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


WAYS = {
    "producer": dlbridge.from_dlpack,
    "asarray": dlbridge.asarray,
    "no copy": lambda raw: dlbridge.from_dlpack(raw, copy=False),
    "to the cpu": lambda raw: dlbridge.from_dlpack(raw, device="cpu", copy=False),
    "capsule": lambda raw: dlbridge.from_dlpack(raw.capsule()),
    "their table": lambda raw: dlbridge.from_dlpack(Tabled()),
    "our table": lambda raw: table_of(dlbridge.Tensor).wrap(raw.build()),
}


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


def one(description, outcomes):
    """One tensor by every way."""
    if prod(max(abs(extent), 1) for extent in description["shape"]) >= 2**63:
        description = {"strides": None, **description}  # no compact ones could be written down
    raw = Producer(**description)
    Tabled.raw = raw
    for way, take in WAYS.items():
        if raw.version is None and "table" in way:
            continue  # tables know one struct only
        before = raw.exported
        try:
            tensor = take(raw)
        except REFUSALS:
            outcomes["refused"] += 1
        else:
            outcomes["accepted"] += 1
            with suppress(*REFUSALS):
                use(tensor, raw)
            del tensor
        outcomes[way] += raw.exported - before
    if raw.alive:
        gc.collect()
    assert raw.alive == 0, f"{raw.alive} tensors of {description} leaked"
    assert not deleted_twice


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

    while not running or time.monotonic() < end:
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
