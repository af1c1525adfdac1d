struct Size { height: u32, width: u32, channels: u32, radius: u32 }
@group(0) @binding(0) var<storage, read> image: array<u32>;
@group(0) @binding(1) var<storage, read_write> blurred: array<u32>;
@group(0) @binding(2) var<uniform> size: Size;

fn mean(index: u32) -> u32 {
    let pixel = vec2u(index / size.channels % size.width, index / size.channels / size.width);
    let first = max(pixel, vec2u(size.radius)) - size.radius;
    let last = min(pixel + size.radius, vec2u(size.width, size.height) - 1);
    let count = (last.x - first.x + 1) * (last.y - first.y + 1);
    var sum = count / 2;
    for (var y = first.y; y <= last.y; y++) {
        for (var x = first.x; x <= last.x; x++) {
            let at = (y * size.width + x) * size.channels + index % size.channels;
            sum += image[at / 4] >> (at % 4 * 8) & 255;
        }
    }
    return sum / count;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let first = 4 * (id.y * groups.x * 64 + id.x);
    let end = size.height * size.width * size.channels;
    var word = 0u;
    for (var at = first; at < min(first + 4, end); at++) { word |= mean(at) << (at % 4 * 8); }
    if first < end { blurred[first / 4] = word; }
}
