"""ROCm for the common tests, and what the other tests of this folder share."""

import ctypes
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from suite import rig
from suite.rig import gate, memory, python, read, slow, stream, write

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
    found = ctypes.c_int()
    hip("hipGetDevice", ctypes.byref(found))
    return found.value


class RocmRig(rig.Rig):
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

        found = set(FUNCTIONS.values())
        restoring = {"hipSetDevice", "hipThreadExchangeStreamCaptureMode"}
        return sorted(found - restoring - {"hipGetLastError"})
