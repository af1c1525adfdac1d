"""What torch's tensors hide, by every way in: of old some of these ended the process."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

import dlbridge as bridge
from dlbridge import ffi

if TYPE_CHECKING:
    from collections.abc import Callable

    Use = Callable[[Any], object]
    PassTo = Callable[[Use], object]


class Wrapper(torch.Tensor):  # type: ignore[misc]  # torch is not typed here
    """Its memory is that of another tensor, as in DTensor."""

    @staticmethod
    def __new__(cls, *extents: int, **keywords: Any) -> Any:
        make: Any = torch.Tensor._make_wrapper_subclass
        return make(cls, extents, dtype=torch.float32, **keywords)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError("asked")


def freed(
    offset: int,
    kind: Any = torch.float32,
    left: int = 0,
    extents: tuple[int, ...] = (4,),
    steps: tuple[int, ...] = (1,),
) -> Any:
    """A tensor whose storage has *left* bytes now."""
    x = torch.ones(offset + 64, dtype=kind).as_strided(extents, steps, offset)
    x.untyped_storage().resize_(left)
    return x


def resized() -> Any:
    x = torch.ones(4)
    try:
        x.resize_(1 << 50)
    except RuntimeError:
        return x
    raise AssertionError("torch found a petabyte")


def forbidden() -> Any:
    x = torch.ones(4)
    torch._C._set_throw_on_mutable_data_ptr(x)
    return x


def fake() -> Any:
    with FakeTensorMode():
        return torch.ones(8)


def fake_view() -> Any:
    with FakeTensorMode():
        return torch.ones(8)[2:]


def nested(**keywords: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **keywords)


def plainly(make: Callable[[], Any]) -> PassTo:
    """A state that a function makes: *use* gets the tensor."""
    return lambda use: use(make())


def functional(part: slice) -> PassTo:
    return lambda use: torch.func.functionalize(lambda x: (use(x[part]), x)[1])(torch.ones(8))


def in_vmap(use: Use) -> None:
    torch.vmap(lambda x: (use(x), x)[1])(torch.ones(2, 4))


def in_grad(use: Use) -> None:
    torch.func.grad(lambda x: (use(x), x.sum())[1])(torch.ones(4))


FREED = "storage of the torch tensor was freed: it has"
LAZY = "has no shape yet; run its module once, or call x.materialize(shape)"
VALUE = "stands for a value in a function that is being transformed"
STATES: dict[str, tuple[PassTo, str]] = {
    "freed": (plainly(lambda: freed(0)), FREED),
    "freed bfloat16": (plainly(lambda: freed(0, torch.bfloat16)), FREED),
    "freed complex": (plainly(lambda: freed(3, torch.complex64)), FREED),
    "freed with offset 2": (plainly(lambda: freed(2)), FREED),
    "freed with offset 1000": (plainly(lambda: freed(1000)), FREED),
    "freed with offset 500000": (plainly(lambda: freed(500_000)), FREED),
    "freed bfloat16 with offset": (plainly(lambda: freed(1000, torch.bfloat16)), FREED),
    "freed with strides": (plainly(lambda: freed(7, extents=(3, 2), steps=(1, 5))), FREED),
    "meta": (plainly(lambda: torch.ones(4, device="meta")), "meta or fake"),
    "fake": (plainly(fake), "meta or fake"),
    "fake with offset": (plainly(fake_view), "meta or fake"),
    "wrapper": (plainly(lambda: Wrapper(4)), "Wrapper has no memory of its own"),
    "wrapper with offset": (
        plainly(lambda: Wrapper(4, strides=(1,), storage_offset=6)),
        "Wrapper has no memory of its own",
    ),
    "nested": (plainly(nested), "nested torch tensor"),
    "jagged": (plainly(lambda: nested(layout=torch.jagged)), "nested torch tensor"),
    "quantized": (
        plainly(lambda: torch.quantize_per_tensor(torch.ones(4), 1.0, 0, torch.quint8)),
        "quantized torch tensor",
    ),
    "mkldnn": (plainly(lambda: torch.ones(4, 4).to_mkldnn()), "layout _mkldnn"),
    "sparse": (plainly(lambda: torch.ones(4).to_sparse()), "layout sparse_coo"),
    "sparse rows": (plainly(lambda: torch.eye(4).to_sparse_csr()), "layout sparse_csr"),
    "masked": (
        plainly(lambda: torch.masked.masked_tensor(torch.ones(3), torch.ones(3).bool())),
        "MaskedTensor has a mask",
    ),
    "zero": (plainly(lambda: torch._efficientzerotensor((4,))), "ZeroTensor"),
    "negative": (plainly(lambda: torch.ones(4)._neg_view()), "lazily conjugated or negated"),
    "conjugate": (
        plainly(lambda: torch.ones(4, dtype=torch.complex64).conj()),
        "lazily conjugated or negated",
    ),
    "vmap": (in_vmap, VALUE),
    "grad": (in_grad, VALUE),
    "functional": (functional(slice(None)), VALUE),
    "functional with offset": (functional(slice(2, None)), VALUE),
    "uninitialized": (plainly(UninitializedParameter), LAZY),
    "uninitialized, without a gradient": (
        plainly(lambda: UninitializedParameter(requires_grad=False)),
        LAZY,
    ),
    "uninitialized buffer": (plainly(UninitializedBuffer), LAZY),
    "forbidden": (plainly(forbidden), "does not give the address of the tensor's memory: Cannot"),
}
"""Name -> what passes such a tensor to a function, and what the error says."""


def read(value: Any) -> Any:
    """Read what *value* holds."""
    if isinstance(value, bridge.Tensor):
        return value.tolist()
    if hasattr(value, "values"):
        value = value.values()
    return [read(one) for one in value]


_read: Any = ffi.convert_func(lambda *values: [read(value) for value in values] and None)


def save(x: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bridge.save(Path(folder, "x.npy"), x)


WAYS: dict[str, Use] = {
    "from_dlpack": lambda x: bridge.from_dlpack(x).tolist(),
    "asarray": lambda x: bridge.asarray(x).tolist(),
    "copy=True": lambda x: bridge.from_dlpack(x, copy=True),
    "a list": lambda x: bridge.asarray([x, x]),
    "to_device cpu": lambda x: bridge.to_device(x, "cpu").tolist(),
    "to_device": lambda x: bridge.to_device(x, "ext_dev:0"),
    "like numpy": lambda x: bridge.to_device(x, "cpu", like="numpy").tolist(),
    "like torch": lambda x: bridge.to_device(x, "cpu", like="torch", copy=True).tolist(),
    "copy_ from": lambda x: bridge.copy_(bridge.zeros(4), x),
    "copy_ to": lambda x: bridge.copy_(x, bridge.zeros(4)),
    "accepts": bridge.accepts("numpy")(lambda a: a.tolist()),
    "save": save,
    "ffi call": _read,
    "ffi call, seven": lambda x: _read(*[x] * 7),
    "ffi list": lambda x: _read([x]),
    "ffi lists": lambda x: _read([[x], [x]]),
    "ffi dict": lambda x: _read({"x": x}),
    "ffi bound": lambda x: _read.bind(x)(),
    "ffi reading": _read.reading(),
    "ffi readonly": lambda x: _read(ffi.readonly([x])),
    "ffi array": lambda x: read(ffi.Array([x])),
    "ffi convert": lambda x: read(ffi.convert(x)),
    "ffi callback's result": lambda x: read(ffi.convert_func(lambda: x)()),
    "ffi from_dlpack": lambda x: ffi.from_dlpack(x).tolist(),
}


def refuse_all() -> None:
    """Each way refuses each state, in the same words; stderr says in which cell a crash was."""
    wrong: list[str] = []
    for state, (pass_to, words) in STATES.items():
        for name, take in WAYS.items():
            sys.stderr.write(f"{state}, {name}\n")
            pass_to(partial(refuse, wrong, f"{state}, {name}", words, take))
    assert not wrong, "\n".join(wrong)


def refuse(wrong: list[str], cell: str, words: str, take: Use, x: Any) -> None:
    try:
        take(x)
        wrong.append(f"{cell}: accepted")
    except bridge.ExchangeError as error:
        if words not in str(error):
            wrong.append(f"{cell}: {error}")
    except Exception as error:
        wrong.append(f"{cell}: {type(error).__name__}: {str(error)[:200]}")


def accept_all() -> None:
    """By each way goes what has memory: with offsets and strides, gradients for functions, empty."""
    x = torch.arange(12.0).reshape(3, 4)
    good = [x, x[1:], x.T, x[:, 1::2], x[2:, 3:], x.expand(2, 3, 4), torch.ones(()), x.bfloat16()]
    good += [torch.ones(0), torch.ones(3)[3:], x[3:], x.bfloat16()[3:], freed(5, extents=(0,))]
    good.append(torch.nn.Parameter(x, requires_grad=False))
    for tensor in good:
        for name, take in WAYS.items():
            if not name.startswith("copy_") and name not in ("to_device", "accepts", "like numpy"):
                take(tensor)
    taken: list[Any] = []
    note: Any = ffi.convert_func(lambda t: taken.append(t.tolist()))
    for tensor in (*good, x.clone().requires_grad_()):
        note(tensor)
        assert taken.pop() == tensor.tolist()
