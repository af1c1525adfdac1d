/* A library that another one imports. */
#include <tvm/ffi/c_api.h>

__attribute__((visibility("default"))) int __tvm_ffi_only_here(void *self, const TVMFFIAny *args,
                                                               int32_t count, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 7;
  return 0;
}
