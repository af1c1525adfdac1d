"""The backend class: which function stands for which member of the contract."""

from __future__ import annotations

import atexit

from . import (
    copies,
    devices,
    ending,
    foreign,
    imports,
    memory,
    native,
    queues,
    regions,
    views,
)

__all__ = ["OpenCL"]

atexit.register(ending.end)


class OpenCL:
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

    api = 1
    device_type = 4  # kDLOpenCL
    host_copies_block = True

    def __init__(self) -> None:
        devices.device_count()

    # Backend
    device_count = staticmethod(devices.device_count)
    allocate = staticmethod(memory.allocate)
    free = staticmethod(memory.free)
    copy_from_host = staticmethod(copies.copy_from_host)
    copy_to_host = staticmethod(copies.copy_to_host)
    current_stream = staticmethod(queues.current_stream)

    # SupportsAllocateFromHost
    allocate_from_host_limit = staticmethod(memory.allocate_from_host_limit)
    allocate_from_host = staticmethod(memory.allocate_from_host)

    # SupportsStreams
    synchronize = staticmethod(queues.synchronize)
    wait = staticmethod(queues.wait)
    normalize_stream = staticmethod(queues.normalize_stream)

    # SupportsCopy, SupportsStridedCopy, SupportsFill
    copy = staticmethod(copies.copy)
    max_strided_ndim = regions.max_strided_ndim
    copy_strided = staticmethod(regions.copy_strided)
    copy_strided_from_host = staticmethod(regions.copy_strided_from_host)
    copy_strided_to_host = staticmethod(regions.copy_strided_to_host)
    fill = staticmethod(copies.fill)

    # SupportsHostView, SupportsHostImport, SupportsHostImportDrawback
    host_view_refusal = staticmethod(views.host_view_refusal)
    host_view = staticmethod(views.host_view)
    release_host_view = staticmethod(views.release_host_view)
    host_import_refusal = staticmethod(imports.host_import_refusal)
    import_host = staticmethod(imports.import_host)
    host_import_drawback = staticmethod(imports.host_import_drawback)

    # SupportsNative, SupportsForeignData
    from_native = staticmethod(native.from_native)
    to_native = staticmethod(native.to_native)
    import_data = staticmethod(foreign.import_data)

    # SupportsDeviceNames, SupportsDeviceInfo
    find_device = staticmethod(devices.find_device)
    device_info = staticmethod(devices.device_info)

    # SupportsTrim
    trim = staticmethod(memory.trim)

    # for the conformance kit
    live_allocations = staticmethod(memory.live_allocations)
