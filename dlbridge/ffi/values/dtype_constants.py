"""Data types by name, where tvm_ffi's users look for them: ``ffi.float32``."""

from __future__ import annotations

from typing import Final

from dlbridge.core.values.dtypes import DType, dtype

__all__ = [
    "bfloat16",
    "float4_e2m1fn",
    "float4_e2m1fnx2",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

bfloat16: Final[DType] = dtype("bfloat16")
float16: Final[DType] = dtype("float16")
float32: Final[DType] = dtype("float32")
float64: Final[DType] = dtype("float64")
float4_e2m1fn: Final[DType] = dtype("float4_e2m1fn")
float4_e2m1fnx2: Final[DType] = dtype("float4_e2m1fnx2")
float6_e2m3fn: Final[DType] = dtype("float6_e2m3fn")
float6_e3m2fn: Final[DType] = dtype("float6_e3m2fn")
float8_e3m4: Final[DType] = dtype("float8_e3m4")
float8_e4m3: Final[DType] = dtype("float8_e4m3")
float8_e4m3b11fnuz: Final[DType] = dtype("float8_e4m3b11fnuz")
float8_e4m3fn: Final[DType] = dtype("float8_e4m3fn")
float8_e4m3fnuz: Final[DType] = dtype("float8_e4m3fnuz")
float8_e5m2: Final[DType] = dtype("float8_e5m2")
float8_e5m2fnuz: Final[DType] = dtype("float8_e5m2fnuz")
float8_e8m0fnu: Final[DType] = dtype("float8_e8m0fnu")
int8: Final[DType] = dtype("int8")
int16: Final[DType] = dtype("int16")
int32: Final[DType] = dtype("int32")
int64: Final[DType] = dtype("int64")
uint8: Final[DType] = dtype("uint8")
uint16: Final[DType] = dtype("uint16")
uint32: Final[DType] = dtype("uint32")
uint64: Final[DType] = dtype("uint64")
