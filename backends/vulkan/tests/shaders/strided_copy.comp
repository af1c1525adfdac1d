#version 450
// Copies a strided region from one buffer to another: runs of bytes, `run` units long, that lie
// in up to four dimensions (the innermost first). An invocation copies one unit of 1, 2 or 4
// bytes, at a multiple of its size on both sides. Units smaller than a word are written by
// atomic operations, which leave the other bytes of the word alone: 8- and 16-bit storage are
// features that not every device has.
layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer Source { uint source[]; };
layout(set = 0, binding = 1) buffer Target { uint target[]; };
layout(push_constant) uniform Push {
    uint unit, source_start, target_start; // bytes
    uint run, count;                       // units: of a run, of the region
    uint shape[4], source_strides[4], target_strides[4]; // runs, bytes, bytes
};

void main()
{
    uint i = gl_GlobalInvocationID.x + gl_GlobalInvocationID.y * 64 * gl_NumWorkGroups.x;
    if (i >= count)
        return;
    uint from = source_start + i % run * unit, to = target_start + i % run * unit;
    uint rest = i / run;
    for (int axis = 0; axis < 4; ++axis) {
        uint at = rest % shape[axis];
        rest /= shape[axis];
        from += at * source_strides[axis];
        to += at * target_strides[axis];
    }
    if (unit == 4) {
        target[to / 4] = source[from / 4];
        return;
    }
    uint mask = unit == 2 ? 0xFFFFu : 0xFFu;
    uint value = source[from / 4] >> 8 * (from % 4) & mask;
    uint shift = 8 * (to % 4);
    atomicAnd(target[to / 4], ~(mask << shift));
    atomicOr(target[to / 4], value << shift);
}
