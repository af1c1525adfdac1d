"""A loaded backend as the core uses it: its members, whose exceptions are dlbridge's errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import ArgumentError
from typing import Any, NoReturn

from dlbridge import protocol
from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.errors import BackendError, DeviceMemoryError, Error
from dlbridge.protocol import Allocation, Backend, ExportedMemory, Facts, NativeArray, Span

from .contract import contracts, members
from .registry import LOADED, backend, owner

_ALLOWED: dict[str, tuple[type[Exception], ...]] = {
    "normalize_stream": (TypeError, ValueError),
    "find_device": (LookupError,),
}
"""What a member may raise beside dlbridge's errors, by the contract."""


class Plugin:
    """A backend's members, asked once: those of a capability that it lacks are None.

    Each is called by its name in the contract, with the same parameters. What it raises is
    one of dlbridge's errors that names the backend and the member.
    """

    device_count: Callable[[], int]
    allocate: Callable[..., Allocation]
    copy_from_host: Callable[[Span, memoryview, int], None]
    copy_to_host: Callable[[Span, memoryview, int], None]
    current_stream: Callable[[int], int]
    synchronize: Callable[[int, int], None] | None
    wait: Callable[[int, int, int], None] | None
    normalize_stream: Callable[[int, object], int] | None
    copy: Callable[[Span, Span, int], None] | None
    copy_strided: Callable[..., None] | None
    copy_strided_from_host: Callable[..., None] | None
    copy_strided_to_host: Callable[..., None] | None
    fill: Callable[[Span, int, int], None] | None
    host_view_refusal: Callable[[int, int], str] | None
    host_view: Callable[[Span, bool, int], Allocation] | None
    host_import_refusal: Callable[[int, int, int, bool], str] | None
    import_host: Callable[[int, int, int, bool, int], Allocation] | None
    memory_export_refusal: Callable[[int, int], str] | None
    export_memory: Callable[[int, int], ExportedMemory] | None
    allocate_exportable: Callable[[int, int, int], Allocation] | None
    memory_import_refusal: Callable[[int], str] | None
    import_memory: Callable[[int, ExportedMemory, int], Allocation] | None
    from_native: Callable[[object], NativeArray | None] | None
    to_native: Callable[[NativeArray], object] | None
    import_data: Callable[[int, int, str], tuple[int, int]] | None
    device_info: Callable[[int], Mapping[str, object]] | None
    find_device: Callable[[str], int] | None
    trim: Callable[[int], None] | None

    def __init__(self, name: str, plugin: Backend) -> None:
        self.name = name
        self.backend = plugin
        self.device_type: int = plugin.device_type
        self.host_copies_block: bool = getattr(plugin, "host_copies_block", Facts.host_copies_block)
        self.content_limit: int = getattr(plugin, "content_limit", Facts.content_limit)
        self.max_strided_ndim: int = getattr(plugin, "max_strided_ndim", 0)
        for contract in contracts():
            has = contract is protocol.Backend or isinstance(plugin, contract)
            for member, function in members(contract).items():
                if function is not None:
                    setattr(self, member, self._translated(member) if has else None)

    def _translated(self, member: str) -> Callable[..., Any]:
        """The *member*; it is looked up in each call: after ``fork()`` it is another one."""
        plugin, allowed = self.backend, _ALLOWED.get(member, ())

        def call(*given: Any) -> Any:
            try:
                return getattr(plugin, member)(*given)
            except Exception as exc:
                # A signal handler may raise anything, which says nothing of the backend.
                if isinstance(exc, (Error, *allowed)) or is_from_handler(exc.__traceback__):
                    raise
                self._fail(exc, member)

        return call

    def _fail(self, exc: Exception, member: str) -> NoReturn:
        """Raise what *exc*, which left *member*, is among dlbridge's errors."""
        try:
            text = f"backend {self.name!r} failed in {member}: {type(exc).__name__}: {exc}"
            # ctypes tells the exception of an argument by the name of its class only.
            in_ctypes = isinstance(exc, ArgumentError) and "MemoryError" in str(exc)
            if in_ctypes or isinstance(exc, MemoryError):
                raise DeviceMemoryError(text) from exc
            raise BackendError(f"{text}; report it to {owner(self.name) or 'its authors'}") from exc
        finally:
            # The traceback of *exc* holds this frame: a cycle would keep the tensor's memory.
            del exc


_plugins: dict[int, Plugin] = {}
"""By the identity of the backend, which its record keeps: there is one record for each."""


def plugin_named(name: str) -> Plugin:
    """The backend *name*, which is loaded; BackendUnavailable or BackendError if it cannot be."""
    loaded = LOADED[name] if name in LOADED else backend(name)
    key = id(loaded)
    return _plugins[key] if key in _plugins else _plugins.setdefault(key, Plugin(name, loaded))
