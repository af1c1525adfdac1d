"""accepts: a function for one library takes the tensors of all of them."""

from __future__ import annotations

import asyncio
import collections
import inspect
from collections import namedtuple

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_script


@bridge.accepts("numpy")
def double(x, y=0, *, scale=2, **more):
    """Twice as much."""
    for array in (x, *more.values()):
        assert not hasattr(array, "__dlpack__") or type(array) is np.ndarray, type(array)
    return x * scale + y


def on_the(device):
    def make():
        backend_or_skip(device.partition(":")[0])
        return bridge.ones(3, device=device)

    return make


def native(device):
    return lambda: on_the(device)().to_native()


MAKERS = {
    "numpy": lambda: np.ones(3, "f4"),
    "torch": lambda: peer("torch").ones(3),
    "jax": lambda: peer("jax.numpy").ones(3),
    "tvm_ffi": lambda: peer("tvm_ffi").from_dlpack(np.ones(3, "f4")),
    "dlbridge": lambda: bridge.ones(3),
    "ext_dev": on_the("ext_dev:1"),
    "opencl": on_the("opencl:0"),
    "vulkan": on_the("vulkan:0"),
    "pyopencl": native("opencl:0"),
    "VulkanArray": native("vulkan:0"),
    "ext_dev's own": native("ext_dev:1"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_result_is_of_the_library_and_on_the_device_of_the_argument(name):
    given = MAKERS[name]()
    result = double(given, scale=3)
    assert type(result) is type(given) or isinstance(result, bridge.Tensor)
    assert isinstance(result, bridge.Tensor) == isinstance(given, bridge.Tensor)
    assert bridge.device_of(result) is bridge.device_of(given)
    assert bridge.to_device(result, "cpu", like="numpy").tolist() == [3, 3, 3]


def test_keyword_arguments_too_and_others_as_they_are():
    torch = peer("torch")
    seen = {}

    @bridge.accepts("numpy")
    def look(*arguments, **keywords):
        seen.update(enumerate(arguments), **keywords)

    thing, tensors = object(), [torch.ones(2)]
    look("text", x=torch.ones(2), thing=thing, tensors=tensors, n=None, t=np.float32)
    assert type(seen["x"]) is np.ndarray
    assert (seen[0], seen["thing"], seen["n"], seen["t"]) == ("text", thing, None, np.float32)
    assert seen["tensors"] is tensors


def test_the_first_tensor_decides():
    torch = peer("torch")
    assert type(double(torch.ones(3), np.ones(3))) is torch.Tensor
    assert type(double(3, torch.ones(3))) is torch.Tensor
    assert type(double(x=np.ones(3), y=torch.ones(3))) is np.ndarray


Pair = namedtuple("Pair", "a b")


class Output(collections.OrderedDict):
    """As transformers' outputs: a dictionary with attributes."""


class Parts(list):
    """A list with an attribute."""


def test_results_in_containers():
    """A container is one of the same class; the function's own is as it was."""
    torch = peer("torch")
    made = collections.defaultdict(list)

    @bridge.accepts("numpy")
    def several(x):
        made["a"], parts = x, Parts([x])
        parts.note = "kept"
        return [x, (x, 1), {"a": Pair(x, None)}, Output(a=x, n=3), made, parts, "text"]

    first, (second, one), entry, output, table, parts, text = several(torch.ones(3))
    arrays = [first, second, entry["a"].a, output["a"], table["a"], parts[0]]
    assert {type(array) for array in arrays} == {torch.Tensor}
    assert (one, entry["a"].b, list(output), output["n"], text) == (1, None, ["a", "n"], 3, "text")
    assert (type(entry["a"]), type(output), type(parts), parts.note) == (
        Pair,
        Output,
        Parts,
        "kept",
    )
    assert table.default_factory is list
    assert isinstance(made["a"], np.ndarray)


@pytest.mark.parametrize("name", MAKERS)
def test_a_scalar_of_numpy_becomes_an_array_without_dimensions(name):
    given = MAKERS[name]()
    result = bridge.accepts("numpy")(lambda x: x.sum())(given)
    if name == "numpy":
        assert type(result) is np.float32
        return
    assert type(result) is type(given) or isinstance(result, bridge.Tensor)
    assert bridge.device_of(result) is bridge.device_of(given)
    there = bridge.asarray(result)
    assert (there.shape, there.dtype.name, there.tolist()) == ((), "float32", 3)


@pytest.mark.parametrize(
    "scalar", [np.datetime64("2020-01-01"), np.str_("text"), np.bytes_(b"text"), np.void(b"xx")]
)
def test_a_scalar_that_is_no_number_stays(scalar):
    given = peer("torch").ones(3)
    assert bridge.accepts("numpy")(lambda _x: scalar)(given) is scalar


def test_scalars_of_other_types():
    torch = peer("torch")
    ml_dtypes = peer("ml_dtypes")
    for scalar, wanted in (
        (np.bool_(True), torch.bool),
        (np.int64(3), torch.int64),
        (np.complex64(1j), torch.complex64),
        (ml_dtypes.bfloat16(2), torch.bfloat16),
    ):
        result = bridge.accepts("numpy")(lambda _x, y=scalar: y)(torch.ones(3))
        assert (type(result), result.dtype, result.item()) == (torch.Tensor, wanted, scalar)


def read_only():
    array = np.arange(3, dtype="f4")
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("like", ["opencl", "pyopencl", "torch"])
@pytest.mark.parametrize("make", [read_only, lambda: peer("jax.numpy").arange(3, dtype="f4")])
def test_memory_that_is_read_only_is_copied_where_the_mark_would_be_lost(like, make):
    if like != "torch":
        backend_or_skip("opencl")
    else:
        peer("torch")

    @bridge.accepts(like)
    def change(x):
        x += 1
        return x

    given = make()
    result = change(given)
    assert type(result) is type(given)
    assert np.asarray(result).tolist() == [1, 2, 3]
    assert np.asarray(given).tolist() == [0, 1, 2]


def test_memory_is_shared_both_ways():
    torch = peer("torch")

    @bridge.accepts("numpy")
    def change(x):
        x[0] = 7
        return x[1:]

    given = torch.zeros(3)
    result = change(given)
    assert given.tolist() == [7, 0, 0]
    assert result.data_ptr() == given.data_ptr() + 4


def test_an_array_of_the_library_is_passed_itself():
    given = np.ma.masked_array([1, 2], [0, 1])
    same = bridge.accepts("numpy")(lambda x: x)
    assert same(given) is given
    view = np.ones(3).view(np.recarray)
    assert same(view) is view
    torch = peer("torch")
    needs_gradient = torch.ones(2, requires_grad=True)
    assert bridge.accepts("torch")(lambda x: x)(needs_gradient) is needs_gradient


def test_without_a_tensor_nothing_is_changed():
    assert type(bridge.accepts("torch")(np.ones)(3)) is np.ndarray


@pytest.mark.parametrize("like", ["opencl", "pyopencl"])
def test_a_function_of_an_ecosystem(like):
    backend_or_skip("opencl")
    seen = []

    @bridge.accepts(like)
    def twice(x):
        seen.append(type(x).__module__)
        return x + x

    assert twice(np.ones(3)).tolist() == [2, 2, 2]
    there = bridge.ones(3, device="opencl:0")
    assert twice(there).device is there.device
    assert seen == ["pyopencl.array"] * 2
    # What the function takes is passed itself, and so is what is no memory.
    array = there.to_native()
    for x in [array, array.queue, *([array.base_data] if like == "opencl" else [])]:
        assert bridge.accepts(like)(lambda x: x)(x) is x


def test_the_device_can_be_named():
    places = []
    look = bridge.accepts("dlbridge", device="ext_dev:1")(lambda x: places.append(str(x.device)))
    look(np.ones(3))
    look(bridge.ones(3, device="ext_dev:0"))
    assert places == ["ext_dev:1"] * 2


def test_a_method_and_an_object_that_is_called():
    class Model:
        @bridge.accepts("numpy")
        def run(self, x):
            return type(self), type(x)

        def __call__(self, x):
            return x + 1

    assert Model().run(bridge.ones(3)) == (Model, np.ndarray)
    assert bridge.accepts("numpy")(Model())(bridge.ones(3)).tolist() == [2, 2, 2]


def test_an_async_function():
    torch = peer("torch")

    @bridge.accepts("numpy")
    async def later(x):
        assert type(x) is np.ndarray
        return x

    assert inspect.iscoroutinefunction(later)
    assert type(asyncio.run(later(torch.ones(2)))) is torch.Tensor


def test_the_signature_and_the_name_are_kept():
    assert str(inspect.signature(double)) == "(x, y=0, *, scale=2, **more)"
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert bridge.accepts("numpy")(np.linalg.norm)(bridge.ones(4)).item() == 2


def test_an_error_of_the_function_passes():
    @bridge.accepts("numpy")
    def fail(x):
        raise KeyError(x.shape)

    with pytest.raises(KeyError, match="3"):
        fail(bridge.ones(3))


def generator(x):
    yield x


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bridge.accepts(len), TypeError, r'accepts\(\) was given a builtin_fun.*"numpy"'),
        (lambda: bridge.accepts("numpy")(3), TypeError, "decorates functions, not 3"),
        (lambda: bridge.accepts("numpy")(dict), TypeError, "decorates functions"),
        (lambda: bridge.accepts("numpy")(generator), TypeError, "yields its results"),
    ],
)
def test_what_is_refused_at_once(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("opencl:0", TypeError, "like='opencl:0' is neither a library's name"),
        ("a library", TypeError, "like='a library' is neither a library's name"),
        ("nonesuch", ModuleNotFoundError, "no module 'nonesuch'"),
        *(
            (name, ModuleNotFoundError, r"there is no module .* here \(did you mean")
            for name in ("nump", "torchh", "pytorch", "nump.linalg")
        ),
    ],
)
def test_what_is_no_library_is_refused_at_the_first_tensor(name, error, message):
    """A package may decorate for a library that its user has not installed."""
    decorated = bridge.accepts(name)(lambda x: x)
    assert decorated(3) == 3
    with pytest.raises(error, match=message):
        decorated(np.ones(3))


def test_the_decorator_imports_nothing():
    run_script(
        """
        import sys, dlbridge
        @dlbridge.accepts("torch")
        def f(x): ...
        f(3)
        assert not {"torch", "jax", "pyopencl"} & sys.modules.keys()
        """
    )


def test_errors_name_the_argument_or_the_result():
    def work(a, b, c=None):
        return np.array([None])

    decorated = bridge.accepts("numpy")(work)
    x, bad = peer("torch").ones(2), peer("torch").ones(2, requires_grad=True)
    with pytest.raises(bridge.ExchangeError, match=r"^argument 2 of .*work: the torch tensor req"):
        decorated(x, bad)
    with pytest.raises(bridge.ExchangeError, match=r"^argument 'c' of .*work: the torch") as caught:
        decorated(x, x, c=bad)
    assert isinstance(caught.value.__cause__, bridge.ExchangeError)
    with pytest.raises(bridge.ExchangeError, match=r"^the result of .*work: numpy dtype"):
        decorated(x, x)
