// How a test steers the simulated driver: delays, ordered errors, counts, device attributes.
#include "fake.h"
#include <stdio.h>

enum { MAX_NAMES = 256 };
static struct {
  char name[48];
  unsigned long calls;
  CUresult error;  // what it returns ...
  long skip;       // ... after this many calls more
  int once;        // ... and no more
} functions[MAX_NAMES];
static int known;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

static int slot_of(const char *name) {  // under the lock
  char plain[48];
  snprintf(plain, sizeof plain, "%s", name);
  char *suffix = strstr(plain, "_v");  // tests say cuMemAlloc, not cuMemAlloc_v2
  if (suffix) *suffix = 0;
  for (int i = 0; i < known; i++)
    if (!strcmp(functions[i].name, plain)) return i;
  if (known == MAX_NAMES) abort();
  strcpy(functions[known].name, plain);
  return known++;
}

CUresult entered(const char *function) {
  pthread_mutex_lock(&names);
  int i = slot_of(function);
  functions[i].calls++;
  CUresult error = functions[i].error;
  if (error && functions[i].skip-- > 0) error = 0;
  if (error && functions[i].once) functions[i].error = 0;
  pthread_mutex_unlock(&names);
  return error;
}

// Let the function return *error* (0: none any more) after *skip* calls that succeed.
CONTROL void fake_cuda_fail(const char *function, CUresult error, long skip) {
  pthread_mutex_lock(&names);
  int i = slot_of(function);
  functions[i].error = error;
  functions[i].skip = skip;
  functions[i].once = 0;
  pthread_mutex_unlock(&names);
}

// The same, for one call.
CONTROL void fake_cuda_fail_once(const char *function, CUresult error, long skip) {
  pthread_mutex_lock(&names);
  int i = slot_of(function);
  functions[i].error = error;
  functions[i].skip = skip;
  functions[i].once = 1;
  pthread_mutex_unlock(&names);
}

// How often the function was called in this process.
CONTROL unsigned long fake_cuda_calls(const char *function) {
  pthread_mutex_lock(&names);
  unsigned long calls = functions[slot_of(function)].calls;
  pthread_mutex_unlock(&names);
  return calls;
}

// Back to what the environment says: no ordered errors, no changed attributes.
CONTROL void fake_cuda_reset(void) {
  pthread_mutex_lock(&names);
  for (int i = 0; i < known; i++) functions[i].error = 0;
  pthread_mutex_unlock(&names);
  for (int i = 0; i < CU_DEVICE_ATTRIBUTE_COUNT; i++) attributes[i] = -1;
  const char *delay = getenv("FAKE_CUDA_DELAY_US");
  delay_us = delay ? atoi(delay) : 0;
  const char *is_strict = getenv("FAKE_CUDA_STRICT");
  strict = is_strict && atoi(is_strict);
  total_memory = (size_t)1 << 34;
  destroyed = CUDA_ERROR_INVALID_HANDLE;
  memset(first_uuid, 0xFA, sizeof first_uuid);
  first_uuid[15] = 0;
}

// The UUID of device 0: 16 bytes.
CONTROL void fake_cuda_uuid(const unsigned char *uuid) { memcpy(first_uuid, uuid, sizeof first_uuid); }

// What a destroyed stream gives from now on: CUDA_ERROR_INVALID_HANDLE or _CONTEXT_IS_DESTROYED.
CONTROL void fake_cuda_destroyed(CUresult error) { destroyed = error; }
CONTROL void fake_cuda_gone_streams_crash(int on) { gone_streams_crash = on; }

// On which device the memory is, whatever it was allocated for; -1: it is not there.
CONTROL int fake_cuda_home(const void *pointer) {
  pthread_mutex_lock(&lock);
  Allocation *a = find_allocation(pointer);
  int device = a ? a->device : -1;
  pthread_mutex_unlock(&lock);
  return device;
}

CONTROL void fake_cuda_delay(int microseconds) { delay_us = microseconds; }
CONTROL void fake_cuda_strict(int on) { strict = on; }

// Leave the devices as much memory as device 0 uses now, and so many bytes more.
CONTROL void fake_cuda_memory(size_t bytes) {
  pthread_mutex_lock(&lock);
  pools[0].kept = 0;
  total_memory = used_memory[0] + bytes;
  pthread_mutex_unlock(&lock);
}

CONTROL void fake_cuda_attribute(int attribute, int value) { attributes[attribute] = value; }
CONTROL size_t fake_cuda_live(void) { return live_allocations; }
