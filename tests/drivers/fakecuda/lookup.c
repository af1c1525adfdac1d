// How cuda.bindings and the HIP shim find the functions: by plain name, through one entry.
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>

API cuGetErrorName(CUresult error, const char **name) {
  static __thread char text[32];
  snprintf(text, sizeof text, "CUDA_ERROR_%d", error);
  *name = error ? text : "CUDA_SUCCESS";
  return CUDA_SUCCESS;
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
