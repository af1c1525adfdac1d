"""What a newcomer does wrong: each message names the thing, the rule and the way out."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from expected import backend_or_skip
from peers import peer

import dlbridge as bridge


def on(device):
    backend_or_skip(device.partition(":")[0])
    return bridge.ones(3, device=device)


CASES = {
    "a device spelled wrongly": (
        lambda: bridge.empty(3, device="opnecl:0"),
        ValueError,
        r"'opnecl' \(did you mean 'opencl'\?\); the backends that are .*dlbridge\.devices\(\)",
    ),
    "the same, only looked up": (
        lambda: bridge.device("vulcan"),
        ValueError,
        r"did you mean 'vulkan'\?",
    ),
    "an index that there is not": (
        lambda: bridge.empty(3, device="cpu:9"),
        bridge.DeviceNotFound,
        "there is no cpu:9: backend 'cpu' has 1 device",
    ),
    "a name that no device has": (
        lambda: (on("opencl:0"), bridge.device("opencl:NVIDIA"))[1],
        bridge.DeviceNotFound,
        "there is no opencl:NVIDIA: no OpenCL device is called 'NVIDIA'; the devices are 0: ",
    ),
    "an array as a device": (
        lambda: bridge.device(on("opencl:0").to_native()),
        TypeError,
        r"pyopencl\.array\.Array is not a valid device: .*dlbridge\.device_of\(x\) gives",
    ),
    "a backend spelled wrongly": (
        lambda: bridge.backend("ext_deb"),
        bridge.BackendUnavailable,
        r"no backend for device 'ext_deb' .*\(did you mean 'ext_dev'\?\)",
    ),
    "a library spelled wrongly": (
        lambda: bridge.to_device(np.ones(3), "cpu", like="nunpy"),
        ModuleNotFoundError,
        r"there is no module 'nunpy' here \(did you mean 'numpy'\?\)",
    ),
    "a dtype spelled wrongly": (
        lambda: bridge.empty(3, "flaot32"),
        TypeError,
        r"'flaot32' is not the name of a dtype \(did you mean 'float32'\?\)",
    ),
    "a name of the package spelled wrongly": (
        lambda: bridge.to_devce,
        AttributeError,
        r"no attribute 'to_devce' \(did you mean 'to_device'\?\)",
    ),
    "a global function spelled wrongly": (
        lambda: (peer("tvm_ffi"), bridge.ffi.get_global_func("ffi.Arary")),
        ValueError,
        r"no global function 'ffi\.Arary' \(did you mean 'ffi\.Array'\?\)",
    ),
    "a module that is not there": (
        lambda: (peer("tvm_ffi"), bridge.ffi.load_module("./nope.so")),
        FileNotFoundError,
        r"nope\.so",
    ),
    "numpy() of memory that must be copied": (
        lambda: on("ext_dev:0").numpy(),
        bridge.ExchangeError,
        r"the tensor is on ext_dev:0, .*to_device\(t, 'cpu'\) copies its 12 bytes",
    ),
    "torch of a device's tensor": (
        lambda: (peer("torch"), bridge.to_device(on("opencl:0"), "opencl:0", like="torch")),
        bridge.ExchangeError,
        r"torch has no arrays on opencl:0; dlbridge\.to_device\(t, 'cpu', like='torch'\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_message_says_what_to_do(name):
    call, error, message = CASES[name]
    with pytest.raises(error, match=message):
        call()


def test_nothing_is_suggested_for_what_is_like_nothing():
    with pytest.raises(ValueError, match="no device is called 'xyzzy'; the backends") as told:
        bridge.device("xyzzy")
    assert "did you mean" not in str(told.value)


def test_numpy_of_memory_that_can_be_shared():
    """It says what the plan says, which may be that nothing is copied."""
    for device in ("opencl:0", "vulkan:0"):
        tensor = on(device)
        copied = bridge.plan(tensor, "cpu").nbytes
        way = "copies its 12 bytes" if copied else "gives its memory to the host without a copy"
        with pytest.raises(bridge.ExchangeError, match=way):
            tensor.numpy()


def test_the_plan_says_how_a_tensor_becomes_a_librarys():
    peer("torch")
    text = bridge.explain(np.ones(3), "cpu", like="torch")
    assert text.endswith("2. wrap as torch.Tensor (no copy)")
    frozen = np.ones(3)
    frozen.flags.writeable = False
    copied = bridge.explain(frozen, "cpu", like="torch")
    assert copied.endswith("24 bytes copied: the memory is read-only, which torch ignores")


def test_memory_that_is_not_aligned_names_the_way_to_memory_that_is():
    backend_or_skip("opencl")
    pages = bridge.empty(4097, "uint8", alignment=4096).numpy()
    if bridge.plan(pages[:4096], "opencl:0").nbytes:
        pytest.skip("this device never uses host memory in place")
    assert "dlbridge.empty(shape, dtype, alignment=" in bridge.explain(pages[1:], "opencl:0")


def test_one_family_of_errors():
    """A device that is not there is one, however it is named; and it is a LookupError, too."""
    for name in ("cpu:9", "ext_dev:no such"):
        with pytest.raises(bridge.Error) as told:
            bridge.empty(3, device=name)
        assert isinstance(told.value, bridge.DeviceNotFound)
        assert isinstance(told.value, (LookupError, BufferError))
        assert isinstance(pickle.loads(pickle.dumps(told.value)), bridge.DeviceNotFound)


def test_functions_and_modules_name_themselves():
    peer("tvm_ffi")
    ffi = bridge.ffi
    assert repr(ffi.get_global_func("ffi.Array")).startswith("<ffi.Function ffi.Array at 0x")
    assert repr(ffi.convert_func(len)).startswith("<ffi.Function len at 0x")
    module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
    assert repr(module).startswith("<ffi.Module libtvm_ffi_testing")
    assert "_file" not in dir(module)
    function = module.testing_dll_schema_id_int
    assert repr(function).startswith(
        "<ffi.Function testing_dll_schema_id_int of libtvm_ffi_testing"
    )
