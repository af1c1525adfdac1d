"""What `watch` says of the exchanges between libraries: one row for each, by the library itself."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer

# Of CPython 3.11, which makes no event for functions of Cython and classes of C.
UNSEEN_ON_311 = sys.version_info < (3, 12)

NUMPY, TORCH, JAX, FFI = "numpy.ndarray", "torch.Tensor", "jax.Array", "tvm_ffi.Tensor"
ARROW, SERIES, FRAME, POLARS = "pyarrow.Array", "pandas.Series", "pandas.DataFrame", "polars.Series"
OURS, CL, IMAGE, EAGER = "dlbridge.Tensor", "pyopencl.Array", "PIL.Image", "tensorflow.EagerTensor"

# What is called, from, to, result; `C` is code for which CPython 3.11 makes no event.
ROWS = [
    ("torch.from_numpy(a)", NUMPY, TORCH, "shared"),
    ("torch.as_tensor(a)", NUMPY, TORCH, "shared"),
    ("torch.as_tensor(a, dtype=torch.float64)", NUMPY, TORCH, "copied"),
    ("torch.asarray(a)", NUMPY, TORCH, "shared"),
    ("torch.tensor(a)", NUMPY, TORCH, "copied"),
    ("torch.Tensor(a)", NUMPY, TORCH, "shared", "C"),
    ("torch.tensor(arrays)", f"list of {NUMPY}", TORCH, "copied"),
    ("torch.from_dlpack(a)", NUMPY, TORCH, "shared"),
    ("t.numpy()", TORCH, NUMPY, "shared"),
    ("np.asarray(t)", TORCH, NUMPY, "shared"),
    ("np.asarray(t, dtype='float64')", TORCH, NUMPY, "copied"),
    ("np.array(t)", TORCH, NUMPY, "copied"),
    ("np.from_dlpack(t)", TORCH, NUMPY, "shared"),
    ("np.stack(tensors)", f"list of {TORCH}", NUMPY, "copied"),
    ("np.copy(t)", TORCH, NUMPY, "copied"),
    ("torch.frombuffer(a, dtype=torch.float32)", NUMPY, TORCH, "shared"),
    ("t.tolist()", TORCH, "list", "copied"),
    ("one.item()", TORCH, "number", "copied"),
    ("jnp.array(a)", NUMPY, JAX, "copied"),
    ("jax.dlpack.from_dlpack(a)", NUMPY, JAX, "shared"),
    ("jax.device_get(j)", JAX, NUMPY, "shared"),
    ("jax.device_get([j, j])", f"list of {JAX}", f"list of {NUMPY}", "shared"),
    ("jax.device_get({'x': j})", f"dict of {JAX}", f"dict of {NUMPY}", "shared"),
    ("np.asarray(j)", JAX, NUMPY, "shared"),
    ("np.array(j)", JAX, NUMPY, "copied"),
    ("torch.from_dlpack(j)", JAX, TORCH, "shared"),
    ("j.tolist()", JAX, "list", "copied"),
    ("tvm_ffi.from_dlpack(t)", TORCH, FFI, "shared", "C"),
    ("torch.from_dlpack(v)", FFI, TORCH, "shared"),
    ("bridge.to_device(far_ffi, 'cpu')", f"{FFI} ext_dev:0", OURS, "moved"),
    ("np.from_dlpack(v)", FFI, NUMPY, "shared"),
    ("pyarrow.array(a)", NUMPY, ARROW, "shared", "C"),
    ("arrow.to_numpy()", ARROW, NUMPY, "shared", "C"),
    ("dates.to_numpy()", ARROW, NUMPY, "shared", "C"),
    ("nulls.to_numpy(zero_copy_only=False)", ARROW, NUMPY, "copied", "C"),
    ("bits.to_numpy(zero_copy_only=False)", ARROW, NUMPY, "copied", "C"),
    ("chunks.to_numpy()", "pyarrow.ChunkedArray", NUMPY, "copied", "C"),
    ("chunk.to_numpy()", "pyarrow.ChunkedArray", NUMPY, "shared", "C"),
    ("arrow.to_pylist()", ARROW, "list", "copied", "C"),
    ("arrow.tolist()", ARROW, "list", "copied", "C"),
    ("pandas.Series(a)", NUMPY, SERIES, "copied"),
    ("pandas.DataFrame({'x': a})", f"dict of {NUMPY}", FRAME, "copied"),
    ("pandas.DataFrame({'x': a}, copy=False)", f"dict of {NUMPY}", FRAME, "shared"),
    ("pandas.Series(a, copy=False)", NUMPY, SERIES, "shared"),
    ("series.to_numpy()", SERIES, NUMPY, "shared"),
    ("series_of_dates.to_numpy()", SERIES, NUMPY, "shared"),
    ("series_of_objects.to_numpy()", SERIES, NUMPY, "shared"),
    ("series_of_integers.to_numpy()", SERIES, NUMPY, "shared"),
    ("series_with_none.to_numpy()", SERIES, NUMPY, "copied"),
    ("frame.to_numpy()", FRAME, NUMPY, "copied"),
    ("matrix.to_numpy()", FRAME, NUMPY, "shared"),
    ("torch.tensor(series)", SERIES, TORCH, "copied"),
    ("polars.Series(a)", NUMPY, POLARS, "shared"),
    ("column.to_numpy()", POLARS, NUMPY, "shared"),
    ("column_of_dates.to_numpy()", POLARS, NUMPY, "shared"),
    ("column_with_none.to_numpy()", POLARS, NUMPY, "copied"),
    ("column_in_parts.to_numpy()", POLARS, NUMPY, "copied"),
    ("column.to_torch()", POLARS, TORCH, "copied"),
    ("column.to_arrow()", POLARS, ARROW, "shared"),
    ("np.asarray(image)", IMAGE, NUMPY, "copied"),
    ("PIL.Image.fromarray(pixels)", NUMPY, IMAGE, "not seen"),
    ("cl_array.to_device(queue, a)", NUMPY, f"{CL} opencl:0", "moved"),
    ("there.get()", f"{CL} opencl:0", NUMPY, "moved"),
    ("bridge.to_device(a, 'opencl:0')", NUMPY, f"{OURS} opencl:0", "shared"),
    ("bridge.to_device(a, 'ext_dev:0')", NUMPY, f"{OURS} ext_dev:0", "moved"),
    ("bridge.to_device(far, 'cpu', like='numpy')", f"{OURS} ext_dev:0", NUMPY, "moved"),
    ("bridge.asarray(t)", TORCH, OURS, "shared"),
    ("bridge.from_dlpack(j)", JAX, OURS, "shared"),
    ("ours.numpy()", OURS, NUMPY, "shared"),
    ("torch.from_dlpack(ours)", OURS, TORCH, "shared"),
    ("tensorflow.constant(a)", NUMPY, EAGER, "copied"),
    ("eager.numpy()", EAGER, NUMPY, "copied"),
    ("np.asarray(eager)", EAGER, NUMPY, "shared"),
    # Nothing between libraries.
    ("np.asarray(a)", "", "", ""),
    ("torch.stack(tensors)", "", "", ""),
    ("t.to(torch.float64)", "", "", ""),
]


@cache
def world():
    """The arrays of all libraries that are here, by the names of the rows."""
    a = bridge.empty(64, "float32", alignment=4096).numpy()
    a[:] = 1
    found = {"np": np, "a": a, "arrays": [a, a], "bridge": bridge, "ours": bridge.asarray(a)}
    if find_spec("dlbridge_fake"):
        found["far"] = bridge.to_device(a, "ext_dev:0")
    if find_spec("pyopencl"):  # before tensorflow, whose LLVM is not PoCL's
        import pyopencl
        import pyopencl.array

        platforms = [each for each in pyopencl.get_platforms() if each.get_devices()]
        if platforms and "opencl:0" in map(str, bridge.devices()):
            device = opencl_device(platforms)
            found["queue"] = pyopencl.CommandQueue(pyopencl.Context([device]))
            found["cl_array"] = pyopencl.array
            found["there"] = pyopencl.array.to_device(found["queue"], a)
    if find_spec("torch"):
        import torch

        t = torch.ones(64)
        found |= {"torch": torch, "t": t, "tensors": [t, t], "one": torch.ones(())}
    if find_spec("jax"):
        import jax

        found |= {"jax": jax, "jnp": jax.numpy, "j": jax.numpy.array(a)}
    if find_spec("tvm_ffi"):
        import tvm_ffi

        found |= {"tvm_ffi": tvm_ffi, "v": tvm_ffi.from_dlpack(a)}
        if "far" in found:
            found["far_ffi"] = tvm_ffi.from_dlpack(found["far"])
    found |= columns(a)
    if find_spec("PIL"):
        import PIL.Image

        found |= {"PIL": PIL, "image": PIL.Image.new("RGB", (8, 8))}
        found["pixels"] = np.zeros((8, 8, 3), "uint8")
    if find_spec("tensorflow"):
        import tensorflow

        found |= {"tensorflow": tensorflow, "eager": tensorflow.constant(a)}
    return found


def columns(a):
    """Those of pyarrow, pandas and polars."""
    found = {}
    times = np.zeros(64, "datetime64[us]")
    if find_spec("pyarrow"):
        import pyarrow

        arrow = pyarrow.array(a)
        chunks = pyarrow.chunked_array([arrow, arrow])
        found |= {"pyarrow": pyarrow, "arrow": arrow, "chunks": chunks}
        found["dates"] = pyarrow.array(times)
        found["nulls"] = pyarrow.array([1, None])
        found["bits"] = pyarrow.array([True, False])
        found["chunk"] = pyarrow.chunked_array([arrow])
    if find_spec("pandas"):
        import pandas

        frame = pandas.DataFrame({"x": a, "y": np.arange(64)})
        found |= {"pandas": pandas, "series": pandas.Series(a), "frame": frame}
        found["matrix"] = pandas.DataFrame(np.zeros((8, 8)))
        found["series_of_dates"] = pandas.Series(times)
        found["series_of_objects"] = pandas.Series([1, "a"], dtype=object)
        found["series_of_integers"] = pandas.Series([1, 2], dtype="Int64")
        found["series_with_none"] = pandas.Series([1, None], dtype="Int64")
    if find_spec("polars"):
        import polars

        found |= {"polars": polars, "column": polars.Series(a)}
        found["column_of_dates"] = polars.Series(times)
        found["column_with_none"] = polars.Series([1, None])
        found["column_in_parts"] = polars.concat([polars.Series([1]), polars.Series([2])])
    return found


def opencl_device(platforms):
    """The first one of dlbridge's backend, which leaves some out."""
    name = bridge.backend("opencl").device_info(0)["name"]
    devices = [device for platform in platforms for device in platform.get_devices()]
    return next((device for device in devices if device.name.strip() == name), devices[0])


def called(call):
    """A function that makes the *call*, with its result in a variable, and returns that."""
    variables = world()
    names = {name for name in compile(call, "row", "eval").co_names if name in NAMES}
    for name in sorted(names - {*variables}):
        peer(NAMES[name]) if NAMES[name] else pytest.skip(f"there is no {name} here")
    scope = dict(variables)
    exec(compile(f"def row():\n    made = {call}\n    return made\n", "program.py", "exec"), scope)
    return scope["row"]


SERIES = ("series_of_dates", "series_of_objects", "series_of_integers", "series_with_none")
COLUMNS = ("column_of_dates", "column_with_none", "column_in_parts")
NAMES = {
    **dict.fromkeys(("torch", "t", "tensors", "one", "to_torch"), "torch"),
    **dict.fromkeys(("jax", "jnp", "j"), "jax"),
    **dict.fromkeys(("tvm_ffi", "v"), "tvm_ffi"),
    **dict.fromkeys(("pyarrow", "arrow", "chunk", "chunks", "dates", "nulls", "bits"), "pyarrow"),
    **dict.fromkeys(("pandas", "series", "frame", "matrix", *SERIES), "pandas"),
    # No peers of the tests (`pyproject.toml`): they are tested where they are.
    **dict.fromkeys(("polars", "column", *COLUMNS, "image", "PIL", "pixels"), ""),
    **dict.fromkeys(("tensorflow", "eager", "queue", "cl_array", "there", "far", "far_ffi"), ""),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
@pytest.mark.filterwarnings("ignore")
def test_the_verdict(row):
    call, source, target, result, *marks = row
    if "opencl:0" in call and "opencl:0" not in map(str, bridge.devices()):
        pytest.skip("there is no OpenCL here")
    run = called(call)
    with bridge.watch() as exchanges:
        made = run()
    seen = [(row.source, row.target, row.result) for row in exchanges.rows]
    if not result or (UNSEEN_ON_311 and marks):
        assert seen == []
        return
    assert seen == [(source, target, result)]
    (found,) = exchanges.rows
    assert (found.file, found.line, found.function, found.calls) == ("program.py", 2, "row", 1)
    assert (found.nbytes > 0) == (result in ("copied", "moved"))
    if result != "moved" and "opencl" not in target and hasattr(made, "__array__"):
        assert is_shared(call, made) == (result == "shared")


def is_shared(call, made):
    """Whether numpy sees the memory of what the *call* made, and of its argument, as the same."""
    variables = world()
    (name,) = {*compile(call, "row", "eval").co_names} & {
        *("a", "t", "j", "v", "arrow", "series", "column", "ours", "eager", "image", "frame"),
        *("chunks", "tensors", "arrays", "chunk", "dates", "nulls", "bits", "matrix"),
        *(*SERIES, *COLUMNS),
    }
    given = variables[name]
    given = given[0] if isinstance(given, list) else given
    return np.shares_memory(view(given), view(made))


def view(x):
    """Numpy's array on the memory of *x*, also of dates and objects, which DLPack has not."""
    if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        with suppress(BufferError, TypeError):
            return np.from_dlpack(x)
    return np.asarray(x)


def test_there_are_forty_exchanges():
    """On each CPython."""
    assert len([row for row in ROWS if row[3] and not (UNSEEN_ON_311 and row[4:])]) >= 40
