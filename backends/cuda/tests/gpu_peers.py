"""torch, cupy, jax and numba, each in the same few words, for the tests that need a GPU.

A peer makes an array slowly on a stream of its own, and takes a tensor of ours
on a stream of its own. *on* is ``"default"`` or ``"own"``.
"""

import importlib
import os
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.spin import SPIN

N = 1 << 14
CYCLES = 300_000  # 0.15 ms at 2 GHz


# jax takes three quarters of the GPU's memory at its start unless told not to.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def load(name):
    """The library; without it the test is skipped, or failed if it is expected."""
    try:
        return importlib.import_module(name)
    except Exception as exc:  # numba 0.68 beside numpy 2.5: AttributeError
        missing(name, f"cannot be imported: {exc}")


def missing(name, why):
    """Skip the test, or fail it where ``DLBRIDGE_EXPECT`` has "peers" and *name* is one."""
    expected = "peers" in os.environ.get("DLBRIDGE_EXPECT", "").split(",")
    if expected and name.partition(".")[0] in PEERS:
        pytest.fail(f"DLBRIDGE_EXPECT=peers, but {name} {why}")
    pytest.skip(f"{name} {why}")


class Torch:
    def __init__(self):
        self.torch = load("torch")
        if not self.torch.cuda.is_available():
            missing("torch", f"is {self.torch.__version__}, a build without CUDA, or sees no GPU")
        self.streams = {
            "default": self.torch.cuda.default_stream(),
            "own": self.torch.cuda.Stream(),
        }

    def make(self, value, on):
        with self.torch.cuda.stream(self.streams[on]):
            array = self.torch.zeros(N, dtype=self.torch.float32, device="cuda")
            self.torch.cuda._sleep(CYCLES)
            return array.fill_(value)

    @contextmanager
    def importing(self, on):
        """Work on that stream, as a user does."""
        with self.torch.cuda.stream(self.streams[on]):
            yield

    def take(self, tensor, on):
        with self.torch.cuda.stream(self.streams[on]):
            return self.torch.from_dlpack(tensor).clone().cpu().numpy()


class Cupy:
    def __init__(self):
        self.cupy = load("cupy")
        self.streams = {
            "default": self.cupy.cuda.Stream.null,
            "own": self.cupy.cuda.Stream(non_blocking=True),
        }
        source = """extern "C" __global__ void spin(long long cycles) {
            long long start = clock64();
            while (clock64() - start < cycles) {}
        }"""
        self.spin = self.cupy.RawKernel(source, "spin")

    def make(self, value, on):
        with self.streams[on]:
            array = self.cupy.zeros(N, "f4")
            self.spin((1,), (1,), (np.int64(CYCLES),))
            array.fill(value)
            return array

    def importing(self, on):
        return self.streams[on]

    def take(self, tensor, on):
        with self.streams[on]:
            return self.cupy.asnumpy(self.cupy.from_dlpack(tensor).copy())


class Jax:
    """It hides its streams; a product of matrices stands for slow work."""

    def __init__(self):
        self.jax = load("jax")
        if not any(device.platform == "gpu" for device in self.jax.devices()):
            missing("jax", "has no CUDA here: pip install 'jax[cuda13]'")
        self.matrix = self.jax.numpy.ones((2048, 2048), "float32")
        self.slowly = self.jax.jit(
            lambda m, v: (m @ m)[0, 0] * 0 + self.jax.numpy.full(N, v, "float32")
        )

    def make(self, value, on):
        return self.slowly(self.matrix, float(value))

    def importing(self, on):
        return nullcontext()

    def take(self, tensor, on):
        return np.asarray(self.jax.dlpack.from_dlpack(tensor) + 0)


class Numba:
    def __init__(self):
        self.cuda = cuda = load("numba.cuda")
        # By its own name: with 0, numba says "stream": None in its interface, and
        # that means that there is nothing to wait for.
        self.streams = {"default": cuda.legacy_default_stream(), "own": cuda.stream()}

        @self.cuda.jit
        def fill_slowly(array, value):
            cuda.nanosleep(150_000)
            here = cuda.grid(1)
            if here < array.size:
                array[here] = value

        @self.cuda.jit
        def add_zero(into, array):
            here = cuda.grid(1)
            if here < array.size:
                into[here] = array[here]

        self.fill_slowly, self.add_zero = fill_slowly, add_zero

    def make(self, value, on):
        array = self.cuda.device_array(N, "f4", stream=self.streams[on])
        self.fill_slowly[N // 256, 256, self.streams[on]](array, value)
        return array

    def importing(self, on):
        return nullcontext()

    def take(self, tensor, on):
        into = self.cuda.device_array(N, "f4")
        self.add_zero[N // 256, 256, self.streams[on]](into, self.cuda.as_cuda_array(tensor))
        self.cuda.synchronize()
        return into.copy_to_host()


PEERS = {"torch": Torch, "cupy": Cupy, "jax": Jax, "numba": Numba}


class Spin:
    """Our kernel, compiled by the driver."""

    def __init__(self):
        from backends.cuda.tests.cuda_support import call, current, primary

        with current(primary(0)):
            self.module = call("cuModuleLoadData", SPIN)
            self.function = call("cuModuleGetFunction", self.module, b"spin")

    def __call__(self, on, cycles=CYCLES):
        import ctypes

        from backends.cuda.tests.cuda_support import call, current, primary

        with current(primary(0)):
            arguments = ((cycles,), (ctypes.c_uint64,))
            call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, on, arguments, 0)


def check_gpu():
    """Skip without a GPU, by the backend's own reason."""
    try:
        return dlbridge.backend("cuda")
    except dlbridge.BackendUnavailable as exc:
        if "cuda" in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
            raise
        pytest.skip(str(exc))
