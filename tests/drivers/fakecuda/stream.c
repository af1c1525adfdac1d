// Streams as worker threads, events, and the order that the driver documents between them.
#include "fake.h"
#include <stdio.h>
#include <unistd.h>

CUstream streams;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned long long queued;
static CUstream legacy[MAX_DEVICES];
static __thread CUstream per_thread[MAX_DEVICES];

// Handles of destroyed streams are used again at once, as drivers do (rapidsai/rmm#649).
static CUstream unused;
CUresult destroyed = CUDA_ERROR_INVALID_HANDLE;
int gone_streams_crash = 1;

// NVIDIA's driver 580 reads the handle of a destroyed stream unchecked: a segmentation fault
// (tests/hardware/streams.py). HIP's runtime looks it up first, and gives a status.
CUresult gone(void) {
  if (!gone_streams_crash) return destroyed;
  fprintf(stderr, "simulated CUDA: a call with the handle of a destroyed stream\n");
  abort();
}

// Earlier work on the legacy stream holds up a blocking stream of its context, and the reverse.
static int held_up(CUstream stream, Operation *operation) {
  if (stream->flags & CU_STREAM_NON_BLOCKING) return 0;
  for (CUstream s = streams; s; s = s->next) {
    if (s == stream || s->context != stream->context || s->flags & CU_STREAM_NON_BLOCKING)
      continue;
    if ((s->is_legacy || stream->is_legacy) && s->first &&
        s->first->sequence < operation->sequence)
      return 1;
  }
  return 0;
}

static void run_record(Operation *o);

static void *worker(void *argument) {
  CUstream stream = argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!stream->first && !stream->stop) pthread_cond_wait(&changed, &lock);
    Operation *operation = stream->first;
    if (!operation) break;
    while (held_up(stream, operation)) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (delay_us) usleep(delay_us);
    if (operation->run != run_record) operation->run(operation);
    pthread_mutex_lock(&lock);
    // In one step with the end of the work: a stream that has no other work is idle with its event.
    if (operation->run == run_record) operation->run(operation);
    stream->first = operation->next;
    if (!stream->first) stream->last = NULL;
    free(operation);
    pthread_cond_broadcast(&changed);
  }
  CUstream *link = &streams;  // it was destroyed, and its work is done
  while (*link != stream) link = &(*link)->next;
  *link = stream->next;
  stream->next = unused;
  unused = stream;
  pthread_mutex_unlock(&lock);
  return NULL;
}

static CUstream new_stream(CUcontext context, unsigned flags) {
  static unsigned long long ids;
  pthread_mutex_lock(&lock);
  CUstream stream = unused;
  if (stream) unused = stream->next;
  else stream = malloc(sizeof *stream);
  memset(stream, 0, sizeof *stream);
  stream->context = context;
  stream->flags = flags;
  stream->id = ++ids;
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  pthread_create(&stream->thread, NULL, worker, stream);
  pthread_detach(stream->thread);
  return stream;
}

static CUstream default_stream(CUstream *of_device) {
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  CUcontext context = current_context();
  pthread_mutex_lock(&making);
  CUstream *stream = &of_device[context->device];
  if (!*stream) {
    *stream = new_stream(context, 0);
    (*stream)->is_legacy = of_device == legacy;
  }
  pthread_mutex_unlock(&making);
  return *stream;
}

CUstream stream_of(CUstream handle) {
  if ((uintptr_t)handle <= CU_STREAM_LEGACY) return default_stream(legacy);
  if ((uintptr_t)handle == CU_STREAM_PER_THREAD) return default_stream(per_thread);
  pthread_mutex_lock(&lock);
  CUstream stream = streams;
  while (stream && (stream != handle || stream->stop)) stream = stream->next;
  pthread_mutex_unlock(&lock);
  return stream;
}

// Work on the legacy stream ends the capture of a stream that it is ordered with.
static int breaks_a_capture(CUstream stream) {
  int broken = 0;
  if (!stream->is_legacy) return 0;
  pthread_mutex_lock(&lock);
  for (CUstream s = streams; s; s = s->next)
    if (s->capture && s->context == stream->context && !(s->flags & CU_STREAM_NON_BLOCKING)) {
      s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      broken = 1;
    }
  pthread_mutex_unlock(&lock);
  return broken;
}

// Queue work; while the stream is capturing it becomes a node of the graph instead.
CUresult push(CUstream handle, Operation operation) {
  CUstream stream = stream_of(handle);
  if (!stream) return gone();
  if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (breaks_a_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  Operation *new = malloc(sizeof *new);
  *new = operation;
  new->next = NULL;
  pthread_mutex_lock(&lock);
  int captured = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  Operation **first = captured ? &stream->graph->first : &stream->first;
  Operation **last = captured ? &stream->graph->last : &stream->last;
  if (captured) stream->graph->nodes++;
  new->sequence = ++queued;
  if (*last) (*last)->next = new;
  else *first = new;
  *last = new;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

// Threads of the caller that wait now, for whatever.
static int waiting;
CONTROL int fake_cuda_waiting(void) {
  pthread_mutex_lock(&lock);
  int now = waiting;
  pthread_mutex_unlock(&lock);
  return now;
}

static void wait_for_change(void) {
  waiting++;
  pthread_cond_wait(&changed, &lock);
  waiting--;
}

void drain(CUstream stream) {
  pthread_mutex_lock(&lock);
  while (stream->first) wait_for_change();
  pthread_mutex_unlock(&lock);
}

static int context_is_busy(CUcontext context) {
  for (CUstream s = streams; s; s = s->next)
    if (s->context == context && s->first) return 1;
  return 0;
}

void synchronize_context(CUcontext context) {
  pthread_mutex_lock(&lock);
  while (context_is_busy(context)) wait_for_change();
  pthread_mutex_unlock(&lock);
}

API cuStreamCreate(CUstream *stream, unsigned flags) {
  WITH_CONTEXT;
  *stream = new_stream(current_context(), flags);
  return CUDA_SUCCESS;
}

API cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  return cuStreamCreate(stream, flags);
}

API cuStreamDestroy_v2(CUstream stream) {
  INITIALIZED;
  if ((uintptr_t)stream <= CU_STREAM_PER_THREAD || !stream_of(stream))
    return gone();
  pthread_mutex_lock(&lock);
  stream->stop = 1;  // its work goes on; then the handle is free for others
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

// Every query of a stream begins alike: it exists, and it is not being captured.
#define IDLE_STREAM(stream)                                          \
  WITH_CONTEXT;                                                      \
  stream = stream_of(stream);                                        \
  if (!stream) return gone();                     \
  if (stream->capture) {                                             \
    stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;          \
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                    \
  }

API cuStreamSynchronize(CUstream stream) {
  IDLE_STREAM(stream);
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  drain(stream);
  return CUDA_SUCCESS;
}

API cuStreamQuery(CUstream stream) {
  IDLE_STREAM(stream);
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  pthread_mutex_lock(&lock);
  int busy = stream->first != NULL;
  pthread_mutex_unlock(&lock);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

#define EXISTING_STREAM(stream) \
  INITIALIZED;                  \
  if ((uintptr_t)stream <= CU_STREAM_PER_THREAD && !current_context()) \
    return CUDA_ERROR_INVALID_CONTEXT;                                 \
  stream = stream_of(stream);   \
  if (!stream) return gone()

API cuStreamGetDevice(CUstream stream, CUdevice *device) {
  EXISTING_STREAM(stream);
  *device = stream->context->device;
  return CUDA_SUCCESS;
}

API cuStreamGetCtx(CUstream stream, CUcontext *context) {
  EXISTING_STREAM(stream);
  *context = stream->context;
  return CUDA_SUCCESS;
}

API cuStreamGetId(CUstream stream, unsigned long long *id) {
  EXISTING_STREAM(stream);
  if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *id = stream->id;
  return CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream stream, unsigned *flags) {
  EXISTING_STREAM(stream);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

API cuStreamGetPriority(CUstream stream, int *priority) {
  EXISTING_STREAM(stream);
  *priority = 0;
  return CUDA_SUCCESS;
}

static void run_function(Operation *o) { o->function(o->argument); }

API cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument) {
  WITH_CONTEXT;
  return push(stream, (Operation){.run = run_function, .function = function,
                                  .argument = argument});
}

static void forget(Record *record) {
  if (record && !--record->references) free(record);
}

static void run_record(Operation *o) {
  o->record->parts--;
  forget(o->record);
}

static void run_wait(Operation *o) {
  pthread_mutex_lock(&lock);
  while (o->record->parts) pthread_cond_wait(&changed, &lock);
  forget(o->record);
  pthread_mutex_unlock(&lock);
}

static void set_record(CUevent event, Record *record) {
  record->references++;
  forget(event->record);
  event->record = record;
  event->captured_in = NULL;
}

static int is_pending(CUevent event) { return event->record && event->record->parts; }

API cuEventCreate(CUevent *event, unsigned flags) {
  WITH_CONTEXT;
  *event = calloc(1, sizeof **event);
  (*event)->context = current_context();
  return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent event) {
  INITIALIZED;
  return CUDA_SUCCESS;  // leaked: queued work may still name it
}

API cuEventRecord(CUevent event, CUstream stream) {
  WITH_CONTEXT;
  stream = stream_of(stream);
  // "hEvent and hStream must be from the same context" (CUDA driver API, cuEventRecord).
  if (!stream) return gone();
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    event->captured_in = stream;
    return CUDA_SUCCESS;
  }
  Record *record = calloc(1, sizeof *record);
  *record = (Record){.parts = 1, .references = 2};  // the operation's, and ours
  CUresult result = push(stream, (Operation){.run = run_record, .record = record});
  pthread_mutex_lock(&lock);
  if (result) forget(record);  // nothing was queued
  else set_record(event, record);
  forget(record);
  pthread_mutex_unlock(&lock);
  return result;
}

// Behind all work of the context, that of destroyed streams too; it ends captures in any mode.
API cuCtxRecordEvent(CUcontext context, CUevent event) {
  INITIALIZED;
  CUresult result = end_captures_of(context);
  if (result) return result;
  if (event->context != context) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  Record *record = calloc(1, sizeof *record);
  for (CUstream s = streams; s; s = s->next) {
    if (s->context != context || !s->first) continue;
    Operation *new = calloc(1, sizeof *new);
    *new = (Operation){.run = run_record, .record = record};
    new->sequence = ++queued;
    s->last->next = new;
    s->last = new;
    record->parts++;
    record->references++;
  }
  set_record(event, record);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  WITH_CONTEXT;
  stream = stream_of(stream);
  if (!stream) return gone();
  if (event->captured_in) {  // the stream joins the capture
    stream->capture = event->captured_in->capture;
    stream->mode = event->captured_in->mode;
    stream->graph = event->captured_in->graph;
    return CUDA_SUCCESS;
  }
  if (stream->capture) {
    stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  pthread_mutex_lock(&lock);
  Record *record = is_pending(event) ? event->record : NULL;
  if (record) record->references++;
  pthread_mutex_unlock(&lock);
  return record ? push(stream, (Operation){.run = run_wait, .record = record}) : CUDA_SUCCESS;
}

// Of an event that was last recorded in a capture it is an error, which ends the capture (as on an
// H100, driver 580).
API cuEventQuery(CUevent event) {
  INITIALIZED;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  if (event->captured_in) {
    if (event->captured_in->capture)
      event->captured_in->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_lock(&lock);
  int pending = is_pending(event);
  pthread_mutex_unlock(&lock);
  return pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent event) {
  INITIALIZED;
  CUresult refused = unsafe_during_capture();
  if (refused) return refused;
  pthread_mutex_lock(&lock);
  Record *record = event->record;
  if (record) record->references++;
  while (record && record->parts) wait_for_change();
  forget(record);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
