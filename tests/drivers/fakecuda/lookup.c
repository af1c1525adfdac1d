// How cuda.bindings and the HIP shim find the functions: by plain name, through one entry.
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>

API cuGetErrorName(CUresult error, const char **name) {
  switch (error) {
    case 0: *name = "CUDA_SUCCESS"; return CUDA_SUCCESS;
    case 1: *name = "CUDA_ERROR_INVALID_VALUE"; return CUDA_SUCCESS;
    case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return CUDA_SUCCESS;
    case 3: *name = "CUDA_ERROR_NOT_INITIALIZED"; return CUDA_SUCCESS;
    case 4: *name = "CUDA_ERROR_DEINITIALIZED"; return CUDA_SUCCESS;
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; return CUDA_SUCCESS;
    case 101: *name = "CUDA_ERROR_INVALID_DEVICE"; return CUDA_SUCCESS;
    case 201: *name = "CUDA_ERROR_INVALID_CONTEXT"; return CUDA_SUCCESS;
    case 214: *name = "CUDA_ERROR_ECC_UNCORRECTABLE"; return CUDA_SUCCESS;
    case 304: *name = "CUDA_ERROR_OPERATING_SYSTEM"; return CUDA_SUCCESS;
    case 400: *name = "CUDA_ERROR_INVALID_HANDLE"; return CUDA_SUCCESS;
    case 600: *name = "CUDA_ERROR_NOT_READY"; return CUDA_SUCCESS;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return CUDA_SUCCESS;
    case 704: *name = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"; return CUDA_SUCCESS;
    case 709: *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; return CUDA_SUCCESS;
    case 710: *name = "CUDA_ERROR_ASSERT"; return CUDA_SUCCESS;
    case 712: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; return CUDA_SUCCESS;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return CUDA_SUCCESS;
    case 801: *name = "CUDA_ERROR_NOT_SUPPORTED"; return CUDA_SUCCESS;
    case 900: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return CUDA_SUCCESS;
    case 901: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; return CUDA_SUCCESS;
    case 902: *name = "CUDA_ERROR_STREAM_CAPTURE_MERGE"; return CUDA_SUCCESS;
    case 903: *name = "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"; return CUDA_SUCCESS;
    case 904: *name = "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"; return CUDA_SUCCESS;
    case 905: *name = "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"; return CUDA_SUCCESS;
    case 906: *name = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"; return CUDA_SUCCESS;
    case 907: *name = "CUDA_ERROR_CAPTURED_EVENT"; return CUDA_SUCCESS;
    case 908: *name = "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"; return CUDA_SUCCESS;
    case 999: *name = "CUDA_ERROR_UNKNOWN"; return CUDA_SUCCESS;
  }
  *name = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult error, const char **text) {
  *text = error ? "said by the simulated driver" : "no error";
  return CUDA_SUCCESS;
}

API cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
  static void *self;
  if (!self) {
    Dl_info info;
    dladdr((void *)cuGetProcAddress_v2, &info);
    self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  static const char *const suffixes[] = {"_v4", "_v2", ""};
  *function = NULL;
  for (int i = version < 12050; i < 3 && !*function; i++) {  // cuCtxCreate_v4 is of CUDA 12.5
    char full[128];
    snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
    *function = dlsym(self, full);
  }
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
