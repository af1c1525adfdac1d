/* An OpenCL driver that lists a device and moves memory, but builds no program: clBuildProgram
 * fails as PoCL does with a processor that its LLVM does not know. With FALSE_DRIVER=abort it ends
 * the process, as PoCL does where there is no linker; with FALSE_DRIVER=list as soon as its devices
 * are listed.
 *
 * The positions in the table are those of struct _cl_icd_dispatch (Khronos, CL/cl_icd.h); the
 * declarations are written out, so that no OpenCL headers are needed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;

enum { ENTRIES = 200 };
static void *table[ENTRIES];

/* Every object begins with the table. */
struct object {
    void **table;
    size_t size;
    char bytes[];
};
typedef struct object *object;

static object made(size_t size, cl_int *error)
{
    object new = calloc(1, sizeof *new + size);
    new->table = table;
    new->size = size;
    if (error) *error = 0;
    return new;
}

static object platform, device, context, queue;

static cl_int refused(void) { return -59; /* CL_INVALID_OPERATION */ }
static cl_int accepted(void) { return 0; }

static cl_int give(const void *value, size_t has, size_t room, void *into, size_t *size)
{
    if (size) *size = has;
    if (into) {
        memset(into, 0, room);
        memcpy(into, value, has < room ? has : room);
    }
    return 0;
}

static cl_int text(const char *value, size_t room, void *into, size_t *size)
{
    return give(value, strlen(value) + 1, room, into, size);
}

static cl_int number(uint64_t value, size_t room, void *into, size_t *size)
{
    return give(&value, sizeof value, room, into, size);
}

static cl_int list(object one, cl_uint room, object *into, cl_uint *count)
{
    if (count) *count = 1;
    if (into && room) *into = one;
    return 0;
}

cl_int clIcdGetPlatformIDsKHR(cl_uint room, object *into, cl_uint *count)
{
    return list(platform, room, into, count);
}

cl_int clGetPlatformInfo(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    switch (what) {
    case 0x0901: return text("OpenCL 1.2 false", room, into, size);
    case 0x0904: return text("cl_khr_icd", room, into, size);
    case 0x0920: return text("FALSE", room, into, size);
    default: return text("False Driver", room, into, size);
    }
}

static cl_int device_ids(object of, uint64_t type, cl_uint room, object *into, cl_uint *count)
{
    (void)of, (void)type;
    const char *mode = getenv("FALSE_DRIVER");
    if (mode && !strcmp(mode, "list")) {
        fputs("No devices today.\n", stderr);
        abort();
    }
    return list(device, room, into, count);
}

static cl_int device_info(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    switch (what) {
    case 0x1000: return number(4, room, into, size); /* a GPU */
    case 0x1010: case 0x101F: return number(1 << 30, room, into, size); /* memory */
    case 0x102B: return text("False Device", room, into, size);
    case 0x102C: case 0x102D: return text("1", room, into, size);
    case 0x102F: return text("OpenCL 1.2 false", room, into, size);
    case 0x1030: return text("", room, into, size);
    case 0x1031: return give(&platform, sizeof platform, room, into, size);
    case 0x103D: return text("OpenCL C 1.2", room, into, size);
    default: return number(0, room, into, size);
    }
}

static object new_context(const void *p, cl_uint n, const object *d, void *f, void *u, cl_int *error)
{
    (void)p, (void)n, (void)d, (void)f, (void)u;
    if (error) *error = 0;
    return context;
}

static cl_int context_info(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    if (what == 0x1081) return give(&device, sizeof device, room, into, size);
    return number(1, room, into, size);
}

static object new_queue(object c, object d, uint64_t properties, cl_int *error)
{
    (void)c, (void)d, (void)properties;
    if (error) *error = 0;
    return queue;
}

static cl_int queue_info(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    if (what == 0x1090) return give(&context, sizeof context, room, into, size);
    if (what == 0x1091) return give(&device, sizeof device, room, into, size);
    return number(1, room, into, size);
}

static object new_buffer(object c, uint64_t flags, size_t size, const void *host, cl_int *error)
{
    (void)c;
    object buffer = made(size, error);
    if (host && flags & 32) memcpy(buffer->bytes, host, size); /* CL_MEM_COPY_HOST_PTR */
    return buffer;
}

static cl_int buffer_info(object buffer, cl_uint what, size_t room, void *into, size_t *size)
{
    if (what == 0x1102) return number(buffer->size, room, into, size);
    if (what == 0x1106) return give(&context, sizeof context, room, into, size);
    return number(what == 0x1100 ? 0x10F0 : 1, room, into, size);
}

static cl_int read_buffer(object q, object buffer, cl_uint blocks, size_t offset, size_t size,
                          void *into, cl_uint n, const object *waits, object *event)
{
    (void)q, (void)blocks, (void)n, (void)waits;
    memcpy(into, buffer->bytes + offset, size);
    if (event) *event = made(0, NULL);
    return 0;
}

static cl_int write_buffer(object q, object buffer, cl_uint blocks, size_t offset, size_t size,
                           const void *from, cl_uint n, const object *waits, object *event)
{
    (void)q, (void)blocks, (void)n, (void)waits;
    memcpy(buffer->bytes + offset, from, size);
    if (event) *event = made(0, NULL);
    return 0;
}

static cl_int fill_buffer(object q, object buffer, const void *pattern, size_t length,
                          size_t offset, size_t size, cl_uint n, const object *waits, object *event)
{
    (void)q, (void)n, (void)waits;
    for (size_t at = 0; at < size; at += length) memcpy(buffer->bytes + offset + at, pattern, length);
    if (event) *event = made(0, NULL);
    return 0;
}

static object new_program(object c, cl_uint n, const char **s, const size_t *l, cl_int *error)
{
    (void)c, (void)n, (void)s, (void)l;
    return made(0, error);
}

static cl_int build(void)
{
    const char *mode = getenv("FALSE_DRIVER");
    if (mode && !strcmp(mode, "abort")) {
        fputs("Final linking of the kernel failed.\n", stderr);
        abort();
    }
    return -11; /* CL_BUILD_PROGRAM_FAILURE */
}

static cl_int program_info(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    if (what == 0x1161) return give(&context, sizeof context, room, into, size);
    if (what == 0x1163) return give(&device, sizeof device, room, into, size);
    return number(1, room, into, size);
}

static cl_int build_info(object of, object d, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of, (void)d;
    if (what == 0x1183) return text("error: unknown target CPU 'generic'", room, into, size);
    return number(0, room, into, size);
}

static cl_int event_info(object of, cl_uint what, size_t room, void *into, size_t *size)
{
    (void)of;
    if (what == 0x11D0) return give(&queue, sizeof queue, room, into, size);
    return number(what == 0x11D2, room, into, size);
}

void *clGetExtensionFunctionAddress(const char *name)
{
    return strcmp(name, "clIcdGetPlatformIDsKHR") ? NULL : (void *)clIcdGetPlatformIDsKHR;
}

__attribute__((constructor)) static void begin(void)
{
    static const uint8_t always[] = {6, 7, 10, 11, 17, 18, 28, 29, 41, 43, 44, 46, 47}; /* retain, ... */
    for (int i = 0; i < ENTRIES; ++i) table[i] = (void *)refused;
    for (size_t i = 0; i < sizeof always; ++i) table[always[i]] = (void *)accepted;
    table[0] = clIcdGetPlatformIDsKHR, table[1] = clGetPlatformInfo, table[2] = device_ids;
    table[3] = device_info, table[4] = new_context, table[8] = context_info;
    table[9] = new_queue, table[12] = queue_info, table[14] = new_buffer;
    table[20] = buffer_info, table[26] = new_program, table[30] = build;
    table[32] = program_info, table[33] = build_info, table[42] = event_info;
    table[48] = read_buffer, table[49] = write_buffer, table[102] = fill_buffer;
    platform = made(0, NULL), device = made(0, NULL), context = made(0, NULL);
    queue = made(0, NULL);
}
