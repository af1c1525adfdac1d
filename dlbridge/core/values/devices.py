"""Devices: DLDevice as a value that also knows the name of its backend; what text names one.

Several backends may share a device type (kDLExtDev is everybody's), so the
name is part of a `Device`. Strings, tuples and the device objects of torch, jax
and tvm_ffi become one by `device`, without importing any of those libraries.
"""

from __future__ import annotations

import operator
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dlbridge import _methods as methods
from dlbridge._absent_names import DEVICE_NAMES
from dlbridge.core.public import OpenEnum, Value, public
from dlbridge.errors import ExchangeError
from dlbridge.protocol import ADDRESS_DEVICES, HOST_DEVICES

from .text import AbsentNames, with_article

if TYPE_CHECKING:
    from dlbridge.typing import DeviceLike


@public
class DLDeviceType(OpenEnum):
    """The kind of a device, as a number: DLDeviceType of ``dlpack.h`` 1.3.

    The numbers from 19 to 21 are in DLPack's main branch only, and not released.
    Any int32 is accepted: a number that ``dlpack.h`` does not list becomes a
    member named ``type99``, which equals the number. A member also equals its name
    in TVM-FFI, as ``device.type`` is text there; its hash is that of the number, so
    look it up in dictionaries by number.

    Examples
    --------
    >>> bridge.DLDeviceType(2).name
    'kDLCUDA'
    >>> bridge.DLDeviceType(99).name
    'type99'
    >>> bridge.device("cuda").type == "cuda", bridge.device("cuda").type == 2
    (True, True)
    """

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16
    kDLMAIA = 17
    kDLTrn = 18
    # Not released: dlpack.h of DLPack's main branch, 2026-11.
    kDLTPU = 19
    kDLTPUHost = 20
    kDLAscend = 21

    @staticmethod
    def _unlisted(value: int) -> str:
        return f"type{value:d}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return _NAMES.get(int(self), self._name_) == other
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = int.__hash__


_TYPE_NAMES: Final = (
    "cpu cuda cuda_host opencl vulkan metal vpi rocm rocm_host ext_dev cuda_managed oneapi webgpu "
    "hexagon maia trn tpu tpu_host ascend"
)
"""TVM-FFI's names, which are those of the backends, in the order of `DLDeviceType`."""

_TYPES: Final = dict(zip(_TYPE_NAMES.split(), DLDeviceType, strict=True))
_NAMES: Final = {int(type): name for name, type in _TYPES.items()}

_TORCH_TYPES: Final = {"xpu": "oneapi", "mps": "metal", "hip": "rocm", "privateuseone": "ext_dev"}
"""torch's device types that have another name here (``torch.utils.dlpack``)."""


# Not by regular expressions, whose compilation is 1 ms of the first call of a process.
def number_in(name: str) -> int | None:
    """The N of a *name* ``"typeN"``, which may be negative; None for other names."""
    digits = name[4:].removeprefix("-")
    is_numbered = name.startswith("type") and digits.isascii() and digits.isdigit()
    return int(name[4:]) if is_numbered else None


def _is_name(text: str) -> bool:
    """An identifier of ASCII; with a dash: typeN, and a name of a family ("torch-npu")."""
    name, dash, rest = text.partition("-")
    has_end = not dash or (rest != "" and f"_{rest}".isidentifier())
    return text.isascii() and name.isidentifier() and has_end


@public
class Device(AbsentNames, Value, absent=DEVICE_NAMES):
    """A device: DLDevice (``dlpack.h`` 1.3) and the name of its backend. An immutable value.

    Equal devices are one object. ``str(d)`` is ``"cuda:0"``, which
    `dlbridge.device` accepts. A type that ``dlpack.h`` does not list is named
    ``"type99"``, unless a name is given.

    A device also equals its text (``t.device == "cuda:0"``); ``"cuda"`` is the first one.
    Names that only a backend understands (``"opencl:Intel"``) are not looked up, and equal
    none. In dictionaries, look it up as a `Device` or use ``str(d)`` for the keys: its hash
    is not that of the text.

    Parameters
    ----------
    type : int
        The DLDeviceType, an int32.
    index : int
        DLDevice.device_id, from 0.
    name : str, optional
        The name of the backend, where several backends share the type.

    Raises
    ------
    ValueError
        For a negative index, for numbers that DLDevice cannot hold, and for a
        name that means another type.

    Examples
    --------
    >>> bridge.Device(2, 1)
    dlbridge.device('cuda:1')
    >>> bridge.Device(12, 0, "npu") == bridge.Device(12, 0)
    False
    >>> bridge.zeros(2).device == "cpu:0"
    True
    """

    __slots__ = ("dlpack", "index", "is_address", "is_host", "name", "type")

    type: DLDeviceType
    """The DLDeviceType, an int; it may be one that ``dlpack.h`` does not list."""
    index: int
    """The number of the device in its backend, from 0 (DLDevice.device_id)."""
    name: str
    """The name of the backend. Devices of different names are different devices."""
    is_host: bool
    """Whether the CPU may read its memory; that of CUDAManaged after a synchronisation."""
    is_address: bool
    """Whether ``data + byte_offset`` is an address; otherwise ``data`` is a handle."""
    dlpack: tuple[int, int]
    """``(type, index)`` as plain ints, for ``dl_device=`` (array API 2025.12)."""

    def __new__(cls, type: int, index: int = 0, name: str | None = None) -> Device:
        """Like `of`."""
        return cls.of(type, index, name)

    @classmethod
    def of(cls, type: int, index: int = 0, name: str | None = None) -> Device:
        """Return the Device of these numbers; `Device` itself does the same.

        Parameters
        ----------
        type : int
            The DLDeviceType, an int32.
        index : int
            DLDevice.device_id, from 0.
        name : str, optional
            The name of the backend, where several backends share the type.

        Returns
        -------
        Device
            The one object of that value.

        Raises
        ------
        ValueError
            For a negative index, for numbers that DLDevice cannot hold, and for
            a name that means another type.

        Examples
        --------
        >>> bridge.Device.of(1) is bridge.device("cpu")
        True
        """
        key = type, index, name
        return _interned[key] if key in _interned else _intern(type, index, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (int(self.type), self.index, self.name)  # cloudpickle cannot name Device.of

    def __eq__(self, other: object) -> bool:
        """Whether *other* is this device, or a text that names it by number."""
        if type(other) is Device:  # isinstance asks the metaclass, which takes 50 ns
            return other is self
        if not isinstance(other, str):
            return NotImplemented
        try:
            name, selector = split(other)
            number = number_in(name)
        except ValueError:
            return False
        name = name if number is None else _NAMES.get(number, name)  # "type2" is cuda
        return name == self.name and (selector or 0) == self.index

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"{self.name}:{self.index}"

    def __repr__(self) -> str:
        known = f", device_type={self.type:d}" if _type_named(self.name) is None else ""
        return f"dlbridge.device('{self}'{known})"

    def dlpack_device_type(self) -> int:
        """Return the DLDeviceType as a plain int (the name is TVM-FFI's).

        Returns
        -------
        int
            The DLDeviceType.

        Examples
        --------
        >>> bridge.device("cuda:1").dlpack_device_type()
        2
        """
        return int(self.type)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(type, index)``. TVM-FFI takes objects with this method as devices."""
        return self.dlpack

    @property
    def uuid(self) -> str | None:
        """Its UUID, 36 lowercase characters; None if the backend says none. Loads the backend.

        The same device has the same UUID under CUDA, OpenCL and Vulkan, where its
        drivers say one. BackendUnavailable or ExchangeError if it is not here.
        """
        return methods.identity_of(self).uuid

    @property
    def pci(self) -> str | None:
        """Its PCI address, as ``"0000:3b:00.0"``; None if the backend says none.

        Loads the backend. BackendUnavailable or ExchangeError if the device is not here.
        """
        return methods.identity_of(self).pci

    @property
    def kind(self) -> str | None:
        """``"cpu"``, ``"gpu"``, ``"accelerator"`` or ``"other"``; None if the backend does not say.

        Loads the backend. BackendUnavailable or ExchangeError if the device is not here.

        Examples
        --------
        >>> bridge.device("cpu").kind
        'cpu'
        >>> best = max(bridge.devices(), key=lambda d: (d.kind == "gpu", d.memory or 0))
        """
        return methods.identity_of(self).kind

    @property
    def memory(self) -> int | None:
        """The bytes of memory that it has; None if the backend does not say. Loads the backend.

        BackendUnavailable or ExchangeError if the device is not here.
        """
        return methods.identity_of(self).memory

    def same_device(self, backend: str) -> Device | None:
        """Return this physical device as another backend numbers it; loads both backends.

        Parameters
        ----------
        backend : str
            The name of a backend, such as ``"vulkan"``.

        Returns
        -------
        Device or None
            The device with the same UUID. If there is none, the device with the same PCI
            address, where that backend has only one there. None if neither tells.

        Raises
        ------
        BackendUnavailable
            If one of the two backends cannot be used here.
        ExchangeError
            If this device is not here.
        TypeError, ValueError
            If *backend* is not a name.

        Examples
        --------
        >>> print(bridge.device("cpu").same_device("ext_dev"))
        None
        """
        return methods.same_device(self, backend)


class UnknownName(ValueError):
    """No device type has that name; a backend may have it."""


def type_names() -> list[str]:
    """The names of the device types of DLPack."""
    return list(_TYPES)


_interned: dict[tuple[int, int, str | None], Device] = {}


def _intern(type: int, index: int, name: str | None) -> Device:
    """A new Device in the table, or the one that another thread put there first."""
    try:
        type = operator.index(type)
    except TypeError as exc:
        raise TypeError(
            f"Device takes the number of a type; dlbridge.device({type!r}) takes a name"
        ) from exc
    index = operator.index(index)
    if index < 0:
        raise ValueError(f"device index {index}: devices are counted from 0 (DLDevice.device_id)")
    if index >= 2**31 or not -(2**31) <= type < 2**31:
        raise ValueError(f"device type {type}, index {index}: DLDevice holds two int32 (dlpack.h)")
    usual = _NAMES.get(type, f"type{type}")
    if not isinstance(name, str | None):
        raise TypeError(f"the name of a device is text, as 'cuda', not {name!r}")
    if name is None or _type_named(name) == type:
        name = usual  # "type2" is cuda
    if name != usual and not _is_name(name):
        raise ValueError(f"{name!r} is not a device name: letters, digits and _, no digit first")
    if _type_named(name) not in (None, type):
        raise ValueError(
            f"the name {name!r} means device type {_type_named(name):d}, not {type}:"
            " a backend of another type needs a name of its own"
        )
    device = _interned.get((type, index, name))
    if device is None:
        device = object.__new__(Device)
        names = {"type": DLDeviceType(type), "index": index, "name": name, "dlpack": (type, index)}
        kinds = {"is_host": type in HOST_DEVICES, "is_address": type in ADDRESS_DEVICES}
        for slot, value in (names | kinds).items():
            object.__setattr__(device, slot, value)
        device = _interned.setdefault((type, index, name), device)
    if name == usual:
        _interned[type, index, None] = device
    return device


def _type_named(name: str) -> int | None:
    """The device type that *name* always means, None for a name of a backend's own."""
    known = _TYPES.get(name)
    return number_in(name) if known is None else known


CPU: Final = Device.of(1, 0)
"""The one device of host memory."""


def split(text: str) -> tuple[str, int | str | None]:
    """Split ``"opencl:1"`` into the backend's name and the selector of the device.

    The selector is an integer, a text that the backend searches for
    (``"opencl:Intel"``, `dlbridge.protocol.SupportsDeviceInfo`), or None if it
    is missing (``"opencl"``). ValueError if *text* does not have that form.
    """
    name, colon, selector = text.partition(":")
    if not (name in _TYPES or _is_name(name)) or (colon and not selector):
        raise ValueError(
            f"{text!r} is not a valid device: write 'name' or 'name:index', as in 'cuda:0'"
        )
    digits = selector.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return name, int(selector)
    return name, selector or None


def device(
    obj: DeviceLike | int, index: int | None = None, *, device_type: int | None = None
) -> Device:
    """The `Device` of *obj*, without a look at the installed backends.

    See `dlbridge.device`. *device_type* is the type for a name that is not in
    the table of names.
    """
    named, chosen = _find(obj, device_type)
    if index is None:
        if type(obj) is int:  # to torch, that of a GPU
            raise TypeError(
                f"the integer {obj} is not a valid device: write the name and the number, such as "
                f"'cuda:0', or a Device; DLPack's type {named.name} is dlbridge.DLDeviceType({obj})"
            )
        return named
    if chosen:
        raise ValueError(f"{named} is a device already: index={index!r} is one too many")
    return Device.of(named.type, index, named.name)


def _find(obj: Any, device_type: int | None) -> tuple[Device, bool]:
    """The Device of *obj*, and whether *obj* says which index."""
    if type(obj) is Device:
        return obj, True
    if isinstance(obj, str):
        return _from_text(obj, device_type)
    if isinstance(obj, tuple):
        return _from_pair(obj), True
    if isinstance(obj, int) and not isinstance(obj, bool):
        return Device.of(obj), False
    kind = type(obj)
    if kind.__name__ == "device" and kind.__module__ == "torch":
        return _from_torch(obj)
    if hasattr(kind, "dlpack_device_type"):  # tvm_ffi.Device
        return Device.of(obj.dlpack_device_type(), obj.index), True
    if hasattr(kind, "__dlpack_device__"):
        return _from_pair(obj.__dlpack_device__()), True
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(obj, "platform"):
        return _from_jax(obj), True
    builtin = kind.__module__ == "builtins"
    what = kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"
    hint = "" if builtin else "; dlbridge.device_of(x) gives the device of an array"
    raise TypeError(
        f"{'None' if obj is None else with_article(what)} is not a valid device: give a string "
        "such as 'cuda:0', (type, index), a"
        f" device of torch, jax or tvm_ffi, or an object with __dlpack_device__(){hint}"
    )


def _from_text(text: str, device_type: int | None) -> tuple[Device, bool]:
    name, selector = split(text)
    if isinstance(selector, str):
        raise ValueError(
            f"{text!r}: {selector!r} is not an index; only a backend that finds devices by name"
            " (SupportsDeviceInfo) can say which one is meant"
        )
    known = _type_named(name) if device_type is None else device_type
    if known is None:
        raise UnknownName(
            f"{text!r}: no device type is called {name!r}; there are {', '.join(_TYPES)}, typeN"
            " for a type by number, and the names of the installed backends"
        )
    return Device.of(known, selector or 0, name), selector is not None


def plain_number(part: Any) -> Any:
    """A part of ``(type, index)`` as an int: of a member of an Enum its value; else None.

    In the array API the pair is ``tuple[Enum, int]``, and the Enum is any library's own.
    """
    if isinstance(part, Enum) and not isinstance(part, int):
        part = part.value
    try:
        return None if isinstance(part, bool) else operator.index(part)
    except TypeError:
        return None


def _from_pair(pair: Any) -> Device:
    """``(type, index)``: TypeError where they are not integers, ValueError where not two."""
    try:
        numbers = [operator.index(plain_number(part)) for part in pair]
    except TypeError as error:
        name = pair[0] if isinstance(pair, tuple) and pair and isinstance(pair[0], str) else ""
        hint = f"; with a name, write one text: {f'{name}:{pair[-1]}'!r}" if name else ""
        raise TypeError(
            f"{pair!r} is not a valid device: (type, index) is two integers, as in (2, 0) for "
            f"cuda:0{hint}"
        ) from error
    if len(numbers) != 2:
        raise ValueError(f"{pair!r} is not a valid device: (type, index) has two entries")
    return Device.of(numbers[0], numbers[1])


def _from_torch(obj: Any) -> tuple[Device, bool]:
    name = _TORCH_TYPES.get(obj.type, obj.type)
    if name == "cuda" and sys.modules["torch"].version.hip is not None:
        name = "rocm"  # torch for ROCm calls its devices cuda
    known = _type_named(name)
    if known is None:
        raise ExchangeError(
            f"torch device {str(obj)!r} has no DLPack type of its own: name the backend instead"
            f" ('torch-{obj.type}:{obj.index or 0}', of dlbridge-torch), or move the tensor to the"
            " CPU first (tensor.cpu())"
        )
    return Device.of(known, obj.index or 0), obj.index is not None


def _from_jax(obj: Any) -> Device:
    """A ``jax.Device``, by the rules that ``jax.Array.__dlpack_device__`` has."""
    if obj.platform == "cpu":
        return CPU
    version = obj.client.platform_version if obj.platform == "gpu" else obj.platform
    for name in ("cuda", "rocm"):
        if name in version.lower():
            return Device.of(_TYPES[name], obj.local_hardware_id)
    raise ExchangeError(
        f"jax device {str(obj)!r} (platform {obj.platform!r}) has no DLPack type; bring the array"
        " to a CPU device first (jax.device_put(x, jax.devices('cpu')[0]))"
    )
