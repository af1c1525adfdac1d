/* The part of a foreign C library in the tests: threads that Python has never
 * seen, tensors that are released late, and a C caller of exchange tables. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *);
} Managed;

typedef void (*SetError)(void *, const char *, const char *);
typedef int (*Allocator)(void *, Managed **, void *, SetError);
typedef int (*FromPyObject)(void *, Managed **);
typedef int (*CurrentWorkStream)(int32_t, int32_t, void **);

static Managed *held;

static void release_held(void) {
  Managed *managed = held;
  held = NULL;
  if (managed && managed->deleter) managed->deleter(managed);
}

/* Released after Python is gone: by a static destructor ... */
__attribute__((destructor)) static void at_unload(void) { release_held(); }
void harness_hold(void *managed) { held = managed; }

/* ... or by a C atexit handler. */
void harness_hold_until_exit(void *managed) {
  held = managed;
  atexit(release_held);
}

static void *delete_now(void *managed) {
  ((Managed *)managed)->deleter(managed);
  return NULL;
}

/* By a thread without Python state, and without the GIL if the caller dropped it. */
int harness_delete_in_thread(void *managed) {
  pthread_t thread;
  int failed = pthread_create(&thread, NULL, delete_now, managed);
  return failed ? failed : pthread_join(thread, NULL);
}

static atomic_int goes, calls;

static void *delete_late(void *managed) {
  while (!goes) usleep(1000);
  fputs("late thread calls\n", stderr);
  calls = 1;
  return delete_now(managed);
}

/* By a thread that wakes up while the interpreter is being taken down: in `harness_let_go`. */
int harness_delete_late(void *managed) {
  pthread_t thread;
  return pthread_create(&thread, NULL, delete_late, managed) || pthread_detach(thread);
}

void harness_let_go(void) {
  goes = 1;
  while (!calls) usleep(1000);
  usleep(200 * 1000); /* a deleter that crashes does so now, but on a busy machine */
}

/* As a consumer does that has just refused the tensor; Python's own functions. */
extern void *PyExc_ValueError;
void PyErr_SetString(void *, const char *);

void harness_delete_with_error(void *managed) {
  PyErr_SetString(PyExc_ValueError, "the consumer's own");
  ((Managed *)managed)->deleter(managed);
}

void harness_delete(void *managed) { ((Managed *)managed)->deleter(managed); }

/* Exchange tables from C. errno is 77 before the call; what it is after comes back. */
int harness_from_py_object(FromPyObject function, void *object, Managed **out, int *error) {
  errno = 77;
  int status = function(object, out);
  *error = errno;
  return status;
}

/* How many calls return 0, each tensor deleted at once. */
long harness_repeat_from_py_object(FromPyObject function, void *object, long times) {
  long good = 0;
  for (long i = 0; i < times; i++) {
    Managed *managed = NULL;
    if (function(object, &managed) == 0 && managed) {
      managed->deleter(managed);
      good++;
    }
  }
  return good;
}

static int errors;
static char kind[64], message[512];
static void *context_seen;

static void set_error(void *context, const char *k, const char *m) {
  errors++;
  context_seen = context;
  snprintf(kind, sizeof kind, "%s", k);
  snprintf(message, sizeof message, "%s", m);
}

int harness_errors(void) { return errors; }
const char *harness_kind(void) { return kind; }
const char *harness_message(void) { return message; }

int harness_allocate(Allocator allocate, void *prototype, Managed **out, int with_set_error) {
  int context = 0;
  errors = 0;
  kind[0] = message[0] = 0;
  int status = allocate(prototype, out, &context, with_set_error ? set_error : NULL);
  if (errors && context_seen != &context) return 1000;
  return status;
}

int harness_current_work_stream(CurrentWorkStream function, int32_t type, int32_t id, void **out) {
  errno = 77;
  int status = function(type, id, out);
  return errno == 77 ? status : 1000 + errno;
}
