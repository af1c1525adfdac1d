/* Running sums along the rows, then down the columns: a few steps for each pixel and every radius,
   so that a simulator needs seconds only. */

/* sums[y, x, c] = the sum of source[y, x - radius .. x + radius, c] inside the image. */
__kernel void along_rows(__global const uchar *source, __global uint *sums,
                         ulong offset, int width, int channels, int radius)
{
    const size_t start = get_global_id(0) * width * channels + get_global_id(1);
    source += offset;
    uint sum = 0;
    for (int x = 0; x < min(radius, width); ++x)
        sum += source[start + x * channels];
    for (int x = 0; x < width; ++x) {
        if (x + radius < width) sum += source[start + (x + radius) * channels];
        if (x - radius > 0) sum -= source[start + (x - radius - 1) * channels];
        sums[start + x * channels] = sum;
    }
}

/* target[y, x, c] = the mean over the square, of the sums of its rows. */
__kernel void down_columns(__global const uint *sums, __global uchar *target,
                           ulong offset, int height, int width, int channels, int radius)
{
    const int x = get_global_id(0);
    const size_t start = x * channels + get_global_id(1), row = (size_t)width * channels;
    const uint columns = min(x + radius, width - 1) - max(x - radius, 0) + 1;
    target += offset;
    uint sum = 0;
    for (int y = 0; y < min(radius, height); ++y)
        sum += sums[start + y * row];
    for (int y = 0; y < height; ++y) {
        if (y + radius < height) sum += sums[start + (y + radius) * row];
        if (y - radius > 0) sum -= sums[start + (y - radius - 1) * row];
        const uint count = columns * (min(y + radius, height - 1) - max(y - radius, 0) + 1);
        target[start + y * row] = (sum + count / 2) / count;
    }
}
