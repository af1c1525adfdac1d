"""What to write instead of a name that other libraries have: for messages of errors only.

The core and the package ask these tables for names that they do not have.
"""

from __future__ import annotations


def refuse_shape(cause: TypeError, *given: object) -> None:
    """Raise TypeError if ``view`` was given the lengths of a shape, as torch's takes them."""
    extents = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in extents):
        return
    text = ", ".join(map(str, extents))
    what = f"view({text})" if len(given) > 1 else cause
    raise TypeError(f"{what}; view takes a dtype, and t.reshape({text}) another shape") from cause


def _by_name(groups: dict[str, str]) -> dict[str, str]:
    """The text for each name, from the names for each text."""
    return {name: text for text, names in groups.items() for name in names.split()}


_TORCH = "dlbridge.to_device(x, 'cpu', like='torch')"
_MOVE = "dlbridge.to_device(x, device) moves a tensor, such as to 'opencl:0'"
_COPY = "dlbridge.to_device(x, dlbridge.device_of(x), copy=True) makes a copy"
_DTYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128 bool int4 uint4 float8_e4m3fn float8_e5m2 float4_e2m1fn"
)
_BACKENDS = "cpu cuda oneapi opencl rocm vulkan webgpu"

PACKAGE_NAMES = _by_name(
    {
        "dlbridge.to_device(x, 'cpu', like='numpy') gives a numpy array": "to_numpy as_numpy "
        "asnumpy device_get",
        f"{_TORCH} gives a torch tensor": "to_torch",
        "dlbridge.to_device(x, 'cpu', like='jax') gives a jax array": "to_jax",
        "pass the tensor itself: every library's from_dlpack takes it": "to_dlpack",
        "dlbridge.asarray(x) takes the arrays of every library": "from_numpy from_torch from_jax "
        "from_array from_list from_pandas from_buffer frombuffer array as_tensor tensor",
        _MOVE: "to move move_to transfer device_put",
        "dlbridge.asarray(x).tolist() gives lists": "to_list",
        f"{_MOVE}, {_TORCH} gives an array of another library, and "
        "dlbridge.astype(x, dtype) another dtype": "convert",
        "dlbridge.astype(x, dtype) converts the elements": "cast",
        f"{_COPY}; dlbridge.copy_(target, source) copies into memory that there is": "copy",
        _COPY: "clone",
        "dlbridge.use_stream(device, stream) takes the stream of any library": "stream Stream "
        "context CommandQueue",
        "dlbridge.copy_(target, source) copies into memory that there is": "copyto memcpy "
        "enqueue_copy",
        "dlbridge.load(path) reads a file": "from_file load_file open safe_open",
        "dlbridge.save(path, x) writes a file": "to_file save_file",
        "dlbridge.from_blob(address, shape, dtype) makes a tensor of an address": "from_pointer "
        "from_ptr from_address",
        "dlbridge.copy_(target, dlbridge.full_like(target, value)) fills memory that there "
        "is": "fill fill_ zero_",
        "let numpy make the numbers: dlbridge.asarray(numpy.arange(3)) is a tensor on its "
        "memory": "arange linspace eye random rand randn",
        "dlbridge does not compute: take an array of a library that does, such as "
        "dlbridge.to_device(x, 'cpu', like='numpy')": "concatenate concat stack where matmul sum "
        "mean add subtract multiply divide dot einsum exp sqrt max min abs sort argmax split "
        "allclose equal",
        "dlbridge.asarray(x).reshape(shape) is a view of another shape": "reshape "
        "flatten ravel squeeze unsqueeze expand_dims",
        "None in an index makes a dimension: dlbridge.asarray(x)[None]": "newaxis",
        "dlbridge.asarray(x) makes a Tensor of an array, and dlbridge.Tensor is its "
        "class": "ndarray Array",
        "a dtype is written as a text, such as 'float32'": "float double half int long complex",
        "dlbridge.to_device(x, dlbridge.device_of(x), copy=True) makes a compact "
        "copy": "ascontiguousarray contiguous",
        "dlbridge.explain(x, device) says what a move would do": "describe can_move can_share",
        "dlbridge.devices() lists the devices that can be used here": "is_available device_count "
        "get_devices list_devices get_platforms get_device_properties get_device_name",
        "dlbridge.device(name).memory is the memory of a device in bytes, where its driver says "
        "it": "mem_get_info memory_allocated",
        "dlbridge.device_of(x) is the device of an array, dlbridge.device(name) that of a "
        "name": "get_device",
        "no device is current: name one in each call, as in "
        "dlbridge.to_device(x, device)": "set_device set_default_device get_default_device "
        "default_device current_device",
        "memory of the devices 'cuda_host' and 'rocm_host' is page-locked": "pin_memory pinned",
        "dlbridge.trim() gives memory that is kept for later back": "empty_cache clear_cache",
        "with dlbridge.trace() as trace: records what is copied, and dlbridge.watch() which arrays "
        "go from library to library": "profile profiler",
        "dlbridge.Error is the class of all errors, dlbridge.ExchangeError that of tensors that "
        "are refused": "DLPackError TransferError",
        "dlbridge.DeviceMemoryError is raised where a device has no room": "OutOfMemoryError",
    }
) | {
    name: f"dlbridge.backend({name!r}) gives the backend, and '{name}:0' is its first device"
    for name in _BACKENDS.split()
}
"""A name that other packages have -> what to write with dlbridge."""
PACKAGE_NAMES |= {
    name: f"a library is named by like=: dlbridge.to_device(x, 'cpu', like={name!r})"
    for name in ("numpy", "torch", "jax")
}
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

DEVICE_NAMES = _by_name(
    {
        "d.name is the name of its backend, and dlbridge.backend(d.name) the backend": "backend "
        "platform device_type",
        "d.index is its number": "id device_id ordinal local_hardware_id",
        "d.memory is its memory in bytes, where its driver says it": "total_memory memory_size "
        "global_mem_size mem_info",
        "d.memory is all of its memory in bytes; how much is free, ask its own "
        "library": "free_memory memory_stats",
        "dlbridge.synchronize(d) waits for the work on it": "synchronize sync wait",
    }
)
"""A name that other libraries' devices have -> what to write with ours."""

_COMPUTED = "sum mean max min prod std var argmax argmin any all cumsum round argsort"

TENSOR_NAMES = _by_name(
    {
        "write t.to_device('cpu')": "cpu host",
        "write t.to_device('cuda:0')": "cuda",
        "write t.to_device(device), dlbridge.to_device(t, 'cpu', like='torch') for an array of "
        "another library, and dlbridge.astype(t, dtype) for another dtype": "to",
        "write t.numpy(), which copies from devices": "to_numpy as_numpy get asnumpy values array "
        "get_array",
        "write dlbridge.to_device(t, 'cpu', like='torch'), or name another device that torch "
        "has": "torch to_torch",
        "write dlbridge.to_device(t, 'cpu', like='jax'), or name another device that jax "
        "has": "jax to_jax",
        "a Tensor has no gradient, so use it as it is": "detach",
        "a Tensor has no gradient; torch's has: dlbridge.to_device(t, 'cpu', like='torch')": "grad "
        "requires_grad requires_grad_ backward",
        "write t[index]": "iloc loc select narrow split chunk unbind",
        "dlbridge.copy_(t[index], dlbridge.full_like(t[index], value)) writes a part": "at",
        "dlbridge.astype(t, dtype) converts the elements": "astype type "
        "cast half float double bfloat16 int long",
        "dlbridge.to_device(t, t.device, copy=True) makes a copy": "copy clone",
        "dlbridge.copy_(t, source) copies into it": "copy_ set",
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
        "t.device says where it is": "is_cpu is_cuda get_device devices sharding",
        "t.numpy().real and .imag are the parts of complex numbers": "real imag conj",
        "a Tensor does not compute; torch's does: dlbridge.to_device(t, 'cpu', "
        "like='torch')": "add add_ sub sub_ mul mul_ div div_ matmul mm dot exp log sqrt abs pow "
        "norm clamp clip sort nonzero flip repeat expand",
        "t.byte_offset is 0 where t.data_ptr() includes it": "offset",
        "t.data_ptr() is its address or handle, and t.operand() has all that a kernel "
        "needs": "data ptr address handle buffer storage_offset",
        "t.to_native() gives the object of the device's own library": "native queue base_data",
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
