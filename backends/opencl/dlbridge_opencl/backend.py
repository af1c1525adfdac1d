"""The backend class: which function stands for which member of the contract."""

from __future__ import annotations

from dlbridge.kit.devices import Devices
from dlbridge.kit.gate import wait_at_exit

from . import copies, devices, memory, native, queues, views


class OpenCL(Devices):
    """OpenCL devices of all platforms; ``data`` is a ``cl_mem``, a stream a ``cl_command_queue``.

    Raises
    ------
    dlbridge.BackendUnavailable
        If no driver has a device.

    Examples
    --------
    >>> import dlbridge
    >>> opencl = dlbridge.backend("opencl")
    """

    api = 2
    device_type = 4  # kDLOpenCL
    name = "opencl"
    host_copies_block = True
    content_limit = 0

    def __init__(self) -> None:
        wait_at_exit(queues.pending)
        numbers = range(devices.device_count())
        if any(devices.device(number).copies_at_once for number in numbers):
            self.content_limit = memory.FROM_HOST

    # Backend
    device_count = staticmethod(devices.device_count)
    allocate = staticmethod(memory.allocate)
    copy_from_host = staticmethod(copies.copy_from_host)
    copy_to_host = staticmethod(copies.copy_to_host)
    current_stream = staticmethod(queues.current_stream)

    # SupportsStreams
    synchronize = staticmethod(queues.synchronize)
    wait = staticmethod(queues.wait)
    normalize_stream = staticmethod(queues.normalize_stream)

    # SupportsCopy, SupportsStridedCopy, SupportsFill
    copy = staticmethod(copies.copy)
    max_strided_ndim = copies.max_strided_ndim
    copy_strided = staticmethod(copies.copy_strided)
    copy_strided_from_host = staticmethod(copies.copy_strided_from_host)
    copy_strided_to_host = staticmethod(copies.copy_strided_to_host)
    fill = staticmethod(copies.fill)

    # SupportsHostView, SupportsHostImport
    host_view_refusal = staticmethod(views.host_view_refusal)
    host_view = staticmethod(views.host_view)
    host_import_refusal = staticmethod(memory.host_import_refusal)
    import_host = staticmethod(memory.import_host)

    # SupportsNative, SupportsForeignData
    from_native = staticmethod(native.from_native)
    to_native = staticmethod(native.to_native)
    import_data = staticmethod(memory.import_data)

    # SupportsDeviceInfo
    device_info = staticmethod(devices.device_info)

    # for the conformance kit
    live_allocations = staticmethod(memory.live_allocations)
