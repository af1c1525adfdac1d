#version 450
// Multiplies every value by a factor. To take its time, it does so `rounds` times, in as many
// rows of work groups as are dispatched along y, of which the first one's results count
// (lavapipe ends any loop after 65535 turns).
layout(local_size_x = 64) in;

layout(set = 0, binding = 0) buffer Values { float values[]; };
layout(push_constant) uniform Push {
    uint count;
    uint rounds;
    float factor;
};

void main()
{
    uint i = gl_GlobalInvocationID.x;
    float value = values[min(i, count - 1)];
    for (uint round = 0; round < rounds; ++round)
        value *= factor;
    if (i < count && gl_WorkGroupID.y == 0)
        values[i] = value;
}
