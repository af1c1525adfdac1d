"""Each library, in and out: one set of checks for all, a cell of a table each.

``tests/interop`` runs them for the libraries among the test packages, and
``tests/peers`` for those with large wheels. `main` runs some in a process of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import weakref
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.conformance.runner import version_of
from dlbridge.errors import BackendUnavailable
from tests.support.scripts import environment

if TYPE_CHECKING:
    from collections.abc import Callable


def numbers(shape: tuple[int, ...], kind: Any = "f4", offset: int = 0) -> np.ndarray[Any, Any]:
    """Numbers from 0 in memory *offset* bytes after a multiple of 64; those of bytes repeat."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = np.zeros(size + 128, "u1")
    start = -memory.ctypes.data % 64 + offset
    array = memory[start : start + size].view(kind).reshape(shape)
    array[...] = (np.arange(array.size) % 251).reshape(shape)
    return array


def values_of(array: Any) -> Any:
    """The elements of any library's array as a list, by a way that is not ours."""
    for name in ("numpy", "tolist", "to_pylist", "to_list"):
        if hasattr(array, name):
            found = getattr(array, name)()
            return found.tolist() if hasattr(found, "tolist") else found
    if hasattr(array, "__dlpack__"):
        return np.from_dlpack(array).tolist()
    return np.asarray(array).tolist()


def call(path: str, *arguments: Any, **keywords: Any) -> Any:
    """The result of the function at ``"module:name.name"``."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found(*arguments, **keywords)


class Peer(NamedTuple):
    """What the cells must know of a library; the defaults are an array library that shares."""

    name: str
    """In ``like=``."""
    make: Callable[[np.ndarray[Any, Any]], Any]
    """The library's array with the values of a numpy array, which it may share."""
    module: str = ""
    """By default the name."""
    values: Callable[[Any], Any] = values_of
    place: str = "cpu"
    """The device of its arrays."""
    shape: tuple[int, ...] = (64, 64)
    kind: str = "f4"
    gives: str = "memory"
    """``memory``, ``copy``, or what the refusal of its arrays says to pass."""
    instead: Callable[[Any], Any] = lambda x: x
    """That way out of the refusal."""
    copies: bool = False
    """Whether it copies each tensor."""


def _by(path: str, **keywords: Any) -> Callable[[np.ndarray[Any, Any]], Any]:
    return partial(call, path, **keywords)


def _to_pyopencl(x: np.ndarray[Any, Any]) -> Any:
    """An array of pyopencl in a context and a queue that dlbridge does not know."""
    import pyopencl as cl
    import pyopencl.array

    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    return pyopencl.array.to_device(cl.CommandQueue(context), x)


def _to_usm(x: np.ndarray[Any, Any]) -> Any:
    """Memory of dpctl."""
    from dpctl.memory import MemoryUSMDevice

    memory = MemoryUSMDevice(x.nbytes)
    memory.copy_from_host(x.reshape(-1).view("u1"))
    return memory


def _to_warp(x: np.ndarray[Any, Any]) -> Any:
    import warp

    warp.init()
    return warp.array(x, device="cpu")


PEERS = {
    peer.name: peer
    for peer in (
        Peer("numpy", np.array),
        Peer("torch", _by("torch:tensor")),
        Peer("jax", _by("jax.numpy:array")),
        Peer("tvm_ffi", _by("tvm_ffi:from_dlpack")),
        Peer("pyarrow", _by("pyarrow:array"), shape=(4096,)),
        Peer(
            "PIL",
            _by("PIL.Image:fromarray"),
            module="PIL.Image",
            values=lambda x: np.asarray(x).tolist(),
            kind="u1",
            gives="copy",
            copies=True,
        ),
        Peer(
            "cuda.core",
            lambda x: call("cuda.core.utils:StridedMemoryView.from_dlpack", x, stream_ptr=-1),
        ),
        Peer("pyopencl", _to_pyopencl, values=lambda x: x.get().tolist(), place="opencl:0"),
        Peer(
            "dpctl",
            _to_usm,
            values=lambda x: x.copy_to_host().tolist(),
            place="oneapi:0",
            shape=(4096,),
            kind="u1",
        ),
        Peer("dpnp", _by("dpnp:asarray"), values=lambda x: x.asnumpy().tolist(), place="oneapi:0"),
        Peer("polars", _by("polars:Series"), shape=(4096,)),
        Peer("pandas", _by("pandas:Series"), shape=(4096,)),
        Peer("xarray", _by("xarray:DataArray"), values=lambda x: x.values.tolist()),
        Peer(
            "dask",
            _by("dask.array:from_array"),
            module="dask.array",
            values=lambda x: x.compute().tolist(),
            gives=r"x\.compute\(\)",
            instead=lambda x: x.compute(),
            copies=True,
        ),
        Peer("array_api_strict", _by("array_api_strict:asarray")),
        Peer(
            "tinygrad",
            _by("tinygrad:Tensor"),
            gives=r"x\.numpy\(\)",
            instead=lambda x: x.numpy(),
            copies=True,
        ),
        Peer("mlx", _by("mlx.core:array"), module="mlx.core", copies=True),
        Peer("warp", _to_warp),
        Peer("onnxruntime", _by("onnxruntime:OrtValue.ortvalue_from_numpy")),
        Peer("openvino", _by("openvino:Tensor"), values=lambda x: x.data.tolist()),
        Peer(
            "nvidia.dali",
            _by("nvidia.dali.backend:TensorCPU"),
            values=lambda x: np.array(x).tolist(),
        ),
        Peer("max", _by("max.driver:Buffer.from_numpy"), module="max.driver"),
        Peer("tensorflow", _by("tensorflow:constant")),
        Peer("paddle", _by("paddle:to_tensor")),
    )
}


class Unavailable(Exception):
    """The driver of a cell is not here."""


class Failed(AssertionError):
    """A cell failed in a process of its own."""


def into(peer: Peer, x: np.ndarray[Any, Any], **keywords: Any) -> Any:
    """*x* as an array of the library, by way of its device."""
    return bridge.to_device(x, peer.place, like=peer.name, **keywords)


def theirs(peer: Peer, x: np.ndarray[Any, Any]) -> Any:
    """The library's array, or what its refusal says to pass in its place."""
    return peer.instead(peer.make(np.array(x)))


def same(tensor: bridge.Tensor, x: np.ndarray[Any, Any]) -> None:
    """The values of *tensor* are those of *x*, whatever the device and the shape of memory."""
    assert bridge.to_device(tensor, "cpu").tolist() == x.tolist()


def comes_in(peer: Peer) -> str:
    """An array becomes a tensor on the same memory, or is refused with the way out."""
    x = numbers(peer.shape, peer.kind)
    array = peer.make(np.array(x))
    if peer.gives not in ("memory", "copy"):
        with pytest.raises(BufferError, match=peer.gives):
            bridge.asarray(array)
        same(bridge.asarray(peer.instead(array)), x)
        return "refused"
    tensor = bridge.asarray(array)
    same(tensor, x)
    if peer.gives == "copy":
        with pytest.raises(BufferError, match="copy=False"):
            bridge.asarray(array, copy=False)
        return "copy"
    assert bridge.asarray(array, copy=False).data_ptr() == tensor.data_ptr()
    return ""


def goes_out(peer: Peer) -> str:
    """A tensor becomes the library's array on the same memory, and `explain` says so."""
    x = numbers(peer.shape, peer.kind)
    tensor = bridge.to_device(x, peer.place)
    said = bridge.explain(tensor, peer.place, like=peer.name).splitlines()[-1]
    if peer.copies:
        assert "always copies" in said
        with pytest.raises(BufferError, match="always copies"):
            into(peer, x, copy=False)
        assert peer.values(into(peer, x)) == x.tolist()
        return "copy"
    result = bridge.to_device(tensor, peer.place, like=peer.name, copy=False)
    assert peer.values(result) == x.tolist()
    assert bridge.asarray(result).data_ptr() == tensor.data_ptr()
    assert "no copy" in said
    return ""


def by_name(peer: Peer) -> str:
    """``like=`` takes the name."""
    return _named(peer, peer.name)


def by_module(peer: Peer) -> str:
    """``like=`` takes the module."""
    return _named(peer, importlib.import_module(peer.module or peer.name))


def by_example(peer: Peer) -> str:
    """``like=`` takes an array, and its class."""
    array = peer.make(numbers(peer.shape, peer.kind))
    return _named(peer, array) + _named(peer, type(array))


def _named(peer: Peer, like: object) -> str:
    x = numbers(peer.shape, peer.kind)
    result = bridge.to_device(x, peer.place, like=like)
    assert type(result) is type(peer.make(x))
    assert peer.values(result) == x.tolist()
    return ""


def round_trip(peer: Peer, backend: str) -> str:
    """An array goes to a device, and comes back as an array of its library."""
    x = numbers(peer.shape, peer.kind)
    array = theirs(peer, x)  # the library is loaded before the driver, which is the usual order
    _needs_backend(backend)
    there = bridge.to_device(array, f"{backend}:0")
    assert there.device.name == backend
    back = bridge.to_device(there, peer.place, like=peer.name)
    assert peer.values(back) == x.tolist()
    return ""


def _needs_backend(name: str) -> None:
    try:
        bridge.backend(name)
    except BackendUnavailable as error:
        raise Unavailable(str(error)) from error


def outlives_its_array(peer: Peer) -> str:
    """The memory of a library's array lives as long as our tensor, and no longer."""
    x = numbers(peer.shape, peer.kind)
    array = theirs(peer, x)
    try:
        gone = weakref.ref(array)
    except TypeError:  # it has no weak references
        gone = lambda: None  # noqa: E731
    tensor = bridge.asarray(array)
    del array
    gc.collect()
    others = [np.full(x.shape, 7, x.dtype) for _ in range(16)]
    same(tensor, x)
    del tensor, others
    gc.collect()
    assert gone() is None
    return ""


def outlives_our_tensor(peer: Peer) -> str:
    """Our memory lives as long as the library's array, and no longer."""
    x = numbers(peer.shape, peer.kind)
    expected, gone = x.tolist(), weakref.ref(x.base if isinstance(x.base, np.ndarray) else x)
    result = into(peer, x)
    del x
    gc.collect()
    others = [np.full(peer.shape, 7, peer.kind) for _ in range(16)]
    assert peer.values(result) == expected
    del result, others
    gc.collect()
    assert gone() is None
    return ""


def ends(peer: Peer) -> str:
    """A process ends well with everything alive; nothing is deleted before."""
    x = numbers(peer.shape, peer.kind)
    array = peer.make(np.array(x))
    alive = [array, bridge.asarray(peer.instead(array)), into(peer, x)]
    setattr(sys.modules["__main__"], "alive", alive)  # noqa: B010
    return ""


CELLS = {
    "in": comes_in,
    "out": goes_out,
    "name": by_name,
    "module": by_module,
    "example": by_example,
    "OpenCL": partial(round_trip, backend="opencl"),
    "Vulkan": partial(round_trip, backend="vulkan"),
    "life in": outlives_its_array,
    "life out": outlives_our_tensor,
    "exit": ends,
}
APART = {"OpenCL", "Vulkan", "exit"}
"""Cells that run in a process of their own: a driver's crash is a result."""

FAULTS: dict[tuple[str, str], str] = {
    ("tensorflow", "OpenCL"): "a",
    ("tensorflow", "Vulkan"): "a",
}
"""Cells that fail by the peer's own fault: the letter of the note in tests/peers/RESULTS.md."""


def check(name: str, cell: str) -> str:
    """Run a cell; what it says of itself (``copy``, ``refused``), or nothing.

    AssertionError or the library's error if it fails; `Unavailable` without the driver.
    """
    if PEERS[name].place != "cpu":
        _needs_backend(PEERS[name].place.partition(":")[0])
    if cell not in APART and (name, cell) not in FAULTS:
        return CELLS[cell](PEERS[name])
    faultless = tuple(each for each in CELLS if each in APART and (name, each) not in FAULTS)
    said = _said(name, *faultless).get(cell) if cell in faultless else None
    if said is None:  # a crash of one cell is not the others'
        said = _said(name, cell).get(cell, "no result")
    if said.startswith("unavailable"):
        raise Unavailable(said)
    if said.startswith("no result"):
        raise Failed(said)
    return said


@cache
def _said(name: str, *cells: str) -> dict[str, str]:
    """What each of the cells says, in one process, which loads the library once.

    Nothing is a result if the process does not end well; of one cell it says why.
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, name, *cells],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode or "Exception ignored" in done.stderr:
        why = f"status {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        return {cells[0]: f"no result: {why}"} if len(cells) == 1 else {}
    lines = [x[6:] for x in done.stdout.splitlines() if x.startswith("cell: ")]
    return {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}


def outcome(name: str, cell: str) -> str:
    """The word for the table: what `check` says, or the letter of a fault that is still there."""
    if (name, cell) not in FAULTS:
        return check(name, cell)
    try:
        check(name, cell)
    except Failed:
        return FAULTS[name, cell]
    raise AssertionError(f"the fault {FAULTS[name, cell]} has gone: take the cell out of FAULTS")


def record(name: str, cell: str, result: str) -> None:
    """Append a result to the file that ``DLBRIDGE_CELLS`` names, for `tests/peers/table.py`."""
    path = os.environ.get("DLBRIDGE_CELLS")
    if path:
        line = json.dumps([name, version_of(name), cell, result])
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    """The cells that the command line names."""
    name, *cells = sys.argv[1:]
    for cell in cells:
        try:
            said = CELLS[cell](PEERS[name])
        except Unavailable as error:
            said = f"unavailable: {error}"
        print(f"cell: {cell}: {said}", flush=True)


if __name__ == "__main__":
    main()
