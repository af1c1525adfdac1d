#version 450
// The demo's filter: each byte of an image (height x width x channels) becomes the mean of the
// same channel in the (2 radius + 1) squared pixels around it, as far as they are inside the
// image, halves rounded up. An invocation makes one 32-bit word of the target, because 8-bit
// storage is a feature that not every device has.
layout(local_size_x = 64) in;

layout(set = 0, binding = 0) readonly buffer Source { uint source[]; };
layout(set = 0, binding = 1) buffer Target { uint target[]; };
layout(push_constant) uniform Push {
    uint source_offset; // bytes
    uint target_offset; // bytes, a multiple of 4
    int height, width, channels, radius;
    uint begin, end; // bytes of the image that this dispatch makes; begin is a multiple of 4
};

uint blurred(uint i)
{
    int c = int(i) % channels, x = int(i) / channels % width, y = int(i) / channels / width;
    uint sum = 0, count = 0;
    for (int v = max(y - radius, 0); v <= min(y + radius, height - 1); ++v)
        for (int u = max(x - radius, 0); u <= min(x + radius, width - 1); ++u) {
            uint at = source_offset + uint((v * width + u) * channels + c);
            sum += source[at / 4] >> 8 * (at % 4) & 0xFFu;
            ++count;
        }
    return (sum + count / 2) / count;
}

void main()
{
    uint size = uint(height * width * channels);
    uint word_index = gl_GlobalInvocationID.x + gl_GlobalInvocationID.y * 64 * gl_NumWorkGroups.x;
    uint first = begin + 4 * word_index;
    if (first >= end)
        return;
    uint place = (target_offset + first) / 4;
    uint word = size - first < 4 ? target[place] : 0; // what follows the image stays
    for (uint i = 0; i < min(4, size - first); ++i)
        word = word & ~(0xFFu << 8 * i) | blurred(first + i) << 8 * i;
    target[place] = word;
}
