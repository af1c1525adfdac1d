"""dlbridge.api.like: tensors as other libraries' arrays, with the same values or not at all."""

import sys
import types
from math import prod

import ml_dtypes
import numpy as np
import pytest

import dlbridge
from dlbridge import Device
from dlbridge.api.like import Conversion, as_library
from dlbridge.core.libraries.lookup import find_description
from dlbridge.errors import ExchangeError
from dlbridge.extending import Memory, known_libraries, tensor_on
from tests.support.expected_parts import backend_or_skip
from tests.support.library_cells import numbers as aligned
from tests.support.peers import peer

LIBRARIES = ["dlbridge", "numpy", "torch", "jax", "tvm_ffi"]
FOREIGN = ["torch", "jax", "tvm_ffi"]


def readonly(array):
    array = array[...]
    array.setflags(write=False)
    return array


def on_device(device_type, array):
    """*array*'s memory as that of a device type that the CPU may read."""
    device = Device.of(device_type, 0)
    return tensor_on(
        Memory(device, array.ctypes.data, "test", array),
        dlbridge.dtype(array.dtype),
        array.shape,
    )


def raw(name, count, padded=False):
    """*count* elements of the dtype *name* over bytes 0, 1, 2, ..."""
    memory = np.arange(1024, dtype="u1")
    return tensor_on(
        Memory(Device.of(1, 0), memory.ctypes.data, "test", memory),
        dlbridge.dtype(name),
        (count,),
        padded=padded,
    )


def values(result):
    """The elements of any library's array, by a way that is not ours."""
    if hasattr(result, "detach"):
        return result.numpy()
    if type(result).__module__.startswith("tvm_ffi"):
        return np.from_dlpack(result).copy()
    return np.asarray(result)


def address(result):
    return dlbridge.from_dlpack(result).data_ptr()


@pytest.fixture(autouse=True)
def fewer_peers(request):
    """Skip, or fail, where the library of the test is not installed."""
    like = request.node.callspec.params.get("like") if hasattr(request.node, "callspec") else None
    if like in FOREIGN:
        peer(like)


def library_step(tensor, like, copy):
    """Whether `as_library` would copy *tensor*, and the reason."""
    return Conversion(like, tensor.device).decide(tensor, copy, False)


# The same memory -----------------------------------------------------------------


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("kind", ["?", "i1", "u2", "i4", "f2", "f4", "c8"])
def test_shares_memory(like, kind):  # C39
    array = aligned((3, 4), kind)
    result = as_library(dlbridge.from_dlpack(array), like, False)
    assert type(result).__module__.startswith(like)
    assert address(result) == array.ctypes.data
    assert np.array_equal(values(result), array)
    assert not library_step(dlbridge.from_dlpack(array), like, False)[0]


# Naming a library -----------------------------------------------------------------


def test_the_many_names_of_a_library():
    """Its name, module, array and class: tests/interop/test_cells.py."""
    torch, jax = peer("torch"), peer("jax")
    peer("jax.numpy")
    peer("torch.utils.dlpack")
    tensor = dlbridge.from_dlpack(aligned((4,)))
    for like in ("torch.utils.dlpack", torch.utils):
        assert type(as_library(tensor, like, None)) is torch.Tensor
    for like in (jax.numpy, jax.Array, "jax.dlpack", "jax.numpy"):
        assert isinstance(as_library(tensor, like, None), jax.Array)
    for like in ("dlbridge", dlbridge, tensor, dlbridge.Tensor):
        assert as_library(tensor, like, None) is tensor


def test_a_library_that_wraps_another_has_its_rules():
    torch = peer("torch")
    wrapper = types.ModuleType("wrapper")
    wrapper.from_dlpack = torch.from_dlpack
    assert library_step(dlbridge.from_dlpack(readonly(aligned((4,)))), wrapper, None) == (
        True,
        "the memory is read-only, which torch ignores",
    )


def test_an_unknown_library_is_trusted_least():
    unknown = types.ModuleType("unknown")

    class Array(np.ndarray):
        """Its own class: another library's array would be no array of it."""

    def from_dlpack(tensor):
        return np.from_dlpack(tensor).view(Array)

    Array.__module__ = from_dlpack.__module__ = "unknown"
    unknown.from_dlpack = from_dlpack
    array = aligned((4,))
    assert np.shares_memory(as_library(dlbridge.from_dlpack(array), unknown, False), array)
    copied = as_library(dlbridge.from_dlpack(readonly(array)), unknown, None)
    assert not np.shares_memory(copied, array)
    assert (copied == array).all()
    with pytest.raises(
        ExchangeError, match=r"unknown needs a copy.*read-only, which .* may ignore"
    ):
        as_library(dlbridge.from_dlpack(readonly(array)), unknown, False)
    reverse = dlbridge.from_dlpack(array[::-1])
    assert library_step(reverse, unknown, None)[0]
    assert (as_library(reverse, unknown, None) == array[::-1]).all()


@pytest.mark.parametrize("like", [3, None, [1.0], set, "", ".torch", "no spaces"])
def test_what_is_no_library(like):
    tensor = dlbridge.from_dlpack(aligned((4,)))
    for function in (as_library, library_step):
        with pytest.raises(TypeError, match="neither a library's name"):
            function(tensor, like, None)


def test_a_module_without_from_dlpack():
    with pytest.raises(TypeError, match="'json' has neither from_dlpack"):
        as_library(dlbridge.from_dlpack(aligned((4,))), "json", None)


# Layouts --------------------------------------------------------------------------------


def strided(array, shape, strides):
    return np.lib.stride_tricks.as_strided(array, shape, strides)


LAYOUTS = {
    "compact": lambda: aligned((4, 3)),
    "transposed": lambda: aligned((2, 3, 4)).transpose(2, 0, 1),
    "turned": lambda: aligned((2, 3, 4)).transpose(1, 0, 2),
    "of one row": lambda: strided(aligned((4, 4)), (1, 4), (4000, 4)),
    "read-only": lambda: readonly(aligned((3, 4)).T),
    "backwards": lambda: aligned((4, 3))[::-1],
    "with gaps": lambda: aligned((4, 6))[:, ::2],
    "a part": lambda: aligned((4, 6))[:, :4],
    "repeated": lambda: strided(aligned((4, 6)), (5, 6), (0, 4)),
    "at an odd place": lambda: aligned((8,), offset=4),
    "at 32 bytes": lambda: aligned((8,), offset=32),
}
MARK = "the memory is read-only, which {like} ignores"
BACKWARDS = {"backwards": "no negative strides"}
COPIED = {
    "dlbridge": {},
    "numpy": {},
    "torch": {"read-only": MARK, **BACKWARDS},
    "tvm_ffi": {"read-only": MARK, **BACKWARDS},
    "jax": {
        **BACKWARDS,
        **dict.fromkeys(("with gaps", "a part", "repeated"), "compact memory only"),
        **dict.fromkeys(("at an odd place", "at 32 bytes"), "aligned to 64 bytes"),
    },
}
"""Library -> the layouts that it gets a copy of, and why."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("like", LIBRARIES)
def test_what_is_copied_and_why(like, layout):  # P25, P26, P41, C22, C27
    array = LAYOUTS[layout]()
    tensor = dlbridge.from_dlpack(array)
    reason = COPIED[like].get(layout, "").format(like=like)
    copies, why = library_step(tensor, like, None)
    assert copies is bool(reason)
    assert reason in why
    result = as_library(tensor, like, None)
    assert np.array_equal(values(result), array)
    assert (address(result) != tensor.data_ptr()) is copies
    if like in ("dlbridge", "numpy", "jax"):
        assert dlbridge.from_dlpack(result).readonly is (like == "jax" or tensor.readonly)
    if reason:
        for function in (as_library, library_step):
            with pytest.raises(ExchangeError, match=f"{like} needs a copy.*{reason}"):
                function(tensor, like, False)
    else:
        assert address(as_library(tensor, like, False)) == tensor.data_ptr()


def test_the_reasons_of_jax():
    """Where these fail, a copy may be spared."""
    jax = peer("jax")
    with pytest.raises(RuntimeError, match="compact"):
        jax.dlpack.from_dlpack(dlbridge.from_dlpack(aligned((4, 6))[:, ::2]))
    with pytest.raises(ValueError, match="aligned to 64"):
        jax.dlpack.from_dlpack(dlbridge.from_dlpack(aligned((8,), offset=32)), copy=False)


@pytest.mark.parametrize("like", ["torch", "tvm_ffi"])
def test_they_do_ignore_the_mark(like):
    """The reason for the rule; where this fails, the copy may be spared."""
    library = peer(like)
    array = readonly(aligned((4,)))
    result = library.from_dlpack(dlbridge.from_dlpack(array))
    assert address(result) == array.ctypes.data
    assert not dlbridge.from_dlpack(result).readonly


def test_jax_does_not_write_into_memory_that_is_donated():
    """The reason for the rule above."""
    jax = peer("jax")
    array = aligned((1024,))
    expected = array.copy()
    given = as_library(dlbridge.from_dlpack(readonly(array)), "jax", False)
    changed = jax.jit(lambda x: x.at[3].set(-1), donate_argnums=0)(given)
    assert changed[3] == -1
    assert np.array_equal(array, expected)


# Types ------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", ["numpy", "torch", "tvm_ffi", "jax"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_small_floats(like, name):
    tensor = raw(name, 16)
    result = as_library(tensor, like, None)
    assert dlbridge.dtype(result.dtype) is tensor.dtype
    back = dlbridge.asarray(result)
    assert back.dtype is tensor.dtype
    code = "uint16" if name == "bfloat16" else "uint8"
    assert back.view(code).numpy().tobytes() == bytes(range(16 * tensor.itemsize))


@pytest.mark.parametrize("kind", ["f8", "i8", "u8", "c16"])
def test_jax_does_not_narrow_in_silence(kind):
    jax = peer("jax")
    tensor = dlbridge.from_dlpack(aligned((4,), kind))
    assert str(jax.dlpack.from_dlpack(tensor).dtype) != str(tensor.dtype)  # the reason
    for function in (as_library, library_step):
        with pytest.raises(ExchangeError, match=r"jax would turn .*jax_enable_x64"):
            function(tensor, "jax", None)
    with jax.enable_x64(True):
        result = as_library(tensor, "jax", False)
        assert dlbridge.dtype(result.dtype) is tensor.dtype
        assert np.array_equal(result, tensor.numpy())


@pytest.mark.parametrize(
    ("like", "name", "way_out"),
    [
        ("torch", "int4", "unpack_bits"),
        ("torch", "float4_e2m1fn", "float4_e2m1fnx2"),
        ("torch", "float32x4", r"t\.view\("),
        ("torch", "float8_e3m4", "astype"),
        ("jax", "float32x4", r"t\.view\("),
        ("numpy", "int4", "unpack_bits"),
        ("numpy", "float32x4", "tobytes"),
    ],
)
def test_types_that_a_library_has_not(like, name, way_out):
    for function in (as_library, library_step):  # `explain` and `to_device`
        with pytest.raises(ExchangeError, match=f"(?s){like}.*{way_out}"):
            function(raw(name, 8), like, None)
    if way_out == "unpack_bits":  # and that way is one
        tensor = raw(name, 8)
        codes = dlbridge.unpack_bits(tensor.tobytes(), tensor.dtype, tensor.size)
        assert codes.size == tensor.size * tensor.dtype.lanes


def test_descriptions_have_our_names_of_types():
    """Another spelling would be a type that the library is said not to have."""
    for library in map(find_description, known_libraries()):
        for name in (library.types or frozenset()) | library.copied_types:
            assert dlbridge.dtype(name).name == name, library.name


def test_elements_that_a_library_has_in_pairs_only():
    """torch counts two float4 in a byte as one element, and jax each."""
    peer("torch")
    tensor = raw("float4_e2m1fn", 8)
    with pytest.raises(ExchangeError, match=r"torch has no.*t\.view\('float4_e2m1fnx2'\)"):
        dlbridge.to_device(tensor, "cpu", like="torch")
    pairs = dlbridge.to_device(tensor.view("float4_e2m1fnx2"), "cpu", like="torch")
    assert dlbridge.asarray(pairs).tobytes() == tensor.tobytes()
    peer("jax")
    with pytest.raises(ExchangeError, match=r"jax has no.*t\.view\('float4_e2m1fn'\)"):
        dlbridge.to_device(pairs, "cpu", like="jax")
    back = dlbridge.asarray(pairs).view("float4_e2m1fn")
    assert dlbridge.to_device(back, "cpu", like="jax").shape == (8,)


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn", "float4_e2m1fn_x2", "float32x4"])
def test_tvm_ffi_takes_every_type(name):
    peer("tvm_ffi")
    tensor = raw(name, 8)
    result = as_library(tensor, "tvm_ffi", False)
    assert dlbridge.from_dlpack(result).dtype is tensor.dtype


@pytest.mark.parametrize("shape", [(5,), (), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_the_small_types_of_jax_go_back_as_they_came(name, shape):
    jax = peer("jax")
    x = jax.numpy.arange(prod(shape)).reshape(shape).astype("float32").astype(name)
    padded = dlbridge.asarray(np.asarray(x))
    packed = dlbridge.astype(padded, name)
    assert padded.is_padded or not x.size
    for tensor in (padded, packed, padded.reshape(-1)[::-1] if x.ndim else padded):
        for like in ("jax", jax):
            result = dlbridge.to_device(tensor, "cpu", like=like)
            assert result.dtype == x.dtype
            assert result.shape == tensor.shape
            expected = dlbridge.astype(tensor, "float32")
            assert result.astype("float32").tolist() == expected.tolist()
        if x.size:
            assert "jax always copies" in str(dlbridge.explain(tensor, "cpu", like="jax"))
            for function in (as_library, library_step):
                with pytest.raises(ExchangeError, match=f"jax needs a copy.*{name}"):
                    function(tensor, "jax", False)
    if name.startswith("float4"):
        assert dlbridge.to_device(x, "cpu", like="jax").tolist() == x.tolist()


@pytest.mark.parametrize("like", [like for like in FOREIGN if like != "jax"])
def test_padded_sub_byte_elements(like):  # P10, C31
    tensor = raw("int4", 8, padded=True)
    for function in (as_library, library_step):
        with pytest.raises(ExchangeError, match=f"{like} does not know padded int4.*ml_dtypes"):
            function(tensor, like, None)
    assert as_library(tensor, "numpy", False).dtype == ml_dtypes.int4


def test_a_result_of_another_type_is_an_error():
    wrong = types.ModuleType("wrong")

    class Array(np.ndarray):
        __module__ = "wrong"

    wrong.from_dlpack = lambda tensor: np.zeros(tensor.shape, "i1").view(Array)
    with pytest.raises(ExchangeError, match=r"made int8 \(4,\) of float32 \(4,\)"):
        as_library(dlbridge.from_dlpack(aligned((4,))), wrong, None)


def test_a_result_that_is_another_librarys_array_is_an_error():
    """dpnp gives numpy's array for a tensor on the CPU."""
    other = types.ModuleType("other")

    def from_dlpack(tensor):
        return np.from_dlpack(tensor)

    from_dlpack.__module__ = "other.creation"
    other.from_dlpack = from_dlpack
    with pytest.raises(ExchangeError, match=r"other made a numpy\.ndarray .*not an array of other"):
        as_library(dlbridge.from_dlpack(aligned((4,))), other, None)


def refused_comparison(self, other):
    raise AssertionError("the operator of a library's array was called")


@pytest.mark.parametrize("use", [dlbridge.to_device, dlbridge.explain])
def test_no_operator_of_a_foreign_array_is_called(use):
    """An object without from_dlpack is refused by its type; its == may give an array, or raise."""
    foreign = type("Array", (), {"__module__": "awkward", "__eq__": refused_comparison})()
    text = r"like=an awkward\.Array is neither a library's name"
    with pytest.raises(TypeError, match=text):
        use(np.zeros(2), "cpu", like=foreign)
    with pytest.raises(TypeError, match=text):
        dlbridge.from_dlpack(np.zeros(2), like=foreign)
    with pytest.raises(TypeError, match="a list is no array"):
        use(np.zeros(2), "cpu", like=tuple)


def test_the_copy_of_tinygrad_is_made_on_return(monkeypatch):
    """Its devices read the source later than `realize` returns, OpenCL's for one.

    Its float32 is called "float", which numpy calls float64.
    """
    stub, copies = types.ModuleType("tinygrad"), []

    class Tensor:
        device = "CL"

        def __init__(self, array):
            self.shape, self.dtype = array.shape, types.SimpleNamespace(name="float")
            self.source = array

        def realize(self):
            copies.append(self)
            return self

    def synchronize():
        for tensor in copies:
            tensor.values = tensor.source.tolist()

    Tensor.__module__ = "tinygrad.tensor"
    stub.Tensor = Tensor
    stub.Device = {"CL": types.SimpleNamespace(synchronize=synchronize)}
    monkeypatch.setitem(sys.modules, "tinygrad", stub)
    source = np.zeros(2, "f4")
    taken = dlbridge.to_device(source, "cpu", like="tinygrad")
    assert type(taken) is Tensor
    source[:] = 9
    assert taken.values == [0, 0]


@pytest.mark.parametrize("version", ["1.31", "1.32"])
def test_bools_for_onnxruntime(version, monkeypatch):
    """Before 1.32 it must be told which bytes are bools; from then on it takes no second word."""
    taken = []

    class OrtValue:
        from_dlpack = staticmethod(
            (lambda capsule, is_bool: taken.append((capsule, is_bool)))
            if version == "1.31"
            else (lambda capsule: taken.append((capsule, None)))
        )

    stub = types.ModuleType("onnxruntime")
    stub.capi = types.SimpleNamespace(
        onnxruntime_pybind11_state=types.SimpleNamespace(OrtValue=OrtValue)
    )

    class Value:
        def __init__(self, value):
            pass

    Value.__module__, Value.__name__ = "onnxruntime", "OrtValue"
    stub.OrtValue = Value
    monkeypatch.setitem(sys.modules, "onnxruntime", stub)
    as_library(dlbridge.from_dlpack(aligned((4,), "?")), "onnxruntime", None)
    ((capsule, is_bool),) = taken
    assert dlbridge.from_dlpack(capsule).dtype is dlbridge.dtype(
        "uint8" if version == "1.31" else "bool"
    )
    assert is_bool is (True if version == "1.31" else None)


@pytest.mark.parametrize("function", [dlbridge.explain, dlbridge.to_device])
def test_explain_refuses_what_to_device_refuses(function):
    """And the advice works: it names a device on which the library has arrays."""
    peer("pyopencl")
    backend_or_skip("opencl")
    with pytest.raises(ExchangeError, match=r"no arrays on cpu:0; .*t, 'opencl:0', like='py"):
        function(aligned((4,)), "cpu", like="pyopencl")
    with pytest.raises(ModuleNotFoundError, match="install it"):
        function(aligned((4,)), "cpu", like="nvidia_of_nowhere")


def test_the_array_of_a_library_is_not_printed_in_errors():
    class Long:
        def __repr__(self):
            return "x" * 10_000

    with pytest.raises(TypeError) as caught:
        as_library(dlbridge.from_dlpack(aligned((4,))), Long(), None)
    assert len(str(caught.value)) < 300


# The other libraries of the test packages -------------------------------------------


@pytest.mark.parametrize("shape", [(4, 6), (3,), (), (2, 3, 1), (2, 3, 4), (1, 2, 3, 3)])
@pytest.mark.parametrize("kind", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"])
def test_images_have_the_same_elements_or_are_refused(shape, kind):
    """PIL 13 makes int32 of uint32, float32 of float64, and a second dimension."""
    image = peer("PIL.Image")
    array = np.ones(shape, kind)
    try:
        step = library_step(dlbridge.from_dlpack(array), "PIL", None)
    except ExchangeError:
        with pytest.raises(ExchangeError, match="an image"):
            as_library(dlbridge.from_dlpack(array), "PIL", None)
    else:
        assert step[0]
        result = np.asarray(as_library(dlbridge.from_dlpack(array), image, None))
        assert (result.dtype, result.shape) == (array.dtype, shape)
        assert np.array_equal(result, array)


def test_columns_of_types_that_arrow_packs():
    """`explain` promises nothing that is refused then."""
    peer("pyarrow")
    tensor = dlbridge.from_dlpack(np.ones(3, "?"))
    for ask in (library_step, as_library):
        with pytest.raises(ExchangeError, match=r"bits.*t\.view\('uint8'\)"):
            ask(tensor, "pyarrow", None)
        with pytest.raises(ExchangeError, match=r"Arrow has no complex64"):
            ask(dlbridge.from_dlpack(np.ones(3, "c8")), "pyarrow", None)


# Devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", ["numpy", "torch", "jax", "tvm_ffi"])
@pytest.mark.parametrize("kind", ["kDLCUDAHost", "kDLROCMHost", "kDLCUDAManaged"])
def test_host_memory_of_a_device_is_host_memory(like, kind):
    array = aligned((4,))
    tensor = on_device(dlbridge.DLDeviceType[kind], array)
    assert not library_step(tensor, like, False)[0]
    result = as_library(tensor, like, False)
    expected = (1, 0) if like != "tvm_ffi" else tensor.__dlpack_device__()
    assert tuple(map(int, result.__dlpack_device__())) == expected
    pointer = result.__array_interface__["data"][0] if like == "numpy" else address(result)
    assert pointer == array.ctypes.data


@pytest.mark.parametrize("like", ["numpy", "torch", "jax"])
def test_devices_that_a_library_has_not(like):
    tensor = on_device(4, aligned((4,)))  # OpenCL
    with pytest.raises(ExchangeError, match=rf"{like}.*to_device\(t, 'cpu', like='{like}'\)"):
        as_library(tensor, like, None)


# Errors and the rest --------------------------------------------------------------------------


def test_errors_of_a_library_are_chained():
    broken = types.ModuleType("broken")

    def from_dlpack(tensor):
        raise ZeroDivisionError("a bug")

    broken.from_dlpack = from_dlpack
    with pytest.raises(ExchangeError, match=r"refuses dlbridge\.Tensor.*a bug") as caught:
        as_library(dlbridge.from_dlpack(aligned((4,))), broken, None)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("take", "asks_jax"),
    [
        (lambda tensor: tensor.__dlpack__(), False),
        (lambda tensor: peer("jax.dlpack").from_dlpack(tensor), True),
    ],
    ids=["without max_version", "jax"],
)
@pytest.mark.parametrize("kind", ["f4", ml_dtypes.bfloat16], ids=["numpy's", "bfloat16"])
def test_a_legacy_consumer_of_a_read_only_tensor_is_told_the_way(take, asks_jax, kind):  # P9
    tensor = dlbridge.from_dlpack(readonly(aligned((16,), kind)))
    if asks_jax and int(peer("jax").__version__.split(".")[1]) >= 12:  # no legacy consumer
        assert np.array_equal(take(tensor), tensor.numpy())
        return
    with pytest.raises(ExchangeError, match=r"legacy capsule.*like='jax'"):
        take(tensor)
