"""torch: what its tensors hide, its short ways, and its class for memory that nobody may write."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from operator import attrgetter, methodcaller, mul
from typing import TYPE_CHECKING, Any

from dlbridge import DLDeviceType, dtype as as_dtype
from dlbridge.abi import label_plain, new_array_tensor
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    FLOAT8,
    LOADED,
    NUMPY_OWN,
    Library,
    exchanges,
    import_producer,
    native_dtypes,
    origin_of,
    unless_handler,
    with_article,
    wrap_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import Device, Operand, Tensor


def is_readonly_torch(cls: type) -> bool:
    """Whether *cls* is torch's ReadOnlyTensorWrapper (torch 2.14.1), or a class under it."""
    wrapper = getattr(sys.modules.get("torch.utils.dlpack"), "ReadOnlyTensorWrapper", None)
    return wrapper is not None and issubclass(cls, wrapper)


def plain_torch(x: Any) -> Any:
    """The ``torch.Tensor`` in a ReadOnlyTensorWrapper, which allows DLPack's methods only."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


def refuse_hidden(x: Any) -> None:
    """Raise ExchangeError for what a torch tensor hides: no plain memory of its own, a lazy sign.

    The one description of these states, for every way in. A gradient is not among them: it does not
    hinder a function of C that reads the memory.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return
    readonly = False
    if type(x) is not torch.Tensor:  # most are, and these questions took a fifth of the time
        readonly = is_readonly_torch(type(x))
        if readonly:
            x = plain_torch(x)
        if torch.nn.parameter.is_lazy(x):  # it refuses all questions below, with a ValueError
            raise ExchangeError(
                f"the {origin_of(x)} has no shape yet; run its module once, or call "
                "x.materialize(shape)"
            )
        if type(x).__name__ == "MaskedTensor":
            raise ExchangeError(
                "a torch MaskedTensor has a mask, which DLPack cannot carry; pass "
                "x.to_tensor(value), which fills it, or x.get_data()"
            )
    if x.is_meta or type(x).__name__ == "FakeTensor":
        raise ExchangeError(
            f"the {origin_of(x)} is a meta or fake tensor: it has a shape and no memory; make "
            "a real one of it first (torch.empty_like(x, device='cpu') and its values)"
        )
    if x.is_nested:
        raise ExchangeError(
            "a nested torch tensor is not one block of memory; pass x.to_padded_tensor(value), or "
            "its parts (x.unbind())"
        )
    if x.is_quantized:
        raise ExchangeError(
            "a quantized torch tensor has a scale, which DLPack cannot carry; pass x.dequantize(), "
            "or its integers (x.int_repr())"
        )
    if x.layout is not torch.strided:
        raise ExchangeError(
            f"a torch tensor of layout {str(x.layout).removeprefix('torch.')} has no strides; "
            "pass x.to_dense()"
        )
    if getattr(x, "_is_zerotensor", bool)():
        raise ExchangeError(
            "the torch tensor is a ZeroTensor, which has no memory; pass torch.zeros(x.shape, "
            "dtype=x.dtype) in its place"
        )
    refuse_type(x)
    _refuse_without_memory(x, readonly)
    if x.is_conj() or x.is_neg():
        raise ExchangeError(
            "the torch tensor is lazily conjugated or negated, which other libraries and kernels "
            "do not see; pass x.resolve_conj().resolve_neg()"
        )


def _refuse(x: Any) -> None:
    """`refuse_hidden`, and gradients."""
    refuse_hidden(x)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return
    if is_readonly_torch(type(x)):  # it allows no question
        x = plain_torch(x)
    if x.requires_grad:
        raise ExchangeError("the torch tensor requires grad; pass x.detach()")


def refuse_type(x: Any) -> None:
    """Types that DLPack does not have, and those that torch exports as another one."""
    what = _type_refused(x.dtype)
    if what:
        raise ExchangeError(f"the torch tensor has elements of {x.dtype}, {what}")


@lru_cache(maxsize=64)
def _type_refused(dtype: Any) -> str:
    """What is wrong with elements of *dtype*, and what to do; empty for others."""
    name = str(dtype).removeprefix("torch.")
    if _BELOW_A_BYTE.fullmatch(name):
        # torch leaves the layout to subclasses of its tensors, and exports them as 8 bits.
        why = "of which torch does not say whether a byte has one or several"
    else:
        try:
            as_dtype(dtype)
        except ExchangeError:
            why = "which DLPack does not have"
        else:
            return ""
    return f"{why}; pass their bytes, x.view(torch.uint8)"


_BELOW_A_BYTE = re.compile("u?int[1-7]")


def _refuse_without_memory(x: Any, readonly: bool) -> None:
    """Values of transformed functions, classes that wrap other tensors, and freed storages."""
    try:
        stored = x.untyped_storage().nbytes()
    except NotImplementedError as exc:
        raise _stands_for_a_value() from exc
    if not readonly:  # data_ptr() would copy what is copied on write, and this is only read
        try:
            missing = is_without_memory(x)
        except RuntimeError as exc:
            reason = str(exc).partition("\n")[0].rstrip(".")
            raise ExchangeError(
                f"torch does not give the address of the tensor's memory: {reason}; pass x.clone() "
                "from where the tensor can be read"
            ) from exc
        if missing and stored:
            if type(x) is sys.modules["torch"].Tensor:
                raise _stands_for_a_value()
            way = "x.to_local()" if hasattr(x, "to_local") else "the tensor inside it"
            raise ExchangeError(
                f"{with_article(origin_of(x))} has no memory of its own: its class wraps other "
                f"tensors (torch.Tensor._make_wrapper_subclass); pass {way}"
            )
    end = _end(x)
    if end > stored:
        raise ExchangeError(
            f"the storage of the torch tensor was freed: it has {stored} bytes now, and the tensor "
            f"reaches to byte {end} of it. FSDP does so between its layers, "
            "untyped_storage().resize_() and a failed resize_() do, too; pass the tensor while it "
            "has its memory (FSDP: inside summon_full_params, or after unshard())"
        )


def _check_memory(operand: Operand, x: Any) -> None:
    """`refuse_hidden`, if *operand*, made of the tensor *x*, is not all in the storage of *x*."""
    storage = x.untyped_storage()
    low, nbytes = 0, operand.nbytes
    if nbytes and not operand.contiguous:
        array = operand.carrier
        steps = array.strides
        if min(steps) < 0:
            low, nbytes = operand.span()
        else:  # the same, in a third of the time
            nbytes = sum(map(mul, array.shape, steps)) - sum(steps) + array.itemsize
    start = operand.data + low - storage.data_ptr()
    if nbytes and not 0 <= start <= len(storage) - nbytes:
        refuse_hidden(x)
        raise ExchangeError(
            "the torch tensor has other memory now than the tensor that was made of it "
            "(share_memory_ moved it): make that again, dlbridge.asarray(x)"
        )


def is_without_memory(x: Any) -> bool:
    """Whether the storage of the torch tensor *x* begins at NULL, and *x* has elements."""
    # Not by the address alone: with an offset it is that offset.
    return bool(x.numel()) and x.data_ptr() == x.storage_offset() * x.element_size()


LOWEST_USUAL = 1 << 40
"""Memory lies above this address on most systems; below it, `is_without_memory` is to be asked.

To look at the address costs 40 ns of the 1.4 us that an exchange takes. To compare the size of the
storage, too, costs more: torch makes an object of the storage each time. The best form that was
found (numpy's flags, the offset, ``len(x.untyped_storage())``) made `from_dlpack` 10 % slower for
whole tensors and 70 % for parts, and a call of the FFI would be 15 % slower. So what shares memory
does not see a storage that was made smaller but not empty; what copies bytes does, by
`_check_memory`.
"""


def _has_its_memory(array: Any, x: Any) -> bool:
    """Whether *array*, which torch made of *x*, is on memory of *x*, or has no elements."""
    return not array.size or not (array.flags.owndata or is_without_memory(x))


def _end(x: Any) -> int:
    """The number of bytes of its storage up to the end of the last element of *x*."""
    if not x.numel():
        return 0
    steps = zip(x.shape, x.stride(), strict=True)
    last = sum((extent - 1) * step for extent, step in steps)
    return int((x.storage_offset() + last + 1) * x.element_size())


def _stands_for_a_value() -> ExchangeError:
    return ExchangeError(
        "the torch tensor has no memory of its own: it stands for a value in a function that is "
        "being transformed (torch.vmap, torch.func.grad); call dlbridge outside of that function"
    )


def _importer(cls: type) -> Callable[[Any], Tensor]:
    torch = sys.modules["torch"]
    known = _types_of_numpy(torch)
    labels = {
        getattr(torch, name): (getattr(torch, f"uint{as_dtype(name).bits}"), as_dtype(name))
        for name in _NOT_IN_NUMPY
        if hasattr(torch, name)
    }
    # Functions of C: looked up on the instance they would cost 40 ns each.
    members: Any = cls
    to_numpy, view, is_neg = members.numpy, members.view, members.is_neg
    address_of = torch.Tensor.data_ptr

    def from_torch(x: Any) -> Tensor:
        if not x.is_cpu:
            return import_producer(x)
        # torch's own C conversion refuses what would be wrong (grad, conj, neg)
        # in a third of the time of __dlpack__. Its TypeError for a
        # type that numpy does not have costs 10 us, so that is looked up first.
        dtype = x.dtype
        try:
            if dtype in known:
                array = to_numpy(x)
                # torch may have no memory (freed, functional, no elements), or hide it: in a
                # FakeTensorMode the array is of a FakeTensor. With an offset, none is that offset.
                if address_of(array.base) > LOWEST_USUAL:
                    # torch has no negative strides: `wrap_array` would do the same.
                    tensor = new_array_tensor()  # `wrap_plain(array)` would cost 4 % more
                    tensor._array = array
                    tensor.__tensor_export__ = array.__dlpack__
                    return tensor
                if _has_its_memory(array, x):
                    return wrap_array(array)
            elif dtype in labels and not x.requires_grad and not is_neg(x):
                # A view as integers of the same size; it would hide a gradient.
                carrier, label = labels[dtype]
                array = to_numpy(view(x, carrier))
                if address_of(array.base) > LOWEST_USUAL:
                    return label_plain(array, label)
                if _has_its_memory(array, x):
                    return wrap_array(array).view(label)
        except unless_handler(Exception):
            pass  # a FakeTensorMode raises AssertionError, extents that overflow ValueError
        return import_producer(x)

    return from_torch


def _types_of_numpy(torch: Any) -> set[Any]:
    """The dtypes of torch that numpy has too."""
    names = {dtype.name for dtype in native_dtypes().values()}
    return {getattr(torch, name) for name in names if hasattr(torch, name)}


_NOT_IN_NUMPY = ("bfloat16", *FLOAT8)
"""Types of torch, one element in each item, that numpy does not have."""


def _of_numpy() -> Callable[[Any], Any]:
    modules, torch = sys.modules, sys.modules["torch"]
    from_numpy: Any = getattr(torch, "from_numpy", None)  # a test's double may have none

    def convert(x: Any) -> Any:
        try:
            # torch would write into memory that is read-only. `like=` may mean another module now.
            if x.flags.writeable and modules["torch"] is torch:
                return from_numpy(x)
        except unless_handler(TypeError, ValueError, KeyError):
            pass  # a type or strides that torch does not have
        return None

    return convert


def _as_numpy() -> Callable[[Any], Any]:
    torch = sys.modules["torch"]
    known, to_numpy = _types_of_numpy(torch), torch.Tensor.numpy
    address_of = torch.Tensor.data_ptr

    def convert(x: Any) -> Any:
        try:
            if x.dtype in known:
                array = to_numpy(x)
                if address_of(array.base) > LOWEST_USUAL:  # as in `_importer`
                    return array
                if _has_its_memory(array, x):
                    return array
        except unless_handler(Exception):
            pass  # a gradient, a lazy sign, another device, a FakeTensorMode
        return None

    return convert


def _make_readonly(tensor: Tensor) -> Any:
    """``torch.utils.dlpack.ReadOnlyTensorWrapper``; without it torch ignores READ_ONLY."""
    import torch

    return torch.utils.dlpack.ReadOnlyTensorWrapper(torch.from_dlpack(tensor))


_DEVICES = frozenset(
    {
        DLDeviceType.kDLCPU,
        DLDeviceType.kDLCUDA,
        DLDeviceType.kDLCUDAHost,
        DLDeviceType.kDLROCM,
        DLDeviceType.kDLOneAPI,
        DLDeviceType.kDLMetal,
        DLDeviceType.kDLExtDev,
    }
)


def _check(_tensor: Tensor, device: Device) -> None:
    """Raise ExchangeError for the device type that torch has only with a package for it.

    What another backend has of that type is no memory of that package's device.
    """
    if device.type is not DLDeviceType.kDLExtDev:
        return
    import torch

    name = torch.device("privateuseone").type  # as that package has called it
    if not hasattr(torch, name) or (device.name in LOADED and device.name != f"torch-{name}"):
        raise ExchangeError(
            f"torch has no arrays on {device}: no package here has registered this device with it "
            f"(torch.{name}); dlbridge.to_device(t, 'cpu', like='torch') brings the tensor to "
            "host memory"
        )


def _look(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    return "cpu" if x.is_cpu else x.device, x.dtype, x.shape, x.nbytes


# torch 2.13 aborts the process on negative strides.
_ANY = Library(
    "torch",
    refuse=_refuse,
    check=_check,
    new_structs=True,
    keeps_types=True,
    types=NUMPY_OWN | FLOAT8 | {"bfloat16", "complex32", "float4_e2m1fnx2"},
    device_types=_DEVICES,
)

READONLY = _ANY._replace(
    arrays=("torch.utils.dlpack.ReadOnlyTensorWrapper",),
    make=_make_readonly,
    keeps_readonly=True,
)
"""torch's class for memory that must not be written (torch 2.14.1), which `like=` may name."""

LIBRARY = _ANY._replace(
    arrays=("torch.Tensor",),
    special=(READONLY,),
    importer=_importer,
    check_memory=_check_memory,
    on_host=attrgetter("is_cpu"),
    as_numpy=_as_numpy,
    of_numpy=_of_numpy,
    exchanges=(
        *exchanges("torch.Tensor", "from_numpy from_dlpack utils.dlpack.from_dlpack", "shared"),
        *exchanges("torch.Tensor", "as_tensor asarray frombuffer Tensor"),
        *exchanges("torch.Tensor", "tensor", "copied"),
        *exchanges("torch.Tensor", "Tensor.cpu Tensor.cuda Tensor.to", "moved"),
        *exchanges("numpy.ndarray", "Tensor.numpy", "shared"),
        *exchanges("list", "Tensor.tolist", "copied"),
        *exchanges("number", "Tensor.item", "copied"),
    ),
    look=(_look, methodcaller("data_ptr")),
)
