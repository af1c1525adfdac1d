"""Checks of a backend when it is loaded: version, device type, members, parameters, facts.

An error names the package that provides the backend. The conformance kit tests what
can only be seen when the backend works.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge import protocol
from dlbridge.core.public import for_guests
from dlbridge.core.values.devices import DLDeviceType, number_in
from dlbridge.errors import BackendError, Error
from dlbridge.protocol import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.protocol import Backend


_VARARGS = 0x04  # inspect.CO_VARARGS; to import that module takes 5 ms


CONTRACTS: dict[type, dict[str, Callable[..., Any] | None]] = {
    contract: {
        **dict.fromkeys(contract.__annotations__),
        **{name: value for name, value in vars(contract).items() if not name.startswith("_")},
    }
    for name, contract in vars(protocol).items()
    if name == "Backend" or (name.startswith("Supports") and name in protocol.__all__)
}
"""`Backend`, and the protocols that a backend may satisfy, too, with the members of each: methods,
and None for attributes."""


def type_of_name(name: str) -> DLDeviceType | None:
    """The device type that DLPack calls *name*; None for any other name."""
    names = {member.name[3:].lower(): member for member in DLDeviceType}
    return names.get(name.replace("_", ""))


@for_guests
def check_backend(plugin: Backend, name: str, who: str) -> None:
    """Check what can be seen of a backend without using it, as dlbridge does when it loads one.

    Parameters
    ----------
    plugin : Backend
        An object of the backend's class.
    name : str
        What devices are named by.
    who : str
        Who provides it, for messages.

    Raises
    ------
    BackendError
        If it is not a backend of this version of `dlbridge.protocol`.

    Notes
    -----
    There is a FutureWarning if its version is the next that dlbridge will not take any more.

    Examples
    --------
    >>> from dlbridge.extending import check_backend
    >>> check_backend(bridge.backend("cpu"), "cpu", "dlbridge itself")
    """
    entry = _Entry(plugin, name, who)
    if hasattr(plugin, "api"):  # another version may have other members
        _check_api(entry)
    missing = sorted(each for each in CONTRACTS[protocol.Backend] if not hasattr(plugin, each))
    if missing:
        entry.refuse(f" lacks {', '.join(missing)}; report it there")
    _check_device_type(entry)
    _check_device_count(entry)
    for declared in CONTRACTS.values():
        if all(hasattr(plugin, member) for member in declared):
            for member, function in declared.items():
                if function is not None:
                    _check_parameters(entry, member, function)
    _check_facts(entry)
    if plugin.device_type in protocol.HOST_DEVICES and name != "cpu":  # ours
        _check_addresses(entry)


class _Entry:
    """A backend that is checked."""

    def __init__(self, plugin: Any, name: str, who: str) -> None:
        self.plugin, self.name, self.who = plugin, name, who

    def refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        """Raise the BackendError that names it and its package, and says *what* is wrong."""
        raise BackendError(f"{self.who}: backend {self.name!r}{what}") from cause


def _check_api(entry: _Entry) -> None:
    api, newest, oldest = entry.plugin.api, protocol.API, protocol.MIN_API
    if not _is_int(api):
        entry.refuse(
            f" has api = {api!r}; it is the version of dlbridge.protocol that the backend was "
            f"written for, as a literal: api = {newest}"
        )
    if not oldest <= api <= newest:
        speaks = f"{oldest} to {newest}" if oldest < newest else newest
        raise BackendError(
            f"{entry.who} speaks backend API {api}, this dlbridge speaks {speaks}; "
            f"upgrade {'that backend' if api < oldest else 'dlbridge'}"
        )
    if api == oldest < newest:
        warnings.warn(
            f"{entry.who}: backend {entry.name!r} speaks backend API {api}, which the next release "
            f"of dlbridge may no longer take (it speaks {newest}); upgrade that backend",
            FutureWarning,
            stacklevel=2,
        )


def _check_device_type(entry: _Entry) -> None:
    device_type, known = entry.plugin.device_type, type_of_name(entry.name)
    if not _is_int(device_type):
        number = next((kind for kind in DLDeviceType if kind.name == device_type), known)
        entry.refuse(
            f" has device_type = {device_type!r}; it is a DLDeviceType of dlpack.h as a number"
            f"{f', {number:d} for {number.name}' if number else ''}"
        )
    if not 0 < device_type < 1 << 31:
        entry.refuse(f" has device_type = {device_type}; a DLDeviceType is a positive int32")
    if known is not None and known != device_type:
        raise BackendError(
            f"{entry.who}: the name {entry.name!r} belongs to {known.name} ({known:d}) in DLPack, "
            f"and the backend's device_type is {device_type}; one of the two has to change"
        )
    if number_in(entry.name) is not None:
        entry.refuse(
            ": typeN is a device type by its number, so that no device string could name this "
            "backend; choose another name"
        )
    others = DLDeviceType(device_type)
    listed = not others.name.startswith("type")
    if listed and "-" in entry.name:
        return  # of a family, which may share any type: its name tells it apart
    if known is None and others is not DLDeviceType.kDLExtDev:
        # What it exports would come back as a tensor of another backend, or of none.
        belongs = (
            "is no DLDeviceType that this dlbridge knows"
            if not listed
            else f"is {others.name}, which belongs to the name {others.name[3:].lower()!r}"
        )
        entry.refuse(
            f" has device_type = {device_type}, which {belongs}; take 12 (kDLExtDev), which "
            "backends of any name share"
        )


def _check_device_count(entry: _Entry) -> None:
    try:
        count = entry.plugin.device_count()
    except Error:
        raise
    except Exception as exc:
        entry.refuse(f" failed in device_count: {type(exc).__name__}: {exc}", exc)
    if not _is_int(count) or count < 1:
        entry.refuse(
            f" has device_count() = {count!r}; it is a number of devices, at least 1 (without one "
            "the class raises BackendUnavailable)"
        )


def _check_parameters(entry: _Entry, member: str, declared: Callable[..., Any]) -> None:
    function = getattr(entry.plugin, member)
    if not callable(function):
        entry.refuse(f": {member} is {function!r}, not a method")
    if getattr(getattr(function, "__func__", function), "__code__", None) is None:
        return  # written in C, or another callable: its parameters cannot be read
    wanted = parameters_of(declared)[0][1:]  # without self
    names, required, more, keywords = parameters_of(function)
    if getattr(function, "__self__", None) is not None:
        names, required = names[1:], required - 1
    fixed = names[: len(wanted)]
    too_many = required > len(wanted) or keywords
    if too_many or fixed != wanted[: len(fixed)] or not (more or fixed == wanted):
        takes = ", ".join((*names, "*", *keywords) if keywords else names)
        entry.refuse(
            f": {member} takes ({takes}), and the contract says ({', '.join(wanted)}), where only "
            f"parameters with defaults may follow; see dlbridge.protocol, API {protocol.API}"
        )


def _check_facts(entry: _Entry) -> None:
    plugin = entry.plugin
    blocks = getattr(plugin, "host_copies_block", Facts.host_copies_block)
    limit = getattr(plugin, "content_limit", Facts.content_limit)
    strided = getattr(plugin, "max_strided_ndim", 1)  # of SupportsStridedCopy
    if not isinstance(blocks, bool):
        entry.refuse(f": host_copies_block is {blocks!r}; it is True or False")
    if not _is_int(limit) or limit < 0:
        entry.refuse(f": content_limit is {limit!r}; it is a number of bytes")
    if not _is_int(strided) or strided < 1:
        entry.refuse(f": max_strided_ndim is {strided!r}; it is a number of dimensions, at least 1")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_addresses(entry: _Entry) -> None:
    """Check that ``data`` is an address, on a device whose memory the host reads itself."""
    plugin = entry.plugin
    try:
        stream = plugin.current_stream(0)
        allocation = plugin.allocate(0, _TRIAL, _TRIAL, stream)
    except Exception:  # no room, perhaps: whoever allocates next is told
        return
    data = getattr(allocation, "data", None)
    if isinstance(data, int) and not data % _TRIAL and _can_read(data):
        return
    entry.refuse(
        f" has device_type = {plugin.device_type}, whose memory the host reads in place, so data "
        f"must be an address; allocate gave data {data!r} for {_TRIAL} bytes aligned to {_TRIAL}, "
        "which is none. Take another device type (kDLExtDev, 12) if data is a handle"
    )


_TRIAL = 256
"""Bytes; few handles are multiples of it."""


def _can_read(address: int) -> bool:
    """Whether this process may read there. The system looks, so that nothing crashes."""
    if sys.platform == "win32":
        return True  # its write() does not look; the alignment has been checked
    write = ctypes.CDLL(None).write
    reader, writer = os.pipe()
    try:
        return bool(write(writer, ctypes.c_void_p(address), 1) == 1)
    finally:
        os.close(reader)
        os.close(writer)


@for_guests
def parameters_of(function: Any) -> tuple[tuple[str, ...], int, bool, tuple[str, ...]]:
    """Return what a function of Python, or a method of a class, is called with.

    To import `inspect` for that takes 5 ms.

    Parameters
    ----------
    function : callable
        It has a ``__code__``.

    Returns
    -------
    tuple
        The names by position, how many of them must be passed, whether more may be, and the names
        of the keywords that must be.

    Examples
    --------
    >>> from dlbridge.extending import parameters_of
    >>> parameters_of(lambda x, y=1, *, z: ...)
    (('x', 'y'), 1, False, ('z',))
    """
    function = getattr(function, "__func__", function)
    code = function.__code__
    names, defaults = code.co_varnames[: code.co_argcount], function.__kwdefaults__ or ()
    by_keyword = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return (
        names,
        len(names) - len(function.__defaults__ or ()),
        bool(code.co_flags & _VARARGS),
        tuple(each for each in by_keyword if each not in defaults),
    )
