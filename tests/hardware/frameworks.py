"""Frameworks on ``cuda:0``, both ways, with their own streams and kernels: one line for each step.

    python tests/hardware/frameworks.py [NAME ...]

``ok``: it ran, and what it checks was true; ``no``: it was not, or an exception came; ``--``: the
framework is not here. Each is a process of its own. The exit status is the number of ``no``.
Thousands of slow arrays beside torch, cupy, jax and numba are in backends/cuda/tests/test_gpu.py.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

import numpy as np

import dlbridge as bridge

N = 1 << 14
VALUES = np.arange(N, dtype="f4")
SOURCE = """extern "C" __global__ void twice(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}"""


def host(x: object) -> np.ndarray:
    """The elements of anything of ours or of a framework's, by us."""
    return np.asarray(bridge.to_device(bridge.asarray(x), "cpu"))


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Fail unless both have the same elements."""
    if not np.array_equal(found, wanted):
        at = int((found != wanted).argmax())
        raise AssertionError(f"element {at} is {found.flat[at]}, not {wanted.flat[at]}")


def cuda_core() -> Iterator[str]:
    """Streams, buffers, views of strided memory, and a kernel that cuda.core compiles."""
    from cuda.core import (
        Device,
        LaunchConfig,
        Program,
        ProgramOptions,
        launch,
    )
    from cuda.core.utils import StridedMemoryView

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    with bridge.use_stream("cuda:0", stream):
        tensor = bridge.to_device(VALUES, "cuda:0")
        view = StridedMemoryView.from_any_interface(tensor, stream_ptr=int(stream.handle))
        assert (view.ptr, view.shape) == (tensor.data_ptr(), (N,))
        yield f"its view of our tensor: {view.dtype}, device {view.device_id}"
        architecture = "".join(map(str, device.compute_capability))
        program = Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{architecture}"))
        kernel = program.compile("cubin").get_kernel("twice")
        launch(
            stream, LaunchConfig(grid=N // 256, block=256), kernel, tensor.data_ptr(), np.int32(N)
        )
        same(host(tensor), VALUES * 2)
        yield "its kernel on its stream, in our tensor"
    buffer = device.memory_resource.allocate(4 * N, stream=stream)
    stream.sync()
    ours = bridge.from_dlpack(buffer)
    assert ours.data_ptr() == int(buffer.handle)
    yield f"its buffer is our {ours.dtype} {ours.shape} on {ours.device}"
    bridge.copy_(ours.view("float32") if str(ours.dtype) != "float32" else ours, VALUES)
    same(host(ours).view("f4"), VALUES)
    yield "we write into its buffer"
    del view


def warp() -> Iterator[str]:
    """Arrays both ways, a kernel of warp's on its own stream in our memory."""
    import warp as wp

    wp.config.quiet = True
    wp.init()

    def twice(x):
        i = wp.tid()
        x[i] = x[i] * 2.0

    # Not by annotations, which are texts in this file.
    twice.__annotations__ = {"x": wp.array(dtype=float)}
    twice = wp.kernel(twice)
    tensor = bridge.to_device(VALUES, "cuda:0")
    array = wp.from_dlpack(tensor)
    assert array.ptr == tensor.data_ptr()
    wp.launch(twice, dim=N, inputs=[array])
    same(array.numpy(), VALUES * 2)
    yield f"warp {wp.config.version}: its kernel in our tensor"
    theirs = wp.array(VALUES, dtype=float, device="cuda:0")
    ours = bridge.from_dlpack(theirs)
    assert ours.data_ptr() == theirs.ptr
    same(host(ours), VALUES)
    yield "its array is our tensor"
    stream = wp.Stream("cuda:0")
    with wp.ScopedStream(stream), bridge.use_stream("cuda:0", stream.cuda_stream):
        for turn in range(200):
            made = bridge.to_device(np.full(N, turn, "f4"), "cuda:0")
            array = wp.from_dlpack(made)
            wp.launch(twice, dim=N, inputs=[array])
            same(host(made), np.full(N, 2 * turn, "f4"))
    yield "200 rounds on its own stream"


def torch() -> Iterator[str]:
    """A compiled module, autograd, a side stream, memory of its own and of ours."""
    import torch as library

    tensor = bridge.to_device(VALUES, "cuda:0")
    theirs = library.from_dlpack(tensor)
    theirs.mul_(2)
    same(host(tensor), VALUES * 2)
    yield f"torch {library.__version__} multiplies in our memory"
    same(host(bridge.to_device(theirs, "cpu", like="numpy")), VALUES * 2)
    back = bridge.to_device(VALUES, "cuda:0", like="torch")
    assert back.device.type == "cuda"
    yield "like='torch' on cuda:0"
    compiled = library.compile(lambda x: (x * 3).sum())
    assert float(compiled(back)) == float(VALUES.sum() * 3)
    yield "torch.compile takes it"
    for kind in ("bfloat16", "float8_e4m3fn", "float16"):
        low = (back % 16).to(getattr(library, kind))
        assert library.equal(library.from_dlpack(bridge.from_dlpack(low)).float(), low.float())
    yield "bfloat16, float8_e4m3fn, float16 both ways"


def jax() -> Iterator[str]:
    """Arrays both ways, a compiled function, 500 rounds whose sources die."""
    import jax as library

    jnp = library.numpy
    tensor = bridge.to_device(VALUES, "cuda:0")
    theirs = library.dlpack.from_dlpack(tensor)
    same(np.asarray(library.jit(lambda x: x * 2)(theirs)), VALUES * 2)
    yield f"jax {library.__version__} computes on our tensor, on {theirs.devices()}"
    double = library.jit(lambda x: x * 2)
    for turn in range(500):
        made = double(jnp.full(N, turn, "float32"))
        ours = bridge.from_dlpack(made)
        del made
        same(host(ours), np.full(N, 2 * turn, "f4"))
    yield "500 of its arrays, dropped at once"
    back = bridge.to_device(VALUES, "cuda:0", like="jax")
    same(np.asarray(back), VALUES)
    yield "like='jax' on cuda:0"


def cupy() -> Iterator[str]:
    """Arrays both ways, a raw kernel, views with strides, its memory pool."""
    import cupy as library

    tensor = bridge.to_device(VALUES.reshape(128, -1), "cuda:0")
    theirs = library.from_dlpack(tensor[3::2, 1::3])
    same(library.asnumpy(theirs), VALUES.reshape(128, -1)[3::2, 1::3])
    yield f"cupy {library.__version__} reads a view with strides"
    array = library.arange(N, dtype="f4")
    library.RawKernel(SOURCE, "twice")((N // 256,), (256,), (array, np.int32(N)))
    same(host(array), VALUES * 2)
    yield "its kernel, then our copy"
    pool = library.get_default_memory_pool()
    array = None
    before = pool.used_bytes()
    for _ in range(1000):
        bridge.from_dlpack(library.ones(N, "f4"))
    gc.collect()
    yield f"a thousand arrays: {pool.used_bytes() - before} bytes more in its pool"
    assert pool.used_bytes() == before


def numba() -> Iterator[str]:
    """By the CUDA Array Interface: a kernel in our memory, and its array in ours."""
    from numba import cuda

    @cuda.jit
    def twice(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    tensor = bridge.to_device(VALUES, "cuda:0")
    twice[N // 256, 256](tensor)
    same(host(tensor), VALUES * 2)
    yield "its kernel takes our tensor"
    theirs = cuda.to_device(VALUES)
    same(host(theirs), VALUES)
    yield "its array is our tensor"


def triton() -> Iterator[str]:
    """A kernel of Triton's on our tensor."""
    import torch as library
    import triton as compiler
    import triton.language as tl

    @compiler.jit
    def twice(x, n, block: tl.constexpr):
        i = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    tensor = bridge.to_device(VALUES, "cuda:0")
    twice[(N // 256,)](library.from_dlpack(tensor), N, block=256)
    library.cuda.synchronize()
    same(host(tensor), VALUES * 2)
    yield f"triton {compiler.__version__}: its kernel on torch's view of our tensor"


FRAMEWORKS: dict[str, Callable[[], Iterator[str]]] = {
    function.__name__: function for function in (torch, cupy, jax, numba, cuda_core, warp, triton)
}


def run(name: str) -> int:
    """The steps of one framework in this process: 1 if one failed."""
    try:
        for line in FRAMEWORKS[name]():
            print(f"ok  {name}: {line}", flush=True)
    except ImportError as exc:
        print(f"--  {name}: {exc}", flush=True)
    except Exception as exc:  # whatever the library raises is the answer
        print(f"no  {name}: {type(exc).__name__}: {exc}", flush=True)
        traceback.print_exc(limit=-4, file=sys.stdout)
        return 1
    return 0


def main() -> int:
    """Each framework in a process of its own, all at once."""
    names = sys.argv[1:] or list(FRAMEWORKS)
    if len(names) == 1:
        return run(names[0])
    started = [
        subprocess.Popen(
            [sys.executable, __file__, name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    failed = 0
    for name, process in zip(names, started, strict=True):
        print(process.communicate()[0], end="", flush=True)
        failed += process.returncode != 0
        if process.returncode not in (0, 1):
            print(f"no  {name}: exit {process.returncode}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
