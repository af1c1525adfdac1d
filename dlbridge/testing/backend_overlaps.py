"""Copies between two tensors over one memory, whichever way each of them came to it."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

import dlbridge
import dlbridge.ffi
from dlbridge.errors import LibraryUnavailable
from dlbridge.protocol import SupportsNative

from .backend_base import drawn, random_bytes
from .backend_moves import PublicCase, on_host
from .backend_native import unless_refused

if TYPE_CHECKING:
    from .backend_base import DeviceUnderTest

NBYTES = 240
"""Bytes of each memory."""

SHAPES: list[tuple[int, ...]] = [(240,), (240,), (12, 20), (6, 8, 5), (4, 3, 4, 5)]
"""How they are looked at; half of what goes wrong does so in one dimension."""


class OverlapTests(PublicCase):
    """`copy_` between two tensors that may be the same bytes."""

    overlaps = 100
    """How many random pairs are copied in each memory.

    They are always the same ones. The environment may ask for more of them,
    ``DLBRIDGE_OPERATIONS=5000``, and for others, ``DLBRIDGE_KIT_SEED=7``.
    """

    def test_overlaps(self, backend: Any, device: DeviceUnderTest, where: str) -> None:
        """Memory that dlbridge made: all that leads to it again, also on the host."""
        self.check_overlaps(dlbridge.zeros(NBYTES, "uint8", where), backend, device, {})

    def test_overlaps_in_host_memory_in_place(
        self, backend: Any, device: DeviceUnderTest, where: str
    ) -> None:
        """The host's own array, and the tensor over it."""
        array = dlbridge.zeros(NBYTES, "uint8", alignment=4096).numpy()
        try:
            tensor = dlbridge.to_device(array, where, copy=False)
        except BufferError as exc:
            assert str(exc)  # noqa: PT017 - such memory is copied here
            return
        # A second import of the same bytes may be refused, and is no promise.
        self.check_overlaps(tensor, backend, device, {"the array": array})

    def test_overlaps_in_memory_of_others(
        self, backend: Any, device: DeviceUnderTest, where: str
    ) -> None:
        """Arrays of the ecosystem, made by its own library."""
        content = bytes(NBYTES)
        made = [self.make_native(backend, self.device_id, content)]
        for native in [*made, *self.more_natives(backend, self.device_id, content)]:
            if native is not None:
                again = {"once more": dlbridge.asarray(native)}
                self.check_overlaps(dlbridge.asarray(native), backend, device, again)

    def test_long_overlaps(self, device: DeviceUnderTest, where: str) -> None:
        """More bytes than a backend copies at once, a few or many further on, both ways.

        Between the device and the host that has the same memory: by a view, or in place.
        """
        nbytes = drawn(1 << 18, 1 << 20)
        pairs: list[tuple[Any, Any]] = []
        tensor = dlbridge.zeros(nbytes, "uint8", where)
        if device.can_view(tensor.operand().data):
            pairs.append((tensor, dlbridge.to_device(tensor, "cpu")))
        array = dlbridge.zeros(nbytes, "uint8", alignment=4096)
        with suppress(BufferError):  # such memory is copied here
            pairs.append((dlbridge.to_device(array, where, copy=False), array))
        content = np.frombuffer(random_bytes(nbytes), "u1")
        for mine, host in pairs:
            for shift in (1, drawn(2, 4096), drawn(4097, nbytes // 2)):
                for to, at in ((shift, 0), (0, shift)):
                    for target, source in ((mine, host), (host, mine)):
                        self.write(mine, content)
                        dlbridge.copy_(target[to : nbytes - at], source[at : nbytes - to])
                        want = content.copy()
                        want[to : nbytes - at] = content[at : nbytes - to]
                        assert np.array_equal(on_host(mine), want), (
                            f"{nbytes - shift} bytes from {at} to {to}, of which the host's "
                            f"{'source' if source is host else 'target'} is the same memory"
                        )

    def test_overlap_in_several_calls(self, device: DeviceUnderTest, where: str) -> None:
        """Three strided dimensions are more than one call copies on most devices."""
        tensor = dlbridge.zeros(NBYTES, "uint8", where)
        if not device.can_view(tensor.operand().data):
            return
        host, before = dlbridge.to_device(tensor, "cpu"), np.arange(NBYTES, dtype="u1")
        shape, part = (6, 8, 5), np.s_[::2, ::2, ::2]
        for begin in (0, 100):
            flat, sizes = slice(begin, begin + 36), (3, 4, 3)
            self.write(tensor, before)
            want = before.copy()
            want.reshape(shape)[part] = before[flat].reshape(sizes)
            dlbridge.copy_(tensor.reshape(shape)[part], host[flat].reshape(sizes))
            assert np.array_equal(on_host(tensor), want), f"from the host, {begin}"
            self.write(tensor, before)
            want = before.copy()
            want[flat] = before.reshape(shape)[part].reshape(-1)
            dlbridge.copy_(host[flat].reshape(sizes), tensor.reshape(shape)[part])
            assert np.array_equal(on_host(tensor), want), f"to the host, {begin}"

    def more_natives(self, backend: Any, device_id: int, content: bytes) -> list[object]:
        """Arrays as that of `make_native`, over other kinds of memory."""
        return []

    def check_overlaps(
        self, tensor: Any, backend: Any, device: DeviceUnderTest, ways: dict[str, Any]
    ) -> None:
        """Copy random parts of *tensor*'s memory to others, each by one of the *ways* and more."""
        ways = {**self.ways(tensor, backend, device), **ways}
        chance = random.Random(f"{tensor.device}{os.environ.get('DLBRIDGE_KIT_SEED', '')}")
        pairs = int(os.environ.get("DLBRIDGE_OPERATIONS") or self.overlaps)
        for number in range(pairs):
            content = np.frombuffer(random_bytes(NBYTES, number), "u1")
            self.write(tensor, content)
            to, at = chance.choice(list(ways)), chance.choice(list(ways))
            shape = chance.choice(SHAPES)
            parts = random_parts(chance, shape)
            want = content.copy().reshape(shape)
            want[parts[0]] = content.reshape(shape)[parts[1]]
            target, source = (
                ways[way].reshape(shape)[part] for way, part in zip((to, at), parts, strict=True)
            )
            dlbridge.copy_(target, source)
            values = on_host(dlbridge.to_device(tensor, tensor.device, copy=True))
            assert np.array_equal(values, want.reshape(-1)), (
                f"copy_ of {parts[1]} in {at!r} to {parts[0]} in {to!r}, both {shape}"
            )
        print(f"{pairs} overlaps on {tensor.device}, by {', '.join(ways)}")

    def write(self, tensor: Any, content: Any) -> None:
        """Write *content*, and wait: who reads the memory on the host asks no device."""
        dlbridge.copy_(tensor, content)
        dlbridge.synchronize(tensor.device)

    def ways(self, tensor: Any, backend: Any, device: DeviceUnderTest) -> dict[str, Any]:
        """What leads to the memory of *tensor*, by the name of the way.

        A device may have no view of it for the host, and its library no array; it has the others,
        that of the FFI where libtvm_ffi is installed.
        """
        ways: dict[str, Any] = {
            "the tensor": tensor,
            "a capsule": dlbridge.from_dlpack(tensor.__dlpack__(max_version=(1, 3))),
            "a legacy capsule": dlbridge.from_dlpack(tensor.__dlpack__()),
            "a blob": self.blob(tensor),
        }
        with suppress(LibraryUnavailable):
            ways["an array of the FFI"] = dlbridge.asarray(dlbridge.ffi.Array([tensor])[0])
        if device.can_view(tensor.operand().data):
            ways["the host's view"] = host = dlbridge.to_device(tensor, "cpu")
            ways["the host's array"] = host.numpy()
        if isinstance(backend, SupportsNative):
            native = unless_refused(tensor.to_native)
            if native is not None:
                ways["its native array"] = dlbridge.asarray(native)
        return ways

    def blob(self, tensor: Any) -> Any:
        """*tensor*'s memory by `from_blob`."""
        data, where = tensor.operand().data, tensor.device
        return dlbridge.from_blob(data, tensor.shape, "uint8", device=where, owner=tensor)


def random_parts(chance: random.Random, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Two parts of an array of *shape*, equal in shape, at other places and in other steps."""
    sizes = [chance.randint(1, extent) for extent in shape]
    parts = []
    for _ in range(2):
        axes = []
        for extent, size in zip(shape, sizes, strict=True):
            step = chance.choice([1, 1, (extent - 1) // max(size - 1, 1) or 1])
            reach = (size - 1) * step
            start = chance.choice([0, chance.randint(0, extent - 1 - reach)])
            axes.append(slice(start, start + reach + 1, step))
        parts.append(tuple(axes))
    return parts
