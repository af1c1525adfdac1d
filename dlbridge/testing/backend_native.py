"""Objects of the device's own ecosystem: what they describe, and what they keep alive."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import Error
from dlbridge.protocol import ADDRESS_DEVICES, NativeArray, SupportsNative

from .backend_base import DeviceUnderTest, random_bytes
from .backend_moves import DTYPES, PublicCase, numbers, on_host, packed_tensor, padded_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = 40
ITEMSIZE = 4

LAYOUTS: dict[str, tuple[Any, ...]] = {
    "whole": (0, (2, 3), None),
    "offset": (12, (2, 3), None),
    "offset inside of an element": (6, (2, 3), None),
    "rows": (0, (3, 2), (24, 4)),
    "columns": (0, (3, 2), (32, 8)),
    "transposed": (0, (3, 4), (4, 12)),
    "transposed square": (0, (3, 3), (4, 12)),
    "offset and strides": (20, (2, 3), (40, 8)),
    "backwards": (20, (2, 3), (-12, -4)),
    "rows backwards": (24, (3, 3), (-12, 4)),
    "columns backwards": (8, (2, 3), (12, -4)),
    "repeated rows": (0, (3, 4), (0, 4)),
    "repeated columns": (4, (3, 4), (4, 0)),
    "one element": (36, (), ()),
    "one row": (0, (1, 3), None),
    "one column": (12, (3, 1), None),
    "one row of columns": (0, (1, 3, 1), (24, 8, 4)),
    "read-only": (0, (2, 3), None, True),
}
"""Offset (bytes), shape, strides (bytes) of arrays, and whether they are read-only: what a native
object must not lose."""


def unless_refused(make: Callable[[], object], reason: str = "") -> object | None:
    """The native object that *make* returns; None if it is refused with *reason* in the message."""
    message = ""
    try:
        made = make()
    except Error as exc:
        message = str(exc)
    else:
        assert made is not None, "None is no array: refuse by an ExchangeError"
        return made
    assert message, "a refusal says why"
    assert reason in message, f"the message names the reason ({reason})"
    return None


class Owner:
    """Owns device memory as a tensor does: the memory is freed with its last user."""

    def __init__(self, device: DeviceUnderTest, content: bytes) -> None:
        self.device = device
        self.data = device.filled(content)

    def __del__(self) -> None:
        with suppress(KeyError):  # the test has failed, and the fixture has freed it
            self.device.free(self.data)


class HasAll:
    """An object that has each attribute, as a proxy or a mock has: each is another such object."""

    def __getattr__(self, name: str) -> HasAll:
        return HasAll()


class HasNone:
    """An object that raises where it is asked for an attribute, as one that is closed may."""

    def __getattr__(self, name: str) -> object:
        raise ValueError(f"closed: it has no {name}")


def described(
    device: DeviceUnderTest, owner: Owner | None, shape: tuple[int, ...], dtype: str = "float32"
) -> NativeArray:
    """A compact array on the memory of *owner*; None: of no elements."""
    data, who = (0, object()) if owner is None else (owner.data, owner)
    return NativeArray(device.device_id, data, 0, dtype, shape, None, readonly=False, owner=who)


def same_array(backend: Any, again: NativeArray | None, array: NativeArray) -> None:
    """Assert that *again* describes the same elements as *array*."""
    assert again is not None, "from_native does not recognise what to_native returned"
    assert again.device_id == array.device_id
    named, given = (again.data, again.offset), (array.data, array.offset)
    if backend.device_type in ADDRESS_DEVICES:
        named, given = (sum(named), 0), (sum(given), 0)
    assert named == given, "from_native(to_native(x)) names other memory than x: data, offset"
    assert (again.dtype, tuple(again.shape)) == (array.dtype, array.shape)
    itemsize = dlbridge.dtype(array.dtype).itemsize
    packed = np.empty(array.shape, f"V{itemsize}").strides
    strides = packed if again.strides is None else tuple(again.strides)
    assert strides == (packed if array.strides is None else array.strides)


class NativeTests(PublicCase, needs=SupportsNative):
    """`SupportsNative`."""

    def described(
        self,
        device: DeviceUnderTest,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        readonly: bool = False,
    ) -> tuple[NativeArray, bytes]:
        """An array of `ELEMENTS` float32 values or a part of them, and all their bytes."""
        content = random_bytes(ELEMENTS * ITEMSIZE)
        array = described(device, Owner(device, content), shape)
        return array._replace(offset=offset, strides=strides, readonly=readonly), content

    @pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
    def test_native_types(self, devices: list[DeviceUnderTest], dtype: str) -> None:
        """Type and device are kept, on every device, or refused by an error that says why."""
        backend = devices[0].backend
        for device in devices:
            array = described(device, Owner(device, random_bytes(32)), (2,), dtype=dtype)
            native = unless_refused(partial(backend.to_native, array))
            if native is not None:
                same_array(backend, backend.from_native(native), array)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_native_layouts(self, device: DeviceUnderTest, layout: str) -> None:
        """Offset, shape, strides and read-only are kept, or refused by an error that says why.

        What begins at the memory's beginning and is compact is never refused.
        """
        backend = device.backend
        array, content = self.described(device, *LAYOUTS[layout])
        native = unless_refused(lambda: backend.to_native(array), "read" if array.readonly else "")
        if native is None:
            assert layout != "whole"
            return
        again = backend.from_native(native)
        same_array(backend, again, array)
        assert again.readonly or not array.readonly
        first = content[array.offset : array.offset + ITEMSIZE]
        assert device.read(again.data, again.offset, ITEMSIZE) == first

    def test_native_objects_over_one_memory(self, device: DeviceUnderTest) -> None:
        """Each of them is over its own part of it, in its own way, while the others are there.

        Some differ in one thing: the strides, the dtype, or that it is read-only.
        """
        backend = device.backend
        whole, _ = self.described(device, *LAYOUTS["whole"])
        arrays = [whole, whole._replace(dtype="int32")]
        for offset, shape, strides, *readonly in LAYOUTS.values():
            array = whole._replace(offset=offset, shape=shape, strides=strides)
            arrays.append(array._replace(readonly=bool(readonly)))
        made = [(each, unless_refused(partial(backend.to_native, each))) for each in arrays]
        for array, native in made:
            if native is not None:
                again = backend.from_native(native)
                same_array(backend, again, array)
                assert again.readonly or not array.readonly

    def test_native_of_nothing(self, device: DeviceUnderTest) -> None:
        """An array without elements keeps its shape, or is refused."""
        backend = device.backend
        for shape in ((0,), (0, 3), (3, 0)):
            array = described(device, None, shape)
            native = unless_refused(partial(backend.to_native, array))
            if native is None:
                continue
            again = backend.from_native(native)
            assert again is not None
            assert (again.device_id, again.dtype) == (device.device_id, "float32")
            assert tuple(again.shape) == shape

    @pytest.mark.parametrize("layout", ["whole", "offset", "columns"])
    def test_native_keeps_its_owner(self, device: DeviceUnderTest, layout: str) -> None:
        """The memory lives as long as the native object, or a description of it, and no longer.

        This holds for an object over a part of the memory as well.
        """
        backend = device.backend
        array, content = self.described(device, *LAYOUTS[layout])
        owner, content = weakref.ref(array.owner), content[array.offset :][:ITEMSIZE]
        native = unless_refused(partial(backend.to_native, array))
        if native is None:
            pytest.skip("the ecosystem has no arrays over a part of memory")
        del array
        gc.collect()
        assert owner() is not None, "to_native does not keep array.owner alive"
        again = backend.from_native(native)
        assert device.read(again.data, again.offset, ITEMSIZE) == content
        del native
        gc.collect()
        assert owner() is not None, "the owner that from_native returns does not keep the memory"
        assert device.read(again.data, again.offset, ITEMSIZE) == content
        del again
        device.synchronize()
        gc.collect()
        assert owner() is None, "the owner is kept after the native object is gone"

    def test_native_made_by_the_library(self, device: DeviceUnderTest, where: str) -> None:
        """An array that no `to_native` has made: its elements are read, written and kept."""
        content = random_bytes(100)
        native = self.make_native(device.backend, device.device_id, content)
        if native is None:
            pytest.skip("no library makes arrays here (make_native)")
        tensor = dlbridge.asarray(native)
        assert (str(tensor.dtype), tensor.shape, str(tensor.device)) == ("uint8", (100,), where)
        assert on_host(tensor).tobytes() == content
        dlbridge.copy_(tensor[:10], np.zeros(10, "uint8"))
        again = dlbridge.asarray(native)
        del tensor, native
        gc.collect()
        assert on_host(again).tobytes() == bytes(10) + content[10:]

    def test_native_made_by_the_library_is_let_go(
        self, device: DeviceUnderTest, where: str
    ) -> None:
        """Its memory is given back with the last tensor on it."""
        backend, device_id, nbytes = device.backend, device.device_id, 1 << 20
        before, owner = None, None
        for _ in range(12):  # the first ones may fill what is kept
            native = self.make_native(backend, device_id, bytes(nbytes))
            if native is None:
                pytest.skip("no library makes arrays here (make_native)")
            with suppress(TypeError):  # not every library's array can be referred to weakly
                owner = weakref.ref(native)
            tensor = dlbridge.asarray(native)
            del native, tensor
            gc.collect()
            device.synchronize()
            if before is None:
                before = self.memory_in_use(backend, device_id)
        assert owner is None or owner() is None, "the array is kept"
        after = self.memory_in_use(backend, device_id)
        assert before is None or after is None or after - before < 8 * nbytes, "its memory is kept"

    def test_strangers_are_not_native(self, backend: Any) -> None:
        """For memory of others the result is None, not an error.

        Also for objects that have attributes of any name, or whose attributes raise.
        """
        strangers = (None, 1, b"bytes", [1.0], object(), int, HasAll(), HasAll, HasNone())
        for stranger in strangers:
            assert backend.from_native(stranger) is None

    def test_native_objects_share_memory(self, backend: Any, where: str) -> None:
        """A native object on our memory, and our tensor on the native object's memory."""
        tensor = dlbridge.to_device(numbers((6, 7)), where, copy=True)
        native = tensor.to_native()
        again = dlbridge.asarray(native)
        assert (again.shape, str(again.dtype), str(again.device)) == ((6, 7), "float32", where)
        dlbridge.copy_(again, np.zeros((6, 7), "float32"))
        assert not on_host(tensor).any()
        del tensor, again
        gc.collect()
        assert not on_host(dlbridge.asarray(native)).any()

    def test_native_elements_below_a_byte(self, backend: Any, where: str) -> None:
        """Packed ones are refused: work on the shape would go beyond. Padded ones stay padded."""
        packed = dlbridge.to_device(packed_tensor(b"\x33" * 3, 5), where, copy=True)
        for give in (packed.to_native, packed[:2].to_native):
            assert unless_refused(give, "packed") is None
        padded = dlbridge.to_device(padded_tensor([1, 2, 3]), where, copy=True)
        native = unless_refused(padded.to_native)
        if native is not None:
            again = dlbridge.asarray(native)
            assert again.is_padded
            assert again.tobytes() == bytes([1, 2, 3])

    @pytest.mark.parametrize(
        "index",
        [np.s_[2:], np.s_[:, 2:5], np.s_[1::2, 1::3], np.s_[3], np.s_[2, 3], np.s_[3:3]],
        ids=str,
    )
    def test_native_views(self, backend: Any, where: str, index: Any) -> None:
        """Slices of a tensor that has been dropped: the elements are the same, or it is refused."""
        want = numbers((6, 7))[index]
        view = dlbridge.to_device(numbers((6, 7)), where, copy=True)[index]
        native = unless_refused(view.to_native)
        if native is None:
            return
        del view
        gc.collect()
        other = dlbridge.to_device(-numbers((6, 7)), where, copy=True)
        again = dlbridge.asarray(native)
        assert again.shape == want.shape
        assert np.array_equal(on_host(again), want)
        del other
