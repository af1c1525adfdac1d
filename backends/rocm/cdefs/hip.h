/*
 * What dlbridge_rocm uses of the HIP runtime API, in the form that cffi reads.
 *
 * Trimmed by hand from hip_runtime_api.h (names, order of parameters, values); every value
 * is the same in HIP 5.2, 6 and 7 unless a comment says otherwise.
 * `python backends/rocm/cdefs` makes dlbridge_rocm/_cdefs.py from this file.
 *
 * Handles and addresses are pointers in HIP's header. Here they are integers of the same
 * width, which are passed to C in the same way, so that Python integers go in and out.
 */

typedef uintptr_t hipStream_t, hipEvent_t, hipMemPool_t, hipDeviceptr_t;
typedef int hipDevice_t, hipError_t, hipDeviceAttribute_t, hipMemPoolAttr, hipMemcpyKind,
    hipStreamCaptureMode, hipStreamCaptureStatus;

/* --- Constants --- */

enum {
    hipDeviceAttributeConcurrentManagedAccess = 9,
    hipDeviceAttributeIntegrated = 16,
    hipDeviceAttributeComputeCapabilityMajor = 23,
    hipDeviceAttributeComputeCapabilityMinor = 61,
    hipDeviceAttributeMaxPitch = 58,
    hipDeviceAttributeMultiprocessorCount = 63,
    hipDeviceAttributePageableMemoryAccess = 65,
    hipDeviceAttributeWarpSize = 87,
    hipDeviceAttributeMemoryPoolsSupported = 88
};

enum { hipMemcpyDefault = 4 };  /* the runtime asks where both sides are */
enum { hipEventDisableTiming = 2 };
enum { hipHostMallocPortable = 1, hipHostMallocMapped = 2 };
enum { hipHostRegisterPortable = 1, hipHostRegisterMapped = 2 };
enum { hipMemPoolAttrReleaseThreshold = 4 };
enum { hipMemLocationTypeDevice = 1 };
enum { hipMemAccessFlagsProtReadWrite = 3 };
enum { hipStreamCaptureStatusNone = 0 };
enum { hipStreamCaptureModeRelaxed = 2 };

/* --- Structures --- */

typedef struct {
    char bytes[16];
} hipUUID;

typedef struct {
    int type;  /* a hipMemoryType, which HIP 6 renumbered; `memoryType` in HIP 5 */
    int device;
    hipDeviceptr_t devicePointer;
    void *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;

typedef struct {
    int type;
    int id;
} hipMemLocation;

typedef struct {
    hipMemLocation location;
    int flags;
} hipMemAccessDesc;

/* --- The runtime, devices, errors --- */

hipError_t hipRuntimeGetVersion(int *version);
hipError_t hipGetDeviceCount(int *count);
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipGetLastError(void);
const char *hipGetErrorName(hipError_t error);
const char *hipGetErrorString(hipError_t error);

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceGetName(char *name, int size, hipDevice_t device);
hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device);
hipError_t hipDeviceGetPCIBusId(char *text, int size, int device);
hipError_t hipDeviceTotalMem(size_t *nbytes, hipDevice_t device);
hipError_t hipDeviceSynchronize(void);
hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer);
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags);

/* --- Memory --- */

hipError_t hipMemGetInfo(size_t *available, size_t *total);
hipError_t hipMalloc(hipDeviceptr_t *pointer, size_t nbytes);
hipError_t hipFree(hipDeviceptr_t pointer);
hipError_t hipMallocFromPoolAsync(hipDeviceptr_t *pointer, size_t nbytes, hipMemPool_t pool,
                                  hipStream_t stream);
hipError_t hipFreeAsync(hipDeviceptr_t pointer, hipStream_t stream);
hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *pool, int device);
hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value);
hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value);
hipError_t hipMemPoolSetAccess(hipMemPool_t pool, const hipMemAccessDesc *access, size_t count);
hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t keep);
hipError_t hipHostMalloc(hipDeviceptr_t *pointer, size_t nbytes, unsigned flags);
hipError_t hipHostFree(hipDeviceptr_t pointer);
hipError_t hipHostRegister(hipDeviceptr_t pointer, size_t nbytes, unsigned flags);
hipError_t hipHostUnregister(hipDeviceptr_t pointer);
hipError_t hipHostGetDevicePointer(hipDeviceptr_t *seen, hipDeviceptr_t pointer, unsigned flags);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, hipDeviceptr_t pointer);

/* --- Copies and fills --- */

hipError_t hipMemcpyAsync(hipDeviceptr_t target, hipDeviceptr_t source, size_t nbytes,
                          hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemcpyPeerAsync(hipDeviceptr_t target, int target_device, hipDeviceptr_t source,
                              int source_device, size_t nbytes, hipStream_t stream);
hipError_t hipMemcpy2DAsync(hipDeviceptr_t target, size_t target_pitch, hipDeviceptr_t source,
                            size_t source_pitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemsetAsync(hipDeviceptr_t target, int value, size_t nbytes, hipStream_t stream);

/* --- Streams and events --- */

hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags);
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *status);
hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t *device);  /* since HIP 5.6 */
hipError_t hipStreamGetId(hipStream_t stream, unsigned long long *id);  /* since HIP 7 */
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode);
hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags);
hipError_t hipEventDestroy(hipEvent_t event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
