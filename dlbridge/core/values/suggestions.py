"""Suggestions for names that are spelled wrongly, or that other libraries have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DTYPE_NAMES", "PACKAGE_NAMES", "TENSOR_NAMES", "Absent", "did_you_mean", "with_article"]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``" (did you mean 'opencl'?)"``, or nothing where no *known* name is like *word*."""
    if not isinstance(word, str):
        return ""
    from difflib import get_close_matches  # for messages only

    names = {name.lower(): name for name in known}
    lower = word.lower()
    usual = _ALIASES.get(lower, "")
    close = [lower] if lower in names else [usual] if usual in names else []
    close = close or get_close_matches(lower, list(names), n=1, cutoff=0.7)
    # What is known and cannot be had here was not spelled wrongly.
    return f" (did you mean {names[close[0]]!r}?)" if close and names[close[0]] != word else ""


def with_article(name: str) -> str:
    """``"an int"``, ``"a uint8"``, ``"an xarray.Dataset"``: the sound counts."""
    vowel = _VOWEL_SOUND.match(name)
    return f"{'an' if vowel else 'a'} {name}"


_VOWEL_SOUND = re.compile(r"a|e|i|o(?!ne)|x|ml|un(?!i)|up", re.IGNORECASE)


_ALIASES = {
    # libraries
    "np": "numpy",
    "jnp": "jax",
    "cp": "cupy",
    "tf": "tensorflow",
    "pd": "pandas",
    "pytorch": "torch",
    "mx": "mlx",
    # devices
    "nvidia": "cuda",
    "amd": "rocm",
    "hip": "rocm",
    "intel": "oneapi",
    "sycl": "oneapi",
    "xpu": "oneapi",
    "host": "cpu",
    "cl": "opencl",
    "vk": "vulkan",
    "wgpu": "webgpu",
    "mps": "metal",
    # dtypes
    "bf16": "bfloat16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "fp64": "float64",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i4": "int4",
    "u4": "uint4",
    "fp4": "float4_e2m1fn",
    "fp8": "float8_e4m3fn",
}
"""Short names that are in use -> ours, for messages only."""

_NUMPY = "dlbridge.to_device(x, 'cpu', like='numpy')"
_TORCH = "dlbridge.to_device(x, device, like='torch')"
_JAX = "dlbridge.to_device(x, 'cpu', like='jax')"
_MOVE = "dlbridge.to_device(x, device) moves a tensor, such as to 'opencl:0'"
_IN = "dlbridge.asarray(x) takes the arrays of every library"
_COPY = "dlbridge.to_device(x, dlbridge.device_of(x), copy=True) makes a copy"
_STREAM = "dlbridge.use_stream(device, stream) takes the stream of any library"

PACKAGE_NAMES = {
    "to_numpy": f"{_NUMPY} gives a numpy array",
    "as_numpy": f"{_NUMPY} gives a numpy array",
    "asnumpy": f"{_NUMPY} gives a numpy array",
    "to_torch": f"{_TORCH} gives a torch tensor",
    "to_jax": f"{_JAX} gives a jax array",
    "to_dlpack": "pass the tensor itself: every library's from_dlpack takes it",
    "from_numpy": _IN,
    "from_torch": _IN,
    "from_jax": _IN,
    "from_array": _IN,
    "array": _IN,
    "as_tensor": _IN,
    "tensor": _IN,
    "to": _MOVE,
    "move": _MOVE,
    "transfer": _MOVE,
    "device_put": _MOVE,
    "convert": f"{_MOVE}, {_TORCH} gives an array of another library, and "
    "dlbridge.astype(x, dtype) another dtype",
    "cast": "dlbridge.astype(x, dtype) converts the elements",
    "copy": f"{_COPY}; dlbridge.copy_(target, source) copies into memory that there is",
    "clone": _COPY,
    "stream": _STREAM,
    "Stream": _STREAM,
    "context": _STREAM,
    "from_file": "dlbridge.load(path) reads a file",
    "describe": "dlbridge.explain(x, device) says what a move would do",
    **{
        name: f"dlbridge.backend({name!r}) gives the backend, and '{name}:0' is its first device"
        for name in ("cpu", "cuda", "oneapi", "opencl", "rocm", "vulkan", "webgpu")
    },
}
"""A name that other packages have -> what to write with dlbridge."""

_NUMBERS = "a Tensor does not compute: take an array of a library that does, such as"
_CAST = "dlbridge.astype(t, dtype) converts the elements"
_FILL = "dlbridge.copy_(t, dlbridge.full_like(t, value)) fills it"
_AXES = "t.transpose(axis, ...) puts the dimensions in another order"

DTYPE_NAMES = dict.fromkeys(
    ("kind", "byteorder", "char", "str", "num", "names", "fields", "subdtype", "isbuiltin"),
    "it is no dtype of numpy, which d.numpy is; for a function that wants an array of numpy, "
    "pass numpy.asarray(t), which shares the memory of a tensor on the CPU",
)
"""A name that numpy's dtypes have -> what to write with ours."""

TENSOR_NAMES = {
    "cpu": "write t.to_device('cpu')",
    "cuda": "write t.to_device('cuda:0')",
    "to": "write t.to_device(device), and dlbridge.to_device(t, device, like='torch') for an array "
    "of another library",
    "to_numpy": "write t.numpy(), or dlbridge.to_device(t, 'cpu', like='numpy') from any device",
    "torch": "write dlbridge.to_device(t, t.device, like='torch')",
    "to_torch": "write dlbridge.to_device(t, t.device, like='torch')",
    "jax": "write dlbridge.to_device(t, t.device, like='jax')",
    "to_jax": "write dlbridge.to_device(t, t.device, like='jax')",
    "detach": "a Tensor has no gradient, so use it as it is",
    "astype": _CAST,
    "type": _CAST,
    "copy": "dlbridge.to_device(t, t.device, copy=True) makes a copy",
    "clone": "dlbridge.to_device(t, t.device, copy=True) makes a copy",
    "copy_": "dlbridge.copy_(t, source) copies into it",
    "contiguous": "dlbridge.to_device(t, t.device, copy=True) makes a compact copy",
    "fill": _FILL,
    "fill_": _FILL,
    "zero_": _FILL,
    "flatten": "write t.reshape(-1)",
    "ravel": "write t.reshape(-1)",
    "squeeze": "write t.reshape(shape)",
    "unsqueeze": "write t.reshape(shape), or t[None]",
    "permute": _AXES,
    "swapaxes": _AXES,
    "dim": "write t.ndim",
    **{
        name: f"{_NUMBERS} dlbridge.to_device(t, 'cpu', like='numpy').{name}()"
        for name in (
            "sum", "mean", "max", "min", "prod", "std", "var", "argmax", "argmin", "any", "all",
            "cumsum", "round",
        )
    },
}  # fmt: skip
"""A name that other libraries' tensors have -> what to write with ours."""


class Absent:
    """An attribute that is not there, whose AttributeError says what is."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead

    def __repr__(self) -> str:
        return f"<not there: {self._instead}>"  # what `help` shows

    def __get__(self, _tensor: object, cls: type) -> NoReturn:
        raise AttributeError(
            f"{cls.__name__!r} object has no attribute {self._name!r}; {self._instead}"
        )
