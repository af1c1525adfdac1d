"""Kernels that take their time, for the tests and for the conformance kit."""

import numpy as np

SPIN = """
/* Some nanoseconds per turn that no compiler can take away. */
__kernel void spin(__global uint *out, uint turns) {
    uint x = out[0] | 1;
    for (uint i = 0; i < turns; ++i) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    out[0] = x;
}
/* out[i] = value, after as long a delay. */
__kernel void late_fill(__global uint *out, uint n, uint value, uint turns) {
    uint x = value | 1;
    for (uint i = 0; i < turns; ++i) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    for (uint i = 0; i < n; ++i) out[i] = x ? value : 0;
}
/* out[i] = in[i], after as long a delay. */
__kernel void late_copy(__global const uint *in, __global uint *out, uint n, uint turns) {
    uint x = 1;
    for (uint i = 0; i < turns; ++i) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    for (uint i = 0; i < n; ++i) out[i] = x ? in[i] : 0;
}
"""


def kernels_in(context):
    import pyopencl as cl

    program = cl.Program(context, SPIN).build()

    def enqueue(name, queue, *args, wait_for=None):
        args = [np.uint32(a) if isinstance(a, int) else a for a in args]
        return cl.Kernel(program, name)(queue, (1,), None, *args, wait_for=wait_for)

    return enqueue
