/* A layer between the OpenCL loader and a real driver (cl_loader_layers), which
 * makes that driver behave as other drivers do, and counts what it is asked for.
 *
 * The switches below are read from the environment (LAYER_name) when the loader
 * starts, and by layer_set. With none of them set the layer only counts. The
 * positions are those of struct _cl_icd_dispatch (Khronos, CL/cl_icd.h); the
 * declarations are written out, so that no OpenCL headers are needed.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef void *object; /* cl_mem, cl_command_queue, cl_event, ... */

enum {
    GET_DEVICE_INFO = 3, RETAIN_QUEUE = 10, RELEASE_QUEUE = 11,
    CREATE_BUFFER = 14, FLUSH = 46, FINISH = 47, READ = 48, WRITE = 49,
    COPY = 50, MAP = 56, UNMAP = 58, KERNEL = 59, DESTRUCTOR_CALLBACK = 83, READ_RECT = 86,
    WRITE_RECT = 87, COPY_RECT = 88, FILL = 102, MIGRATE = 104
};
enum { DEVICE_TYPE = 0x1000, MAX_ALLOCATION = 0x1010, MEMORY = 0x101F, UNIFIED = 0x1035 };
enum { EXTENSIONS = 0x1030, UUID_KHR = 0x106A, PCI_KHR = 0x410F, PCI_NV = 0x4008 };
enum { READ_ONLY = 4, USE_HOST_PTR = 8, ALLOC_HOST_PTR = 16, COPY_HOST_PTR = 32 };
enum { MAP_WRITE = 2, MAP_WRITE_INVALIDATE = 4 };

static struct named { const char *name; long value; } values[] = {
    /* switches */
    {"unified", -1},      /* CL_DEVICE_HOST_UNIFIED_MEMORY; -1: the driver's answer */
    {"gpu", 0},           /* the devices say that they are GPUs */
    {"max_allocation", 0},/* CL_DEVICE_MAX_MEM_ALLOC_SIZE; 0: the driver's answer */
    {"room", 0},          /* bytes that commands may touch in all; 0: no limit */
    {"late", -4},         /* the status of the command that touches more */
    {"refuse_import", 0}, /* the status of clCreateBuffer with CL_MEM_USE_HOST_PTR */
    {"late_import", 0},   /* the status of the first command on such a buffer */
    {"shadow", 0},        /* such buffers are copies that only mapping brings up to date:
                             1 made at creation, 2 at the first command,
                             3 the device sees the host's writes, the host not the device's,
                             4 made at the first command; the host sees what fills write */
    {"identity", 0},      /* the devices say a UUID and a PCI address, 0007:3b:1f.2: 1 by Khronos'
                             extensions, 2 the address by NVIDIA's, 3 as 1, but fail when asked */
    {"tight", 0},         /* rectangles are refused whose last row, or slice, would end outside
                             the buffer if it had its whole pitch */
    {"refuse_unmap", 0},  /* the status of clEnqueueUnmapMemObject */
    {"waits", 0},         /* the last release of a queue waits for its work */
    /* counts */
    {"reads", 0}, {"writes", 0}, {"copies", 0}, {"rectangles", 0}, {"fills", 0},
    {"maps", 0}, {"kernels", 0}, {"imports", 0}, {"pinned", 0}, {"resident", 0},
    {"refused", 0},       /* rectangles, by "tight" */
    {"unflushed", 0},     /* commands that were given since the last flush */
    {"contexts_gone", 0}, /* calls of layer_context_gone */
};
enum value { unified, gpu, max_allocation, room, late, refuse_import, late_import, shadow, identity,
             tight, refuse_unmap, waits, reads, writes, copies, rectangles, fills, maps, kernels, imports, pinned,
             resident, refused, unflushed, contexts_gone };

static void *driver[512], *table[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct buffer { object mem; size_t size; char *host; int touched; } *buffers;
static size_t buffer_count, buffer_room;
static struct mapping { object mem; char *real, *host; size_t size; int write; } mappings[256];

static struct named *find(const char *name)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i)
        if (!strcmp(values[i].name, name)) return &values[i];
    fprintf(stderr, "the layer has no value %s\n", name);
    abort();
}

void layer_set(const char *name, long value) { find(name)->value = value; }
long layer_get(const char *name) { return find(name)->value; }

static void count(enum value which) { __sync_fetch_and_add(&values[which].value, 1); }

/* For clSetContextDestructorCallback. A thread of the driver may call it while it holds a lock
   that a thread with the GIL waits for: a function of Python would wait for the GIL. */
void layer_context_gone(object context, void *unused) { count(contexts_gone); }

/* -- buffers ------------------------------------------------------------- */

static struct buffer *known(object mem)
{
    for (size_t i = 0; i < buffer_count; ++i)
        if (buffers[i].mem == mem) return &buffers[i];
    return NULL;
}

static void gone(object mem, void *unused)
{
    pthread_mutex_lock(&lock);
    struct buffer *buffer = known(mem);
    if (buffer) {
        if (buffer->touched && !buffer->host) values[resident].value -= buffer->size;
        *buffer = buffers[--buffer_count];
    }
    pthread_mutex_unlock(&lock);
}

static object create_buffer(object context, cl_ulong flags, size_t size, char *host, cl_int *status)
{
    object (*create)(object, cl_ulong, size_t, void *, cl_int *) = driver[CREATE_BUFFER];
    cl_int (*on_destruction)(object, void (*)(object, void *), void *) = driver[DESTRUCTOR_CALLBACK];
    int import = (flags & USE_HOST_PTR) != 0;
    if (import) count(imports);
    if (flags & ALLOC_HOST_PTR) count(pinned);
    if (import && values[refuse_import].value) {
        if (status) *status = values[refuse_import].value;
        return NULL;
    }
    if (import && values[shadow].value)
        flags = (flags & ~USE_HOST_PTR) | COPY_HOST_PTR;
    object mem = create(context, flags, size, host, status);
    if (!mem) return mem;
    pthread_mutex_lock(&lock);
    if (buffer_count == buffer_room)
        buffers = realloc(buffers, sizeof *buffers * (buffer_room = buffer_room * 2 + 64));
    buffers[buffer_count++] = (struct buffer){mem, size, import ? host : NULL, 0};
    pthread_mutex_unlock(&lock);
    on_destruction(mem, gone, NULL);
    return mem;
}

/* Before a command on *mem*: its status if the simulated driver refuses it. */
static cl_int touch(object queue, object mem)
{
    cl_int (*write)(object, object, cl_uint, size_t, size_t, const void *, cl_uint, const object *,
                    object *) = driver[WRITE];
    cl_int status = 0;
    pthread_mutex_lock(&lock);
    struct buffer *buffer = known(mem);
    if (buffer) {
        int first = !buffer->touched;
        char *host = buffer->host;
        size_t size = buffer->size;
        if (host && values[late_import].value) status = values[late_import].value;
        else if (host && values[shadow].value && (values[shadow].value == 3 || first)) {
            buffer->touched = 1;
            if (values[shadow].value >= 2) {
                pthread_mutex_unlock(&lock); /* the driver may call gone() */
                return write(queue, mem, 1, 0, size, host, 0, NULL, NULL);
            }
        } else if (!host && first) {
            if (values[room].value && values[resident].value + (long)size > values[room].value)
                status = values[late].value;
            else {
                values[resident].value += size;
                buffer->touched = 1;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Whether the simulated driver refuses a rectangle of *mem*: see "tight". */
static int too_tight(object mem, const size_t *origin, const size_t *region, size_t row, size_t slice)
{
    if (!values[tight].value) return 0;
    if (!row) row = region[0];
    if (!slice) slice = row * region[1];
    size_t start = origin[0] + origin[1] * row + origin[2] * slice;
    pthread_mutex_lock(&lock);
    struct buffer *buffer = known(mem);
    int bad = buffer && start + region[2] * slice > buffer->size;
    pthread_mutex_unlock(&lock);
    if (bad) count(refused);
    return bad;
}

/* After a command: it is flushed at once if it blocks. */
static cl_int given(cl_int status, int blocks)
{
    if (blocks) values[unflushed].value = 0;
    else if (!status) count(unflushed);
    return status;
}

/* -- commands ------------------------------------------------------------ */

#define WAIT cl_uint n, const object *events, object *event
#define TOUCH(mem) do { cl_int bad = touch(queue, mem); if (bad) return bad; } while (0)

static cl_int read_(object queue, object mem, cl_uint block, size_t at, size_t size, void *to, WAIT)
{
    cl_int (*next)(object, object, cl_uint, size_t, size_t, void *, WAIT) = driver[READ];
    count(reads);
    TOUCH(mem);
    return given(next(queue, mem, block, at, size, to, n, events, event), block);
}

static cl_int write_(object queue, object mem, cl_uint block, size_t at, size_t size,
                     const void *from, WAIT)
{
    cl_int (*next)(object, object, cl_uint, size_t, size_t, const void *, WAIT) = driver[WRITE];
    count(writes);
    TOUCH(mem);
    return given(next(queue, mem, block, at, size, from, n, events, event), block);
}

static cl_int copy(object queue, object from, object to, size_t at, size_t start, size_t size, WAIT)
{
    cl_int (*next)(object, object, object, size_t, size_t, size_t, WAIT) = driver[COPY];
    count(copies);
    TOUCH(from);
    TOUCH(to);
    return given(next(queue, from, to, at, start, size, n, events, event), 0);
}

static cl_int read_rect(object queue, object mem, cl_uint block, const size_t *o, const size_t *h,
                        const size_t *region, size_t a, size_t b, size_t c, size_t d, void *to, WAIT)
{
    cl_int (*next)(object, object, cl_uint, const size_t *, const size_t *, const size_t *, size_t,
                   size_t, size_t, size_t, void *, WAIT) = driver[READ_RECT];
    if (too_tight(mem, o, region, a, b)) return -30;
    count(rectangles);
    TOUCH(mem);
    return given(next(queue, mem, block, o, h, region, a, b, c, d, to, n, events, event), block);
}

static cl_int write_rect(object queue, object mem, cl_uint block, const size_t *o, const size_t *h,
                         const size_t *region, size_t a, size_t b, size_t c, size_t d,
                         const void *from, WAIT)
{
    cl_int (*next)(object, object, cl_uint, const size_t *, const size_t *, const size_t *, size_t,
                   size_t, size_t, size_t, const void *, WAIT) = driver[WRITE_RECT];
    if (too_tight(mem, o, region, a, b)) return -30;
    count(rectangles);
    TOUCH(mem);
    return given(next(queue, mem, block, o, h, region, a, b, c, d, from, n, events, event), block);
}

static cl_int copy_rect(object queue, object from, object to, const size_t *o, const size_t *h,
                        const size_t *region, size_t a, size_t b, size_t c, size_t d, WAIT)
{
    cl_int (*next)(object, object, object, const size_t *, const size_t *, const size_t *, size_t,
                   size_t, size_t, size_t, WAIT) = driver[COPY_RECT];
    if (too_tight(from, o, region, a, b) || too_tight(to, h, region, c, d)) return -30;
    count(rectangles);
    TOUCH(from);
    TOUCH(to);
    return given(next(queue, from, to, o, h, region, a, b, c, d, n, events, event), 0);
}

static cl_int fill(object queue, object mem, const void *pattern, size_t length, size_t at,
                   size_t size, WAIT)
{
    cl_int (*next)(object, object, const void *, size_t, size_t, size_t, WAIT) = driver[FILL];
    cl_int (*read)(object, object, cl_uint, size_t, size_t, void *, WAIT) = driver[READ];
    count(fills);
    TOUCH(mem);
    cl_int status = next(queue, mem, pattern, length, at, size, n, events, event);
    pthread_mutex_lock(&lock);
    struct buffer *buffer = values[shadow].value == 4 ? known(mem) : NULL;
    char *host = buffer ? buffer->host : NULL;
    pthread_mutex_unlock(&lock);
    if (!status && host) status = read(queue, mem, 1, at, size, host + at, 0, NULL, NULL);
    return given(status, 0);
}

static cl_int migrate(object queue, cl_uint number, const object *mems, cl_ulong flags, WAIT)
{
    cl_int (*next)(object, cl_uint, const object *, cl_ulong, WAIT) = driver[MIGRATE];
    for (cl_uint i = 0; i < number; ++i) TOUCH(mems[i]);
    return given(next(queue, number, mems, flags, n, events, event), 0);
}

static cl_int kernel(object queue, object what, cl_uint dimensions, const size_t *offset,
                     const size_t *global, const size_t *local, WAIT)
{
    cl_int (*next)(object, object, cl_uint, const size_t *, const size_t *, const size_t *, WAIT) =
        driver[KERNEL];
    count(kernels);
    return given(next(queue, what, dimensions, offset, global, local, n, events, event), 0);
}

static void *map(object queue, object mem, cl_uint block, cl_ulong flags, size_t at, size_t size,
                 WAIT, cl_int *status)
{
    void *(*next)(object, object, cl_uint, cl_ulong, size_t, size_t, WAIT, cl_int *) = driver[MAP];
    count(maps);
    cl_int bad = touch(queue, mem);
    if (bad) {
        if (status) *status = bad;
        return NULL;
    }
    struct buffer *buffer = known(mem);
    char *host = buffer && values[shadow].value ? buffer->host : NULL;
    char *real = next(queue, mem, block || host, flags, at, size, n, events, event, status);
    given(real ? 0 : -1, block);
    if (!real || !host) return real;
    memcpy(host + at, real, size);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; ++i)
        if (!mappings[i].mem) {
            mappings[i] = (struct mapping){
                mem, real, host + at, size, (flags & (MAP_WRITE | MAP_WRITE_INVALIDATE)) != 0};
            break;
        }
    pthread_mutex_unlock(&lock);
    return host + at;
}

static cl_int unmap(object queue, object mem, char *where, WAIT)
{
    cl_int (*next)(object, object, void *, WAIT) = driver[UNMAP];
    if (values[refuse_unmap].value) return values[refuse_unmap].value;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; ++i)
        if (mappings[i].mem == mem && mappings[i].host == where) {
            if (mappings[i].write) memcpy(mappings[i].real, where, mappings[i].size);
            where = mappings[i].real;
            mappings[i].mem = NULL;
            break;
        }
    pthread_mutex_unlock(&lock);
    return given(next(queue, mem, where, n, events, event), 0);
}

/* -- queues -------------------------------------------------------------- */

static struct references { object queue; int count; } references[256];

static int change(object queue, int by) /* the references that are left; a new queue has one */
{
    struct references *at = references;
    pthread_mutex_lock(&lock);
    while (at < references + 255 && at->queue && at->queue != queue) ++at;
    if (!at->queue) *at = (struct references){queue, 1};
    int left = at->count += by;
    if (!left) at->count = 1; /* the next at this address is new */
    pthread_mutex_unlock(&lock);
    return left;
}

static cl_int retain_queue(object queue)
{
    cl_int (*next)(object) = driver[RETAIN_QUEUE];
    change(queue, 1);
    return next(queue);
}

static cl_int release_queue(object queue)
{
    cl_int (*next)(object) = driver[RELEASE_QUEUE], (*finish)(object) = driver[FINISH];
    if (!change(queue, -1) && values[waits].value) finish(queue);
    return next(queue);
}

static cl_int flush(object queue)
{
    cl_int (*next)(object) = driver[FLUSH];
    values[unflushed].value = 0;
    return next(queue);
}

static cl_int finish(object queue)
{
    cl_int (*next)(object) = driver[FINISH];
    values[unflushed].value = 0;
    return next(queue);
}

/* -- devices ------------------------------------------------------------- */

static cl_int answer(const void *what, size_t length, size_t size, void *value, size_t *written)
{
    if (written) *written = length;
    if (value && size < length) return -30;
    if (value) memcpy(value, what, length);
    return 0;
}

/* The devices' identity, as the switch says; 1: this is another question. */
static cl_int identify(cl_uint what, size_t size, void *value, size_t *written)
{
    static const unsigned char uuid[16] = {1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                                           1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
    static const cl_uint address[4] = {7, 0x3b, 0x1f, 2};
    static const cl_uint nvidia[3] = {0x3b, 0x1f << 3 | 2, 7}; /* bus, slot, domain */
    static const char *const names[] = {"", "cl_khr_device_uuid cl_khr_pci_bus_info",
                                        "cl_nv_device_attribute_query",
                                        "cl_khr_device_uuid cl_khr_pci_bus_info"};
    long mode = values[identity].value;
    if (!mode) return 1;
    if (what == EXTENSIONS) return answer(names[mode], strlen(names[mode]) + 1, size, value, written);
    if (what == UUID_KHR || what == PCI_KHR)
        return mode != 1 ? -30
               : what == UUID_KHR ? answer(uuid, sizeof uuid, size, value, written)
                                  : answer(address, sizeof address, size, value, written);
    if (what >= PCI_NV && what < PCI_NV + 3)
        return mode == 2 ? answer(&nvidia[what - PCI_NV], sizeof *nvidia, size, value, written) : -30;
    return 1;
}

static cl_int device_info(object device, cl_uint what, size_t size, void *value, size_t *written)
{
    cl_int (*next)(object, cl_uint, size_t, void *, size_t *) = driver[GET_DEVICE_INFO];
    cl_int identified = identify(what, size, value, written);
    if (identified != 1) return identified;
    cl_int status = next(device, what, size, value, written);
    if (status || !value) return status;
    if (what == UNIFIED && values[unified].value >= 0) *(cl_uint *)value = values[unified].value;
    if (what == DEVICE_TYPE && values[gpu].value) *(cl_ulong *)value = 4;
    if (what == MAX_ALLOCATION && values[max_allocation].value)
        *(cl_ulong *)value = values[max_allocation].value;
    return status;
}

/* -- what the loader asks for ------------------------------------------------ */

cl_int clGetLayerInfo(cl_uint what, size_t size, void *value, size_t *written)
{
    if (what != 0x4240) return -30; /* CL_LAYER_API_VERSION; CL_INVALID_VALUE */
    if (value) *(cl_uint *)value = 100;
    if (written) *written = sizeof(cl_uint);
    return 0;
}

cl_int clInitLayer(cl_uint entries, void **target, cl_uint *written, void ***ours)
{
    memcpy(driver, target, entries * sizeof *target);
    memcpy(table, target, entries * sizeof *target);
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
        char name[64];
        snprintf(name, sizeof name, "LAYER_%s", values[i].name);
        if (getenv(name)) values[i].value = atol(getenv(name));
    }
    table[GET_DEVICE_INFO] = device_info;
    table[RETAIN_QUEUE] = retain_queue;
    table[RELEASE_QUEUE] = release_queue;
    table[CREATE_BUFFER] = create_buffer;
    table[FLUSH] = flush;
    table[FINISH] = finish;
    table[READ] = read_;
    table[WRITE] = write_;
    table[COPY] = copy;
    table[MAP] = map;
    table[UNMAP] = unmap;
    table[KERNEL] = kernel;
    table[READ_RECT] = read_rect;
    table[WRITE_RECT] = write_rect;
    table[COPY_RECT] = copy_rect;
    table[FILL] = fill;
    table[MIGRATE] = migrate;
    *written = entries;
    *ours = table;
    return 0;
}
