"""Text for people: articles, numbers of bytes, tables, and what to write for a name.

The name is one that is spelled wrongly, or one that other libraries have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from dlbridge.core.public import for_guests

if TYPE_CHECKING:
    from collections.abc import Iterable


@for_guests
def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a question for the end of a message about a name that is not known.

    Parameters
    ----------
    word : object
        What somebody wrote.
    known : iterable of str
        The names that there are.

    Returns
    -------
    str
        With a space at its beginning; empty where no known name is like *word*.

    Examples
    --------
    >>> from dlbridge.extending import did_you_mean
    >>> did_you_mean("opnecl", ["cpu", "opencl"])
    " (did you mean 'opencl'?)"
    """
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


@for_guests
def with_article(name: str) -> str:
    """Return a name behind "a" or "an", for messages.

    Parameters
    ----------
    name : str
        Of a type, for example. The sound at its beginning counts.

    Returns
    -------
    str
        The article and the name.

    Examples
    --------
    >>> from dlbridge.extending import with_article
    >>> with_article("int"), with_article("uint8"), with_article("xarray.Dataset")
    ('an int', 'a uint8', 'an xarray.Dataset')
    """
    vowel = _VOWEL_SOUND.match(name)
    return f"{'an' if vowel else 'a'} {name}"


_VOWEL_SOUND = re.compile(r"a|e|i|o(?!ne)|x|ml|un(?!i)|up", re.IGNORECASE)


@for_guests
def bytes_text(count: int) -> str:
    """Return a number of bytes with its unit.

    Parameters
    ----------
    count : int
        The bytes, 0 or more.

    Returns
    -------
    str
        From 10,000 bytes on in powers of 1024.

    Examples
    --------
    >>> from dlbridge.extending import bytes_text
    >>> bytes_text(512), bytes_text(3 << 19)
    ('512 bytes', '1.5 MiB')
    """
    if count < 10_000:
        return f"{count} bytes"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@for_guests
def html_table(
    title: str, head: tuple[str, ...] = (), rows: Iterable[tuple[object, ...]] = ()
) -> str:
    """Return a title and a table as HTML, for ``_repr_html_``.

    Parameters
    ----------
    title : str
        The text above it.
    head : tuple of str
        The names of the columns. Without them there is no table.
    rows : iterable of tuples
        Their cells, as texts or what `str` makes texts of.

    Returns
    -------
    str
        What notebooks show. Nothing in it is taken for HTML.

    Examples
    --------
    >>> from dlbridge.extending import html_table
    >>> html_table("sizes", ("name",), [("a<b",)])
    '<p>sizes</p><table><tr><th>name</th></tr><tr><td>a&lt;b</td></tr></table>'
    """
    from html import escape  # for notebooks only

    def line(tag: str, cells: tuple[object, ...]) -> str:
        return "".join([f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells])

    lines = [line("th", head), *(line("td", row) for row in rows)] if head else []
    body = "".join([f"<tr>{cells}</tr>" for cells in lines])
    return f"<p>{escape(title)}</p>" + (f"<table>{body}</table>" if body else "")


# Names that others have, and what to write ------------------------------------------


def _by_name(groups: dict[str, str]) -> dict[str, str]:
    """The text for each name, from the names for each text."""
    return {name: text for text, names in groups.items() for name in names.split()}


# Of libraries, devices and dtypes.
_SHORT = """
np:numpy jnp:jax cp:cupy tf:tensorflow pd:pandas pytorch:torch mx:mlx
nvidia:cuda amd:rocm hip:rocm intel:oneapi sycl:oneapi xpu:oneapi host:cpu cl:opencl vk:vulkan
wgpu:webgpu mps:webgpu
bf16:bfloat16 fp16:float16 f32:float32 fp32:float32 f64:float64 fp64:float64 i16:int16 i32:int32
i64:int64 u16:uint16 u32:uint32 u64:uint64 i4:int4 u4:uint4 fp4:float4_e2m1fn fp8:float8_e4m3fn
"""
_ALIASES = dict(pair.split(":") for pair in _SHORT.split())
"""Short names that are in use -> ours, for messages only."""

_TORCH = "dlbridge.to_device(x, 'cpu', like='torch')"
_MOVE = "dlbridge.to_device(x, device) moves a tensor, such as to 'opencl:0'"
_COPY = "dlbridge.to_device(x, dlbridge.device_of(x), copy=True) makes a copy"
_DTYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128"
)
_BACKENDS = "cpu cuda oneapi opencl rocm vulkan webgpu"

PACKAGE_NAMES = _by_name(
    {
        "dlbridge.to_device(x, 'cpu', like='numpy') gives a numpy array": "to_numpy as_numpy "
        "asnumpy",
        f"{_TORCH} gives a torch tensor": "to_torch",
        "dlbridge.to_device(x, 'cpu', like='jax') gives a jax array": "to_jax",
        "pass the tensor itself: every library's from_dlpack takes it": "to_dlpack",
        "dlbridge.asarray(x) takes the arrays of every library": "from_numpy from_torch from_jax "
        "from_array from_list from_pandas from_buffer frombuffer array as_tensor tensor",
        _MOVE: "to move transfer device_put",
        f"{_MOVE}, {_TORCH} gives an array of another library, and "
        "dlbridge.astype(dlbridge.to_device(x, 'cpu'), dtype) another dtype": "convert",
        "dlbridge.astype(dlbridge.to_device(x, 'cpu'), dtype) converts the elements": "cast",
        f"{_COPY}; dlbridge.copy_(target, source) copies into memory that there is": "copy",
        _COPY: "clone",
        "dlbridge.use_stream(device, stream) takes the stream of any library": "stream Stream "
        "context",
        "dlbridge.load(path) reads a file": "from_file load_file",
        "dlbridge.save(path, x) writes a file": "to_file save_file",
        "dlbridge.from_blob(address, shape, dtype) makes a tensor of an address": "from_pointer "
        "from_ptr from_address",
        "dlbridge.copy_(target, dlbridge.full_like(target, value)) fills memory that there "
        "is": "fill fill_ zero_",
        "let numpy make the numbers: dlbridge.asarray(numpy.arange(3)) is a tensor on its "
        "memory": "arange linspace eye random rand randn",
        "dlbridge does not compute: take an array of a library that does, such as "
        "dlbridge.to_device(x, 'cpu', like='numpy')": "concatenate concat stack where matmul sum "
        "mean",
        "dlbridge.asarray(x).reshape(shape) is a view of another shape": "reshape",
        "dlbridge.explain(x, device) says what a move would do": "describe",
        "dlbridge.devices() lists the devices that can be used here": "is_available device_count "
        "get_device get_devices list_devices",
    }
) | {
    name: f"dlbridge.backend({name!r}) gives the backend, and '{name}:0' is its first device"
    for name in _BACKENDS.split()
}
"""A name that other packages have -> what to write with dlbridge."""
PACKAGE_NAMES |= {
    name: f"a dtype is written as a text, {name!r}; dlbridge.dtype({name!r}) is its object"
    for name in _DTYPES.split()
}

_NUMPYS = (
    "it is no {} of numpy; for a function that wants an array of numpy, pass numpy.asarray(t), "
    "which shares the memory of a tensor on the CPU"
).format

DTYPE_NAMES = _by_name(
    {
        _NUMPYS("dtype"): "kind byteorder char str num names fields subdtype isbuiltin "
        "hasobject isnative"
    }
)
"""A name that numpy's dtypes have -> what to write with ours."""

_COMPUTED = "sum mean max min prod std var argmax argmin any all cumsum round sort argsort clip"

TENSOR_NAMES = _by_name(
    {
        "write t.to_device('cpu')": "cpu",
        "write t.to_device('cuda:0')": "cuda",
        "write t.to_device(device), and dlbridge.to_device(t, 'cpu', like='torch') for an array of "
        "another library": "to",
        "write t.numpy(copy=None), which copies from devices that the host does not "
        "read": "to_numpy as_numpy get asnumpy",
        "write dlbridge.to_device(t, 'cpu', like='torch'), or name another device that torch "
        "has": "torch to_torch",
        "write dlbridge.to_device(t, 'cpu', like='jax'), or name another device that jax "
        "has": "jax to_jax",
        "a Tensor has no gradient, so use it as it is": "detach",
        "dlbridge.astype(dlbridge.to_device(t, 'cpu'), dtype) converts the elements": "astype type "
        "cast half float double bfloat16 int long",
        "dlbridge.to_device(t, t.device, copy=True) makes a copy": "copy clone",
        "dlbridge.copy_(t, source) copies into it": "copy_",
        "dlbridge.to_device(t, t.device, copy=True) makes a compact copy": "contiguous",
        "dlbridge.copy_(t, dlbridge.full_like(t, value)) fills it": "fill fill_ zero_",
        "write t.reshape(-1)": "flatten ravel",
        "write t.reshape(shape)": "squeeze",
        "write t.reshape(shape), or t[None]": "unsqueeze",
        "t.transpose(axis, ...) puts the dimensions in another order": "permute swapaxes",
        "write t.ndim": "dim",
        "write t.strides": "stride",
        "write t.itemsize": "element_size",
        "write t.tobytes()": "tostring",
        "write t.readonly": "writeable is_readonly",
        "t.device says where it is": "is_cpu is_cuda",
        "t.data_ptr() is its address or handle, and t.operand() has all that a kernel "
        "needs": "data ptr address handle buffer storage_offset",
        "t.to_native() gives the object of the device's own library": "native",
        "dlbridge.synchronize(t.device) waits for the work on its device": "synchronize sync wait "
        "block_until_ready",
        "dlbridge.save(path, t) writes a file": "save tofile",
        "its memory is freed when nobody uses it any more: del t": "free release close delete",
        _NUMPYS("array"): "flags ctypes base flat",
    }
) | {
    name: "a Tensor does not compute: take an array of a library that does, such as "
    f"dlbridge.to_device(t, 'cpu', like='numpy').{name}()"
    for name in _COMPUTED.split()
}
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


class WithAbsentNames(type):
    """The class of classes that have `Absent` names: ``dir()`` does not list those."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if hasattr(cls, name)]
