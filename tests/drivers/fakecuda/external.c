// Memory of another driver, and for one: an opaque file descriptor of Mesa's lavapipe is a memfd.
#include "fake.h"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, OPAQUE_FD = 1 };

struct CUextMemory_st {
  int fd, mappings;
  size_t begin, size;  // where the other driver's memory lies in the file
};

// lavapipe's file begins with a header: the size of the file, and where its memory begins.
static int find_memory(int fd, size_t *begin, size_t *size) {
  char link[64], name[256] = "";
  size_t header[2];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, name, sizeof name - 1) < 0) return 0;
  struct stat file;
  if (!strstr(name, "llvmpipe") || fstat(fd, &file)) return 0;
  if (pread(fd, header, sizeof header, 0) != sizeof header) return 0;
  if (header[0] != (size_t)file.st_size || header[1] >= header[0]) return 0;
  *begin = header[1];
  *size = header[0] - header[1];
  return *begin % PAGE == 0;
}

// As in the driver, the file descriptor is the driver's own once this has succeeded.
API cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted) {
  WITH_CONTEXT;
  size_t begin, size;
  if (wanted->type != OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  if (!find_memory(wanted->handle.fd, &begin, &size)) return CUDA_ERROR_INVALID_VALUE;
  if (!wanted->size || wanted->size > size) return CUDA_ERROR_INVALID_VALUE;
  CUexternalMemory memory = calloc(1, sizeof *memory);
  *memory = (struct CUextMemory_st){wanted->handle.fd, 0, begin, wanted->size};
  __sync_fetch_and_add(&live_allocations, 1);
  *out = memory;
  return CUDA_SUCCESS;
}

API cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted) {
  WITH_CONTEXT;
  if (wanted->offset % PAGE || wanted->offset + wanted->size > memory->size || wanted->flags)
    return CUDA_ERROR_INVALID_VALUE;
  size_t mapped = (wanted->size + PAGE - 1) & ~(size_t)(PAGE - 1);
  off_t start = memory->begin + wanted->offset;
  Allocation *a = calloc(1, sizeof *a);
  a->alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, start);
  a->pointer = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, memory->fd, start);
  if (a->alias == MAP_FAILED || a->pointer == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  a->size = wanted->size;
  a->kind = EXTERNAL;
  a->device = current_device();
  a->context = current_context();
  record(a);
  *pointer = (CUdeviceptr)a->pointer;
  return CUDA_SUCCESS;
}

API cuDestroyExternalMemory(CUexternalMemory memory) {
  WITH_CONTEXT;
  close(memory->fd);
  free(memory);
  __sync_fetch_and_sub(&live_allocations, 1);
  return CUDA_SUCCESS;
}

// -- virtual memory management ----------------------------------------------------------

enum { UNIT = 2 << 20 };

struct physical {
  int fd, device;
  size_t size;
};

static unsigned char header[64];  // of lavapipe's files, whose driver takes no others

// The first 64 bytes of a file of lavapipe's.
CONTROL void fake_cuda_header(const unsigned char *bytes) { memcpy(header, bytes, sizeof header); }

API cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *wanted, int option) {
  INITIALIZED;
  *unit = UNIT;
  return CUDA_SUCCESS;
}

API cuMemCreate(unsigned long long *out, size_t size, const CUmemAllocationProp *wanted,
                unsigned long long flags) {
  INITIALIZED;
  VALID_DEVICE(wanted->location.id);
  if (!size || size % UNIT || wanted->type != 1) return CUDA_ERROR_INVALID_VALUE;
  if (size > total_memory) return CUDA_ERROR_OUT_OF_MEMORY;
  struct physical *memory = calloc(1, sizeof *memory);
  *memory = (struct physical){memfd_create("llvmpipe of fakecuda", 0), wanted->location.id, size};
  size_t sizes[2] = {size + PAGE, PAGE};
  if (memory->fd < 0 || ftruncate(memory->fd, sizes[0])) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(header, sizes, sizeof sizes);
  if (pwrite(memory->fd, header, sizeof header, 0) < 0 ||
      pwrite(memory->fd, &sizes[1], sizeof sizes[1], PAGE - sizeof sizes[1]) < 0)  // it looks there
    return CUDA_ERROR_OUT_OF_MEMORY;
  __sync_fetch_and_add(&live_allocations, 1);
  *out = (uintptr_t)memory;
  return CUDA_SUCCESS;
}

API cuMemRelease(unsigned long long handle) {
  INITIALIZED;
  struct physical *memory = (struct physical *)(uintptr_t)handle;
  close(memory->fd);  // a mapping keeps the pages
  free(memory);
  __sync_fetch_and_sub(&live_allocations, 1);
  return CUDA_SUCCESS;
}

API cuMemExportToShareableHandle(void *out, unsigned long long handle, int type,
                                 unsigned long long flags) {
  INITIALIZED;
  if (type != 1) return CUDA_ERROR_NOT_SUPPORTED;
  *(int *)out = dup(((struct physical *)(uintptr_t)handle)->fd);
  return CUDA_SUCCESS;
}

// As the driver's: it opens what it has exported, also in another process, and keeps no descriptor.
API cuMemImportFromShareableHandle(unsigned long long *out, void *given, int type) {
  INITIALIZED;
  int fd = (int)(intptr_t)given;
  size_t begin, size;
  if (type != 1) return CUDA_ERROR_NOT_SUPPORTED;
  if (!find_memory(fd, &begin, &size) || size % UNIT) return CUDA_ERROR_INVALID_VALUE;
  struct physical *memory = calloc(1, sizeof *memory);
  *memory = (struct physical){dup(fd), current_device(), size};
  __sync_fetch_and_add(&live_allocations, 1);
  *out = (uintptr_t)memory;
  return CUDA_SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags) {
  INITIALIZED;
  if (!size || size % UNIT) return CUDA_ERROR_INVALID_VALUE;
  void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  __sync_fetch_and_add(&live_allocations, 1);
  *out = (uintptr_t)found;
  return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  INITIALIZED;
  if (munmap((void *)pointer, size)) return CUDA_ERROR_INVALID_VALUE;
  __sync_fetch_and_sub(&live_allocations, 1);
  return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, unsigned long long handle,
             unsigned long long flags) {
  INITIALIZED;
  struct physical *memory = (struct physical *)(uintptr_t)handle;
  if (offset || size != memory->size) return CUDA_ERROR_INVALID_VALUE;
  Allocation *a = calloc(1, sizeof *a);
  a->alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, PAGE);
  a->pointer = mmap((void *)pointer, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, PAGE);
  if (a->alias == MAP_FAILED || a->pointer == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  a->size = size;
  a->kind = VIRTUAL;
  a->device = memory->device;
  record(a);
  return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr pointer, size_t size, const void *access, size_t count) {
  INITIALIZED;
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation((void *)pointer);
  pthread_mutex_unlock(&lock);
  return a && a->size == size && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemUnmap(CUdeviceptr pointer, size_t size) {
  INITIALIZED;
  return release((void *)pointer, 1 << VIRTUAL);
}
