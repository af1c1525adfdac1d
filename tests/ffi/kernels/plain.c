/* A TVM-FFI library in C: nothing but the C ABI, linked with nothing. */
#include <string.h>
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))

static int fail(const char *kind, const char *message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

/* answer() -> int */
EXPORT int __tvm_ffi_answer(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 42;
  return 0;
}

EXPORT int __tvm_ffi_main(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 1000 + count;
  return 0;
}

EXPORT int __tvm_ffi_fails(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return fail("ValueError", "the kernel said no");
}

/* changes_its_mind(object): gives the object back, and fails then. */
EXPORT int __tvm_ffi_changes_its_mind(void *self, const TVMFFIAny *args, int32_t count,
                                      TVMFFIAny *result) {
  TVMFFIObjectIncRef(args[0].v_obj);
  *result = args[0];
  return fail("ValueError", "rather not");
}

/* ignores(function): calls it, and does not look whether it failed. */
EXPORT int __tvm_ffi_ignores(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  TVMFFIAny ignored;
  memset(&ignored, 0, sizeof ignored);
  TVMFFIFunctionCall(args[0].v_obj, NULL, 0, &ignored);
  return 0;
}

/* cleans_up(function, after): calls both, and fails with the error of the first. */
EXPORT int __tvm_ffi_cleans_up(void *self, const TVMFFIAny *args, int32_t count,
                               TVMFFIAny *result) {
  TVMFFIAny ignored;
  memset(&ignored, 0, sizeof ignored);
  int failed = TVMFFIFunctionCall(args[0].v_obj, NULL, 0, &ignored);
  TVMFFIFunctionCall(args[1].v_obj, NULL, 0, &ignored);
  return failed;
}

/* nothing(index): a result that says it is of the type index, and is nothing. */
EXPORT int __tvm_ffi_nothing(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  result->type_index = (int32_t)args[0].v_int64;
  result->v_int64 = 0;
  return 0;
}

/* A name that the class Module has, too. */
EXPORT int __tvm_ffi_kind(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return __tvm_ffi_answer(self, args, count, result);
}

/* twice(int) -> int, with metadata that names the parameter. */
EXPORT int __tvm_ffi_twice(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  if (count != 1 || args[0].type_index != kTVMFFIInt) return fail("TypeError", "twice(x: int)");
  result->type_index = kTVMFFIInt;
  result->v_int64 = 2 * args[0].v_int64;
  return 0;
}

static int text(const char *data, TVMFFIAny *result) {
  TVMFFIByteArray array = {data, strlen(data)};
  return TVMFFIStringFromByteArray(&array, result);
}

EXPORT int __tvm_ffi__metadata_twice(void *self, const TVMFFIAny *args, int32_t count,
                                     TVMFFIAny *result) {
  return text("{\"arg_names\": [\"x\"], \"type_schema\": \"{\\\"type\\\":\\\"ffi.Function\\\"}\"}",
              result);
}

EXPORT int __tvm_ffi__doc_twice(void *self, const TVMFFIAny *args, int32_t count,
                                TVMFFIAny *result) {
  return text("Twice the integer.", result);
}
