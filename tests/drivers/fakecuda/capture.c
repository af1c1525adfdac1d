// Graph capture: what it forbids, and replaying what was captured on one stream.
#include "fake.h"

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// In the default mode, a call that is not safe beside a capture ends every capture.
CUresult unsafe_during_capture(void) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  pthread_mutex_unlock(&lock);
  return result;
}

// End every capture on a stream of *context*.
CUresult end_captures_of(CUcontext context) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture && s->context == context) {
      s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  pthread_mutex_unlock(&lock);
  return result;
}

// HIP's own rules, for the shim (ROCm/rocm-systems, projects/clr/hipamd/src, 2026).

// CHECK_SUPPORTED_DURING_CAPTURE: ends every capture, in any mode.
API fake_end_captures(CUstream unused) {
  (void)unused;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture) {
      s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  pthread_mutex_unlock(&lock);
  return result;
}

// StreamCaptureOngoing: a host wait for a stream that runs is unsafe beside a capture.
API fake_wait_beside_captures(CUstream stream) {
  stream = stream_of(stream);
  return stream && !stream->capture ? unsafe_during_capture() : CUDA_SUCCESS;
}

// Refused, and nothing ends, while any other stream captures, in any mode.
API fake_refuse_beside_any(CUstream stream) {
  (void)stream;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture) result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  pthread_mutex_unlock(&lock);
  return result;
}

// StreamCaptureBlocking: refused, and nothing ends, while a blocking stream captures.
API fake_refuse_beside_blocking(CUstream stream) {
  stream = stream_of(stream);
  CUresult result = CUDA_SUCCESS;
  if (!stream || stream->capture) return result;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture && s->context == stream->context && !(s->flags & CU_STREAM_NON_BLOCKING))
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  pthread_mutex_unlock(&lock);
  return result;
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  INITIALIZED;
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  WITH_CONTEXT;
  if ((uintptr_t)stream <= CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream = stream_of(stream);
  if (!stream) return gone();
  stream->graph = calloc(1, sizeof *stream->graph);
  stream->mode = mode;
  stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  WITH_CONTEXT;
  stream = stream_of(stream);
  if (!stream) return gone();
  CUgraph captured = stream->graph;
  int whole = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)  // the streams that joined are let go too
    if (s->capture && s->graph == captured) {
      s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
      s->graph = NULL;
    }
  pthread_mutex_unlock(&lock);
  *graph = whole ? captured : NULL;
  return whole ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  WITH_CONTEXT;
  stream = stream_of(stream);
  if (!stream) return gone();
  *status = stream->capture;
  if (!stream->is_legacy) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture && s->context == stream->context && !(s->flags & CU_STREAM_NON_BLOCKING))
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  pthread_mutex_unlock(&lock);
  return result;
}

API cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, cuuint64_t flags) {
  INITIALIZED;
  *executable = graph;
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  WITH_CONTEXT;
  for (Operation *o = graph->first; o; o = o->next) {
    CUresult result = push(stream, *o);
    if (result) return result;
  }
  return CUDA_SUCCESS;
}

API cuGraphGetNodes(CUgraph graph, void *nodes, size_t *count) {
  INITIALIZED;
  *count = graph->nodes;
  return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph graph) {
  INITIALIZED;
  return CUDA_SUCCESS;  // leaked: an executable is the same object here
}

API cuGraphExecDestroy(CUgraphExec graph) {
  INITIALIZED;
  return CUDA_SUCCESS;
}
