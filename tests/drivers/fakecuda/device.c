// Opening the driver, devices, contexts.
#include "fake.h"
#include <stdio.h>

int device_count = -1, delay_us, strict;
int attributes[CU_DEVICE_ATTRIBUTE_COUNT];  // -1: as below
unsigned char first_uuid[16];
struct CUctx_st primaries[MAX_DEVICES];
static CUcontext created;

enum { STACK = 64 };
static __thread CUcontext stack[STACK];
static __thread int top = -1;

void fake_cuda_reset(void);

CUcontext current_context(void) { return top >= 0 ? stack[top] : NULL; }
int current_device(void) { return current_context() ? current_context()->device : 0; }

static int is_context(CUcontext context) {
  if (context >= primaries && context < primaries + MAX_DEVICES) return context->references > 0;
  for (CUcontext c = created; c; c = c->next)
    if (c == context) return 1;
  return 0;
}

API cuInit(unsigned flags) {
  ENTERED;
  const char *count = getenv("FAKE_CUDA_DEVICES");
  int devices = count ? atoi(count) : 2;
  if (!devices) return CUDA_ERROR_NO_DEVICE;
  if (device_count < 0) {
    fake_cuda_reset();
    for (int i = 0; i < MAX_DEVICES; i++) primaries[i].device = pools[i].device = i;
    device_count = devices > MAX_DEVICES ? MAX_DEVICES : devices;
  }
  return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
  ENTERED;
  const char *wanted = getenv("FAKE_CUDA_VERSION");
  *version = wanted ? atoi(wanted) : 13000;
  return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
  INITIALIZED;
  *count = device_count;
  return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
  INITIALIZED;
  VALID_DEVICE(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  const char *wanted = getenv("FAKE_CUDA_NAME");
  snprintf(name, size, "%s %d", wanted ? wanted : "Fake CUDA device", device);
  return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  memcpy(uuid, first_uuid, sizeof *uuid);
  uuid->bytes[15] += device;
  return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *name, int size, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  snprintf(name, size, "0000:%02x:00.0", device);
  return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  *bytes = total_memory;
  return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  *value = 0;
  if (attribute < 0 || attribute >= CU_DEVICE_ATTRIBUTE_COUNT) return CUDA_ERROR_INVALID_VALUE;
  if (attributes[attribute] >= 0) {
    *value = attributes[attribute];
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 2; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 2; break;
  }
  return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  INITIALIZED;
  VALID_DEVICE(device);
  VALID_DEVICE(peer);
  *can = device != peer;
  return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  WITH_CONTEXT;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  return is_context(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  __sync_fetch_and_add(&primaries[device].references, 1);
  *context = &primaries[device];
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  if (primaries[device].references <= 0) return CUDA_ERROR_INVALID_CONTEXT;
  __sync_fetch_and_sub(&primaries[device].references, 1);
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  INITIALIZED;
  VALID_DEVICE(device);
  *flags = 0;
  *active = primaries[device].references > 0;
  return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  INITIALIZED;
  VALID_DEVICE(device);
  if (top + 1 == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
  CUcontext new = calloc(1, sizeof *new);
  new->device = device;
  pthread_mutex_lock(&lock);
  new->next = created;
  created = new;
  pthread_mutex_unlock(&lock);
  stack[++top] = *context = new;  // it becomes current, as in the driver
  return CUDA_SUCCESS;
}

API cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}

API cuCtxDestroy_v2(CUcontext context) {
  INITIALIZED;
  synchronize_context(context);
  pthread_mutex_lock(&lock);
  CUcontext *link = &created;
  while (*link && *link != context) link = &(*link)->next;
  int found = *link != NULL;
  if (found) *link = context->next;  // not freed: streams may still name it
  pthread_mutex_unlock(&lock);
  if (found && current_context() == context) top--;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuCtxGetCurrent(CUcontext *context) {
  INITIALIZED;
  *context = current_context();
  return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context) {
  INITIALIZED;
  if (context && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context) {  // as cuCtxPopCurrent
    if (top >= 0) top--;
    return CUDA_SUCCESS;
  }
  if (top < 0) top = 0;
  stack[top] = context;
  return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context) {
  INITIALIZED;
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (top + 1 == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
  stack[++top] = context;
  return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context) {
  WITH_CONTEXT;
  if (context) *context = stack[top];
  top--;
  return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device) {
  WITH_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) {
  WITH_CONTEXT;
  // In any mode of capture: the context's handle stands for all its streams (CUDA programming
  // guide, stream capture, "Prohibited and Unhandled Operations").
  CUresult result = end_captures_of(current_context());
  if (result) return result;
  synchronize_context(current_context());
  return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  WITH_CONTEXT;
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
