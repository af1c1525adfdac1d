"""ROCm for the common tests, and what the other tests of this folder share."""

import ctypes
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, ExchangeError
from dlbridge.kit.status import CaptureError, StreamGoneError
from tests.drivers.suite import rig
from tests.drivers.suite.rig import gate, memory, python, read, slow, stream, write

__all__ = [
    "HERE",
    "RocmRig",
    "gate",
    "hip",
    "memory",
    "python",
    "read",
    "slow",
    "stream",
    "write",
]

HERE = Path(__file__).resolve().parent


@cache
def library():
    """The runtime of this process, which is looked for in its memory map."""
    from dlbridge_rocm.library import loaded_already

    return ctypes.CDLL(loaded_already()[0])


def hip(name, *arguments):
    """Call a HIP function that the backend does not use; integers are passed as pointers."""
    code = getattr(library(), name)(
        *(ctypes.c_void_p(value) if isinstance(value, int) else value for value in arguments)
    )
    assert code == 0, (name, code)


@contextmanager
def current(device_id):
    """The thread's device is *device_id* in the block."""
    before = where()
    hip("hipSetDevice", ctypes.c_int(device_id))
    try:
        yield
    finally:
        hip("hipSetDevice", ctypes.c_int(before))


def where():
    """The thread's device."""
    device = ctypes.c_int()
    hip("hipGetDevice", ctypes.byref(device))
    return device.value


ROWS = {
    "played_version": [None, (5, 2), (7, 0)],
    "no_pools": ["the attribute says so", "no default", "refusal", "HIP 5"],
    # shape, strides, strides of the source, bytes of a run; linear and flat copies
    "copied": [
        ((5,), (10,), (16,), 8, (0, 1)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 3)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 3)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1)),
        ((1,), (1,), (1,), 8, (1, 0)),
        ((4,), (8,), (3,), 8, (4, 0)),  # runs of the source overlap
        ((2, 4), (40, 8), (12, 3), 8, (8, 0)),
    ],
    "refusal": [
        (1, DeviceError, r"hipErrorInvalidValue \(1\): said by the shim"),
        (2, DeviceMemoryError, r"hipErrorOutOfMemory \(2\).*free some tensors"),
        (3, DeviceError, r"NotInitialized \(3\).*fork\(\)"),
        (101, DeviceError, r"InvalidDevice \(101\).*HIP_VISIBLE_DEVICES"),
        (400, StreamGoneError, "InvalidHandle.*destroyed"),
        (700, DeviceLost, "IllegalAddress.*restart the process"),
        (709, StreamGoneError, "ContextIsDestroyed.*reset the device"),
        (719, DeviceLost, "LaunchFailure.*restart the process"),
        (801, ExchangeError, "NotSupported.*cannot do that"),
        (900, CaptureError, "StreamCaptureUnsupported.*capturing a HIP graph"),
        (906, CaptureError, "StreamCaptureImplicit.*capturing a HIP graph"),
        (54321, DeviceError, r"hipErrorUnknown \(54321\)"),
    ],
    "librarys_stream": [
        (rig.of_library("torch.cuda.streams", cuda_stream=55), 55),
        (rig.of_library("torch.cuda.streams", cuda_stream=0), 0),
        (rig.of_library("cupy.cuda.stream", ptr=66), 66),
        (rig.of_library("cupy.cuda.stream", ptr=0), 0),
        (rig.of_library("hip.hip", "ihipStream_t", __int__=lambda self: 44), 44),
        (rig.of_library("rocm.bindings.hip", "ihipStream_t", __int__=lambda self: 45), 45),
    ],
    "no_stream": [
        rig.of_library("torch.cuda.streams"),
        rig.of_library("cupy.cuda.stream", ptr="x"),
        rig.of_library("hip.hip", "ihipEvent_t", __int__=lambda self: 44),
        rig.of_library("somewhere.else", cuda_stream=5, ptr=5, __cuda_stream__=(0, 5)),
    ],
}
NOT_SUPPORTED = 801


class RocmRig(rig.Rig):
    api, rows = "HIP", ROWS
    device, host, kinds = "rocm", "rocm_host", ("rocm", "rocm_host")
    default, default_streams = 0, (0,)
    looks_up_gone_streams = True
    package = "dlbridge_rocm"
    libraries = ("cuda", "hip")
    last_resort = "hipMalloc"
    asking = ("hipStreamIsCapturing",)  # a question whose failure the next call reports
    copy_calls = ("hipMemcpyAsync", "hipMemcpy2DAsync")
    names: ClassVar = {
        "allocate": "hipMallocFromPoolAsync",
        "allocate rocm": "hipMallocFromPoolAsync",
        "allocate rocm_host": "hipHostMalloc",
        "free": "hipFreeAsync",
        "free rocm": "hipFreeAsync",
        "free rocm_host": "hipHostFree",
        "trim": "hipMemPoolTrimTo",
        "lock": "hipHostRegister",
        "unlock": "hipHostUnregister",
        "event": "hipEventCreateWithFlags",
        "record": "hipEventRecord",
        "wait": "hipStreamWaitEvent",
        "synchronize": "hipStreamSynchronize",
        "device": "hipDeviceSynchronize",
        "capturing": "hipStreamIsCapturing",
        "fill": "hipMemsetAsync",
        "from host": "hipMemcpyAsync",
        "peer access": "hipDeviceEnablePeerAccess",
        "pool access": "hipMemPoolSetAccess",
    }

    def create_stream(self, device_id, flags):
        handle = ctypes.c_void_p()
        with current(device_id):
            hip("hipStreamCreateWithFlags", ctypes.byref(handle), flags)
        destroy = partial(hip, "hipStreamDestroy")
        self.owners[handle.value] = rig.Owner(handle.value, destroy)
        return handle.value

    def wait(self, stream, device_id):
        with current(device_id):
            hip("hipStreamSynchronize", stream)

    def wait_for_device(self, device_id):
        with current(device_id):
            hip("hipDeviceSynchronize")

    def is_idle(self, stream, device_id):
        with current(device_id):
            return library().hipStreamQuery(ctypes.c_void_p(stream)) == 0

    def launch(self, stream, function, argument, device_id):
        with current(device_id):
            hip("hipLaunchHostFunc", stream, function, argument)

    def begin_capture(self, stream, mode):
        hip("hipStreamBeginCapture", stream, mode)

    def end_capture(self, stream):
        captured, executable = ctypes.c_void_p(), ctypes.c_void_p()
        hip("hipStreamEndCapture", stream, ctypes.byref(captured))
        hip("hipGraphInstantiateWithFlags", ctypes.byref(executable), captured.value, 0)
        return executable.value

    def launch_graph(self, graph, stream):
        hip("hipGraphLaunch", graph, stream)

    def fork_capture(self, stream, side):
        event = ctypes.c_void_p()
        hip("hipEventCreateWithFlags", ctypes.byref(event), 2)
        hip("hipEventRecord", event.value, stream)
        hip("hipStreamWaitEvent", side, event.value, 0)

    def pool_threshold(self, value=None):
        """The release threshold of device 0's pool, after setting it to *value*."""
        pool, number = ctypes.c_void_p(), ctypes.c_uint64(value or 0)
        hip("hipDeviceGetDefaultMemPool", ctypes.byref(pool), ctypes.c_int(0))
        which = pool.value, ctypes.c_int(4), ctypes.byref(number)
        if value is not None:
            hip("hipMemPoolSetAttribute", *which)
            self.gpu().pools.clear()
        hip("hipMemPoolGetAttribute", *which)
        return number.value

    def without_pools(self, fake, way):
        """A runtime that has the function and refuses it, one that has none, and HIP 5."""
        from dlbridge_rocm import ROCM

        if way == "the attribute says so":
            fake.attribute(115, 0)  # MEMORY_POOLS_SUPPORTED, below the shim
        elif way == "no default":
            fake.fail("hipDeviceGetDefaultMemPool", NOT_SUPPORTED)
            fake.forget()
        elif way == "refusal":
            fake.fail("allocate", NOT_SUPPORTED)
        else:
            fake.version(5, 2)
        return ROCM()

    def gpu(self):
        from dlbridge_rocm.gpu import gpu

        return gpu

    def events(self):
        from dlbridge_rocm.gpu import events

        return events

    def where(self):
        return where()

    def make_current(self, device_id):
        hip("hipSetDevice", ctypes.c_int(device_id))

    def all_calls(self):
        """Every function, but for those that put back what was, and the last error."""
        from dlbridge_rocm.library import FUNCTIONS

        called = set(FUNCTIONS.values())
        restoring = {"hipSetDevice", "hipThreadExchangeStreamCaptureMode"}
        return sorted(called - restoring - {"hipGetLastError"})
