"""The pretended device of ``backends/fake``, which counts the bytes it copies and fails when told."""

from __future__ import annotations

from math import prod

from dlbridge_fake import Fake

from dlbridge.errors import DeviceError
from tests.support.known_backends import registered

NAME = "counted"


class Counting(Fake):
    """*log* holds ``(kind, bytes)`` of every copy; *failing* names a method that refuses."""

    def __init__(self):
        super().__init__()
        self.log: list[tuple[str, int]] = []
        self.failing: dict[str, int] = {}  # method -> how many calls still succeed

    @property
    def nbytes(self):
        return sum(nbytes for _, nbytes in self.log)

    def fail(self, method):
        if method in self.failing:
            self.failing[method] -= 1
            if self.failing[method] < 0:
                raise DeviceError(f"{method} refused by the test")

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        self.fail("allocate")
        return super().allocate(device_id, nbytes, alignment, stream, content)

    def copy_from_host(self, target, source, stream):
        self.fail("copy_from_host")
        self.log.append(("upload", source.nbytes))
        super().copy_from_host(target, source, stream)

    def copy_to_host(self, source, into, stream):
        self.fail("copy_to_host")
        self.log.append(("download", into.nbytes))
        super().copy_to_host(source, into, stream)

    def copy(self, target, source, stream):
        self.fail("copy")
        self.log.append(("copy", target.nbytes))
        super().copy(target, source, stream)

    def copy_strided(self, target, target_region, source, source_region, stream):
        self.fail("copy")
        self.log.append(("copy", _payload(target_region)))
        super().copy_strided(target, target_region, source, source_region, stream)

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        self.fail("copy_from_host")
        self.log.append(("upload", _payload(target_region)))
        super().copy_strided_from_host(target, target_region, source, source_region, stream)

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        self.fail("copy_to_host")
        self.log.append(("download", _payload(source_region)))
        super().copy_strided_to_host(source, source_region, into, into_region, stream)

    def fill(self, *arguments):
        self.fail("fill")
        super().fill(*arguments)

    def synchronize(self, device_id, stream):
        self.fail("synchronize")
        super().synchronize(device_id, stream)

    def import_host(self, *arguments):
        self.fail("import_host")
        return super().import_host(*arguments)

    def host_view(self, *arguments):
        self.fail("host_view")
        return super().host_view(*arguments)


def _payload(region):
    return prod(region.shape) * region.run_nbytes


def counting(cls=Counting):
    """The backend `NAME` inside the block, gone at its end."""
    return registered(NAME, cls)
