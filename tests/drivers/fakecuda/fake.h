// Shared by the parts of the simulated driver: its state, and the checks at every entry.
//
// A libcuda over host memory. Device pointers are mapped PROT_NONE (the host faults when it
// touches them); copies go through a writable alias of the same pages. Every stream is a worker
// thread, so a missing wait is a real race, and FAKE_CUDA_DELAY_US makes the race certain.
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#define _GNU_SOURCE
#include "cuda_api.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) CUresult
#define CONTROL __attribute__((visibility("default")))

// Every driver function begins with one of these three. `entered` counts the call and gives the
// error that a test has ordered for it.
#define ENTERED                          \
  do {                                   \
    CUresult ordered = entered(__func__); \
    if (ordered) return ordered;         \
  } while (0)
#define INITIALIZED                                            \
  ENTERED;                                                     \
  if (device_count < 0) return CUDA_ERROR_NOT_INITIALIZED
#define WITH_CONTEXT                                           \
  INITIALIZED;                                                 \
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT
#define VALID_DEVICE(d) \
  if ((d) < 0 || (d) >= device_count) return CUDA_ERROR_INVALID_DEVICE

enum { MAX_DEVICES = 8 };
enum Kind { POOL = 1, DEVICE, HOST, MANAGED, REGISTERED, EXTERNAL, VIRTUAL };

typedef struct Allocation {
  struct Allocation *next;
  char *pointer;  // what the caller gets
  char *alias;    // what the host may write
  size_t size;
  enum Kind kind;
  CUcontext context;  // NULL for pool memory, as in the driver
  int device;
  unsigned long long id;
  int is_given_back;  // its free is queued
} Allocation;

struct CUctx_st {
  int device, references;
  struct CUctx_st *next;  // created ones, not primary
};

struct CUmemPoolHandle_st {
  int device;
  unsigned long long threshold;
  size_t kept;  // bytes freed and not given back
};

// One call of cuEventRecord: a wait keeps the one that it found, whatever is recorded later.
typedef struct Record {
  int parts;       // streams whose work it is still behind; 0: done
  int references;  // the event's and the queued operations'; under the lock
} Record;

struct CUevent_st {
  CUcontext context;
  Record *record;        // the last one; NULL before the first
  CUstream captured_in;  // a captured event, until it is recorded outside a capture
};

// One piece of work on a stream. `sequence` is the order in which the host queued it.
typedef struct Operation {
  struct Operation *next;
  void (*run)(struct Operation *);
  unsigned long long sequence;
  char *target, *source;
  size_t nbytes, target_pitch, source_pitch, height, target_plane, source_plane, depth;
  Record *record;
  CUhostFn function;
  void *argument;
  int value;
} Operation;

struct CUgraph_st {
  Operation *first, *last;
  int nodes;
};

struct CUstream_st {
  struct CUstream_st *next;
  pthread_t thread;
  Operation *first, *last;  // the first one is the running one
  CUcontext context;
  unsigned flags;
  int is_legacy, stop;
  CUstreamCaptureStatus capture;
  CUstreamCaptureMode mode;
  CUgraph graph;
  unsigned long long id;  // no other stream ever has it
};

// Set by cuInit and by the control functions.
extern int device_count, delay_us, strict;
extern int gone_streams_crash;  // what a call with a destroyed stream does: crash, as CUDA's ...
extern CUresult destroyed;      // ... or give this, as HIP's: CUDA_ERROR_INVALID_HANDLE or 709
CUresult gone(void);
extern int attributes[CU_DEVICE_ATTRIBUTE_COUNT];
extern size_t total_memory, used_memory[MAX_DEVICES];  // of each device
extern size_t live_allocations;
extern unsigned char first_uuid[16];  // of device 0; the last byte counts up for the others
extern struct CUctx_st primaries[MAX_DEVICES];
extern struct CUmemPoolHandle_st pools[MAX_DEVICES];
extern CUstream streams;
extern pthread_mutex_t lock;
extern pthread_cond_t changed;

CUresult entered(const char *function);

CUcontext current_context(void);
int current_device(void);

Allocation *find_allocation(const void *pointer);  // under the lock
void record(Allocation *a);
char *host_alias(const void *pointer, size_t nbytes, int must_be_known);  // under the lock
CUresult release(void *pointer, unsigned kinds);
CUresult end_captures_of(CUcontext context);
CUresult unsafe_during_capture(void);

CUstream stream_of(CUstream handle);  // NULL if there is no such stream
CUresult push(CUstream stream, Operation operation);
void drain(CUstream stream);
void synchronize_context(CUcontext context);
#endif
