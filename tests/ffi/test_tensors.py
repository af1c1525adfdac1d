"""Tensors of every library as arguments and results."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import dlbridge
from dlbridge import ExchangeError, ffi
from dlbridge.abi import ffi as cffi
from dlbridge.ffi._lib import C, address
from dlbridge.ffi.errors import raised
from dlbridge.ffi.tensors import _exports, _readonly
from tests.ffi.producers import DeviceTensor, TableTensor, borrowed, c_function
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.raw_producer import live


def numpy_array():
    return np.arange(6.0).reshape(2, 3)


def torch_tensor():
    return peer("torch").arange(6.0).reshape(2, 3)


def jax_array():
    return peer("jax.numpy").arange(6.0).reshape(2, 3)


def own_tensor():
    return dlbridge.from_dlpack(np.arange(6.0).reshape(2, 3))


PRODUCERS = [numpy_array, torch_tensor, jax_array, own_tensor]


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, own_tensor])
def test_memory_is_shared(apply, make):
    x = make()
    apply(lambda tensor: tensor.numpy().fill(7), x)
    assert np.asarray(x).tolist() == [[7, 7, 7], [7, 7, 7]]


@pytest.mark.parametrize("make", PRODUCERS)
def test_owning_and_borrowing_parameters(testing, make):  # 3.1 ffi.Tensor, DLTensor*
    x = make()
    y = testing("schema_id_tensor")(ffi.readonly(x))
    assert isinstance(y, dlbridge.Tensor)
    assert y.shape == (2, 3)
    np.testing.assert_array_equal(y.numpy(), np.asarray(x))
    assert testing("schema_tensor_view_input")(ffi.readonly(x)) is None
    assert testing("optional_tensor_view_has_value")(ffi.readonly(x)) is True
    assert testing("optional_tensor_view_has_value")(None) is False
    with pytest.raises(RuntimeError, match="cannot be held"):
        testing("schema_id_dltensor")(
            ffi.readonly(x)
        )  # returns the borrowed pointer: refused by C++


@pytest.mark.parametrize("make", PRODUCERS)
def test_nothing_leaks(echo, make):
    x = make()
    y = echo(ffi.readonly(x))
    assert echo(ffi.readonly(x)).shape == y.shape
    source, result = weakref.ref(x), weakref.ref(y)
    del y
    gc.collect()
    assert result() is None
    del x
    gc.collect()
    assert source() is None


def test_table_tensors_are_freed(echo):
    before = len(live)
    echo(TableTensor((1, 0)))
    echo(DeviceTensor((1, 0)))
    gc.collect()
    assert len(live) == before


def test_one_tensor_per_object(echo, apply):  # a.x is a.x
    x = np.arange(3.0)
    y = echo(x)
    assert echo(y) is y
    seen = []
    apply(lambda a, b: seen.append(a is b), y, y)
    assert seen == [True]
    z = dlbridge.from_dlpack(x)
    assert echo(z) is echo(z)


def test_types_that_numpy_lacks(echo):
    torch = peer("torch")
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        x = torch.ones(3).to(dtype)
        assert echo(x).dtype == dlbridge.dtype(dtype)
        assert echo.like("torch")(x).dtype == dtype


def read_only_numpy():
    array = np.arange(3.0)
    array.flags.writeable = False
    return array


def read_only_memmap(folder):
    path = folder / "values.bin"
    np.arange(3.0).tofile(path)
    return np.memmap(path, dtype="f8", mode="r")


@pytest.mark.parametrize("kind", ["numpy", "memmap", "own", "table"])
def test_read_only_memory_is_not_passed_unless_it_is_only_read(kind, echo, apply, tmp_path):
    x = {
        "numpy": read_only_numpy,
        "memmap": lambda: read_only_memmap(tmp_path),
        "own": lambda: dlbridge.from_dlpack(read_only_numpy()),
        "table": lambda: TableTensor((1, 0), flags=1),
    }[kind]()
    seen = []
    calls = [
        echo,
        echo.bind,
        lambda y: echo([y]),
        lambda y: echo({"k": (y,)}),
        lambda y: apply(seen.append, y),
        lambda y: ffi.Array([y]),
        lambda y: ffi.List().append(y),
        lambda y: apply(lambda: y),  # a callback's result
        echo.reading(1),
    ]
    for call in calls:
        with pytest.raises(dlbridge.ExchangeError, match=r"read-only.*dlbridge\.ffi\.readonly"):
            call(x)
    assert seen == []
    result = echo(ffi.readonly(x))
    assert result.readonly
    assert echo.reading()(x).readonly
    assert echo.reading(0)(x).readonly
    assert echo(ffi.readonly([x]))[0].readonly
    assert ffi.convert(x).readonly


@pytest.mark.parametrize(
    "make", [jax_array, lambda: peer("pyarrow").array([1.0, 2.0])], ids=["jax", "pyarrow"]
)
def test_arrays_that_never_change_need_no_word(echo, apply, make):
    x = make()
    seen = []
    apply(seen.append, x)
    for result in (*seen, echo(x), echo([x])[0], echo.bind(x)(), echo.reading(0)(x)):
        assert result.readonly
        assert result.tolist() == x.tolist()


def test_the_error_about_read_only_memory_names_the_argument(echo):
    x = read_only_numpy()
    count = ffi.convert_func(lambda *given: len(given))
    first = (1, "two")
    for call in (count, count.bind):
        for more in ((), tuple(range(8))):  # unrolled, and in a loop
            with pytest.raises(
                dlbridge.ExchangeError,
                match=r"argument 2 \(numpy\.ndarray\) is read-only.*or call f\.reading\(2\)",
            ):
                call(*first, x, *more)
            with pytest.raises(
                dlbridge.ExchangeError,
                match=r"a tensor inside argument 2 \(numpy\.ndarray\) is.*f\.reading\(2\)",
            ):
                call(*first, [1, {"a": (x,)}], *more)
    assert count.reading(2)(*first, x) == 3
    ours = dlbridge.asarray(x)
    with pytest.raises(dlbridge.ExchangeError, match=r"argument 0 \(dlbridge\.Tensor\)"):
        echo(ours)
    with pytest.raises(dlbridge.ExchangeError, match=r"the numpy\.ndarray is read-only"):
        ffi.List().append(x)


def test_read_only_stays_read_only(echo, apply):  # 1.1 TensorToDLPackVersioned, 2.3
    array = read_only_numpy()
    result = echo(ffi.readonly(array))  # tvm_ffi: BufferError
    assert result.readonly
    with pytest.raises(ValueError, match="read-only"):
        result.numpy()[0] = 1
    seen = []
    apply(lambda tensor: seen.append(tensor.readonly), ffi.readonly(array))
    assert seen == [True]
    # As long as the object lives, whoever had it first: here an Array.
    kept = ffi.Array([ffi.readonly(array)])
    gc.collect()
    assert kept[0].readonly
    with pytest.raises(dlbridge.ExchangeError, match="read-only"):
        echo(kept[0])
    assert apply(lambda: ffi.readonly(array)).readonly
    del result, kept
    gc.collect()
    assert not _readonly
    assert not _exports


def test_torch_subclass(echo):
    torch = peer("torch")
    parameter = torch.nn.Parameter(torch.ones(3))
    assert echo(parameter).numpy().tolist() == [1, 1, 1]


WAYS_OF_AN_ARGUMENT = {
    "argument": lambda f, x: f(x),
    "seventh": lambda f, x: f(1, 2, 3, 4, 5, 6, x),
    "bound": lambda f, x: f.bind(x)(),
    "in a list": lambda f, x: f([x]),
    "only read": lambda f, x: f(ffi.readonly(x)),
}


@pytest.mark.parametrize("way", WAYS_OF_AN_ARGUMENT)
@pytest.mark.parametrize("name", ["int4", "uint1", "int7"])
def test_torch_types_below_a_byte_are_refused(way, name):
    """torch exports them as 8 bits: they arrived with a type that is not theirs."""
    torch = peer("torch")
    f = ffi.convert_func(lambda *_given: None)
    whole = torch.zeros(4, dtype=torch.uint8)
    WAYS_OF_AN_ARGUMENT[way](f, whole)
    WAYS_OF_AN_ARGUMENT[way](f, whole.view(torch.int8))
    with pytest.raises(dlbridge.ExchangeError, match=f"elements of torch.{name}.*view.torch.uint8"):
        WAYS_OF_AN_ARGUMENT[way](f, whole.view(getattr(torch, name)))


def test_torch_refuses_in_its_own_words(echo):  # 4.1: verified not to crash
    torch = peer("torch")
    with pytest.raises((BufferError, RuntimeError)):
        echo(torch.ones(3).to_sparse())


def test_wrong_version_is_refused(echo):  # 1.1: major 2 is accepted by the library
    before = set(live)  # what tests that were skipped in the middle have left
    with pytest.raises(ExchangeError, match="DLPack 2"):
        echo(TableTensor((1, 0), version=(2, 0)))
    gc.collect()
    assert live.keys() <= before


def test_producer_that_fails(echo):
    class Broken:
        def __dlpack__(self, **_keywords):
            raise LookupError("not today")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(LookupError, match="not today"):
        echo(Broken())


# --- As another library's tensor -------------------------------------------------------


def test_results_as_the_library_of_the_caller(echo):
    torch, jax = peer("torch"), peer("jax")
    x = torch.arange(3.0)
    y = echo.like("torch")(x)
    assert isinstance(y, torch.Tensor)
    assert y.data_ptr() == x.data_ptr()
    assert echo.like(torch.Tensor)(x).data_ptr() == x.data_ptr()
    assert isinstance(echo.like("numpy")(x), np.ndarray)
    assert isinstance(echo.like("jax")(x), jax.Array)
    assert echo.like("torch")(5) == 5


def test_callback_takes_the_library_it_wants(apply):  # 2.5 convert_func(tensor_cls=)
    torch = peer("torch")
    seen = []
    for cls in (torch.Tensor, "torch", "numpy", np.ndarray):
        f = ffi.convert_func(lambda x, y: seen.append((type(x), y)), tensor_cls=cls)
        f(torch.arange(3.0), "text")
    assert seen == [(torch.Tensor, "text")] * 2 + [(np.ndarray, "text")] * 2


def test_bound_tensors(testing):
    x = np.zeros(3)
    step = ffi.convert_func(lambda t: t.numpy().__iadd__(1) is None).bind(x)
    step()
    step()
    assert x.tolist() == [2, 2, 2]
    y = np.zeros(3)
    step.replace(0, y)
    step()
    assert (x.tolist(), y.tolist()) == ([2, 2, 2], [1, 1, 1])


# --- The allocator ----------------------------------------------------------------------


def allocate(shape, device=(1, 0), code=2, bits=32):
    """``TVMFFIEnvTensorAlloc``, as a kernel calls it; the Tensor."""
    prototype = cffi.new("DLTensor *")
    extents = cffi.new("int64_t[]", shape)
    prototype.shape, prototype.ndim = extents, len(shape)
    prototype.device.device_type, prototype.device.device_id = device
    prototype.dtype.code, prototype.dtype.bits, prototype.dtype.lanes = code, bits, 1
    out = cffi.new("void **")
    if C.TVMFFIEnvTensorAlloc(prototype, out):
        raise raised()
    from dlbridge.ffi.any import unpack

    return unpack(C.kTVMFFITensor, address(out[0]))


def test_kernels_allocate_by_our_backends(apply):  # 1.2 EnvTensorAlloc
    assert allocate([2, 3]).shape == (2, 3)
    assert apply(lambda: allocate([4], code=0, bits=64)).dtype == dlbridge.dtype("int64")
    tensor = allocate([3])
    tensor.numpy()[:] = 5
    assert tensor.numpy().tolist() == [5, 5, 5]


def test_allocator_that_fails_says_why(apply):
    with pytest.raises(RuntimeError, match="metal"):
        allocate([2], device=(8, 0))
    with pytest.raises(RuntimeError, match="metal"):
        apply(lambda: allocate([2], device=(8, 0)))


def test_allocation_in_another_thread(apply):
    import threading

    results = []
    thread = threading.Thread(target=lambda: results.append(allocate([2])))
    thread.start()
    thread.join()
    assert results[0].shape == (2,)


# --- What is lent ends ----------------------------------------------------------


def lending(function):
    """*function*, as C calls it with tensors that are only lent to it (``DLTensor *``)."""
    made = ffi.convert_func(function)

    def call(*tensors):
        structs = []
        return made(*[borrowed(tensor, structs) for tensor in tensors])

    return call


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_lent_tensor_ends_with_the_callback(count, fails):  # 3.1: its memory is the caller's
    torch = peer("torch")
    kept, seen = [], []

    def keep(*tensors):
        kept.extend(tensors)
        seen.extend(tensor.tolist() for tensor in tensors)
        if fails:
            raise ValueError("after it was seen")

    function = lending(keep)
    values = [torch.arange(3.0) + i for i in range(count)]
    if fails:
        with pytest.raises(ValueError, match="after it was seen"):
            function(*values)
    else:
        function(*values)
    assert seen == [value.tolist() for value in values]
    for tensor in kept:
        for use in (np.from_dlpack, dlbridge.from_dlpack, lambda t: t.shape, torch.from_dlpack):
            with pytest.raises(BufferError, match="lent to a callback, which has returned"):
                use(tensor)
        assert "has expired" in repr(tensor)


def test_a_lent_tensor_beside_other_arguments():
    torch = peer("torch")
    kept = []
    function = ffi.convert_func(lambda *values: kept.extend(values))
    own, structs = dlbridge.zeros(3), []
    function(1, borrowed(torch.arange(3.0), structs), own)
    assert kept[0] == 1
    with pytest.raises(BufferError, match="lent to a callback"):
        kept[1].tolist()
    assert kept[2].tolist() == [0, 0, 0]


def test_a_lent_tensor_is_no_result():
    torch = peer("torch")

    @c_function
    def gives_it_back(_self, arguments, _count, result):
        result[0] = arguments[0]
        return 0

    structs = []
    with pytest.raises(TypeError, match="a result must be a Tensor object"):
        gives_it_back(borrowed(torch.arange(3.0), structs))


@pytest.mark.parametrize("way", ["returned", "in a list", "in an Array", "kept in a List"])
def test_a_lent_tensor_is_not_given_away(way):
    torch = peer("torch")
    kept = ffi.List()
    ways = {
        "returned": lambda tensor: tensor,
        "in a list": lambda tensor: [1, tensor],
        "in an Array": lambda tensor: ffi.Array([tensor]),
        "kept in a List": kept.append,
    }
    with pytest.raises(BufferError, match=r"only lent to it \(DLTensor \*\)"):
        lending(ways[way])(torch.arange(3.0))
    # Passed on in the callback, or copied, it is fine.
    copy = lending(lambda tensor: dlbridge.to_device(tensor, "cpu", copy=True))
    assert copy(torch.arange(3.0)).tolist() == [0, 1, 2]
    size = ffi.convert_func(lambda tensor: tensor.size)
    assert lending(lambda tensor: size(tensor) + 1)(torch.arange(3.0)) == 4


def test_a_tensor_that_was_passed_knows_whether_it_is_still_in_use(echo):
    """So that the end of a host view can drop what a call has left behind."""
    tensor = dlbridge.zeros(3)
    echo([tensor])
    assert not tensor._native.is_lent()
    kept = ffi.Array([tensor])
    assert tensor._native.is_lent()
    del kept
    assert not tensor._native.is_lent()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_host_view_given_to_a_call_ends_with_its_block(dtype):
    """The object of libtvm_ffi kept the view busy: "still used by 1 array(s)"."""
    tensor = dlbridge.zeros(3, dtype)
    shape = ffi.convert_func(lambda x: tuple(x.shape))
    with tensor.host_view() as view:
        assert tuple(shape(view)) == (3,)
    with pytest.raises(BufferError, match="expired"):
        shape(view)


# Native objects of backends ---------------------------------------------------


def simulated():
    backend_or_skip("ext_dev")
    return dlbridge.to_device(np.arange(6.0).reshape(2, 3), "ext_dev:0")


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"k": x}])
def test_a_native_object_of_a_backend_is_a_tensor(echo, wrap):
    native = simulated().to_native()
    found = echo(wrap(native))
    while not isinstance(found, dlbridge.Tensor):
        found = found["k"] if isinstance(found, ffi.Map) else found[0]
    assert str(found.device) == "ext_dev:0"
    assert dlbridge.to_device(found, "cpu").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_array_of_pyopencl_is_a_tensor(testing):
    backend_or_skip("opencl")
    native = dlbridge.to_device(np.arange(6.0), "opencl:0", copy=True).to_native()
    found = testing("schema_id_tensor")(native)
    assert str(found.device) == "opencl:0"
    assert dlbridge.to_device(found, "cpu").tolist() == [0, 1, 2, 3, 4, 5]


def test_what_else_the_package_of_a_backend_has_is_carried_as_it_is(echo):
    backend_or_skip("ext_dev")
    plugin = dlbridge.backend("ext_dev")
    assert echo(plugin) is plugin


# --- like(), inside containers -------------------------------------------------------


def test_like_converts_tensors_inside_containers(echo):
    x = np.arange(3.0)
    call = echo.like("numpy")
    found = call([x, 5, ffi.List([x, "text"]), {"a": x, "b": [1]}, [x[1:]]])
    assert [type(part) for part in found] == [np.ndarray, int, list, dict, tuple]
    assert np.shares_memory(found[0], x)
    assert type(found[2][0]) is type(found[3]["a"]) is np.ndarray
    assert found[2][1] == "text"
    assert found[3]["b"] == [1]
    assert found[4][0].tolist() == [1, 2]
    found[0][0] = 7
    assert x[0] == 7


def test_like_leaves_containers_without_tensors_alone(echo):
    call = echo.like("numpy")
    for value in (
        ffi.Array([1, [2]]),
        ffi.List(),
        ffi.Map({"a": 1}),
        ffi.Dict(),
        ffi.Shape((1, 2)),
    ):
        assert call(value) == value
        assert type(call(value)) is type(value)
    endless = ffi.List([1])
    endless.append(endless)
    assert call(endless) is endless
    endless.append(np.arange(3))
    found = call(endless)
    assert found[1] is endless
    assert found[2].tolist() == [0, 1, 2]
