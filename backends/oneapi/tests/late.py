"""Kernels that take their time, so that a missing wait is seen."""

from ctypes import c_uint32

import dpctl
import dpctl.memory
import numpy as np
from dpctl.program import create_program_from_source

SOURCE = """
/* out[i] = in[i], after a delay that no compiler can take away. */
__kernel void late_copy(__global const uint *in, __global uint *out, uint turns, uint n) {
    uint x = 1;
    for (uint i = 0; i < turns; ++i) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    for (uint i = 0; i < n; ++i) out[i] = x ? in[i] : 0;
}
"""
TURNS = 60_000_000
"""100 ms or more."""

_kernels = {}


class Work:
    """What a kernel that was launched needs until it is done."""

    def __init__(self, event, *memory):
        self.event, self.memory = event, memory


def late_copy(queue, source=None, target=None, turns=TURNS, *, alone=False):
    """Launch the kernel between two dpctl memories of uint32, or memory of its own.

    It stands between barriers if the queue keeps no order, but not *alone*.
    """
    if queue not in _kernels:
        program = create_program_from_source(queue, SOURCE)
        _kernels[queue] = program.get_sycl_kernel("late_copy")
    make = dpctl.memory.MemoryUSMDevice
    source = make(4, queue=queue) if source is None else source
    target = make(4, queue=queue) if target is None else target
    numbers = [c_uint32(turns), c_uint32(min(source.nbytes, target.nbytes) // 4)]
    alone = alone or queue.is_in_order
    before = [] if alone else [queue.submit_barrier()]
    event = queue.submit_async(_kernels[queue], [source, target, *numbers], [1], None, before)
    if not alone:
        queue.submit_barrier([event])
    return Work(event, source, target, numbers)


class Described:
    """An object with the interface of SYCL libraries, and nothing else."""

    def __init__(self, address, queue, **interface):
        self.__sycl_usm_array_interface__ = {
            "data": (address, False), "strides": None, "typestr": "|u1",
            "version": 1, "syclobj": queue, **interface,
        }  # fmt: skip


def memory_of(address, nbytes, queue):
    """dpctl's object for the bytes at *address*."""
    return dpctl.memory.as_usm_memory(Described(address, queue, shape=(nbytes,)))


def numbers_in(memory, dtype="float32"):
    """The numbers in dpctl's memory, on the host."""
    return np.frombuffer(memory.tobytes(), dtype)
