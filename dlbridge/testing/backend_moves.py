"""Tensors by dlbridge's public functions: moved to the device and from it, exported, imported."""

from __future__ import annotations

import gc
import itertools
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge import DLDeviceType
from dlbridge.extending import CPU, LOADED, Memory, tensor_on
from dlbridge.protocol import ADDRESS_DEVICES, HOST_DEVICES, SupportsStreams

from .backend_base import BackendCase, random_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlbridge.protocol import Allocation

    from .backend_base import DeviceUnderTest

DTYPES = sorted({dlbridge.dtype(code).name for code in "?bBhHiIlLefdFD"})

SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (3, 0, 2), (2, 3, 4, 5), (300_007,)]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """An array whose neighbouring elements differ."""
    return np.arange(int(np.prod(shape)) + 1)[1:].reshape(shape).astype(dtype)


def padded_tensor(codes: list[int]) -> Any:
    """A tensor of uint4 on the CPU whose elements take a byte each, without ml_dtypes."""
    array = np.array(codes, "u1")
    memory = Memory(CPU, array.ctypes.data, "an array", array)
    return tensor_on(memory, dlbridge.dtype("uint4"), array.shape, padded=True)


def packed_tensor(content: bytes, length: int) -> Any:
    """A tensor of uint4 on the CPU with two elements in each byte, without ml_dtypes."""
    return dlbridge.asarray(np.frombuffer(bytearray(content), "u1")).view("uint4")[:length]


def on_host(tensor: Any) -> Any:
    """The elements of a tensor on any device as a numpy array.

    They are copied over other bytes: new memory may contain the right ones by chance.
    """
    nbytes = max(tensor.nbytes, 1)
    host = np.full(nbytes, 0xEE, "u1")[: tensor.nbytes].view(str(tensor.dtype))
    dlbridge.copy_(host.reshape(tensor.shape), tensor)
    return host.reshape(tensor.shape)


class Lives:
    """What becomes of the memory that *backend* gives from now on."""

    def __init__(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allocate = backend.allocate
        self._made: list[tuple[int, weakref.ref[Any]]] = []
        monkeypatch.setattr(backend, "allocate", self._counting)

    def _counting(self, *given: Any, **named: Any) -> _Life:
        life = _Life(self._allocate(*given, **named))
        self._made.append((life.data, weakref.ref(life)))
        return life

    def live(self) -> set[int]:
        """The ``data`` of what has not been dropped."""
        return {data for data, life in self._made if life() is not None}


class _Life:
    """An allocation that is known to be alive."""

    def __init__(self, allocation: Allocation) -> None:
        vars(self)["allocation"] = allocation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocation, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.allocation, name, value)


class PublicCase(BackendCase):
    """The device under test, used through the public functions."""

    @pytest.fixture
    def where(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> str:
        """The device string of the device under test, served by exactly this backend object."""
        # A subclass may have made a backend object of its own.
        monkeypatch.setitem(LOADED, self.name, backend)
        return f"{self.name}:{self.device_id}"

    @pytest.fixture
    def lives(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
        """What becomes of the memory that is allocated in the test: it is dropped."""
        lives = Lives(backend, monkeypatch)
        yield lives
        gc.collect()
        assert not lives.live(), "what the test has allocated is still kept"


class MoveTests(PublicCase):
    """`to_device`, `empty`, `zeros` and `copy_`."""

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [((3, 5), dtype) for dtype in DTYPES] + [(shape, "float32") for shape in SHAPES],
    )
    def test_to_device_and_back(self, where: str, shape: tuple[int, ...], dtype: str) -> None:
        """Every type that numpy has; no dimensions, no elements, odd sizes."""
        array = numbers(shape, dtype)
        tensor = dlbridge.to_device(array, where, copy=True)
        assert (str(tensor.device), str(tensor.dtype), tensor.shape) == (where, dtype, shape)
        assert np.array_equal(on_host(tensor), array)
        assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), array)

    def test_types_that_numpy_has_not(self, where: str) -> None:
        """bfloat16 and packed elements; the bytes are the same there and back."""
        codes = np.arange(1, 8, dtype="u2")
        bfloat16 = dlbridge.asarray(codes).view("bfloat16")
        packed = packed_tensor(b"\x21\x43\x65\x07", 7)
        for source in (bfloat16, packed, padded_tensor([1, 2, 3])):
            tensor = dlbridge.to_device(source, where, copy=True)
            assert (tensor.dtype, tensor.shape) == (source.dtype, source.shape)
            back = dlbridge.to_device(tensor, "cpu", copy=True)
            assert (back.dtype, back.tobytes()) == (source.dtype, source.tobytes())
        assert dlbridge.to_device(bfloat16, where, copy=True)[2:5].tobytes() == codes[2:5].tobytes()

    def test_zeros_and_empty(self, where: str) -> None:
        """New memory, with and without content."""
        assert not on_host(dlbridge.zeros((7, 9), "int32", where)).any()
        empty = dlbridge.empty((7, 9), "int32", where)
        dlbridge.copy_(empty, numbers((7, 9), "int32"))
        assert np.array_equal(on_host(empty), numbers((7, 9), "int32"))

    @pytest.mark.parametrize(
        "index",
        [np.s_[1:], np.s_[:, 2:5], np.s_[::2], np.s_[:, ::3], np.s_[1:5:2, 1:6:2], np.s_[3]],
        ids=str,
    )
    def test_strided_both_ways(self, where: str, index: Any) -> None:
        """Slices of the source, and slices on the device; transposed as well."""
        array = numbers((6, 7))
        assert np.array_equal(on_host(dlbridge.to_device(array[index], where)), array[index])
        tensor = dlbridge.to_device(array, where, copy=True)
        assert np.array_equal(on_host(tensor[index]), array[index])
        assert np.array_equal(on_host(tensor.T), array.T)
        assert np.array_equal(on_host(dlbridge.to_device(array.T, where)), array.T)

    @pytest.mark.parametrize("index", [np.s_[2:4], np.s_[:, 1:3], np.s_[::2, ::3]], ids=str)
    def test_copy_into_a_view(self, where: str, index: Any) -> None:
        """Only the view's elements change, whether the source is on the device or on the host."""
        want = numbers((6, 7))
        tensor = dlbridge.to_device(want, where, copy=True)
        new = -numbers(want[index].shape)
        want[index] = new
        dlbridge.copy_(tensor[index], new)
        assert np.array_equal(on_host(tensor), want)
        want[index] = 2 * new
        dlbridge.copy_(tensor[index], dlbridge.to_device(2 * new, where, copy=True))
        assert np.array_equal(on_host(tensor), want)

    def test_more_runs_than_a_grid_has(self, where: str) -> None:
        """70,001 runs of one byte at an odd offset: to the device, to the host, and inside."""
        count = 70_001
        want = np.frombuffer(random_bytes(3 * count), "u1").copy()
        tensor = dlbridge.to_device(want, where, copy=True)
        new = np.frombuffer(random_bytes(count - 1, seed=1), "u1")
        want[1:-2:3] = new
        dlbridge.copy_(tensor[1:-2:3], new)
        assert np.array_equal(on_host(tensor), want), "from the host"
        assert np.array_equal(on_host(tensor[1:-2:3]), new), "to the host"
        source = np.frombuffer(random_bytes(2 * count, seed=2), "u1")
        want[1:-2:3] = source[3::2]
        dlbridge.copy_(tensor[1:-2:3], dlbridge.to_device(source, where, copy=True)[3::2])
        assert np.array_equal(on_host(tensor), want), "inside the device"

    def test_bytes_around_a_copy_stay(self, where: str) -> None:
        """Copies of single bytes at every byte of a few words, from the host and the device."""
        want = numbers((24,), "uint8")
        tensor = dlbridge.to_device(want, where, copy=True)
        for start, length in itertools.product(range(1, 10), (1, 2, 3, 5, 8, 11)):
            part = slice(start, start + length)
            want[part] = new = numbers((length,), "uint8") + 17 * start + length
            dlbridge.copy_(tensor[part], new)
            assert np.array_equal(on_host(tensor), want), f"bytes {start} to {start + length}"
            assert np.array_equal(on_host(tensor[part]), new)
            want[part] = 255 - new
            dlbridge.copy_(tensor[part], dlbridge.to_device(255 - new, where, copy=True))
            assert np.array_equal(on_host(tensor), want), f"bytes {start} to {start + length}"

    @pytest.mark.parametrize(
        ("to", "at"),
        [
            (np.s_[1:], np.s_[:-1]),
            (np.s_[:-1], np.s_[1:]),
            (np.s_[256:], np.s_[:-256]),
            (np.s_[:1024:2], np.s_[1:1024:2]),
            (np.s_[4096:8192], np.s_[:4096]),
        ],
        ids=["one on", "one back", "256 on", "interleaved", "side by side"],
    )
    def test_copy_inside_a_tensor(self, where: str, to: Any, at: Any) -> None:
        """One part of a tensor to another, also if they overlap."""
        want = np.frombuffer(random_bytes(8192), "u1").copy()
        tensor = dlbridge.to_device(want, where, copy=True)
        want[to] = want[at].copy()
        dlbridge.copy_(tensor[to], tensor[at])
        assert np.array_equal(on_host(tensor), want)

    def test_elements_below_a_byte(self, where: str) -> None:
        """A copy into packed elements leaves those that it shares its last byte with."""
        tensor = dlbridge.to_device(packed_tensor(b"\x77" * 4, 8), where, copy=True)
        dlbridge.copy_(tensor[2:5], packed_tensor(b"\x11\x11", 3))
        dlbridge.copy_(tensor[6:7], tensor[2:3])
        assert tensor.tobytes() == b"\x77\x11\x71\x71"
        dlbridge.copy_(tensor[:3], padded_tensor([2, 3, 4]))
        assert tensor.tobytes() == b"\x32\x14\x71\x71"
        padded = dlbridge.to_device(padded_tensor([0] * 8), where, copy=True)
        dlbridge.copy_(padded[1:6], tensor[2:7])
        assert padded.tobytes() == bytes([0, 4, 1, 1, 7, 1, 0, 0])

    def test_a_copy_is_one(self, where: str) -> None:
        """copy=True on the same device gives new memory with the same content."""
        tensor = dlbridge.to_device(numbers((100,)), where, copy=True)
        other = dlbridge.to_device(tensor, where, copy=True)
        dlbridge.copy_(tensor, np.zeros(100, "float32"))
        assert np.array_equal(on_host(other), numbers((100,)))
        assert dlbridge.to_device(tensor, where, copy=False).data_ptr() == tensor.data_ptr()

    def test_the_source_may_change_or_go_at_once(self, where: str) -> None:
        """The call has copied the data, or keeps it alive."""
        array = numbers((100_000,))
        tensor = dlbridge.to_device(array, where, copy=True)
        array[:] = 0
        other = dlbridge.to_device(numbers((100_000,)), where, copy=True)
        gc.collect()
        assert np.array_equal(on_host(tensor), numbers((100_000,)))
        assert np.array_equal(on_host(other), numbers((100_000,)))

    def test_between_devices(self, backend: Any, where: str) -> None:
        """Every device to every device."""
        array = numbers((50, 3))
        for source in range(backend.device_count()):
            tensor = dlbridge.to_device(array, f"{self.name}:{source}", copy=True)
            for target in range(backend.device_count()):
                moved = dlbridge.to_device(tensor, f"{self.name}:{target}")
                assert str(moved.device) == f"{self.name}:{target}"
                assert np.array_equal(on_host(moved), array)


VERSIONS = [None, (1, 0), (1, 3)]
"""Values that consumers pass as ``max_version``: None gives the legacy capsule."""


class ExchangeTests(PublicCase):
    """Capsules, consumers' streams, host views, threads and errors."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_export_and_import(self, where: str, version: Any, lives: Lives) -> None:
        """The same memory comes back from a capsule, and lives as long as its last user."""
        array = numbers((6, 7))
        whole = dlbridge.to_device(array, where, copy=True)
        data, tensor = whole.operand().data, whole[1:, 2:5]
        layout = attrgetter("byte_offset", "shape", "strides", "device")
        kept = tensor.data_ptr(), layout(tensor)
        capsule = tensor.__dlpack__(max_version=version)
        again = dlbridge.from_dlpack(capsule)
        assert "used_dltensor" in repr(capsule)
        del whole, tensor, capsule
        gc.collect()
        assert (again.data_ptr(), layout(again)) == kept
        assert data in lives.live()
        assert np.array_equal(on_host(again), array[1:, 2:5])

    @pytest.mark.parametrize("version", VERSIONS)
    def test_deleters_run_once(self, where: str, version: Any, lives: Lives) -> None:
        """A capsule imported never, once, and twice, which fails."""
        for taken in (0, 1, 2):
            tensor = dlbridge.empty(100, "uint8", where)
            data = tensor.operand().data
            capsule = tensor.__dlpack__(max_version=version)
            del tensor
            users = [dlbridge.from_dlpack(capsule) for _ in range(min(taken, 1))]
            if taken == 2:
                with pytest.raises(BufferError):
                    dlbridge.from_dlpack(capsule)
            assert data in lives.live()
            del capsule
            assert (data in lives.live()) == bool(taken)
            users.clear()
            gc.collect()
            assert data not in lives.live()

    def test_offsets_of_views(self, backend: Any, where: str) -> None:
        """An offset is added to an address, and kept beside a handle."""
        tensor = dlbridge.to_device(numbers((100,), "uint8"), where, copy=True)
        view = tensor[3:]
        if backend.device_type in ADDRESS_DEVICES:
            assert (view.data_ptr(), view.byte_offset) == (tensor.data_ptr() + 3, 0)
        else:
            assert (view.data_ptr(), view.byte_offset) == (tensor.data_ptr(), 3)
        assert on_host(view)[0] == 4

    def test_export_to_the_host(self, backend: Any, where: str) -> None:  # S12
        """A consumer that asks for the CPU gets finished work there, and passes no stream."""
        tensor = dlbridge.to_device(numbers((6, 7)), where, copy=True)
        capsule = tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 3))
        host = dlbridge.from_dlpack(capsule)
        assert str(host.device) == "cpu:0"
        assert np.array_equal(host.numpy(), numbers((6, 7)))
        if backend.device_type not in HOST_DEVICES:
            with pytest.raises(ValueError, match="stream"):
                tensor.__dlpack__(dl_device=(1, 0), stream=1)

    def test_consumers_streams(self, backend: Any, where: str) -> None:  # S3 S9 S10
        """None and -1 are accepted; an object that is not a stream is refused."""
        if self.name == "cpu":
            pytest.skip("CPU tensors are exported by numpy, which raises other errors for streams")
        tensor = dlbridge.to_device(numbers((10,)), where, copy=True)
        for stream in (None, -1):
            capsule = tensor.__dlpack__(max_version=(1, 3), stream=stream)
            assert dlbridge.from_dlpack(capsule).shape == (10,)
        if isinstance(backend, SupportsStreams):
            for no_stream in (True, object(), "0"):
                with pytest.raises(TypeError):
                    tensor.__dlpack__(stream=no_stream)

    def test_consumers_stream_waits(  # S17
        self, backend: Any, where: str, device: DeviceUnderTest
    ) -> None:
        """Work that a consumer queues on its own stream comes after ours."""
        self.need(backend, SupportsStreams)
        # An attribute: `device` is closed after this function, and may still need them.
        mine, theirs = (self.make_stream(backend, self.device_id) for _ in range(2))
        self.made = mine, theirs
        array = numbers((100_000,))
        source = dlbridge.to_device(array, where, copy=True)
        if source.device.is_host and source.device.type != DLDeviceType.kDLCUDAManaged:
            pytest.skip("the standard has no streams for host memory (S1)")
        with dlbridge.use_stream(where, mine) as handle:
            alive = self.busy(device.on(handle))
            tensor = dlbridge.to_device(source, where, copy=True)
            capsule = tensor.__dlpack__(stream=theirs)
        with dlbridge.use_stream(where, theirs):
            assert np.array_equal(on_host(dlbridge.from_dlpack(capsule)), array)
        del alive

    def test_host_view_of_a_tensor(self, device: DeviceUnderTest, where: str) -> None:
        """The device sees, after the block, the values that the host wrote in it."""
        tensor = dlbridge.to_device(numbers((6, 7)), where, copy=True)
        if not device.can_view(tensor.operand().data):
            with pytest.raises(BufferError), tensor.host_view():
                pytest.fail("there is no host view")
            return
        with tensor[1:, 2:5].host_view() as host:
            assert np.array_equal(host.numpy(), numbers((6, 7))[1:, 2:5])
            host.numpy()[:] = -1
            del host
        want = numbers((6, 7))
        want[1:, 2:5] = -1
        assert np.array_equal(on_host(tensor), want)

    def test_errors_leave_all_in_order(self, where: str, lives: Lives) -> None:
        """Wrong shapes, read-only targets, no room: refused, and the device works on."""
        tensor = dlbridge.to_device(numbers((10,)), where, copy=True)
        with pytest.raises(ValueError, match="shape"):
            dlbridge.copy_(tensor, numbers((11,)))
        with pytest.raises(MemoryError):
            dlbridge.empty(1 << 60, "uint8", where)
        with pytest.raises(dlbridge.ExchangeError, match="there is no"):
            dlbridge.empty(1, "uint8", f"{self.name}:1000")
        assert np.array_equal(on_host(tensor), numbers((10,)))
