"""A struct that C has given is deleted, though an exception of a signal handler meets its owner.

One without a deleter is not looked at again.
"""

from __future__ import annotations

import ctypes
import gc

import pytest

import dlbridge
from dlbridge.abi import Received, ffi, raise_when_dropped
from tests.support.raw_producer import Producer


class Struck(Exception):
    pass


def test_the_destructor_is_cut_at_its_entry(reported):
    """One of a thousand signals in calls of a failing callback had left a tensor behind."""
    deleted = []

    @ffi.callback("void(DLManagedTensorVersioned *)")
    def delete(managed):
        deleted.append(managed)

    managed = ffi.new("DLManagedTensorVersioned *")
    managed.deleter = delete
    received = Received()
    given = int(ffi.cast("intptr_t", managed))
    ctypes.c_void_p.from_address(received.address).value = given
    # A tuple drops its last element first: the exception then waits for the next Python code.
    parts = [(received, raise_when_dropped(Struck()))]
    del received
    parts.clear()
    ((error, _),) = reported
    assert type(error) is Struck
    reported.clear()
    del error
    gc.collect()  # the exception's traceback has kept the owner
    assert deleted == [managed]


@pytest.mark.parametrize("version", [(1, 3), None], ids=["current", "legacy"])
@pytest.mark.parametrize("broken", [False, True])
def test_a_struct_without_a_deleter_may_end_before_the_tensor(version, broken):
    """Its producer does not learn of the end; where it was, there is something else by then."""
    fields = {"device": (17, -1)} if broken else {"device": (17, 0)}
    producer = Producer((4,), version=version, deleter=False, **fields)
    capsule = producer.capsule()
    try:
        tensor = dlbridge.from_dlpack(capsule)
    except dlbridge.ExchangeError:
        tensor = None
    assert (tensor is None) == broken
    (at,) = producer.structs
    size = ffi.sizeof("DLManagedTensorVersioned" if version else "DLManagedTensor")
    ctypes.memset(at, 0x41, size)
    del tensor
    gc.collect()
