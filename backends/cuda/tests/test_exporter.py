"""Arrays of other classes on CUDA: `from_blob` and `Exporter`, as cupy and numba ask for them."""

import numpy as np

import dlbridge as bridge
from backends.cuda.tests.cuda_support import at, call

VALUES = np.arange(6, dtype="float32").reshape(2, 3)


class DeviceArray(bridge.Exporter):
    """Memory of the driver, which it frees itself."""

    def __init__(self, stream=None):
        self.stream = stream
        with at(0):
            self.address = int(call("cuMemAlloc", VALUES.nbytes))
            call("cuMemcpyHtoD", self.address, VALUES.ctypes.data, VALUES.nbytes)

    def __as_tensor__(self):
        return bridge.from_blob(
            self.address, VALUES.shape, "float32", device="cuda:0", owner=self, stream=self.stream
        )

    def __del__(self):
        with at(0):
            call("cuMemFree", self.address)


def cupy_takes(x):
    """What ``cupy.from_dlpack`` and ``cupy.asarray`` ask for (as its documents say; cupy runs only beside a GPU)."""
    kind, index = x.__dlpack_device__()
    assert (int(kind), index) == (2, 0)
    capsule = x.__dlpack__(stream=2, max_version=(1, 0), dl_device=None, copy=None)
    legacy = x.__dlpack__(stream=2)
    interface = x.__cuda_array_interface__
    assert interface["version"] == 3
    assert isinstance(interface["shape"], tuple)
    assert interface["strides"] is None
    assert interface["stream"] != 0
    return capsule, legacy, interface


def test_as_cupy_asks(cuda):
    x = DeviceArray()
    capsule, legacy, interface = cupy_takes(x)
    assert interface["data"] == (x.address, False)
    for taken in (capsule, legacy):
        tensor = bridge.from_dlpack(taken)
        assert tensor.device == bridge.device("cuda:0")
        assert tensor.to_device("cpu").tolist() == VALUES.tolist()


def test_the_stream_that_has_written_it(cuda):
    """It may be destroyed after the call."""
    with at(0):
        stream = int(call("cuStreamCreate", 1))
    x = DeviceArray(stream=stream)
    tensor = bridge.from_dlpack(x)
    call("cuStreamDestroy", stream)
    x.stream = None
    assert tensor.to_device("cpu").tolist() == VALUES.tolist()
