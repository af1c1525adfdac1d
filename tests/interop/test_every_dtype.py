"""Each dtype that each library has, by every way: it stays what it is, or is refused with a way out."""

from __future__ import annotations

import pickle
import sys
import warnings
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge import ffi
from tests.support.peers import peer
from tests.support.scripts import run_scene

ml_dtypes = pytest.importorskip("ml_dtypes")  # in the extra of the tests

NAMES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (*range(1, 9), 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128"),
    *(f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz")),
    *(f"float8_{kind}" for kind in ("e5m2", "e5m2fnuz", "e8m0fnu")),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "handle"),
]
"""Those of dlpack.h 1.3."""

RAW = np.resize(np.arange(251, dtype="u1"), 1680)  # whole elements of 3, 5, 6, 7 and 128 bits


def numbers(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # -1 is no unsigned number
        return np.arange(-8, 8).astype(dtype)


def of_numpy():
    """numpy's own, and those of ml_dtypes."""
    own = set(np.sctypeDict.values()) - {np.object_, np.bytes_, np.str_, np.void}
    theirs = [getattr(ml_dtypes, name) for name in ml_dtypes.__all__]
    scalars = {kind for kind in theirs if isinstance(kind, type) and issubclass(kind, np.generic)}
    for dtype in map(np.dtype, own | scalars):
        yield dtype.name, RAW.view(dtype) if dtype.kind in "mM" else numbers(dtype)


def of_torch():
    torch = peer("torch")
    found = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    for dtype in found:
        raw = torch.from_numpy(RAW % 2 if dtype is torch.bool else RAW.copy())
        yield str(dtype).removeprefix("torch."), raw.view(dtype)


def of_jax():
    jax = peer("jax")
    for name, array in of_numpy():
        has = hasattr(jax.numpy, name) and name not in ("int1", "uint1") and "float6" not in name
        # (Of those jax knows the names, and XLA fails on them.) The wide ones are switched off.
        if has and jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype:
            yield name, jax.numpy.asarray(array)


def of_tvm_ffi():
    peer("tvm_ffi")
    for name in (*NAMES, "float4_e2m1fnx2", "float32x4", "int8x3", "int4x2", "bfloat16x2"):
        raw = RAW % 2 if name == "bool" else RAW.copy()
        yield name, bridge.to_device(bridge.asarray(raw).view(name), "cpu", like="tvm_ffi")


LIBRARIES = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax, "tvm_ffi": of_tvm_ffi}

REFUSED = {
    "numpy": {
        "longdouble",
        "clongdouble",
        "datetime64",
        "timedelta64",
        "float128",
        "complex256",
        "bcomplex32",
    },
    # Its bytes may have one number or several: torch leaves that to subclasses of its tensors.
    "torch": {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
    | {"bits16", "bits1x8", "bits2x4", "bits4x2", "bits8"}
    | {"qint32", "qint8", "quint2x4", "quint4x2", "quint8", "bcomplex32"},
    "jax": {"int2", "uint2", "int4", "uint4"},
    "tvm_ffi": set(),
}
"""What has no DLPack type, or is not exported by its library."""

BELOW_A_BYTE = {"int1", "int2", "int4", "uint1", "uint2", "uint4"}
BELOW_A_BYTE |= {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
"""Types of ml_dtypes whose elements take a byte each, which libtvm_ffi refuses."""


def values_of(array):
    """The dtype, and each element as bytes, or as its code if it is less than a byte."""
    home = type(array).__module__.partition(".")[0]
    if home == "torch":
        dtype, raw = array.dtype, array.view(peer("torch").uint8).numpy().tobytes()
    elif home.startswith("jax"):
        dtype, raw = array.dtype, np.asarray(array).tobytes()
    else:  # not by x.dtype: libtvm_ffi has no name for complex numbers
        tensor = bridge.from_dlpack(array)
        dtype, raw = tensor.dtype, tensor.tobytes()
    dtype = bridge.dtype(dtype)
    size = int(np.prod(tuple(array.shape)))
    if dtype.is_subbyte and len(raw) == size:  # a byte for each
        return dtype, [code & (1 << dtype.bits) - 1 for code in raw]
    return dtype, bridge.unpack_bits(raw, dtype, size).tolist() if dtype.is_subbyte else raw


def through_processes(x):
    return ForkingPickler.loads(ForkingPickler.dumps(bridge.share(x)))


def traced(*arguments, **keywords):
    """By the steps of a plan, which has a shorter way beside it."""
    with bridge.trace():
        return bridge.to_device(*arguments, **keywords)


def into_new(x, device):
    new = bridge.empty_like(x, device=device)
    bridge.copy_(new, x)
    return new


def through_function(given):
    """What the callee has of its argument."""
    peer("tvm_ffi")
    taken = []
    keep = ffi.convert_func(taken.append)
    keep.reading()(given)
    return taken[0]


WAYS = {
    "a function": lambda x, device, like: through_function(x),
    "a function, in a list": lambda x, device, like: through_function([x])[0],
    "shared": lambda x, device, like: bridge.asarray(x, copy=False),
    "a producer": lambda x, device, like: bridge.from_dlpack(x),
    "copied": lambda x, device, like: bridge.to_device(x, "cpu", copy=True),
    "copied into": lambda x, device, like: bridge.to_device(into_new(x, device), "cpu"),
    "copied on a device": lambda x, device, like: bridge.asarray(
        bridge.to_device(bridge.to_device(x, device), device, copy=True), device="cpu"
    ),
    "like": lambda x, device, like: bridge.to_device(x, "cpu", like=like),
    "like, by a plan": lambda x, device, like: traced(x, "cpu", like=like),
    "like, a copy": lambda x, device, like: bridge.to_device(x, "cpu", like=like, copy=True),
    "like, of a tensor": lambda x, device, like: bridge.to_device(
        bridge.asarray(x), "cpu", like=like
    ),
    "from a device, like": lambda x, device, like: bridge.to_device(
        bridge.to_device(x, device), "cpu", like=like
    ),
    "from a device, like, by a plan": lambda x, device, like: traced(
        traced(x, device), "cpu", like=like
    ),
    "a pickle": lambda x, device, like: pickle.loads(
        pickle.dumps(bridge.to_device(x, device))
    ).to_device("cpu"),
    "processes": lambda x, device, like: through_processes(x),
    "processes, like": lambda x, device, like: bridge.to_device(
        through_processes(x), "cpu", like=like
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_dtype_by_every_way(library, device):
    wrong = []
    for name, x in LIBRARIES[library]():
        is_refused = name in REFUSED[library]
        expected = None if is_refused else (bridge.dtype(name), values_of(x)[1])
        for way, take in WAYS.items():
            try:
                found = values_of(take(x, device, library))
            except BufferError as exc:
                padded = library == "numpy" and "function" in way and name in BELOW_A_BYTE
                if not (padded or is_refused) or "pass " not in str(exc):
                    wrong.append((name, way, str(exc)))
            else:
                if found != expected:
                    wrong.append((name, way, found[0]))
    assert wrong == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_way_out_leads_out(library):
    for name, x in LIBRARIES[library]():
        if name in REFUSED[library]:
            with pytest.raises(BufferError) as caught:
                bridge.asarray(x)
            way = str(caught.value).partition("pass ")[2].partition("bytes, ")
            code = (way[2] or way[0]).partition(",")[0].partition(" or ")[0]
            assert (
                bridge.asarray(
                    eval(code, {"x": x, "numpy": np, "torch": sys.modules.get("torch")})
                ).nbytes
                > 0
            ), name


WAYS_OUT = ("t.view(", "t.tobytes()", "like='numpy'", "jax_enable_x64")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("like", LIBRARIES)
def test_each_dtype_as_an_array_of_another_library(library, like, device):
    """Of the same dtype, or there is none."""
    peer(like)
    wrong, made = [], set()
    for name, x in LIBRARIES[library]():
        if name in REFUSED[library]:
            continue
        for way, given in ("at once", x), ("from a device", bridge.to_device(x, device)):
            try:
                result = bridge.to_device(given, "cpu", like=like)
            except BufferError as exc:
                if not any(way in str(exc) for way in WAYS_OUT):
                    wrong.append((name, way, str(exc)))
            else:
                made.add(name)
                if values_of(result) != (bridge.dtype(name), values_of(x)[1]):
                    wrong.append((name, way, result.dtype))
    assert wrong == []
    assert {"bool", "bfloat16", "float8_e4m3fn", "float32"} <= made


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_dtype_in_a_file(library, form, tmp_path):
    wrong, path = [], tmp_path / f"x.{form}"
    for name, x in LIBRARIES[library]():
        if name in REFUSED[library]:
            continue
        try:
            bridge.save(path, x if form == "npy" else {"x": x})
        except bridge.FileError as exc:
            if not any(word in str(exc) for word in ("view", "pack_bits")):
                wrong.append((name, str(exc)))
            continue
        for like in (None, library):
            try:
                found = bridge.load(path, like=like)
            except bridge.FileError:  # numpy's file says how large the elements are, not what
                if form != "npy":
                    raise
                found = bridge.load(path, like=like, dtype=name)
            found = values_of(found if form == "npy" else found["x"])
            expected = x
            if (form, bridge.dtype(name)) == ("safetensors", "float4_e2m1fnx2") and like != "torch":
                expected = bridge.asarray(x).view("float4_e2m1fn")  # the format counts each
            if found != values_of(expected):
                wrong.append((name, like, found[0]))
    assert wrong == []


@pytest.mark.skipif(
    not hasattr(np.dtypes, "register_dlpack_dtype"), reason="numpy 2.5 has a registry of types"
)
def test_a_type_that_a_library_has_registered_with_numpy():
    """numpy exports and imports it itself then; before 2.5 and without it we do."""
    assert run_scene("registered.both_ways") == "the same\n"
