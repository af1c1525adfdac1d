"""The backend ``cuda_managed``: memory that moves between host and GPUs (kDLCUDAManaged)."""

from __future__ import annotations

from dlbridge.errors import BackendUnavailable, ExchangeError

from . import streams
from .contexts import attribute
from .memory import ManagedMemory
from .pointers import checked
from .queued import Queued

__all__ = ["CUDAManaged"]


class CUDAManaged(Queued):
    """Managed memory. There is one device of it, 0 (``dlpack.h``); it is made in GPU 0's context.

    Streams of other GPUs are taken.
    """

    device_type = 13  # kDLCUDAManaged
    name = "cuda_managed"

    def __init__(self) -> None:
        super().__init__(ManagedMemory())
        if not attribute(0, "MANAGED_MEMORY"):
            raise BackendUnavailable(
                "this GPU has no managed memory; use the devices 'cuda' and 'cuda_host'"
            )

    def device_count(self) -> int:
        """One: managed memory is everywhere."""
        return 1

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """*data* as it is; ExchangeError if it is not managed memory."""
        self.check_device(device_id)
        checked(data, device_id, self.name, ("managed",))
        return device_id, data

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can."""
        return "" if self._concurrent() else (
            "a GPU here does not let the host touch managed memory while it works "
            "(concurrentManagedAccess is 0)"
        )  # fmt: skip

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """The address itself, once the work on *stream* is done."""
        self.check_device(device_id)
        refusal = self.host_view_refusal(device_id, data)
        if refusal:
            raise ExchangeError(refusal)
        streams.synchronize(device_id, stream)
        return data + offset

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """Nothing to do: later work on any stream sees what the host wrote."""

    def _concurrent(self) -> bool:
        return all(attribute(gpu, "CONCURRENT_MANAGED_ACCESS") for gpu in range(self._physical))
