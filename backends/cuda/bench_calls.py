"""Calls on GPU tensors: exchange, allocation, small copies and a TVM-FFI kernel, beside the peers.

    python backends/cuda/bench_calls.py [--output FILE]

Writes docs/benchmarks/cuda-calls.md. What is queued on the GPU is not waited for, as in a program
that goes on; the last row waits. The kernel is compiled by nvcc, and left out without it.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge
from dlbridge.cli.bench import Row, best_of, report

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "cuda-calls.md"
N = 1024
KERNEL = r"""
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void add_one(const float *x, float *y, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}

void AddOne(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  DLDevice device = x.device();
  cudaStream_t stream = (cudaStream_t)TVMFFIEnvGetStream(device.device_type, device.device_id);
  long n = x.size(0);
  add_one<<<(n + 255) / 256, 256, 0, stream>>>((float *)x.data_ptr(), (float *)y.data_ptr(), n);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);
"""

Contenders = dict[str, Callable[[], object]]


def module(name: str) -> Any:
    """A library with CUDA, or None."""
    try:
        library = importlib.import_module(name)
        if name in ("torch", "cupy") and not library.cuda.is_available():
            return None
    except Exception:  # each library has its own way to fail; its column stays empty
        return None
    return library


def operations(torch: Any, cupy: Any, tvm_ffi: Any) -> dict[str, Contenders]:
    """Operation -> contenders; ours is ``dlbridge``."""
    values = np.arange(N, dtype="float32")
    ours, into = dlbridge.to_device(values, "cuda:0"), dlbridge.zeros(N, "float32", "cuda:0")
    contenders: dict[str, Contenders] = {
        "to_device(x, its device)": {"dlbridge": lambda: dlbridge.to_device(ours, "cuda:0")},
        "empty(1 MiB)": {"dlbridge": lambda: dlbridge.empty(1 << 20, "uint8", "cuda:0")},
        "zeros(1 MiB)": {"dlbridge": lambda: dlbridge.zeros(1 << 20, "uint8", "cuda:0")},
        "copy_, 4 KiB on the GPU": {"dlbridge": lambda: dlbridge.copy_(into, ours)},
        "numpy 4 KiB to the GPU and back": {
            "dlbridge": lambda: np.asarray(
                dlbridge.to_device(dlbridge.to_device(values, "cuda:0"), "cpu")
            )
        },
    }
    if torch:
        theirs = torch.from_dlpack(ours).clone()
        target, host = torch.empty_like(theirs), torch.from_numpy(values)
        contenders["from_dlpack(torch)"] = imports(theirs, torch, cupy, tvm_ffi)
        contenders["torch.from_dlpack(x)"] = {
            "dlbridge": lambda: torch.from_dlpack(ours),
            "torch": lambda: torch.from_dlpack(theirs),
        }
        contenders["to_device(x, its device)"]["torch"] = lambda: theirs.to("cuda:0")
        contenders["empty(1 MiB)"]["torch"] = lambda: torch.empty(
            1 << 20, dtype=torch.uint8, device="cuda"
        )
        contenders["zeros(1 MiB)"]["torch"] = lambda: torch.zeros(
            1 << 20, dtype=torch.uint8, device="cuda"
        )
        contenders["copy_, 4 KiB on the GPU"]["torch"] = lambda: target.copy_(theirs)
        contenders["numpy 4 KiB to the GPU and back"]["torch"] = lambda: (
            host.to("cuda").cpu().numpy()
        )
    if cupy:
        array = cupy.from_dlpack(ours).copy()
        other = cupy.empty_like(array)
        contenders["from_dlpack(cupy)"] = imports(array, torch, cupy, tvm_ffi)
        contenders["cupy.from_dlpack(x)"] = {
            "dlbridge": lambda: cupy.from_dlpack(ours),
            "cupy": lambda: cupy.from_dlpack(array),
        }
        contenders["empty(1 MiB)"]["cupy"] = lambda: cupy.empty(1 << 20, "u1")
        contenders["zeros(1 MiB)"]["cupy"] = lambda: cupy.zeros(1 << 20, "u1")
        contenders["copy_, 4 KiB on the GPU"]["cupy"] = lambda: cupy.copyto(other, array)
        contenders["numpy 4 KiB to the GPU and back"]["cupy"] = lambda: cupy.asarray(values).get()
    return contenders


def imports(x: Any, torch: Any, cupy: Any, tvm_ffi: Any) -> Contenders:
    """Every library's ``from_dlpack`` of *x*."""
    libraries = {"torch": torch, "cupy": cupy, "tvm_ffi": tvm_ffi}
    contenders: Contenders = {"dlbridge": lambda: dlbridge.from_dlpack(x)}
    for name, library in libraries.items():
        if library is not None:
            contenders[name] = lambda take=library.from_dlpack: take(x)
    return contenders


def kernel_calls(torch: Any, tvm_ffi: Any, folder: Path) -> dict[str, Contenders]:
    """A kernel for the GPU behind TVM-FFI, called with torch's tensors and with ours."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not (torch and tvm_ffi and Path(nvcc).exists()):
        print("the kernel is left out: it takes torch, apache-tvm-ffi and nvcc", file=sys.stderr)
        return {}
    source, library = folder / "add_one.cu", folder / "add_one.so"
    source.write_text(KERNEL)
    include = Path(tvm_ffi.__file__).parent / "include"
    flags = ["-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC", "-arch=native"]
    linked = [f"-I{include}", f"-L{include.parent / 'lib'}", "-ltvm_ffi"]
    subprocess.run([nvcc, *flags, *linked, source, "-o", library], check=True)
    ours_call = dlbridge.ffi.load_module(str(library)).add_one
    their_call = tvm_ffi.load_module(str(library)).add_one
    x, y = torch.zeros(N, device="cuda"), torch.empty(N, device="cuda")
    t, u = dlbridge.zeros(N, "float32", "cuda:0"), dlbridge.zeros(N, "float32", "cuda:0")
    ours_call(x, y)
    assert bool((y == 1).all())
    ours_call(t, u)
    assert dlbridge.to_device(u, "cpu").tolist() == [1.0] * N
    return {
        "a kernel with 2 tensors of torch": {
            "dlbridge": lambda: ours_call(x, y),
            "tvm_ffi": lambda: their_call(x, y),
            "torch": lambda: torch.add(x, 1, out=y),
        },
        "a kernel with 2 tensors of ours": {
            "dlbridge": lambda: ours_call(t, u),
            "tvm_ffi": lambda: their_call(x, y),
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything, print and write it."""
    parser = argparse.ArgumentParser(description="Calls on GPU tensors")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args(arguments)
    try:
        backend: Any = dlbridge.backend("cuda")
    except dlbridge.BackendUnavailable as exc:
        print(f"nothing measured: {exc}", file=sys.stderr)
        return 1
    torch, cupy, tvm_ffi = (module(name) for name in ("torch", "cupy", "tvm_ffi"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        contenders_of = operations(torch, cupy, tvm_ffi)
        try:
            contenders_of |= kernel_calls(torch, tvm_ffi, Path(folder))
        except (OSError, subprocess.CalledProcessError) as exc:
            print(f"the kernel is left out: {exc}", file=sys.stderr)
        for operation, contenders in contenders_of.items():
            times = best_of(contenders, 5)
            dlbridge.synchronize("cuda:0")
            rows.append(Row(operation, times.pop("dlbridge"), times))
    title = f"Calls on GPU tensors: {backend.device_info(0)['name']}, beside torch and cupy"
    report(rows, title, as_json=False, write=str(chosen.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
