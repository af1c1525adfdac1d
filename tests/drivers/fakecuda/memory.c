// Allocation: pool, device, pinned, managed and registered memory, and where a pointer lives.
#include "fake.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

size_t total_memory, used_memory[MAX_DEVICES], live_allocations;
struct CUmemPoolHandle_st pools[MAX_DEVICES];
static Allocation *allocations;
static unsigned long long ids = 1;

enum { PAGE = 4096 };
static const size_t LARGEST = (size_t)1 << 46;  // more cannot be mapped

Allocation *find_allocation(const void *pointer) {
  const char *p = pointer;
  for (Allocation *a = allocations; a; a = a->next)
    if (p >= a->pointer && p < a->pointer + a->size) return a;
  return NULL;
}

// Where the host can write what *pointer* means; NULL for memory that is not there.
char *host_alias(const void *pointer, size_t nbytes, int must_be_known) {
  Allocation *a = find_allocation(pointer);
  if (!a) return must_be_known ? NULL : (char *)pointer;
  size_t offset = (char *)pointer - a->pointer;
  return nbytes > a->size - offset ? NULL : a->alias + offset;
}

void record(Allocation *a) {
  pthread_mutex_lock(&lock);
  a->id = ids++;
  a->next = allocations;
  allocations = a;
  live_allocations++;
  pthread_mutex_unlock(&lock);
}

// Room is counted for pool and device memory; what a pool keeps counts until it is trimmed.
static int take_room(size_t size, enum Kind kind, int device) {
  if (kind != POOL && kind != DEVICE) return 1;
  pthread_mutex_lock(&lock);
  size_t kept = kind == POOL ? pools[device].kept : 0;
  size_t reused = kept < size ? 0 : size;  // only what was freed in one piece fits
  int fits = reused || used_memory[device] + pools[device].kept + size <= total_memory;
  if (fits) {
    used_memory[device] += size;
    pools[device].kept -= reused;
  }
  pthread_mutex_unlock(&lock);
  return fits;
}

static CUresult allocate(void **out, size_t size, enum Kind kind, int device) {
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  if (size > LARGEST || !take_room(size, kind, device)) return CUDA_ERROR_OUT_OF_MEMORY;
  int on_device = kind == POOL || kind == DEVICE;
  size_t mapped = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
  int file = memfd_create("fakecuda", 0);
  if (file < 0 || ftruncate(file, mapped)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation *a = calloc(1, sizeof *a);
  a->alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  a->pointer = on_device ? mmap(NULL, mapped, PROT_NONE, MAP_SHARED, file, 0) : a->alias;
  close(file);
  if (a->alias == MAP_FAILED || a->pointer == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  a->size = size;
  a->kind = kind;
  a->device = device;
  a->context = kind == POOL ? NULL : current_context();
  record(a);
  *out = a->pointer;
  return CUDA_SUCCESS;
}

// Free *pointer* if it is one of *kinds* (bits).
CUresult release(void *pointer, unsigned kinds) {
  pthread_mutex_lock(&lock);
  Allocation **link = &allocations;
  while (*link && (*link)->pointer != pointer) link = &(*link)->next;
  Allocation *a = *link;
  if (!a || !(kinds >> a->kind & 1)) {
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_INVALID_VALUE;
  }
  *link = a->next;
  if (!a->is_given_back) live_allocations--;
  if (a->kind == POOL || a->kind == DEVICE) used_memory[a->device] -= a->size;
  if (a->kind == POOL && pools[a->device].threshold) pools[a->device].kept += a->size;
  pthread_mutex_unlock(&lock);
  size_t mapped = (a->size + PAGE - 1) & ~(size_t)(PAGE - 1);
  if (a->kind != REGISTERED) {
    munmap(a->alias, mapped);
    if (a->kind == VIRTUAL)  // the addresses stay reserved
      mmap(a->pointer, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    else if (a->pointer != a->alias) munmap(a->pointer, mapped);
  }
  free(a);
  return CUDA_SUCCESS;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  return refused ? refused : allocate((void **)pointer, size, DEVICE, current_device());
}

// A driver usually waits for the device in cuMemFree and cuMemFreeHost, but does not promise it.
// The simulated one does not, so work that still needs the memory crashes.
API cuMemFree_v2(CUdeviceptr pointer) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  if (refused || !pointer) return refused;
  return release((void *)pointer, 1 << POOL | 1 << DEVICE | 1 << MANAGED | 1 << EXTERNAL);
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
  WITH_CONTEXT;
  stream = stream_of(stream);
  if (!stream) return gone();
  CUresult refused = stream->capture ? CUDA_SUCCESS : unsafe_during_capture();
  return refused ? refused : allocate((void **)pointer, size, POOL, stream->context->device);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream s) {
  WITH_CONTEXT;
  CUstream stream = stream_of(s);
  if (!stream) return gone();
  CUresult refused = stream->capture ? CUDA_SUCCESS : unsafe_during_capture();
  return refused ? refused : allocate((void **)pointer, size, POOL, pool->device);
}

static void run_free(Operation *o) { release(o->source, 1 << POOL); }

// Its free is queued (or no longer): `live_allocations` does not count it from then on, however
// late the stream comes to it.
static void count_given_back(char *pointer, int is_given_back) {
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation(pointer);
  if (a && a->is_given_back != is_given_back) {
    a->is_given_back = is_given_back;
    live_allocations += is_given_back ? -1 : 1;
  }
  pthread_mutex_unlock(&lock);
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation((void *)pointer);
  int ours = a && a->kind == POOL && a->pointer == (char *)pointer && !a->is_given_back;
  pthread_mutex_unlock(&lock);
  if (!ours) return CUDA_ERROR_INVALID_VALUE;
  CUstream on = stream_of(stream);
  CUresult refused = !on || on->capture ? CUDA_SUCCESS : unsafe_during_capture();
  if (refused) return refused;
  int is_captured = on && on->capture;  // then a replay frees it
  if (!is_captured) count_given_back((char *)pointer, 1);
  refused = push(stream, (Operation){.run = run_free, .source = (char *)pointer});
  if (refused && !is_captured) count_given_back((char *)pointer, 0);
  return refused;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  *pool = &pools[device];
  return CUDA_SUCCESS;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  return cuDeviceGetDefaultMemPool(pool, device);
}

API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  INITIALIZED;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->threshold = *(cuuint64_t *)value;
  return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  INITIALIZED;
  *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? pool->threshold : 0;
  return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  INITIALIZED;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  pthread_mutex_lock(&lock);
  if (pool->kept > keep) pool->kept = keep;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

API cuMemPoolSetAccess(CUmemoryPool pool, const void *access, size_t count) {
  INITIALIZED;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetInfo_v2(size_t *available, size_t *total) {
  WITH_CONTEXT;
  *total = total_memory;
  size_t used = used_memory[current_device()];
  *available = total_memory > used ? total_memory - used : 0;
  return CUDA_SUCCESS;
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  return refused ? refused : allocate((void **)pointer, size, MANAGED, current_device());
}

API cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  return refused ? refused : allocate(pointer, size, HOST, current_device());
}

API cuMemAllocHost_v2(void **pointer, size_t size) { return cuMemHostAlloc(pointer, size, 0); }

API cuMemFreeHost(void *pointer) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  return refused ? refused : release(pointer, 1 << HOST);
}

// Whether all pages of the host memory can be written, by the kernel's own table.
static int writable(uintptr_t first, uintptr_t last) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512], mode[8];
  unsigned long from, to;
  int all = 1;
  while (maps && fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && from <= last && to > first)
      all &= mode[1] == 'w';
  if (maps) fclose(maps);
  return all;
}

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  int readonly = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (readonly && attributes[CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] <= 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!readonly && !writable((uintptr_t)pointer, (uintptr_t)pointer + size - 1))
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  int overlaps = find_allocation(pointer) || find_allocation((char *)pointer + size - 1);
  pthread_mutex_unlock(&lock);
  if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Allocation *a = calloc(1, sizeof *a);
  a->pointer = a->alias = pointer;
  a->size = size;
  a->kind = REGISTERED;
  a->device = current_device();
  a->context = current_context();
  record(a);
  return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *pointer) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  return refused ? refused : release(pointer, 1 << REGISTERED);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  int there = find_allocation(pointer) != NULL;
  pthread_mutex_unlock(&lock);
  *device = (CUdeviceptr)pointer;
  return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_of(void *value, CUpointer_attribute attribute, Allocation *a,
                             CUdeviceptr p) {
  int on_device = a->kind == POOL || a->kind == DEVICE || a->kind >= EXTERNAL;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)value =
          on_device || a->kind == MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = a->device; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = a->context; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = a->kind == MANAGED; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = a->id; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = p; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *(CUdeviceptr *)value = (CUdeviceptr)a->pointer;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = a->size; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *(void **)value = on_device ? NULL : (void *)p;
      return on_device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// What the driver says of memory that it has never seen: zeros, and the ordinal -2.
static void attribute_of_stranger(void *value, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = -2; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = 0; break;
    default: memset(value, 0, sizeof(void *));
  }
}

API cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation((void *)pointer);
  CUresult result = a ? attribute_of(value, attribute, a, pointer) : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  return result;
}

API cuPointerGetAttributes(unsigned count, CUpointer_attribute *wanted, void **values,
                           CUdeviceptr pointer) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation((void *)pointer);
  for (unsigned i = 0; i < count; i++) {
    if (a) attribute_of(values[i], wanted[i], a, pointer);
    else attribute_of_stranger(values[i], wanted[i]);
  }
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation((void *)pointer);
  if (a && base) *base = (CUdeviceptr)a->pointer;
  if (a && size) *size = a->size;
  pthread_mutex_unlock(&lock);
  return a ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
