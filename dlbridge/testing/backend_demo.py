"""The filter that a backend runs for ``python -m dlbridge demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlbridge.diagnosis.device_trial import blurred
from dlbridge.protocol import SupportsDemo

from .backend_base import BackendCase, random_bytes

if TYPE_CHECKING:
    from .backend_base import DeviceUnderTest

__all__ = ["DemoTests"]


class DemoTests(BackendCase):
    """`SupportsDemo`."""

    def test_box_blur(self, device: DeviceUnderTest) -> None:
        """The result is exactly that of the contract; bytes around the target stay."""
        self.need(device.backend, SupportsDemo)
        for shape in [(1, 1, 1), (9, 14, 3), (3, 40, 4)]:
            for radius in (0, 1, 4):
                for offsets in [(0, 0), (5, 8)]:
                    self.blur(device, shape, radius, *offsets)

    def blur(
        self,
        device: DeviceUnderTest,
        shape: tuple[int, int, int],
        radius: int,
        source_offset: int,
        target_offset: int,
    ) -> None:
        """One image, checked."""
        nbytes = int(np.prod(shape))
        content = random_bytes(source_offset + nbytes)
        image = np.frombuffer(content, "u1")[source_offset:].reshape(shape)
        source, target = device.filled(content), device.filled(b"-" * (target_offset + nbytes + 4))
        into = device.span(target, target_offset, nbytes)
        origin = device.span(source, source_offset, nbytes)
        device.backend.box_blur(into, origin, shape, radius, device.stream)
        want = b"-" * target_offset + blurred(image, radius) + b"-" * 4
        assert device.read(target, 0, len(want)) == want, (shape, radius)
        assert device.read(source, 0, len(content)) == content
        device.close()
