"""Arrays of many libraries, in: nothing is lost, changed, written or copied against a promise.

What needs a library that is not among the test packages is shown twice: here by
a class with the same behaviour, and in ``tests/peers`` by the library itself.
"""

from __future__ import annotations

import ctypes
import enum
import gc
import sys
import textwrap
import weakref

import ml_dtypes
import numpy as np
import pytest
from dlbridge_fake import Array

import dlbridge as bridge
from tests.support.foreign_arrays import ByInterface, ByMethod, Lazy, RefusesFalse, Unasked
from tests.support.packages import install
from tests.support.peers import peer
from tests.support.raw_producer import Producer
from tests.support.scripts import run_script

WAYS = [bridge.from_dlpack, bridge.asarray, lambda x: bridge.to_device(x, "cpu")]


# The exchange table and the producer's own checks -----------------------------------


def test_torch_tensors_that_have_no_memory_are_named():
    torch = peer("torch")
    masked = peer("torch.masked")
    x = masked.masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    for take in WAYS:
        with pytest.raises(BufferError, match=r"mask.*to_tensor"):
            take(x)
        with pytest.raises(BufferError, match=r"ZeroTensor.*torch\.zeros"):
            take(torch._efficientzerotensor((2,)))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_torch_tensors_whose_memory_was_freed(kind):
    """numpy() gives memory of numpy's own for them, whatever is in it."""
    torch = peer("torch")
    x = torch.ones(4, dtype=getattr(torch, kind))
    x.untyped_storage().resize_(0)
    for take in (*WAYS, lambda x: bridge.to_device(x, "cpu", like="numpy")):
        with pytest.raises(BufferError, match="storage of the torch tensor was freed"):
            take(x)


@pytest.mark.parametrize("take", WAYS)
def test_values_of_a_function_that_torch_makes_functional(take):
    torch = peer("torch")
    with pytest.raises(BufferError, match="function that is being transformed"):
        torch.func.functionalize(lambda x: take(x) and x)(torch.ones(3))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_real_tensors_in_torchs_fake_mode(kind, allowed):
    """There torch's `numpy()` raises an AssertionError, or gives memory that was freed at once."""
    torch = peer("torch")
    fake = peer("torch._subclasses.fake_tensor")
    x = torch.arange(6).to(getattr(torch, kind))
    ways = (
        WAYS if kind == "bfloat16" else [*WAYS, lambda x: bridge.to_device(x, "cpu", like="numpy")]
    )
    with fake.FakeTensorMode(allow_non_fake_inputs=allowed):
        taken = [bridge.asarray(take(x)) for take in ways]
        with pytest.raises(BufferError, match="meta or fake"):
            bridge.from_dlpack(torch.zeros(3))
    for tensor in taken:
        assert tensor.data_ptr() == x.data_ptr()


def explained(x):
    return bridge.explain(x, "cpu")


def test_torch_classes_that_wrap_other_tensors():
    torch = peer("torch")

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            make = torch.Tensor._make_wrapper_subclass
            return make(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("asked")

    class Local(Wrapper):
        def to_local(self):
            return self.inner

    for take in (*WAYS, explained):
        for inner in (torch.ones(3), torch.ones(3, requires_grad=True)):
            with pytest.raises(BufferError, match=r"Wrapper has no memory of its own.*inside"):
                take(Wrapper(inner))
            with pytest.raises(BufferError, match=r"Local has no memory of its own.*x\.to_local"):
                take(Local(inner))
    assert bridge.asarray(Wrapper(torch.ones(0))).shape == (0,)


def test_distributed_tensors_of_torch():
    torch = peer("torch")
    tensors = peer("torch.distributed.tensor")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        mesh = tensors.init_device_mesh("cpu", (1,))
        x = tensors.distribute_tensor(torch.ones(4), mesh, [tensors.Shard(0)])
        for take in (*WAYS, explained):
            with pytest.raises(BufferError, match=r"pass x\.to_local\(\)"):
                take(x)
        assert bridge.asarray(x.to_local()).tolist() == [1, 1, 1, 1]
    finally:
        torch.distributed.destroy_process_group()


def test_sharded_arrays_of_jax():
    peer("jax")
    run_script(
        """
        import jax, numpy, dlbridge

        mesh = jax.make_mesh((4,), ("x",))
        values = numpy.arange(8, dtype="float32")

        def explained(x):
            return dlbridge.explain(x, "cpu")

        def to_cpu(x):
            return dlbridge.to_device(x, "cpu", copy=True)

        for names in (("x",), ()):
            spec = jax.sharding.PartitionSpec(*names)
            x = jax.device_put(values, jax.sharding.NamedSharding(mesh, spec))
            asked = (dlbridge.device_of, dlbridge.from_dlpack, dlbridge.asarray, to_cpu, explained)
            for take in asked:
                try:
                    take(x)
                except dlbridge.ExchangeError as error:
                    said, cause = str(error), error.__cause__
                else:
                    raise AssertionError(take)
                assert "4 devices" in said
                assert type(cause) is BufferError
                for way in ("numpy.asarray(x)", "x.addressable_shards[0].data"):
                    assert way in said
                    assert dlbridge.asarray(eval(way)).size in (2, 8)
        """,
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"},
    )


# The producer moves ------------------------------------------------------------------


class OnHexagon:
    """An array on a device that no backend here serves; its library copies to the CPU."""

    def __init__(self):
        self.there = Producer((2,), device=(16, 0), content=np.array([1, 2], "f4").tobytes())
        self.asked = []

    def __dlpack_device__(self):
        return (16, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked.append(dl_device)
        if dl_device == (1, 0):
            if copy is False:
                raise BufferError("not without a copy")
            return np.array([1, 2], "f4").__dlpack__(max_version=max_version)
        return self.there.capsule()


@pytest.mark.parametrize(
    "take",
    [
        lambda x: bridge.from_dlpack(x, device="cpu"),
        lambda x: bridge.to_device(x, "cpu"),
        lambda x: bridge.asarray(x, device="cpu"),
        lambda x: bridge.to_device(x, "cpu", copy=True),
    ],
)
def test_a_library_moves_what_no_backend_can(take):
    x = OnHexagon()
    tensor = take(x)
    assert (tensor.device, tensor.tolist()) == (bridge.device("cpu"), [1, 2])
    assert (1, 0) in x.asked


def test_the_plan_says_that_the_library_moves():
    x = OnHexagon()
    (step,) = bridge.plan(x, "cpu").steps
    assert (step.kind, step.nbytes) == ("by library", 8)
    assert "no backend here serves hexagon:0" in step.reason
    assert (1, 0) not in x.asked  # nothing is moved for a plan
    assert bridge.to_device(x, "cpu", like="numpy").tolist() == [1, 2]
    with pytest.raises(BufferError, match=r"not without a copy"):
        bridge.to_device(x, "cpu", copy=False)


# numpy's subclasses --------------------------------------------------------------------

NEEDS_NUMPYS_RULES = {
    "bfloat16": lambda path: np.memmap(path, ml_dtypes.bfloat16, "r"),
    "float8_e4m3fn": lambda path: np.memmap(path, ml_dtypes.float8_e4m3fn, "r"),
    "int4": lambda path: np.memmap(path, ml_dtypes.int4, "r"),
}


@pytest.mark.parametrize("name", NEEDS_NUMPYS_RULES)
def test_memmaps_of_small_types(tmp_path, name):
    """Model weights."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(16))
    x = NEEDS_NUMPYS_RULES[name](path)
    for take in [*WAYS, lambda x: bridge.from_dlpack(x, copy=False)]:
        tensor = take(x)
        assert tensor.dtype is bridge.dtype(name)
        assert tensor.data_ptr() == x.ctypes.data
        assert tensor.readonly


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (
            lambda: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
            r"numpy\.asarray\(x\)\['name'\]",
        ),
        (lambda: np.char.array(["a", "b"]), r"view\('uint32'\)"),
        (lambda: np.ones(2, np.longdouble).view(np.memmap), "float64"),
    ],
    ids=["recarray", "chararray", "long double"],
)
def test_subclasses_of_types_that_dlpack_has_not(make, way_out):  # P33
    for take in WAYS:
        with pytest.raises(BufferError, match=f"numpy dtype .*{way_out}"):
            take(make())


def test_a_description_that_copies_is_not_told_as_a_conversion(tmp_path):  # P32
    """`expose` of a library may make a copy, and say so."""
    (tmp_path / "copylib.py").write_text("class Array:\n    pass\n")
    (tmp_path / "copylib_bridge.py").write_text(
        textwrap.dedent("""
            import numpy, dlbridge
            from dlbridge.extending import memory_of, tensor_on
            from dlbridge.libraries import Library

            def expose(x, copy):
                new = memory_of(numpy.arange(4.0), "a copy")
                return tensor_on(new, dlbridge.dtype("float64"), (4,), copied=True)

            LIBRARY = Library("copylib", ("copylib.Array",), expose=expose)
        """)
    )
    install(tmp_path, "copylib", "[dlbridge.libraries]\ncopylib = copylib_bridge:LIBRARY")
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import copylib, dlbridge
        said = dlbridge.explain(copylib.Array(), "ext_dev:0")
        assert "copylib.Array has no memory that a tensor could share" in said, said
        """
    )


def test_a_description_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "brokenlib.py").write_text("class Array:\n    pass\n")
    (tmp_path / "brokenlib_bridge.py").write_text("import a_module_that_is_not_there\n")
    install(tmp_path, "brokenlib", "[dlbridge.libraries]\nbrokenlib = brokenlib_bridge:LIBRARY")
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import brokenlib, dlbridge
        try:
            dlbridge.asarray(brokenlib.Array())
        except dlbridge.errors.BackendError as error:
            assert "the entry point 'brokenlib' of 'dlbridge.libraries' failed with" in str(error)
            assert isinstance(error.__cause__, ModuleNotFoundError)
        else:
            raise AssertionError("taken")
        """
    )


FOREIGN = np.dtype("i2").newbyteorder()
OTHER_ORDER = {
    "numpy": lambda: np.array([[1, 2, 3], [4, 5, 600]], FOREIGN),
    "transposed": lambda: np.array([[1, 4], [2, 5], [3, 600]], FOREIGN).T,
    "memmap": lambda: OTHER_ORDER["numpy"]().view(np.memmap),
    "ml_dtypes": lambda: OTHER_ORDER["numpy"]().astype(np.dtype(ml_dtypes.bfloat16).newbyteorder()),
    "buffer": lambda: memoryview(OTHER_ORDER["numpy"]()),
    "ctypes": lambda: (getattr(ctypes.c_int16, FOREIGN_CTYPE) * 3 * 2)((1, 2, 3), (4, 5, 600)),
    "array interface": lambda: ByInterface(OTHER_ORDER["numpy"]()),
    "array method": lambda: ByMethod(OTHER_ORDER["numpy"]()),
}


FOREIGN_CTYPE = "__ctype_be__" if sys.byteorder == "little" else "__ctype_le__"


@pytest.mark.parametrize("name", OTHER_ORDER)
def test_another_byte_order_is_converted_where_a_copy_is_allowed(name):  # P32
    x = OTHER_ORDER[name]()
    for take in (bridge.asarray, to_cpu, lambda x: bridge.asarray(x, device="ext_dev:0")):
        taken = take(x)
        assert bridge.astype(to_cpu(taken), "int16").tolist() == [[1, 2, 3], [4, 5, 600]]
        assert not taken.readonly
    assert "the other byte order, and is converted" in bridge.explain(x, "ext_dev:0")
    with bridge.trace() as trace:
        bridge.to_device(x, "ext_dev:0")
    assert trace.nbytes == 24  # converted, and brought there
    for take in (
        lambda x: bridge.asarray(x, copy=False),
        lambda x: bridge.to_device(x, "cpu", copy=False),
        lambda x: bridge.explain(x, "ext_dev:0", copy=False),
        lambda x: bridge.copy_(x, [[1, 2, 3], [4, 5, 6]]),
    ):
        with pytest.raises(bridge.ExchangeError, match=r"byte order.*\.astype\('\w+'\)|copy into"):
            take(x)
    if hasattr(x, "__dlpack__"):  # it gives the memory that there is
        with pytest.raises(bridge.ExchangeError, match="byte order"):
            bridge.from_dlpack(x)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (40, 50), (1 << 20,)])
def test_converted_elements_are_aligned_as_those_of_empty(shape):  # P32
    """A device that uses aligned memory of the host in place copies them no second time."""
    for _ in range(8):
        taken = bridge.asarray(np.ones(shape, FOREIGN))
        assert taken.data_ptr() % 64 == 0
        assert taken.is_copied
        assert (taken.numpy() == 1).all()


def test_another_byte_order_hides_no_mask_and_no_date():
    for make, way in (
        (lambda: np.ma.array([1, 2], mask=[0, 1], dtype=FOREIGN), r"filled\(\)"),
        (lambda: np.array(["2026-01-01"], np.dtype("M8[D]").newbyteorder()), "dates"),
        (lambda: np.zeros(2, [("a", FOREIGN)]), "each field"),
    ):
        for take in (bridge.asarray, to_cpu):
            with pytest.raises(bridge.ExchangeError, match=way):
                take(make())


def to_cpu(x):
    return bridge.to_device(x, "cpu")


@pytest.mark.parametrize("keywords", [{"copy": False}, {"device": "cpu"}, {"copy": True}])
def test_numpys_own_class_by_every_way(keywords):
    x = np.arange(3).astype(ml_dtypes.bfloat16)
    assert bridge.from_dlpack(x, **keywords).dtype is bridge.dtype("bfloat16")


def test_a_subclass_with_a_method_of_its_own_is_asked():
    class Refuses(np.ndarray):
        def __dlpack__(self, **_keywords):
            raise BufferError("it has units")

    with pytest.raises(BufferError, match=r"it has units"):
        bridge.from_dlpack(np.ones(2).view(Refuses))


# Devices that are not quite two ints ---------------------------------------------------


class SaysNone(Producer):
    """paddle 3.3 gives ``(kDLCPU, None)``."""

    def __dlpack_device__(self):
        return (bridge.DLDeviceType.kDLCPU, None)


@pytest.mark.parametrize("keywords", [{}, {"copy": False}, {"device": "cpu"}])
def test_a_cpu_device_without_a_number(keywords):
    assert bridge.from_dlpack(SaysNone((2,)), **keywords).shape == (2,)


class Numbers(enum.IntEnum):
    CPU = 1


class Members(enum.Enum):
    """The standard's type: ``tuple[Enum, int]``."""

    CPU = 1


class NoNumbers(enum.Enum):
    FLOAT = 2.5
    TEXT = "cpu"
    YES = True


@bridge.accepts("numpy")
def _doubled(x):
    return x + x


def _passed(x):
    return bridge.ffi.get_global_func("ffi.Array")(x)


WAYS_IN = {
    "from_dlpack": bridge.from_dlpack,
    "from_dlpack(device=)": lambda x: bridge.from_dlpack(x, device="cpu"),
    "asarray": bridge.asarray,
    "asarray of a list": lambda x: bridge.asarray([x, x]),
    "to_device": lambda x: bridge.to_device(x, "cpu"),
    "to_device(like=)": lambda x: bridge.to_device(x, "cpu", like="numpy"),
    "plan": lambda x: bridge.plan(x, "cpu"),
    "copy_": lambda x: bridge.copy_(bridge.zeros(2, "float32"), x),
    "astype": lambda x: bridge.astype(x, "int8"),
    "empty_like": bridge.empty_like,
    "share": bridge.share,
    "device_of": bridge.device_of,
    "device": bridge.device,
    "device=": lambda x: bridge.zeros(2, device=x),
    "a pair": lambda x: bridge.device(x.__dlpack_device__()),
    "accepts": _doubled,
    "ffi.from_dlpack": bridge.ffi.from_dlpack,
    "ffi, an element": lambda x: bridge.ffi.Array([x]),
    "ffi, an argument": _passed,
}


def says(pair):
    class Says(Producer):
        def __dlpack_device__(self):
            return pair

    return Says((2,))


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("kind", [Numbers.CPU, Members.CPU])
def test_the_type_of_a_device_may_be_an_enum_of_any_library(kind, way):
    WAYS_IN[way](says((kind, 0)))


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize(
    "pair",
    [
        *((1.0, 0), (1, 0.0), (True, 0), (1, False), *((kind, 0) for kind in NoNumbers)),
        *(("cpu", 0), (1, 1 << 31), (1, 1 << 70), (1 << 40, 0)),
    ],
    ids=repr,
)
def test_other_numbers_are_refused(pair, way):  # C8
    with pytest.raises((TypeError, ValueError), match=r"two int"):
        WAYS_IN[way](says(pair))


def test_a_consumer_may_ask_with_an_enum():
    t = bridge.zeros(2, "bfloat16")
    assert "dltensor" in repr(t.__dlpack__(dl_device=(Members.CPU, 0)))
    with pytest.raises(TypeError, match=r"two ints"):
        t.__dlpack__(dl_device=(NoNumbers.YES, 0))


def test_a_device_that_is_an_array_is_named():  # C8
    class InAnArray(Producer):
        def __dlpack_device__(self):
            return np.array([1, 0])

    with pytest.raises(
        TypeError, match=r"InAnArray\.__dlpack_device__\(\) returned array.*two ints"
    ):
        bridge.from_dlpack(InAnArray((2,)))


# Only the backend of an object's own package is asked -----------------------------------


def test_no_driver_is_started_for_what_needs_none():
    """Nor does a buffer load what takes milliseconds and is not needed."""
    peer("PIL.Image")
    peer("pyarrow")
    run_script(
        """
        import array, ctypes, decimal, mmap, sys
        import numpy, dlbridge
        drivers = {"pyopencl", "dlbridge_opencl", "dlbridge_vulkan", "dlbridge_cuda",
                   "dlbridge_rocm", "wgpu", "dlbridge_webgpu"}
        buffers = [array.array("f", [1, 2]), mmap.mmap(-1, 8), (ctypes.c_float * 2)(1, 2),
                   b"12345678", memoryview(bytearray(8))]
        for x in buffers:
            assert dlbridge.asarray(x).nbytes == 8
        assert not sys.modules.keys() & {*drivers, "importlib.metadata", "logging"}
        for x in (*buffers[::4], numpy.ones(3), [1], dlbridge.ones(2)):
            assert dlbridge.device_of(x) is dlbridge.device("cpu")
        import PIL.Image, pyarrow
        dlbridge.asarray(PIL.Image.new("L", (4, 2)))
        dlbridge.asarray(pyarrow.chunked_array([[1, 2], [3]]))
        try:
            dlbridge.asarray(object())
        except TypeError as error:
            assert "no backend has objects of that package" in str(error)
            assert "no entry point of 'dlbridge.libraries' describes it" in str(error)
        # An object of a backend's package loads that backend only.
        fake = dlbridge.to_device(numpy.ones(2), "ext_dev:0").to_native()
        assert type(fake).__module__.startswith("dlbridge_fake")
        assert dlbridge.asarray(fake).tolist() == [1, 1]
        assert not sys.modules.keys() & drivers
        """
    )


def test_byte_strides_of_an_object_of_a_backend_that_are_no_whole_elements():
    """They were rounded down, and the elements were others."""
    memory = bridge.to_device(np.arange(64, dtype="u1"), "ext_dev:0")

    def described(shape, strides):
        where = 0, memory.operand().data, 0, "int32", shape, strides
        return Array(bridge.protocol.NativeArray(*where, False, memory))

    for take in (bridge.asarray, lambda x: bridge.to_device(x, "cpu")):
        for shape, strides in [((4,), (6,)), ((2, 3), (-5, 4))]:
            with pytest.raises(
                bridge.ExchangeError, match=r"Array.*not multiples of the item size 4.*copy"
            ):
                take(described(shape, strides))
    # Where no element has a neighbour they may be anything.
    values = np.arange(64, dtype="u1").view("i4")
    assert bridge.asarray(described((1, 3), (6, 8))).tolist() == [values[:6:2].tolist()]
    assert bridge.asarray(described((4, 0), (6, 4))).shape == (4, 0)


# Memory that a library lends ---------------------------------------------------------------


@pytest.mark.parametrize("way", [0, 1, 2])
def test_an_array_that_lends_its_memory_is_kept(way):
    """ONNX Runtime's capsules do not keep the numpy array that a value was made of."""

    class OrtValue(Producer):
        pass

    OrtValue.__module__ = "onnxruntime.capi.onnxruntime_inference_collection"
    x = OrtValue((2,), content=np.array([1, 2], "f4").tobytes())
    alive = weakref.ref(x)
    tensor = WAYS[way](x)
    del x
    gc.collect()
    assert alive() is not None
    view = tensor[1:]
    del tensor
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [2]
    del view
    gc.collect()
    assert alive() is None


# Values stay what they are, and copies are as asked for ---------------------------------


MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


@pytest.mark.parametrize(
    "x",
    [ByMethod(MASKED), [MASKED, MASKED], [[1.0, 2.0], MASKED], ([MASKED],)],
    ids=["behind __array__", "in a list", "beside numbers", "deeper"],
)
def test_masks_are_not_dropped(x):
    for take in (bridge.asarray, lambda x: bridge.to_device(x, "cpu")):
        with pytest.raises(BufferError, match=r"mask.*(fill|filled)"):
            take(x)


def test_gradients_in_a_list_are_not_dropped():
    torch = peer("torch")
    with pytest.raises(BufferError, match=r"detach"):
        bridge.asarray([torch.ones((), requires_grad=True)])


@pytest.mark.parametrize(
    "convert",
    [np.array, bridge.asarray, lambda x: peer("torch").tensor(x)],
    ids=["numpy", "dlbridge", "torch"],
)
def test_data_that_is_read_anew_each_time_is_not_shared(convert):  # C35
    x = Lazy(lambda: convert([0.0, 1.0, 2.0]))
    assert bridge.asarray(x).tolist() == [0, 1, 2]
    takes = (
        lambda: bridge.asarray(x, copy=False),
        lambda: bridge.to_device(x, "cpu", copy=False),
        lambda: bridge.explain(x, "cpu", copy=False),
    )
    for take in takes:
        with pytest.raises(BufferError, match=r"no memory to share and copy=False"):
            take()
    with pytest.raises(BufferError, match="no memory to copy into"):
        bridge.copy_(x, np.full(3, 7, bridge.asarray(x).dtype.numpy))


def test_data_that_stays_where_it_is_is_shared():
    values = np.arange(3.0)
    x = Lazy(lambda: values[:])  # another view of the same memory each time
    assert bridge.asarray(x, copy=False).data_ptr() == values.ctypes.data
    bridge.copy_(x, np.full(3, 7.0))
    assert values.tolist() == [7, 7, 7]
    assert bridge.asarray(Lazy(lambda: np.zeros(0)), copy=False).shape == (0,)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("like", ["numpy", "dlbridge"])
@pytest.mark.parametrize("kind", [ByMethod, RefusesFalse, Unasked])
def test_array_methods_that_share_are_taken_at_their_memory(kind, like):
    """Whatever they say to copy=False: pint and shapely refuse it, and copy nothing."""
    values = np.ones(3)
    x, address = kind(values), values.ctypes.data
    assert bridge.asarray(x, copy=False).data_ptr() == address
    for copy in (None, False):
        with bridge.trace() as trace:
            result = bridge.to_device(x, "cpu", copy=copy, like=like)
        assert bridge.asarray(result).data_ptr() == address
        assert trace.copies == 0
        assert str(trace.plans[0]) == bridge.explain(x, "cpu", copy=copy, like=like)
    bridge.copy_(result, np.full(3, 2.0))
    assert values.tolist() == [2, 2, 2]
    bridge.copy_(x, np.full(3, 3.0))
    assert values.tolist() == [3, 3, 3]
    with bridge.trace() as trace:
        result = bridge.to_device(x, "cpu", copy=True, like=like)
    assert trace.nbytes == 24
    bridge.copy_(result, np.full(3, 4.0))
    assert values.tolist() == [3, 3, 3]


@pytest.mark.parametrize("kind", [ByMethod, Unasked])
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_array_methods_that_copy_are_called_so(kind):
    x = kind(lambda: np.ones(3))
    with pytest.raises(BufferError, match="no memory to share"):
        bridge.asarray(x, copy=False)
    with bridge.trace() as trace:
        bridge.to_device(x, "cpu")
    assert trace.nbytes == 24
    with pytest.raises(BufferError, match="no memory to copy into"):
        bridge.copy_(x, np.zeros(3))


def test_an_array_method_that_fails_has_nothing_to_share():
    """awkward's raises a ValueError for lists of different lengths, whatever is asked for."""

    class Failing:
        def __array__(self, dtype=None, copy=None):
            raise ValueError("cannot convert to RegularArray")

    for ask in (
        lambda x: bridge.asarray(x, copy=False),
        lambda x: bridge.copy_(x, np.zeros(3)),
    ):
        with pytest.raises(BufferError, match="no memory to") as caught:
            ask(Failing())
        assert "RegularArray" in str(caught.value.__cause__)


def test_columns_of_one_type():
    pyarrow = peer("pyarrow")
    assert bridge.asarray(pyarrow.table({"a": [1, 2], "b": [3, 4]})).tolist() == [[1, 3], [2, 4]]


# A library of another package -----------------------------------------------------------------


def test_a_library_describes_itself_by_entry_point(tmp_path):
    (tmp_path / "toylib.py").write_text(
        textwrap.dedent("""
            import numpy as np
            class Array:
                def __init__(self, x): self.x = x
                def __dlpack_device__(self): return (1, 0)
                def __dlpack__(self, stream=None): return self.x.__dlpack__()
                @property
                def dtype(self): return self.x.dtype
                @property
                def shape(self): return self.x.shape
        """)
    )
    (tmp_path / "toylib_bridge.py").write_text(
        textwrap.dedent("""
            from dlbridge.errors import ExchangeError
            from dlbridge.libraries import Library
            import toylib

            def refuse(x):
                if x.x is None:
                    raise ExchangeError("a toy without an array; wind it up")

            LIBRARY = Library(
                "toylib", ("toylib.Array",), refuse=refuse, immutable=True,
                make=lambda t: toylib.Array(t.numpy()), copies=False, keeps_readonly=True,
            )
        """)
    )
    install(tmp_path, "toylib", "[dlbridge.libraries]\ntoylib = toylib_bridge:LIBRARY")
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import numpy as np, toylib, dlbridge
        try:
            dlbridge.asarray(toylib.Array(None))
        except BufferError as error:
            assert str(error) == "a toy without an array; wind it up"
        x = toylib.Array(np.arange(3.0))
        assert dlbridge.asarray(x).readonly
        assert type(dlbridge.to_device(np.ones(2), "cpu", like="toylib")) is toylib.Array
        said = dlbridge.explain(np.ones(2), "cpu", like=x)
        assert said.splitlines()[-1] == "  2. wrap as toylib.Array (no copy)"
        """
    )


def test_a_check_that_returns_a_reason_has_the_tensor_copied(tmp_path):
    """Of a library whose rows lie apart, but whose columns do not: explain says what is done."""
    (tmp_path / "rowlib.py").write_text("class Grid: pass\n")
    (tmp_path / "rowlib_bridge.py").write_text(
        textwrap.dedent("""
            from dlbridge.libraries import Library
            import rowlib

            def check(tensor, device):
                return "" if tensor.strides[-1] == 1 else f"rowlib has no strides {tensor.strides}"

            def make(tensor):
                grid = rowlib.Grid()
                grid.tensor = tensor
                return grid

            LIBRARY = Library("rowlib", ("rowlib.Grid",), check=check, make=make)
        """)
    )
    install(tmp_path, "rowlib", "[dlbridge.libraries]\nrowlib = rowlib_bridge:LIBRARY")
    run_script(
        """
        import numpy as np
        import dlbridge as bridge

        rows = np.arange(12).reshape(3, 4)
        why = "rowlib has no strides (1, 4)"
        for x, copied in ((rows, 0), (rows[::2], 0), (rows.T, 96), (rows.T[:0], 0)):
            with bridge.trace() as trace:
                grid = bridge.to_device(x, "cpu", like="rowlib")
            assert trace.nbytes == copied, trace
            for said in (str(trace), bridge.explain(x, "cpu", like="rowlib")):
                assert (why in said) == (copied > 0), said
            assert not x.size or (grid.tensor.data_ptr() == x.ctypes.data) == (not copied)
            assert np.array_equal(grid.tensor.numpy(), x)
        assert bridge.to_device(rows.T, "cpu", like="rowlib", copy=True).tensor.strides == (3, 1)
        there = bridge.to_device(rows.T, "ext_dev:0")
        assert (bridge.to_device(there, "cpu", like="rowlib").tensor.numpy() == rows.T).all()
        for ask in (bridge.to_device, bridge.explain):
            try:
                ask(rows.T, "cpu", like="rowlib", copy=False)
            except bridge.ExchangeError as error:
                assert f"copy=False forbids: {why}; pass copy=None" in str(error), error
            else:
                raise AssertionError
        """,
        paths=(tmp_path,),
    )


@pytest.mark.parametrize("name", ["npu_arrays", "ext_dev"])
def test_a_library_that_names_its_backend_only(tmp_path, name):
    """As in the guide for authors of backends; the library may have the name of the backend."""
    (tmp_path / f"{name}.py").write_text(
        f"from dlbridge_fake import Array\nArray.__module__ = {name!r}\n"
    )
    (tmp_path / "bridge_of_it.py").write_text(
        "from dlbridge.libraries import Library\n"
        f'LIBRARY = Library({name!r}, ("{name}.Array",), backend="ext_dev")\n'
    )
    install(tmp_path, "npu-arrays", f"[dlbridge.libraries]\n{name} = bridge_of_it:LIBRARY")
    run_script(
        f"""
        import numpy as np
        import {name} as library
        import dlbridge as bridge

        t = bridge.zeros((2, 3), "float32", "ext_dev:0")
        for like in ({name!r}, library, library.Array, t.to_native()):
            array = bridge.to_device(t, "ext_dev:0", like=like)
            assert type(array) is library.Array, array
            assert bridge.asarray(array).shape == (2, 3)
            said = bridge.explain(t, "ext_dev:0", like=like)
            assert said.splitlines()[-1].endswith("wrap as {name}.Array (no copy)"), said
        for given in (t, np.zeros(3), array):
            seen = []
            got = bridge.accepts({name!r})(lambda x: seen.append(type(x)) or x)(given)
            assert type(got) is type(given)
            assert seen == [library.Array]
        try:
            bridge.to_device(t, "cpu", like={name!r})
        except bridge.ExchangeError as exc:
            assert "an object of the backend 'ext_dev' on its own memory" in str(exc), exc
        else:
            raise AssertionError
        """,
        paths=(tmp_path,),
    )


# What stands for a value, or is not one block of memory, in torch and jax ------------------


@pytest.mark.parametrize("take", [*WAYS, lambda x: bridge.explain(x, "cpu")])
def test_values_of_functions_that_are_transformed_are_named(take):
    torch, jax = peer("torch"), peer("jax")
    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(BufferError, match=r"torch\.vmap.*outside of that function"):
            transform(take)(torch.ones(2))
    for transform in (jax.jit, jax.vmap):
        with pytest.raises(BufferError, match=r"being traced.*outside of jax\.jit"):
            transform(take)(jax.numpy.ones(2))


def test_arrow_types_are_named():
    pyarrow = peer("pyarrow")
    bools = pyarrow.array([True, False])
    with pytest.raises(BufferError, match=r"BooleanArray.*bits.*asarray.*x\.cast\('uint8'\)"):
        bridge.from_dlpack(bools)
    assert "copied" in str(bridge.explain(bools, "cpu"))
    with pytest.raises(BufferError, match=r"StringArray of string.*cast"):
        bridge.from_dlpack(pyarrow.array(["a"]))
    pictures = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4.0).reshape(2, 2))
    assert bridge.asarray(pictures).shape == (2, 2)
    kind = pyarrow.fixed_shape_tensor(pyarrow.int64(), [2])
    holes = pyarrow.array([[1, None], [3, 4]], pyarrow.list_(pyarrow.int64(), 2))
    for take in WAYS:
        with pytest.raises(BufferError, match=r"1 null value, .*storage.*fill_null"):
            take(pyarrow.ExtensionArray.from_storage(kind, holes))


# Lists of numbers and of arrays ----------------------------------------------------------------

BIG = 2**60 + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: [BIG, 0.5],
        lambda: [np.int64(BIG), 0.5],
        lambda: [[np.uint64(2**64 - 1)], [np.int64(-1)]],
        lambda: [BIG, 1j],
        lambda: [np.array([BIG]), np.array([1j])],
        lambda: [peer("torch").tensor(BIG), 0.5],
        lambda: [peer("torch").tensor([BIG]), peer("torch").tensor([0.5])],
    ],
    ids=["int", "numpy", "unsigned", "complex", "arrays", "torch 0-d", "torch"],
)
def test_integers_in_a_list_keep_their_value(make):
    with pytest.raises(ValueError, match=r"cannot become (float64|complex128), their common type"):
        bridge.asarray(make())


@pytest.mark.parametrize("name", ["torch", "jax.numpy", "tvm_ffi", "dlbridge"])
def test_lists_of_arrays_keep_their_type(name):
    library = peer(name)
    for kind in ("float32", "bfloat16"):
        x = bridge.to_device(np.ones(2).astype(bridge.dtype(kind).numpy), "cpu", like=library)
        tensor = bridge.asarray([[x], [x]])
        assert (tensor.dtype, tensor.shape) == (bridge.dtype(kind), (2, 1, 2))
        assert tensor.tolist() == [[[1, 1]]] * 2


def test_what_is_refused_is_refused_in_a_list():
    """As `polars.Series` with nulls, which numpy would make NaN of (``tests/peers``)."""
    pyarrow = peer("pyarrow")
    there = bridge.to_device(np.ones(2), "ext_dev:0")
    for x, way_out in (
        (pyarrow.table({"a": [BIG], "b": [1.5]}), r"several types \(double, int64\)"),
        (there, r"dlbridge.tree_to_device\(x, device\) moves each"),
    ):
        with pytest.raises(BufferError, match=way_out):
            bridge.asarray([x])


def test_small_types_in_a_list_become_the_wanted_one():
    torch = peer("torch")
    x = [torch.tensor([1.0, 300.0], dtype=torch.bfloat16)]
    assert bridge.asarray(x, dtype="float32").tolist() == [[1, 300]]
    assert bridge.asarray(x, dtype="int32").tolist() == [[1, 300]]
    with pytest.raises(ValueError, match=r"the value 300.0 at \[0, 1\] cannot become uint8"):
        bridge.asarray(x, dtype="uint8")


def test_a_list_that_is_no_rectangle():
    with pytest.raises(ValueError, match=r"a tensor is a rectangle.*pad") as caught:
        bridge.asarray([[1, 2], [3]])
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match="a list of arrays is stacked"):
        bridge.asarray([np.ones(2), np.ones(3)], dtype="float32")


def test_a_list_that_contains_itself():
    numbers = [1]
    numbers.append(numbers)
    with pytest.raises(ValueError, match="contains itself"):
        bridge.asarray(numbers)


@pytest.mark.parametrize(
    ("pointer", "way_out"),
    [
        (ctypes.pointer(ctypes.c_int(3)), r"POINTER|LP_c_int.*x\.contents"),
        (ctypes.c_void_p(1), r"c_void_p.*no numbers"),
    ],
)
def test_a_pointer_of_ctypes_is_no_array(pointer, way_out):
    with pytest.raises(TypeError, match=way_out):
        bridge.asarray(pointer)
