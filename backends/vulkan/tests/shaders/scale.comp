#version 450
// Multiplies every value by a factor, again and again if asked to: then it takes its time.
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
    if (i >= count)
        return;
    float value = values[i];
    for (uint round = 0; round < rounds; ++round)
        value *= factor;
    values[i] = value;
}
