"""bench exchange: the cost of an import, an export and a call, beside the other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import methodcaller
from typing import Any

import dlbridge
from dlbridge.cli.bench import Row, best_of
from tests.benchmarks.measuring import floors

Function = Callable[[], object]


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row per operation that is wanted; peers that are not installed are left out."""
    peers = {
        name: _module(name) for name in ("numpy", "torch", "tvm_ffi", "jax", "cuda.core.utils")
    }
    python_floor, cffi_floor = floors().values()
    found = [
        Row("floor: empty Python call", python_floor),
        Row("floor: empty cffi call", cffi_floor),
    ]
    for operation, contenders in _operations(peers).items():
        if not wanted(operation):
            continue
        times = best_of(contenders, repeats)
        ours = times.pop("dlbridge")
        found.append(Row(operation, ours, times, python_floor))
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _operations(peers: dict[str, Any]) -> dict[str, dict[str, Function]]:
    numpy = peers["numpy"]
    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    ours, cpu = dlbridge.from_dlpack(array), dlbridge.device("cpu")
    operations = {
        "from_dlpack(numpy)": _imports(peers, array),
        "`__dlpack__(max_version=(1, 3))`": {
            "dlbridge": lambda: ours.__dlpack__(max_version=(1, 3)),
            "numpy": lambda: array.__dlpack__(max_version=(1, 3)),
        },
        "numpy.from_dlpack(x)": {
            "dlbridge": lambda: numpy.from_dlpack(ours),
            "numpy": lambda: numpy.from_dlpack(array),
        },
        "to_device(x, its device)": {
            "dlbridge": lambda: dlbridge.to_device(ours, "cpu"),
            "numpy": lambda: array.to_device("cpu"),
        },
        "x.to_device(its device)": {
            "dlbridge": lambda: ours.to_device(cpu),
            "numpy": lambda: array.to_device("cpu"),
        },
        "empty(3)": {
            "dlbridge": lambda: dlbridge.empty(3),
            "numpy": lambda: numpy.empty(3, "float32"),
        },
    }
    operations.update(_own_classes(peers, ours))
    if peers["torch"]:
        operations.update(_with_torch(peers, array, ours))
    if peers["jax"]:
        operations.update(_with_jax(peers, array, ours))
    if peers["torch"] and peers["tvm_ffi"]:
        operations.update(_with_tvm_ffi(peers, array, ours))
    return operations


class _ByAttribute(dlbridge.Exporter, tensor="tensor"):
    def __init__(self, tensor: dlbridge.Tensor) -> None:
        self.tensor = tensor


class _ByMethod(dlbridge.Exporter):
    def __init__(self, tensor: dlbridge.Tensor) -> None:
        self.tensor = tensor

    def __as_tensor__(self) -> dlbridge.Tensor:
        return self.tensor


def _own_classes(peers: dict[str, Any], ours: dlbridge.Tensor) -> dict[str, dict[str, Function]]:
    """Somebody's class of arrays beside the Tensor that it holds, and a pointer's tensor."""
    numpy, torch = peers["numpy"], peers["torch"]
    address, shape = ours.data_ptr(), ours.shape
    found: dict[str, dict[str, Function]] = {
        "from_blob(address, shape, dtype)": {
            "dlbridge": lambda: dlbridge.from_blob(address, shape, "float32"),
        },
    }
    takes = {"`__dlpack__` of {}": _export, "numpy.from_dlpack({})": numpy.from_dlpack}
    if torch:
        takes["torch.from_dlpack({})"] = torch.from_dlpack
    classes = {"an attribute": _ByAttribute(ours), "a method": _ByMethod(ours)}
    for (words, take), (form, x) in product(takes.items(), classes.items()):
        operation = words.format(f"an Exporter with {form}")
        found[operation] = {"dlbridge": partial(take, x), "a Tensor": partial(take, ours)}
    return found


_export = methodcaller("__dlpack__", max_version=(1, 3))


def _imports(peers: dict[str, Any], x: Any) -> dict[str, Function]:
    """The from_dlpack of every library, called with *x*."""
    found: dict[str, Function] = {"dlbridge": lambda: dlbridge.from_dlpack(x)}
    for name in ("numpy", "torch", "tvm_ffi"):
        if peers[name]:
            found[name] = partial(peers[name].from_dlpack, x)
    if peers["jax"]:
        found["jax"] = partial(peers["jax"].dlpack.from_dlpack, x)
    if peers["cuda.core.utils"]:
        view = peers["cuda.core.utils"].StridedMemoryView.from_dlpack
        found["cuda.core"] = lambda: view(x, stream_ptr=-1)
    return {name: function for name, function in found.items() if _works(function)}


def _works(function: Function) -> bool:
    try:
        function()
    except Exception:  # a peer that does not take this array is left out of the row
        return False
    return True


def _with_torch(peers: dict[str, Any], array: Any, ours: Any) -> dict[str, dict[str, Function]]:
    torch = peers["torch"]
    tensor = torch.arange(6.0).reshape(2, 3)
    bfloat16 = tensor.to(torch.bfloat16)
    ours_of_it = dlbridge.from_dlpack(bfloat16)
    return {
        "from_dlpack(torch)": _imports(peers, tensor),
        "from_dlpack(torch bfloat16)": _imports(peers, bfloat16),
        "torch.from_dlpack(x)": {
            "dlbridge": lambda: torch.from_dlpack(ours),
            "numpy": lambda: torch.from_dlpack(array),
            "torch": lambda: torch.from_dlpack(tensor),
        },
        "to_device(numpy, 'cpu', like='torch')": {
            "dlbridge": lambda: dlbridge.to_device(array, "cpu", like="torch"),
            "torch": lambda: torch.from_dlpack(array),
        },
        "to_device(numpy, 'cpu')": {
            "dlbridge": lambda: dlbridge.to_device(array, "cpu"),
            "torch": lambda: torch.asarray(array),
        },
        "to_device(torch, 'cpu', like='numpy')": {
            "dlbridge": lambda: dlbridge.to_device(tensor, "cpu", like="numpy"),
            "numpy": lambda: peers["numpy"].from_dlpack(tensor),
        },
        "a bfloat16 capsule": {
            "dlbridge": lambda: ours_of_it.__dlpack__(max_version=(1, 3)),
            "torch": lambda: bfloat16.__dlpack__(max_version=(1, 3)),
        },
    }


def _with_jax(peers: dict[str, Any], array: Any, ours: Any) -> dict[str, dict[str, Function]]:
    jax = peers["jax"]
    tensor = jax.numpy.arange(6.0).reshape(2, 3)
    take = jax.dlpack.from_dlpack
    return {
        "from_dlpack(jax)": _imports(peers, tensor),
        "from_dlpack(jax bfloat16)": _imports(peers, tensor.astype("bfloat16")),
        "jax.dlpack.from_dlpack(x)": {
            "dlbridge": lambda: take(ours),
            "numpy": lambda: take(array),
        },
    }


class _Route:
    """The methods of a Tensor without its exchange table: tvm_ffi takes the other route."""

    __slots__ = ("__dlpack__", "__dlpack_device__")

    __dlpack__: Any
    __dlpack_device__: Any


def _with_tvm_ffi(peers: dict[str, Any], array: Any, ours: Any) -> dict[str, dict[str, Function]]:
    tvm_ffi, torch = peers["tvm_ffi"], peers["torch"]
    nop = tvm_ffi.get_global_func("testing.nop")
    tensor, theirs = torch.arange(6.0).reshape(2, 3), tvm_ffi.from_dlpack(array)
    bfloat16 = tensor.to(torch.bfloat16)
    route = _Route()
    route.__dlpack__, route.__dlpack_device__ = ours.__dlpack__, ours.__dlpack_device__
    calls: dict[str, Function] = {
        "torch": lambda: nop(tensor, tensor, tensor),
        "numpy": lambda: nop(array, array, array),
        "tvm_ffi": lambda: nop(theirs, theirs, theirs),
    }
    return {
        "from_dlpack(tvm_ffi)": _imports(peers, theirs),
        "from_dlpack(tvm_ffi bfloat16)": _imports(peers, tvm_ffi.from_dlpack(bfloat16)),
        "the first export of a tensor by the table": {
            "dlbridge": lambda: tvm_ffi.from_dlpack(dlbridge.from_dlpack(array)),
            "torch": lambda: tvm_ffi.from_dlpack(torch.from_numpy(array)),
        },
        "tvm_ffi.from_dlpack(x)": {
            "dlbridge": lambda: tvm_ffi.from_dlpack(ours),
            "numpy": lambda: tvm_ffi.from_dlpack(array),
            "torch": lambda: tvm_ffi.from_dlpack(tensor),
        },
        "tvm_ffi call with 3 tensors, by `__dlpack__`": {
            "dlbridge": lambda: nop(route, route, route),
            **calls,
        },
        "tvm_ffi call with 3 tensors, by our exchange table": {
            "dlbridge": lambda: nop(ours, ours, ours),
            **calls,
        },
    }
