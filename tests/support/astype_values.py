"""What astype is compared with: all values of small types, samples of wide ones, ml_dtypes' results."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import dlbridge as bridge

ml_dtypes = pytest.importorskip("ml_dtypes")  # in the extra of the tests

CANDIDATES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 4, 8, 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128"),
    *(f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz")),
    *(f"float8_{kind}" for kind in ("e5m2", "e5m2fnuz", "e8m0fnu")),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
]


def known(name):
    try:
        return bridge.dtype(name).numpy is not None
    except BufferError:  # int1 and complex32 are new in ml_dtypes 0.6
        return False


NAMES = [name for name in CANDIDATES if known(name)]
SMALL = [name for name in NAMES if bridge.dtype(name).bits <= 16]
WIDE = [name for name in NAMES if bridge.dtype(name).bits > 16]
INTEGERS = {name for name in NAMES if "int" in name}


def numpy_of(name):
    return bridge.dtype(name).numpy


def finite_range(name):
    dtype = bridge.dtype(name)
    if name in INTEGERS:
        signed = name[0] == "i"
        return -(1 << dtype.bits - 1) if signed else 0, (1 << dtype.bits - signed) - 1
    info = ml_dtypes.finfo(dtype.numpy)
    return float(info.min), float(info.max)


def codes_of(name):
    """All values of a type of at most 16 bits, in numpy."""
    bits = bridge.dtype(name).bits
    if name == "bool":
        return np.array([False, True])
    codes = np.arange(1 << bits, dtype="u2" if bits == 16 else "u1")
    return codes.view(numpy_of(name))


def tensor_of(array, name):
    """A tensor on the elements; packed if they are below a byte."""
    if bridge.dtype(name).bits >= 8:
        return bridge.asarray(array)
    codes = np.resize(array.view("u1"), -(-array.size // 8) * 8)
    raw = bridge.pack_bits(codes, bridge.dtype(name))
    return bridge.asarray(np.frombuffer(raw, "u1")).view(name)[: array.size]


def reference(array, name):
    """The elements as ml_dtypes or numpy converts them."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return array.astype(numpy_of(name))
        except TypeError:  # a pair that ml_dtypes does not have
            integers = np.issubdtype(array.dtype, np.integer) or "int" in array.dtype.name
            middle = "int8" if integers and name in INTEGERS else "float32"
            return array.astype(middle).astype(numpy_of(name))


def bits_of(array):
    """The elements as unsigned integers, to compare NaN and signs of zero, too."""
    mask = {"int1": 1, "uint1": 1, "int2": 3, "uint2": 3, "int4": 15, "uint4": 15}
    raw = np.ascontiguousarray(array).view("u1")
    return (raw & mask.get(array.dtype.name, 255)).reshape(array.size, array.itemsize)


def result_bits(tensor):
    """The same of a tensor."""
    dtype = tensor.dtype
    if dtype.bits < 8:
        codes = bridge.unpack_bits(tensor.tobytes(), dtype, tensor.size)
        return codes.reshape(tensor.size, 1)
    return np.frombuffer(tensor.tobytes(), "u1").reshape(tensor.size, tensor.itemsize)


def defined(array, name):
    """Where C defines the conversion to *name*."""
    if name not in INTEGERS or array.dtype.name in INTEGERS or array.dtype == bool:
        return np.ones(array.size, bool)
    low, high = finite_range(name)
    with np.errstate(all="ignore"):
        real = array.astype("complex128").real if "complex" in array.dtype.name else array
        whole = np.trunc(real.astype("float64"))
    return (whole >= float(low)) & (whole < float(high + 1))


def quiet(x, dtype, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        return bridge.astype(x, dtype, **keywords)


def edges(name):
    """Numbers at and beside the places where something changes, and random bits."""
    dtype = numpy_of(name)
    rng = np.random.default_rng(16)
    if name in INTEGERS:
        info = np.iinfo(dtype)
        powers = [sign * ((1 << e) + d) for e in range(64) for d in (-1, 0, 1) for sign in (1, -1)]
        # The halves between two floats of few bits, and their neighbours.
        ties = [
            (2 * m + 1 << e) + d for e in range(60) for m in (1, 4, 9, 63, 127) for d in (-1, 0, 1)
        ]
        found = [v for v in powers + ties if info.min <= v <= info.max]
        random = rng.integers(info.min, info.max, 33000, dtype=dtype, endpoint=True)
        shifted = random >> rng.integers(0, dtype.itemsize * 8, random.size).astype(dtype)
        return np.concatenate([np.array(found, dtype), random, shifted])
    if "complex" in name:
        real = edges("float32" if name == "complex64" else "float64")
        return pairs(real, dtype)
    # The upper half of a float32 in all its values, each with several lower halves.
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], "u4")
    singles = ((np.arange(0, 65536, 3, dtype="u4") << 16)[:, None] | low).reshape(-1).view("f4")
    if name == "float32":
        return np.concatenate([singles, rng.integers(0, 1 << 32, 20000, "u4").view("f4")])
    with np.errstate(all="ignore"):
        doubles = singles.astype("f8")[::4]
    beside = (doubles.view("i8")[:, None] + np.array([-1, 0, 1])).reshape(-1).view("f8")
    random = rng.integers(0, (1 << 64) - 1, 20000, "u8", endpoint=True).view("f8")
    return np.concatenate([beside, random])


def pairs(real, dtype):
    """Complex numbers whose parts are *real*, in two orders."""
    both = np.stack([real, real[::-1]], axis=1)
    return np.ascontiguousarray(both).view(dtype).reshape(-1)
