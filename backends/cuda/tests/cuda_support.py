"""CUDA for the common tests, and what the other tests of this folder share."""

import ctypes
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from dlbridge.errors import DeviceError, DeviceLost, ExchangeError
from dlbridge.kit.status import CaptureError, StreamGoneError
from tests.drivers.suite import rig
from tests.drivers.suite.rig import Gate, gate, memory, python, read, slow, write

__all__ = [
    "HERE",
    "CudaRig",
    "Gate",
    "WithProtocol",
    "at",
    "current",
    "gate",
    "memory",
    "own_context",
    "primary",
    "python",
    "read",
    "slow",
    "stream",
    "write",
]

HERE = Path(__file__).resolve().parent


def call(name, *arguments):
    """What the driver's function *name* gives beside its status, by cuda.bindings."""
    from cuda.bindings import driver as cu
    from dlbridge_cuda.gpu import gpu

    code, *results = getattr(cu, name)(*arguments)
    gpu.table.check(name, int(code))
    return results[0] if len(results) == 1 else tuple(results)


def primary(device_id):
    """The primary context of the device."""
    from dlbridge_cuda.gpu import gpu

    gpu.device_count()
    return gpu.contexts[device_id]


@contextmanager
def current(context):
    """*context* is the thread's current one in the block."""
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def at(device_id):
    return current(primary(device_id))


class WithProtocol:
    """A stream object by CUDA's protocol."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


ROWS = {
    "played_version": [None],
    "no_pools": ["the attribute says so"],
    # shape, strides, strides of the source, bytes of a run; linear, flat and box copies
    "copied": [
        ((5,), (10,), (16,), 8, (0, 1, 0)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 0, 1)),
        ((3, 5), (60, 10), (96, 16), 8, (0, 0, 1)),
        ((3, 5), (55, 10), (160, 16), 8, (0, 3, 0)),  # planes that are no whole rows
        ((3, 5), (50, 10), (83, 16), 8, (0, 3, 0)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 3, 0)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1, 0)),  # one plane has no stride
        ((5, 1), (10, 7), (16, 3), 8, (0, 1, 0)),
        ((1, 1), (7, 7), (3, 3), 8, (1, 0, 0)),
        ((1,), (1,), (1,), 8, (1, 0, 0)),
        ((4,), (8,), (3,), 8, (4, 0, 0)),  # runs of the source overlap
    ],
    "refusal": [
        (1, DeviceError, r"CUDA_ERROR_INVALID_VALUE \(1\): said by the simulated driver"),
        (3, DeviceError, r"NOT_INITIALIZED \(3\).*fork\(\)"),
        (4, DeviceError, "DEINITIALIZED.*exiting"),
        (201, DeviceError, "INVALID_CONTEXT.*reset the device"),
        (400, StreamGoneError, "INVALID_HANDLE.*destroyed"),
        (700, DeviceLost, "ILLEGAL_ADDRESS.*restart the process"),
        (801, ExchangeError, "NOT_SUPPORTED.*cannot do that"),
        (900, CaptureError, "STREAM_CAPTURE_UNSUPPORTED.*capturing a CUDA graph"),
        (908, CaptureError, "WRONG_THREAD.*capturing a CUDA graph"),
        (54321, DeviceError, r"an unknown status \(54321\)"),
    ],
    "librarys_stream": [
        (WithProtocol(99), 99),
        (WithProtocol(0), 1),  # an object's 0 is its default stream, not an ambiguity
        (SimpleNamespace(__cuda_stream__=(0, 77)), 77),
        (rig.of_library("torch.cuda.streams", cuda_stream=55), 55),
        (rig.of_library("torch.cuda.streams", cuda_stream=0), 1),
        (rig.of_library("cupy.cuda.stream", ptr=66), 66),
        (rig.of_library("cupy.cuda.stream", ptr=2), 2),
        (rig.of_library("numba.cuda.cudadrv.driver", __int__=lambda self: 44), 44),
        (rig.of_library("numba.cuda.cudadrv.driver", __int__=lambda self: 0), 1),
        (rig.of_library("pycuda.driver", handle=33), 33),
    ],
    "no_stream": [
        rig.of_library("torch.cuda.streams"),
        rig.of_library("cupy.cuda.stream", ptr="x"),
        SimpleNamespace(__cuda_stream__=lambda: 7),
        SimpleNamespace(__cuda_stream__=lambda: (0, "x")),
        rig.of_library("somewhere.else", cuda_stream=5, ptr=5, handle=5),
    ],
}  # fmt: skip


class CudaRig(rig.Rig):
    api, rows = "CUDA", ROWS
    device, host, kinds = "cuda", "cuda_host", ("cuda", "cuda_host", "cuda_managed")
    default, default_streams = 1, (1, 2)
    checks_addresses_of_copies = True
    package = "dlbridge_cuda"
    libraries = ("cuda",)
    asking = ("cuStreamIsCapturing",)  # a question whose failure the next call reports
    copy_calls = ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuMemcpy3DAsync")
    names: ClassVar = {
        "allocate": "cuMemAllocFromPoolAsync",
        "allocate cuda": "cuMemAllocFromPoolAsync",
        "allocate cuda_host": "cuMemHostAlloc",
        "allocate cuda_managed": "cuMemAllocManaged",
        "free": "cuMemFreeAsync",
        "free cuda": "cuMemFreeAsync",
        "free cuda_host": "cuMemFreeHost",
        "free cuda_managed": "cuMemFree",
        "trim": "cuMemPoolTrimTo",
        "lock": "cuMemHostRegister",
        "unlock": "cuMemHostUnregister",
        "event": "cuEventCreate",
        "record": "cuEventRecord",
        "wait": "cuStreamWaitEvent",
        "synchronize": "cuStreamSynchronize",
        "device": "cuCtxSynchronize",
        "capturing": "cuStreamIsCapturing",
        "fill": "cuMemsetD8Async",
        "from host": "cuMemcpyHtoDAsync",
        "peer access": "cuCtxEnablePeerAccess",
        "pool access": "cuMemPoolSetAccess",
    }

    def create_stream(self, device_id, flags):
        """A stream whose owner is known, as cupy's are; test_gone_streams.py has the others."""
        with at(device_id):
            stream = int(call("cuStreamCreate", flags))
        self.owners[stream] = rig.Owner(stream, partial(call, "cuStreamDestroy"))
        return stream

    def wait(self, stream, device_id):
        with at(device_id):
            call("cuStreamSynchronize", stream)

    def wait_for_device(self, device_id):
        with at(device_id):
            call("cuCtxSynchronize")

    def is_idle(self, stream, device_id):
        from cuda.bindings import driver as cu

        with at(device_id):
            return cu.cuStreamQuery(stream)[0] == cu.CUresult.CUDA_SUCCESS

    def launch(self, stream, function, argument, device_id):
        # By the driver itself: cuda.bindings would call a function of its own, with the GIL.
        driver = ctypes.CDLL("libcuda.so.1")  # the one that is loaded, simulated or real
        driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
        with at(device_id):
            assert driver.cuLaunchHostFunc(stream, function, argument) == 0

    def begin_capture(self, stream, mode):
        from cuda.bindings import driver as cu

        with at(0):
            call("cuStreamBeginCapture", stream, cu.CUstreamCaptureMode(mode))

    def end_capture(self, stream):
        with at(0):
            return call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)

    def launch_graph(self, graph, stream):
        with at(0):
            call("cuGraphLaunch", graph, stream)

    def fork_capture(self, stream, side):
        with at(0):
            event = call("cuEventCreate", 2)
            call("cuEventRecord", event, stream)
            call("cuStreamWaitEvent", side, event, 0)

    def pool_threshold(self, value=None):
        """The release threshold of device 0's pool, after setting it to *value*."""
        from cuda.bindings import driver as cu

        pool = call("cuDeviceGetDefaultMemPool", 0)
        which = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        if value is not None:
            call("cuMemPoolSetAttribute", pool, which, cu.cuuint64_t(value))
            self.gpu().pools.clear()
        return int(call("cuMemPoolGetAttribute", pool, which))

    def without_pools(self, fake, _way):
        fake.attribute("MEMORY_POOLS_SUPPORTED", 0)
        return rig.backend()

    def calls_of_a_copy(self, counts):
        """The simulated driver makes 2-D copies by 3-D ones."""
        linear, flat, box = counts
        return linear, flat, box - flat

    def gpu(self):
        from dlbridge_cuda.gpu import gpu

        return gpu

    def events(self):
        from dlbridge_cuda.gpu import events

        return events

    def where(self):
        return int(call("cuCtxGetCurrent"))

    def make_current(self, device_id):
        call("cuCtxSetCurrent", primary(device_id))

    def all_calls(self):
        """Every function of the simulated driver, but for those that put back what was."""
        calls = {
            name.partition("_v")[0]
            for path in (rig.DRIVERS / "fakecuda").glob("*.c")
            for name in re.findall(r"^API (cu\w+)\(", path.read_text(), re.MULTILINE)
        }
        return sorted(calls - {"cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"})


class stream:  # noqa: N801  # a context manager, as `suite.rig.stream`
    """A new stream, also in somebody's own context; its handle."""

    def __init__(self, device_id=0, flags=1, context=None):
        self._context = context or primary(device_id)
        self._flags = flags

    def __enter__(self):
        with current(self._context):
            self._handle = int(call("cuStreamCreate", self._flags))
        return self._handle

    def __exit__(self, *_):
        with current(self._context):
            call("cuStreamSynchronize", self._handle)
            call("cuStreamDestroy", self._handle)


def own_context(device_id=0):
    """A context that is not the primary one; it is current, as the driver has it."""
    try:
        return call("cuCtxCreate", None, 0, device_id)
    except TypeError:  # cuda-bindings 12
        return call("cuCtxCreate", 0, device_id)
