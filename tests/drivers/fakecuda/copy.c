// Copies and fills.
//
// As in the driver, a pageable source has been read when the call returns, and a pageable target
// is complete. FAKE_CUDA_STRICT=1 makes both truly asynchronous, which is harder on the caller.
#include "fake.h"

static void run_copy(Operation *o) {
  for (size_t plane = 0; plane < o->depth; plane++)
    for (size_t row = 0; row < o->height; row++)
      memmove(o->target + plane * o->target_plane + row * o->target_pitch,
              o->source + plane * o->source_plane + row * o->source_pitch, o->nbytes);
}

static void run_copy_and_free(Operation *o) {
  run_copy(o);
  free(o->source);
}

static void run_fill(Operation *o) { memset(o->target, o->value, o->nbytes); }

// Pool memory has no context of its own. Which one a copy of it is made in is not documented: the
// simulated driver wants the stream's to be current.
static int elsewhere(CUstream stream, const void *pointer) {
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation(pointer);
  int is_pool = a && a->kind == POOL;
  pthread_mutex_unlock(&lock);
  return is_pool && stream->context != current_context();
}

// *device_target* and *device_source*: that side must be CUDA memory.
static CUresult copy(const void *target, int device_target, const void *source, int device_source,
                     size_t nbytes, CUstream handle) {
  CUstream stream = stream_of(handle);
  if (!stream) return gone();
  if (elsewhere(stream, target) || elsewhere(stream, source)) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  int pageable_source = !find_allocation(source), pageable_target = !find_allocation(target);
  Operation operation = {
      .run = run_copy,
      .target = host_alias(target, nbytes, device_target),
      .source = host_alias(source, nbytes, device_source),
      .nbytes = nbytes,
      .height = 1,
      .depth = 1,
  };
  pthread_mutex_unlock(&lock);
  if (!operation.target || !operation.source) return CUDA_ERROR_INVALID_VALUE;
  int late = strict || stream->capture;
  if (pageable_source && !late) {
    operation.source = memcpy(malloc(nbytes ? nbytes : 1), source, nbytes);
    operation.run = run_copy_and_free;
  }
  CUresult result = push(handle, operation);
  if (!result && pageable_target && !late) drain(stream);
  return result;
}

static CUresult copy_now(const void *target, int device_target, const void *source,
                         int device_source, size_t nbytes) {
  CUresult result = copy(target, device_target, source, device_source, nbytes, NULL);
  if (!result) drain(stream_of(NULL));
  return result;
}

API cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  return copy((void *)target, 0, (void *)source, 0, nbytes, stream);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  return copy((void *)target, 1, source, 0, nbytes, stream);
}

API cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  return copy(target, 0, (void *)source, 1, nbytes, stream);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  return copy((void *)target, 1, (void *)source, 1, nbytes, stream);
}

API cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                      CUcontext source_context, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  if (!target_context || !source_context) return CUDA_ERROR_INVALID_CONTEXT;
  return copy((void *)target, 1, (void *)source, 1, nbytes, stream);
}

API cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t nbytes) {
  WITH_CONTEXT;
  return copy_now((void *)target, 0, (void *)source, 0, nbytes);
}

API cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t nbytes) {
  WITH_CONTEXT;
  return copy_now((void *)target, 1, source, 0, nbytes);
}

API cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t nbytes) {
  WITH_CONTEXT;
  return copy_now(target, 0, (void *)source, 1, nbytes);
}

API cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t nbytes) {
  WITH_CONTEXT;
  return copy_now((void *)target, 1, (void *)source, 1, nbytes);
}

API cuMemcpyPeer(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                 CUcontext source_context, size_t nbytes) {
  WITH_CONTEXT;
  return copy_now((void *)target, 1, (void *)source, 1, nbytes);
}

// Bytes from the first to the last of a box.
static size_t reach(size_t width, size_t height, size_t pitch, size_t depth, size_t plane) {
  return width + (height - 1) * pitch + (depth - 1) * plane;
}

API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *box, CUstream stream) {
  WITH_CONTEXT;
  if (!box->WidthInBytes || !box->Height || !box->Depth) return CUDA_SUCCESS;
  int from_host = box->srcMemoryType == CU_MEMORYTYPE_HOST;
  int to_host = box->dstMemoryType == CU_MEMORYTYPE_HOST;
  size_t source_plane = box->srcPitch * box->srcHeight;
  size_t target_plane = box->dstPitch * box->dstHeight;
  int short_source = box->Height > 1 && box->srcPitch < box->srcXInBytes + box->WidthInBytes;
  int short_target = box->Height > 1 && box->dstPitch < box->dstXInBytes + box->WidthInBytes;
  if (short_source || short_target) return CUDA_ERROR_INVALID_VALUE;
  if (box->Depth > 1 && (box->srcHeight < box->Height || box->dstHeight < box->Height))
    return CUDA_ERROR_INVALID_VALUE;
  size_t source_reach =
      reach(box->WidthInBytes, box->Height, box->srcPitch, box->Depth, source_plane);
  size_t target_reach =
      reach(box->WidthInBytes, box->Height, box->dstPitch, box->Depth, target_plane);
  const char *source = from_host ? box->srcHost : (void *)box->srcDevice;
  const char *target = to_host ? box->dstHost : (void *)box->dstDevice;
  source += box->srcZ * source_plane + box->srcY * box->srcPitch + box->srcXInBytes;
  target += box->dstZ * target_plane + box->dstY * box->dstPitch + box->dstXInBytes;
  pthread_mutex_lock(&lock);
  Operation operation = {
      .run = run_copy,
      .source = host_alias(source, source_reach, !from_host),
      .target = host_alias(target, target_reach, !to_host),
      .nbytes = box->WidthInBytes,
      .height = box->Height,
      .depth = box->Depth,
      .source_pitch = box->srcPitch,
      .target_pitch = box->dstPitch,
      .source_plane = source_plane,
      .target_plane = target_plane,
  };
  pthread_mutex_unlock(&lock);
  if (!operation.source || !operation.target) return CUDA_ERROR_INVALID_VALUE;
  CUstream on = stream_of(stream);
  if (on && (elsewhere(on, source) || elsewhere(on, target))) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = push(stream, operation);
  // Simpler than staging rows: pageable memory on either side is done on return.
  if (!result && (from_host || to_host) && !strict && !stream_of(stream)->capture)
    drain(stream_of(stream));
  return result;
}

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *r, CUstream stream) {
  ENTERED;
  CUDA_MEMCPY3D box = {
      .srcXInBytes = r->srcXInBytes,
      .srcY = r->srcY,
      .srcMemoryType = r->srcMemoryType,
      .srcHost = r->srcHost,
      .srcDevice = r->srcDevice,
      .srcPitch = r->srcPitch,
      .dstXInBytes = r->dstXInBytes,
      .dstY = r->dstY,
      .dstMemoryType = r->dstMemoryType,
      .dstHost = r->dstHost,
      .dstDevice = r->dstDevice,
      .dstPitch = r->dstPitch,
      .WidthInBytes = r->WidthInBytes,
      .Height = r->Height,
      .Depth = 1,
  };
  return cuMemcpy3DAsync_v2(&box, stream);
}

API cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t nbytes, CUstream stream) {
  WITH_CONTEXT;
  pthread_mutex_lock(&lock);
  char *alias = host_alias((void *)target, nbytes, 1);
  pthread_mutex_unlock(&lock);
  if (!alias) return CUDA_ERROR_INVALID_VALUE;
  CUstream on = stream_of(stream);
  if (on && elsewhere(on, (void *)target)) return CUDA_ERROR_INVALID_CONTEXT;
  return push(stream, (Operation){.run = run_fill, .target = alias, .nbytes = nbytes,
                                  .value = value});
}
