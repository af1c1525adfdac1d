"""`dlbridge.device`: the names and numbers of devices, against the libraries that own them."""

from __future__ import annotations

import copy
import pickle
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dlbridge import Device, DLDeviceType
from dlbridge.abi import ffi
from dlbridge.core.values.devices import device
from dlbridge.errors import ExchangeError
from tests.support.case_ids import stable
from tests.support.peers import peer
from tests.support.scripts import run_script

TYPES = {  # every type of dlpack.h 1.3
    "cpu": 1,
    "cuda": 2,
    "cuda_host": 3,
    "opencl": 4,
    "vulkan": 7,
    "metal": 8,
    "vpi": 9,
    "rocm": 10,
    "rocm_host": 11,
    "ext_dev": 12,
    "cuda_managed": 13,
    "oneapi": 14,
    "webgpu": 15,
    "hexagon": 16,
    "maia": 17,
    "trn": 18,
}
int32 = st.integers(-(2**31), 2**31 - 1)
indices = st.integers(0, 2**31 - 1)
own_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name not in TYPES and not (name[:4] == "type" and name[4:].isdigit())
)


# -- The value -----------------------------------------------------------------


NOT_RELEASED = {19: "kDLTPU", 20: "kDLTPUHost", 21: "kDLAscend"}
"""dlpack.h of DLPack's main branch, 2026-11."""


def test_types_are_those_of_the_header():
    elements = {int(value): name for value, name in ffi.typeof("DLDeviceType").elements.items()}
    assert {int(type): type.name for type in DLDeviceType} == elements | NOT_RELEASED


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_its_name(name):  # P2
    found = Device.of(TYPES[name], 3)
    assert (found.type, found.index, found.name) == (TYPES[name], 3, name)
    assert isinstance(found.type, DLDeviceType)
    assert (str(found), repr(found)) == (f"{name}:3", f"dlbridge.device('{name}:3')")
    assert device(f"{name}:3") is found is Device.of(TYPES[name], 3, name)
    assert device(name) is Device.of(TYPES[name])
    for pair in (found.dlpack, found.__dlpack_device__()):
        assert pair == (TYPES[name], 3)
        assert [type(number) for number in pair] == [int, int]
    assert type(found.dlpack_device_type()) is int


@pytest.mark.parametrize("type", [0, 5, 6, 22, 99, -1])
def test_an_unknown_type_is_a_device_like_any_other(type):  # C18
    found = Device.of(type, 2)
    assert found.dlpack == (type, 2)
    assert str(found) == f"type{type}:2"
    assert device(str(found)) is device((type, 2)) is found
    assert not found.is_host
    assert not found.is_address  # its data is never touched


@given(int32, indices)
def test_any_numbers_make_one_value_with_a_name_of_its_own(type, index):  # C18
    found = Device.of(type, index)
    assert found.dlpack == (type, index)
    assert (
        device((type, index)) is device(str(found)) is device(type, index) is device(found) is found
    )
    assert pickle.loads(pickle.dumps(found)) is found


@given(own_names, int32, indices)
def test_the_name_is_part_of_the_identity(name, type, index):
    # kDLExtDev identifies nobody: two backends may share it.
    found = Device.of(type, index, name)
    assert found.name == name
    assert found.dlpack == (type, index)
    assert found is not Device.of(type, index)
    assert found != Device.of(type, index)
    assert device(f"{name}:{index}", device_type=type) is found
    assert pickle.loads(pickle.dumps(found)) is copy.deepcopy(found) is found


def test_the_repr_of_a_backends_own_device_can_be_evaluated():
    assert repr(Device.of(12, 1, "npu")) == "dlbridge.device('npu:1', device_type=12)"


def test_a_name_is_not_the_number_of_a_type():
    with pytest.raises(TypeError, match=r"takes the number of a type; dlbridge.device\('cpu'\)"):
        Device("cpu")


def test_what_the_cpu_may_read_and_what_is_an_address():
    host = {name for name in TYPES if device(name).is_host}
    address = {name for name in TYPES if device(name).is_address}
    assert host == {"cpu", "cuda_host", "rocm_host", "cuda_managed"}
    assert address == host | {"cuda", "rocm", "oneapi"}
    assert device("npu", device_type=12).is_address is False


@pytest.mark.parametrize(
    ("arguments", "error", "rule"),
    [
        ((1, -1), ValueError, "device index -1: devices are counted from 0"),
        ((2**31, 0), ValueError, "two int32"),
        ((-(2**31) - 1, 0), ValueError, "two int32"),
        ((1, 2**31), ValueError, "two int32"),
        ((12, 0, "cuda"), ValueError, "'cuda' means device type 2, not 12"),
        ((22, 0, "type99"), ValueError, "'type99' means device type 99, not 22"),
        ((12, 0, "a:b"), ValueError, "'a:b' is not a device name"),
        ((12, 0, ""), ValueError, "'' is not a device name"),
        ((12, 0, "9x"), ValueError, "'9x' is not a device name"),
        ((1, 0, ("a",)), TypeError, "the name of a device is text"),
        ((1, 0, b"a"), TypeError, "the name of a device is text"),
        *(((kind, 0), TypeError, "takes the number of a type") for kind in (1.5, "1", None)),
        ((1, None), TypeError, "interpreted as an integer"),
    ],
)
def test_what_no_device_can_be(arguments, error, rule):  # C20
    with pytest.raises(error, match=rule):
        Device.of(*arguments)


# -- Strings -------------------------------------------------------------------


NO_FORM = ["", ":0", "cuda:", "1", "a b:0", "ünit", "cuda\n", "-"]


@pytest.mark.parametrize(
    ("given", "error", "rule"),
    [
        *((text, ValueError, "is not a valid device: write") for text in NO_FORM),
        ("gpu", ValueError, "no device type is called 'gpu'; there are cpu, cuda, .* trn"),
        ("CUDA:0", ValueError, "no device type is called 'CUDA'"),
        ("type٢", ValueError, "is not a valid device"),
        ("opencl:Intel(R) UHD:0", ValueError, r"'Intel\(R\) UHD:0' is not an index"),
        ("vulkan: 1", ValueError, "' 1' is not an index"),
        ("cuda:1.5", ValueError, "'1.5' is not an index"),
        ("cuda:-1", ValueError, "counted from 0"),
        ("cuda:2147483648", ValueError, "two int32"),
        *(
            (nothing, TypeError, "is not a valid device: give a string")
            for nothing in (None, 3.5, True, b"cpu", [1, 0], {}, list, object(), np.dtype("f4"))
        ),
    ],
    ids=stable,
)
def test_what_names_no_device(given, error, rule):
    with pytest.raises(error, match=rule):
        device(given)


def test_an_index_beside_the_name():
    assert device("cuda", 2) is device("cuda:2") is device(2, 2) is device(DLDeviceType.kDLCUDA, 2)
    assert device("npu", 2, device_type=12) is Device.of(12, 2, "npu")
    for given_already in ("cuda:0", (2, 0), Device.of(2)):
        with pytest.raises(ValueError, match="cuda:0 is a device already: index=1"):
            device(given_already, 1)
    with pytest.raises(ValueError, match="'cuda' means device type 2, not 12"):
        device("cuda:0", device_type=12)


@pytest.mark.parametrize("number", [0, 1, 2, 99])
def test_an_integer_alone_is_no_device(number):
    # To torch it is a number of a GPU, to DLPack that of a type.
    with pytest.raises(TypeError, match=rf"^the integer {number} is .* such as 'cuda:0'.*type \w"):
        device(number)
    kind = DLDeviceType(number)
    assert device(kind) is device(number, 0) is Device.of(number)
    assert device(IntEnum("Theirs", {"one": number}).one) is Device.of(number)  # torch's, for one


# -- Other libraries -----------------------------------------------------------


class Claims:
    """Something that says *pair* is its device."""

    def __init__(self, pair):
        self.pair = pair

    def __dlpack_device__(self):
        return self.pair


@pytest.mark.parametrize(
    ("pair", "error", "says"),
    [
        *((pair, TypeError, "two integers") for pair in ((None, 0), (1, None), ("1", 0), (1.0, 0))),
        *((pair, ValueError, "two entries") for pair in ((), (1,), (1, 0, 1))),
        (None, TypeError, r"^None is not a valid device"),
    ],
)
def test_what_is_no_pair(pair, error, says):  # C8
    for claim in (pair, Claims(pair)):
        with pytest.raises(error, match=says):
            device(claim)


def test_arrays_say_their_device():  # P2, P14
    assert device(np.zeros(2)) is device("cpu:0")
    assert device(Claims((DLDeviceType.kDLCUDA, np.int64(1)))) is device("cuda:1")
    assert device((DLDeviceType.kDLROCM, 0)) is device("rocm:0")


def test_torch_devices():  # C32
    torch = peer("torch")
    assert device(torch.device("cpu")) is device(torch.zeros(1)) is device("cpu:0")
    assert device(torch.device("cuda")) is device("cuda:0")
    assert device(torch.device("cuda:3")) is device(torch.device("cuda"), 3) is device("cuda:3")
    assert device(torch.device("xpu:1")) is device("oneapi:1")
    assert device(torch.device("mps")) is device("metal:0")
    assert device(torch.device("privateuseone:1")) is device("ext_dev:1")
    assert device(torch.device("maia")) is device("maia:0")
    with pytest.raises(ValueError, match="index=1 is one too many"):
        device(torch.device("cuda:0"), 1)
    for name in ("meta", "xla"):
        with pytest.raises(ExchangeError, match=f"torch device '{name}' has no DLPack type"):
            device(torch.device(name))
    with pytest.raises(TypeError, match="is not a valid device"):
        device(torch.float32)


def test_torch_for_rocm_calls_its_devices_cuda(monkeypatch):
    # torch.version.hip is set by hand: no ROCm build of torch runs here.
    torch = peer("torch")
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    assert device(torch.device("cuda:1")) is device("rocm:1")


def test_jax_devices():  # C32
    jax = peer("jax")
    ours = device(jax.devices()[0])
    assert ours is device(jax.numpy.zeros(2)) is device("cpu:0")


def test_every_jax_cpu_device_is_the_one_cpu():  # P2
    peer("jax")
    said = run_script(
        """
        import jax
        from dlbridge.core.values.devices import device
        print([str(device(d)) for d in jax.devices("cpu")])
        """,
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"},
    )
    assert said == "['cpu:0', 'cpu:0']\n"


class AcceleratorClient:
    platform_version = ""


class Accelerator:
    """What jax says of a GPU: the attributes that `jax.Array.__dlpack_device__` reads.

    A double: no GPU build of jax runs here. That a real device has these
    attributes is shown below; what a GPU puts into them is not.
    """

    def __init__(self, platform, version):
        self.platform, self.client, self.local_hardware_id = platform, AcceleratorClient(), 1
        self.client.platform_version = version


Accelerator.__module__ = "jaxlib._jax"


@pytest.mark.parametrize(
    ("platform", "version", "name"),
    [
        ("gpu", "PJRT C API\ncuda 12090", "cuda:1"),
        ("gpu", "PJRT C API\nrocm 60400", "rocm:1"),
        ("cuda", "", "cuda:1"),
        ("rocm", "", "rocm:1"),
    ],
)
def test_jax_accelerators(platform, version, name):
    assert device(Accelerator(platform, version)) is device(name)


def test_jax_accelerators_that_dlpack_does_not_know():
    with pytest.raises(ExchangeError, match=r"platform 'tpu'.*jax\.device_put"):
        device(Accelerator("tpu", ""))


def test_a_jax_device_has_what_the_double_has():
    jax = peer("jax")
    real = jax.devices()[0]
    double = Accelerator("", "")
    assert type(real).__module__.partition(".")[0] == type(double).__module__.partition(".")[0]
    for attribute in vars(double):
        assert hasattr(real, attribute)
    assert isinstance(real.client.platform_version, str)
    assert isinstance(real.local_hardware_id, int)


@pytest.mark.parametrize("name", TYPES)
def test_names_are_those_of_tvm_ffi(name):
    tvm_ffi = peer("tvm_ffi")
    theirs = tvm_ffi.device(TYPES[name], 2)
    assert str(theirs) == str(device(name, 2))
    assert device(theirs) is device(name, 2)
    echoed = tvm_ffi.get_global_func("testing.echo")(device(name, 2))  # as an argument
    assert (echoed.dlpack_device_type(), echoed.index) == (TYPES[name], 2)


def test_a_tvm_ffi_device_with_an_impossible_index():
    tvm_ffi = peer("tvm_ffi")
    with pytest.raises(ValueError, match="counted from 0"):
        device(tvm_ffi.device("cuda:-1"))


def test_a_device_equals_its_text():
    cuda, npu = device("cuda:1"), Device.of(12, 0, "npu")
    assert cuda == "cuda:1"
    assert cuda == "type2:1"
    assert device("cuda:0") == "cuda"
    assert cuda != f"type{'2' * 5000}"  # more digits than Python takes for a number
    assert npu == "npu:0"
    assert npu == "npu"
    for other in ("cuda:0", "cuda", "rocm:1", "cuda:Tesla", "cuda:", "", "ext_dev:1", None, 1):
        assert cuda != other
    assert npu != "ext_dev:0"
    assert device("ext_dev:0") != "npu:0"


def test_a_text_is_compared_without_loading_a_backend():
    run_script(
        """
        import dlbridge
        from dlbridge.extending import LOADED
        assert dlbridge.device("opencl:0") != "opencl:Intel"
        assert not LOADED
        """
    )
