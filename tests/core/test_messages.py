"""What a newcomer does wrong: each message names the thing, the rule and the way out."""

from __future__ import annotations

import dataclasses
import decimal
import io
import pathlib
import pickle
import re
from functools import partial
from importlib.util import find_spec
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge._absent_names import DEVICE_NAMES, PACKAGE_NAMES, TENSOR_NAMES
from dlbridge.extending import CPU, LOADED, Memory, tensor_on
from dlbridge.tracing import Trace
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer


def on(device):
    backend_or_skip(device.partition(":")[0])
    return bridge.ones(3, device=device)


CASES = {
    ValueError: {
        "a row into a matrix": (
            lambda: bridge.copy_(bridge.zeros((3, 4)), np.ones(4, "f4")),
            r"must be equal; repeat it: numpy\.broadcast_to\(source, t\.shape\)$",
        ),
        "a device spelled wrongly": (
            lambda: bridge.empty(3, device="opnecl:0"),
            r"'opnecl' \(did you mean 'opencl'\?\); the backends that are .*dlbridge\.devices\(\)",
        ),
        "the same, only looked up": (lambda: bridge.device("vulcan"), r"did you mean 'vulkan'\?"),
        "what is like no device": (
            lambda: bridge.device("xyzzy"),
            r"^(?!.*did you mean).*no device is called 'xyzzy'; the backends",
        ),
        "a global function spelled wrongly": (
            lambda: (peer("tvm_ffi"), bridge.ffi.get_global_func("ffi.Arary")),
            r"no global function 'ffi\.Arary' \(did you mean 'ffi\.Array'\?\)",
        ),
        "a device in capitals": (
            lambda: bridge.empty(3, device="OpenCL:0"),
            r"'OpenCL:0': no device is called 'OpenCL' \(did you mean 'opencl'\?\)",
        ),
        "several elements as a number": (
            lambda: float(bridge.ones((2, 3))),
            r"^item\(\) needs exactly one element, this tensor has 6; .*t\[0, 0\]\.item\(\).*t\.tolist\(\)",
        ),
        "no element as a number": (
            lambda: bridge.ones(0).item(),
            r"^item\(\) needs exactly one element, this tensor has 0$",
        ),
        "several elements as a truth": (
            lambda: bool(bridge.ones(3)),
            r"neither true nor false; .*dlbridge\.to_device\(t, 'cpu', like='numpy'\)\.any\(\)",
        ),
        "any GPU": (
            lambda: (backend_or_skip("opencl"), bridge.empty(3, device="gpu:0"))[1],
            r"no device is called 'gpu' \(a GPU is called by its backend: .*'opencl:0'",
        ),
        "the maker of a GPU": (
            lambda: bridge.device("nvidia"),
            r"no device is called 'nvidia' \(did you mean 'cuda'\?\)",
        ),
        "an integer that no type has, as the number": (
            lambda: bridge.full(3, 2**64),
            r"the integer 18446744073709551616 is beyond every integer type.*rounded: dlbridge\.asarray\(x, dtype='float64'\)",
        ),
        "arrays beside other things": (
            lambda: bridge.asarray([np.ones(2), "a"]),
            r"^the list holds arrays of the shapes? \(2,\), and other things.*tree_to_device\(x, device\)",
        ),
        "lists deeper than a tensor": (
            lambda: bridge.asarray(nested(65)),
            r"deeper than the 64 dimensions that a tensor has at most; .*reshape",
        ),
        "an integer that no type has, where nothing takes a dtype": (
            lambda: bridge.to_device([1 << 70], "cpu"),
            r"beyond every integer type.*dlbridge\.asarray\(x, dtype='float64'\)",
        ),
        "Apple's GPU by torch's name": (
            lambda: bridge.empty(3, device="mps"),
            r"no device is called 'mps' \(did you mean 'torch-mps'\?\)",
        ),
        "another accelerator by torch's name": (
            lambda: bridge.device("npu:1"),
            r"no device is called 'npu' \(did you mean 'torch-npu'\?\)",
        ),
        "a library as the device": (
            lambda: (peer("torch"), bridge.to_device(np.ones(3), "torch"))[1],
            r"no device is called 'torch'; a library is named by like='torch'; the backends",
        ),
        "the same, of the method": (
            lambda: bridge.ones(3).to_device("numpy"),
            r"a library is named by like='numpy'",
        ),
        "a dtype as the device": (
            lambda: bridge.load("model.safetensors", "float16"),
            r"no device is called 'float16'; that is a dtype, and this argument is the device; the backends",
        ),
    },
    bridge.DeviceNotFound: {
        "an index that there is not": (
            lambda: bridge.empty(3, device="cpu:9"),
            "there is no cpu:9: backend 'cpu' has 1 device",
        ),
        "a name that no device has": (
            lambda: (on("opencl:0"), bridge.device("opencl:NVIDIA"))[1],
            "there is no opencl:NVIDIA: no opencl device is called 'NVIDIA'; there are 0: ",
        ),
        "an index that there is not, of several devices": (
            lambda: (on("ext_dev:0"), bridge.empty(3, device="ext_dev:9"))[1],
            r"backend 'ext_dev' has 2 devices here, counted from 0: ext_dev:0 \(.*\), ext_dev:1",
        ),
    },
    TypeError: {
        **{
            f"a dtype as the library: {dtype!r}": (
                lambda dtype=dtype: bridge.to_device(np.ones(3), "cpu", like=dtype),
                r"^like=.*: that is a dtype; dlbridge\.astype\(.*, 'float32'\) converts the elements$",
            )
            for dtype in (np.float32, np.dtype("f4"), bridge.dtype("f4"))
        },
        "torch's dtype as the library": (
            lambda: bridge.to_device(np.ones(3), "cpu", like=peer("torch").bfloat16),
            r"^like=.*: that is a dtype; dlbridge\.astype\(.*, 'bfloat16'\) converts the elements$",
        ),
        "Python's class of numbers as the library": (
            lambda: bridge.to_device(np.ones(3), "cpu", like=float),
            r"^like=.*: that is a dtype; dlbridge\.astype\(.*, 'float64'\) converts the elements$",
        ),
        "an operand without its tensor": (bridge.Operand, r"not made .* use tensor\.operand\(\)"),
        "what is no producer of DLPack": (
            lambda: bridge.from_dlpack(b"ab"),
            r"bytes has no __dlpack__.* dlbridge\.asarray also takes .* libraries .* describe$",
        ),
        "an array as a device": (
            lambda: bridge.device(on("opencl:0").to_native()),
            r"pyopencl\.array\.Array is not a valid device: .*dlbridge\.device_of\(x\) gives",
        ),
        "a pair with a name": (
            lambda: bridge.device(("opencl", 0)),
            r"two integers, as in \(2, 0\) for cuda:0; with a name, write one text: 'opencl:0'",
        ),
        "numpy on the view": (
            lambda: np.asarray(bridge.ones(3).host_view()),
            r"`with t\.host_view\(\) as h:`.*numpy\.from_dlpack\(t\.host_view\(\)\)",
        ),
        "None": (lambda: bridge.asarray(None), "NoneType is not a tensor: None was given"),
        "a dictionary": (
            lambda: bridge.asarray({}),
            r"tree_to_device\(x, device\) moves each of its arrays",
        ),
        "a dataclass": (
            lambda: bridge.asarray(dataclasses.make_dataclass("Pair", ["x"])(1)),
            r"tree_to_device\(x, device\) moves each of its arrays",
        ),
        "a format of two dimensions": (
            lambda: f"{bridge.ones((2, 3)):.2f}",
            r"as in f'\{t\[0, 0\]:\.2f\}'",
        ),
        "a range": (lambda: bridge.asarray(range(3)), r"as a list: list\(x\)"),
        "a generator": (lambda: bridge.asarray(i for i in [1]), r"as a list: list\(x\)"),
        "a set": (lambda: bridge.asarray({1}), r"pass sorted\(x\)"),
        "the items of a dictionary": (
            lambda: bridge.asarray({"a": np.ones(2)}.items()),
            r"dlbridge\.tree_to_device\(dict\(x\), device\)",
        ),
        "a text": (
            lambda: bridge.asarray("a photo"),
            r"'a photo' is a text, .*dlbridge\.load\(path\) .*dlbridge\.asarray\(x\.encode\(\)\)",
        ),
        "a decimal number": (lambda: bridge.asarray(decimal.Decimal(1)), r"pass float\(x\)"),
        "a loader of batches": (
            lambda: bridge.to_device(type("Loader", (), {"__iter__": iter})(), "cpu"),
            r"\[dlbridge\.tree_to_device\(each, device\) for each in x\]",
        ),
        "a file name": (
            lambda: bridge.to_device("f.npy", "cpu"),
            r"for a file, write dlbridge\.load\('f\.npy'\)",
        ),
        "a picture": (
            lambda: bridge.to_device("photo.png", "cpu"),
            r"for a picture, dlbridge\.asarray\(PIL\.Image\.open\('photo\.png'\)\)",
        ),
        "the path of a picture": (
            lambda: bridge.asarray(pathlib.Path("a.jpg")),
            r"for a picture, .*PIL\.Image\.open\('a\.jpg'\)",
        ),
        "a library's module": (
            lambda: bridge.to_device(np, "cpu"),
            r"it is a module; pass an array \(like= names the library of the result\)$",
        ),
        "a path": (
            lambda: bridge.to_device(pathlib.Path("data"), "cpu"),
            r"dlbridge\.load\(path\) reads a file",
        ),
        "an open file": (
            lambda: bridge.asarray(io.StringIO()),
            r"dlbridge\.load\(x\) reads a file of tensors, .*dlbridge\.asarray\(x\.read\(\)\)",
        ),
        "the device first": (
            lambda: bridge.to_device("cpu:0", np.ones(3)),
            r"'cpu:0' is a device, and a device comes second: dlbridge\.to_device\(x, 'cpu:0'\)",
        ),
        **{
            f"the device first, {name}": (
                partial(getattr(bridge, name), "cpu:0", *more),
                r"'cpu:0' is a device, and .*; for the device itself write dlbridge\.device\('cpu:0'\)",
            )
            for name, more in {
                "share": [np.ones(3)],
                "explain": [np.ones(3)],
                "copy_": [np.ones(3)],
                "asarray": [],
                "device_of": [],
            }.items()
        },
        "the device before a tree": (
            lambda: bridge.tree_to_device("cpu:0", {"a": np.ones(3)}),
            r"^a dict is not a valid device, .*second: dlbridge\.tree_to_device\(tree, device\)$",
        ),
        "the device before a list": (
            lambda: bridge.tree_to_device("cpu:0", [np.ones(3)]),
            r"^a list is not a valid device, .*second: dlbridge\.tree_to_device\(tree, device\)$",
        ),
        "the device before the file": (
            lambda: bridge.load("cpu:0", "f.npy"),
            r"^'f\.npy' is not a valid device; .*first: dlbridge\.load\(path, device\)$",
        ),
        "the device before a path": (
            lambda: bridge.load("cpu:0", pathlib.Path("data")),
            r"^'data' is not a valid device; .*first: dlbridge\.load\(path, device\)$",
        ),
        **{
            f"progress as a function of {name}": (
                partial(bridge.to_device, np.ones(3), "cpu", copy=True, progress=told),
                r"cannot be called with two numbers, .*: progress=lambda done, total: \.\.\.$",
            )
            for name, told in {
                "one": lambda done: None,
                "three": lambda done, total, more: None,
                "a keyword": lambda done, total, *, more: None,
            }.items()
        },
        "the same, of copy_": (
            lambda: bridge.copy_(np.zeros(3), np.ones(3), progress=lambda done: None),
            r"cannot be called with two numbers",
        ),
        "an object that holds its array": (
            lambda: bridge.to_device(SimpleNamespace(data=np.ones(3)), "cpu"),
            r"pass the array that it holds, x\.data, or derive its class from dlbridge\.Exporter$",
        ),
        "a Device first": (
            lambda: bridge.to_device(bridge.device("cpu"), np.ones(3)),
            r"'cpu:0' is a device, and a device comes second",
        ),
        "a list as the library": (
            lambda: bridge.to_device(np.ones(3), "cpu", like=list),
            r"a list is no array; dlbridge\.asarray\(x\)\.tolist\(\) gives one",
        ),
        "the path second": (
            lambda: bridge.save(np.ones(3), "f.npy"),
            r"the path comes first, and a ndarray is none: dlbridge\.save\('name\.npy', x\)",
        ),
        "an open file for several arrays": (
            lambda: bridge.save(io.BytesIO(), {"a": np.ones(3)}),
            r"a BytesIO is none: dlbridge\.save\('name\.safetensors', x\)",
        ),
        "a dtype spelled wrongly": (
            lambda: bridge.empty(3, "flaot32"),
            r"'flaot32' is not the name of a dtype \(did you mean 'float32'\?\)",
        ),
        "a dtype by its usual short name": (
            lambda: bridge.empty(3, "bf16"),
            r"\(did you mean 'bfloat16'\?\)",
        ),
        "a dtype whose bytes are meant as bits": (
            lambda: bridge.empty(3, "f16"),
            r"'f16' is a number of bytes to numpy; for 16 bits, 'float16'",
        ),
        "a dtype in capitals": (
            lambda: bridge.empty(3, "Bfloat16"),
            r"\(did you mean 'bfloat16'\?\)",
        ),
        "a device where the dtype stands": (
            lambda: bridge.empty((2, 2), "opencl:0"),
            r"'opencl:0' is a device, not a dtype: pass device='opencl:0'",
        ),
        "a device of torch where the dtype stands": (
            lambda: bridge.empty((2, 2), peer("torch").device("cpu")),
            r"is a device, not a dtype: pass device=device\(type='cpu'\)",
        ),
        "a Device where the dtype stands": (
            lambda: bridge.empty((2, 2), bridge.device("cpu")),
            r"is a device, not a dtype: pass device=dlbridge\.device\('cpu:0'\)",
        ),
        "a device that is not installed where the dtype stands": (
            lambda: bridge.full((2, 2), 1, "metal:0"),
            r"'metal:0' is a device, not a dtype: pass device='metal:0'",
        ),
        "the device before the shape": (
            lambda: bridge.ones("opencl:0", (2, 2)),
            r"^\(2, 2\) is not a dtype: the shape comes first, as in zeros\(\(2, 2\), 'float32', 'cpu'\)",
        ),
        "a shape in several arguments": (
            lambda: bridge.zeros(2, 3),
            r"3 is not a dtype: a shape of several extents is one tuple, as in zeros\(\(2, 3\)\)",
        ),
        "the same of ones": (
            lambda: bridge.ones(2, 3),
            "3 is not a dtype: a shape of several extents",
        ),
        "the dtype before the shape": (
            lambda: bridge.empty("float32", (2, 3)),
            r"^shape 'float32' .*; 'float32' is a dtype, and the shape comes before it",
        ),
        "the same of an address": (
            lambda: bridge.from_blob(64, "float32", (2, 3)),
            r"'float32' is a dtype, and the shape comes before it",
        ),
        "a letter, which numpy takes for a dtype": (
            lambda: bridge.asarray("b"),
            r"^builtins\.str is not a tensor: 'b' is a text",
        ),
        "the number before the shape": (
            lambda: bridge.full(3, (2, 2)),
            r"fill_value is a tuple, not a number; the shape comes first: full\(\(2, 2\), 3\)",
        ),
        "a device as the dtype of a conversion": (
            lambda: bridge.astype([1.0], "opencl:0"),
            r"'opencl:0' is not the name of a dtype; that is a device",
        ),
        "the dtype before the array": (
            lambda: bridge.astype("float16", [1.0]),
            r"is not a tensor: 'float16' is a dtype, and the array comes before it",
        ),
        "the number of a device beside its name": (
            lambda: bridge.to_device([1.0], "cpu", 0),
            r"^like=0 .*; a device and its number are one text, such as 'opencl:0'",
        ),
        "a device as the library": (
            lambda: bridge.to_device([1.0], "cpu", like="opencl:0"),
            r"^like='opencl:0' .*; that is a device, which is the second argument: dlbridge\.to_device\(x, device\)",
        ),
        "bytes as the library": (
            lambda: bridge.to_device([1.0], "cpu", like=bytes),
            r"^like=<class 'bytes'>: .*dlbridge\.asarray\(x\)\.tobytes\(\)",
        ),
        "a view of memory as the library": (
            lambda: bridge.to_device([1.0], "cpu", like=memoryview),
            r"memoryview\(dlbridge\.to_device\(x, 'cpu', like='numpy'\)\)",
        ),
        "a module of torch": (
            lambda: bridge.to_device(peer("torch").nn.Linear(1, 1), "cpu"),
            r"dlbridge\.tree_to_device\(x\.state_dict\(\), device\)",
        ),
        "shared memory of Python": (
            lambda: bridge.asarray(object.__new__(SharedMemory)),
            r"pass x\.buf, and keep x open",
        ),
        "a function": (
            lambda: bridge.asarray(nested),
            r"is not a tensor: it is a function; pass what it returns",
        ),
        "a new shape for view": (
            lambda: bridge.ones(6).view((3, 2)),
            r"^\(3, 2\) is not a dtype: .*; view takes a dtype, and t\.reshape\(3, 2\) another shape",
        ),
        "lengths for view, as torch's": (
            lambda: bridge.ones(6).view(3, 2),
            r"^view\(3, 2\); view takes a dtype, and t\.reshape\(3, 2\) another shape",
        ),
        "a list of lengths for view": (
            lambda: bridge.ones(6).view([3, 2]),
            r"; view takes a dtype, and t\.reshape\(3, 2\) another shape",
        ),
        "an extent for view": (
            lambda: bridge.ones((3, 2)).view(-1),
            r"; view takes a dtype, and t\.reshape\(-1\) another shape",
        ),
        "the path after the dictionary": (
            lambda: bridge.save({"a": np.ones(3)}, "f.safetensors"),
            r"a dict is none: dlbridge\.save\('name\.safetensors', x\)",
        ),
        "a module for a file of names": (
            lambda: bridge.save("x.safetensors", peer("torch").nn.Linear(1, 1)),
            r"not a Linear; write x\.state_dict\(\)$",
        ),
        "a dictionary in a dictionary for a file": (
            lambda: bridge.save("x.npz", {"a": {"b": [1.0]}}),
            r"^x\.npz: 'a' is a dict, and names in a file have one level: write \{'a\.b': \.\.\.\}$",
        ),
        "a text for a file": (
            lambda: bridge.save("x.safetensors", {"a": "b"}),
            r"^x\.safetensors: 'a' is a text, .*: write metadata=\{'a': 'b'\}$",
        ),
        "a text for a file of one array": (
            lambda: bridge.save("x.npy", "a"),
            r"^x\.npy: builtins\.str is not a tensor: 'a' is a text",
        ),
        "a dictionary for a file of one array": (
            lambda: bridge.save("x.npy", {"a": [1.0]}),
            r"\.npy takes one array, not a dict; \.npz and \.safetensors take names",
        ),
        "one array for a file of names": (
            lambda: bridge.save("x.npz", [1.0]),
            r"\.npz takes a mapping of names to arrays, not a list; write {'name': x}, or a \.npy",
        ),
        "an int as a dtype": (
            lambda: bridge.dtype(3),
            "an int is not a dtype: give a name such as 'float32'",
        ),
        "a number that is none": (
            lambda: bridge.full(3, object()),
            "fill_value is an object, not a number",
        ),
        "a text as the new shape": (
            lambda: bridge.ones(4).reshape("a"),
            r"^shape 'a' is not an integer, or integers: .*; pass .*t\.reshape\(2, -1\)",
        ),
        "no new shape": (
            lambda: bridge.ones(4).reshape(None),
            r"^shape None is not an integer, or integers: .*; pass .*t\.reshape\(2, -1\)",
        ),
        "an empty text as the new shape": (
            lambda: bridge.ones(1).reshape(""),
            r"^shape '' is not an integer",
        ),
        "a float in the new shape": (
            lambda: bridge.ones(4).reshape(2.0, 2),
            r"^shape \(2\.0, 2\) is not an integer, or integers",
        ),
        "None as a backend": (
            lambda: bridge.backend(None),
            r"^the name of a backend is a text, such as 'cpu', not None; dlbridge\.backends\(\)",
        ),
        "a Device as a backend": (
            lambda: bridge.backend(bridge.device("cpu")),
            r"^the name of a backend is a text",
        ),
        "a sum with torch's tensor": (
            lambda: peer("torch").ones(3) + bridge.ones(3),
            r"^a Tensor does not compute \(operator \+\): .*like='torch'",
        ),
        "the same, the other way round": (
            lambda: bridge.ones(3) @ peer("torch").ones(3),
            r"^a Tensor does not compute \(operator @\): .*like='torch'",
        ),
        "a comparison with torch's tensor": (
            lambda: peer("torch").ones(3) < bridge.ones(3),
            r"^a Tensor does not compute \(operator >\): .*like='torch'",
        ),
        "the length of one number": (
            lambda: len(bridge.ones(())),
            r"^a tensor without dimensions has no len\(\); t\.item\(\) is its element$",
        ),
        "one number as an index of torch's tensor": (
            lambda: peer("torch").ones(3)[bridge.zeros((), "int64")],
            r"t\.item\(\) is its element",
        ),
        "the number of a device alone": (
            lambda: bridge.to_device(np.ones(3), 1),
            r"^the integer 1 is not a valid device: .* such as 'cuda:0'.*type cpu is dlbridge\.DLDeviceType\(1\)$",
        ),
        "the same, of the method": (
            lambda: bridge.ones(3).to_device(0),
            r"^the integer 0 is not a valid device: .*type type0 is dlbridge\.DLDeviceType\(0\)$",
        ),
        "the same, of a new tensor": (
            lambda: bridge.empty(3, device=1),
            r"^the integer 1 is not a valid device",
        ),
        "a sum with a text": (
            lambda: "a" + bridge.ones(3),
            r"^a Tensor does not compute \(operator \+\)",
        ),
    },
    bridge.BackendUnavailable: {
        "a device as a backend": (
            lambda: (on("opencl:0"), bridge.backend("opencl:0"))[1],
            r"that is a device, and its backend is 'opencl', without a number",
        ),
        "a backend spelled wrongly": (
            lambda: bridge.backend("ext_deb"),
            r"no backend for device 'ext_deb' .*\(did you mean 'ext_dev'\?\)",
        ),
        "Apple's GPU by DLPack's name": (
            lambda: bridge.empty(3, device="metal:0"),
            r"'metal'.*; 'webgpu' works on Metal: use 'webgpu:0'$"
            if "webgpu" in bridge.backends()
            else r"'metal'.*; 'webgpu' works on Metal: pip install backends/webgpu, in the folder",
        ),
        "a device that DLPack knows and nobody serves": (
            lambda: bridge.empty(3, device="hexagon:0"),
            r"'hexagon'.*; `python -m dlbridge new-backend hexagon` begins one",
        ),
    },
    AttributeError: {
        "the view instead of its tensor": (
            lambda: bridge.ones(3).host_view().numpy(),
            r"no attribute 'numpy'; write `with t\.host_view\(\) as h:`",
        ),
        "a name that no tensor has, of the view": (
            lambda: bridge.ones(3).host_view().xyzzy,
            r"no attribute 'xyzzy'$",
        ),
        "a function of numpy that makes numbers": (
            lambda: bridge.arange(3),
            r"no attribute 'arange'; .*dlbridge\.asarray\(numpy\.arange\(3\)\)",
        ),
        "a function of numpy that computes": (
            lambda: bridge.concatenate([]),
            r"dlbridge does not compute: .*like='numpy'",
        ),
        "a dtype as a name of the package": (
            lambda: bridge.float32,
            r"a dtype is written as a text, 'float32'; ",
        ),
        "a dtype that numpy does not have, as a name of the package": (
            lambda: bridge.float8_e4m3fn,
            r"a dtype is written as a text, 'float8_e4m3fn'; ",
        ),
        "an error by another name": (
            lambda: bridge.DLPackError,
            r"no attribute 'DLPackError'; dlbridge\.Error is the class of all errors",
        ),
        "torch's error of memory": (
            lambda: bridge.OutOfMemoryError,
            r"no attribute 'OutOfMemoryError'; .*dlbridge\.DeviceMemoryError",
        ),
        "a library as a name of the package": (
            lambda: bridge.torch,
            r"a library is named by like=: dlbridge\.to_device\(x, 'cpu', like='torch'\)",
        ),
        "numpy's new axis": (lambda: bridge.newaxis, r"dlbridge\.asarray\(x\)\[None\]"),
        "a type of Python as a name of the package": (
            lambda: bridge.float,
            r"a dtype is written as a text, such as 'float32'$",
        ),
        "the class of numpy's arrays": (lambda: bridge.ndarray, r"dlbridge\.Tensor is its class"),
        "a copy of pyopencl": (lambda: bridge.enqueue_copy, r"dlbridge\.copy_\(target, source\)"),
        "a queue of pyopencl": (lambda: bridge.CommandQueue, r"dlbridge\.use_stream\("),
        "the host's array, by jax's name": (lambda: bridge.device_get, r"'cpu', like='numpy'"),
        "the memory of torch's device": (
            lambda: bridge.mem_get_info,
            r"dlbridge\.device\(name\)\.memory",
        ),
        "a part, written by jax": (
            lambda: bridge.ones(3).at,
            r"dlbridge\.copy_\(t\[index\], dlbridge\.full_like\(t\[index\], value\)\)",
        ),
        "the queue of an array of pyopencl": (lambda: bridge.ones(3).queue, r"t\.to_native\(\)"),
        "the real part": (lambda: bridge.ones(3).real, r"t\.numpy\(\)\.real"),
        "torch's arithmetic in place": (
            lambda: bridge.ones(3).add_(1),
            r"does not compute; torch's does: .*like='torch'\)$",
        ),
        "torch's cache": (lambda: bridge.empty_cache, r"dlbridge\.trim\(\)"),
        "torch's current device": (
            lambda: bridge.set_device("opencl:0"),
            r"no attribute 'set_device'; no device is current: .*dlbridge\.to_device\(x, device\)",
        ),
        "a question before a move": (
            lambda: bridge.can_move([1], "opencl:0"),
            r"dlbridge\.explain\(x, device\)",
        ),
        "the moves of a trace": (
            lambda: Trace().moves,
            r"^'Trace' object has no attribute 'moves'; .*trace\.plans",
        ),
        "a name of a trace spelled wrongly": (
            lambda: Trace().nbyte,
            r"^'Trace' object has no attribute 'nbyte' \(did you mean 'nbytes'\?\)$",
        ),
        "a trace without its block": (
            lambda: bridge.trace().moves,
            r"^'TraceBlock' object has no attribute 'moves'; write `with dlbridge\.trace\(\)",
        ),
        "torch's function that fills": (
            lambda: bridge.fill_,
            r"dlbridge\.copy_\(target, dlbridge\.full_like\(target, value\)\)",
        ),
        "the address by another name": (
            lambda: bridge.ones(3).data,
            r"no attribute 'data'; t\.data_ptr\(\) .*t\.operand\(\)",
        ),
        "a conversion by torch's name": (
            lambda: bridge.ones(3).half(),
            r"no attribute 'half'; dlbridge\.astype",
        ),
        "jax's wait": (
            lambda: bridge.ones(3).block_until_ready(),
            r"dlbridge\.synchronize\(t\.device\)",
        ),
        "the end of a tensor": (
            lambda: bridge.ones(3).free(),
            r"no attribute 'free'; its memory is freed when nobody uses it",
        ),
        "a name of dlbridge.ffi spelled wrongly": (
            lambda: bridge.ffi.load_modul,
            r"no attribute 'load_modul' \(did you mean 'load_module'\?\)",
        ),
        "a name of the package spelled wrongly": (
            lambda: bridge.to_devce,
            r"no attribute 'to_devce' \(did you mean 'to_device'\?\)",
        ),
        "a method as a function": (
            lambda: bridge.host_view(bridge.ones(3)),
            r"no attribute 'host_view'; it is of a Tensor: dlbridge\.asarray\(x\)\.host_view$",
        ),
        "another dtype by torch's name": (
            lambda: bridge.ones(3).to("float16"),
            r"dlbridge\.astype\(t, dtype\) for another dtype",
        ),
        "torch's gradient": (
            lambda: bridge.ones(3).requires_grad_(),
            r"a Tensor has no gradient; torch's has: dlbridge\.to_device\(t, 'cpu', like='torch'\)",
        ),
        "the values of a column": (
            lambda: bridge.ones(3).values,
            r"write t\.numpy\(\)",
        ),
        "numpy's attributes of an array": (
            lambda: bridge.ones(3).flags,
            r"no attribute 'flags'; .*numpy\.asarray\(t\)",
        ),
        "numpy's attributes of a dtype": (
            lambda: bridge.ones(3).dtype.hasobject,
            r"no attribute 'hasobject'; .*numpy\.asarray\(t\)",
        ),
    },
    bridge.ExchangeError: {
        "memory of a described library that is NULL": (
            lambda: tensor_on(Memory(CPU, 0, "a signal"), bridge.dtype("float32"), (2,)),
            r"a signal is at NULL, and has elements: .*; check",
        ),
        "a device that the library does not have, for accepts": (
            lambda: bridge.accepts("numpy", device=on("opencl:0").device)(len)(np.ones(3)),
            r"accepts\('numpy', device='opencl:0'\): .* leave device= out",
        ),
        "a copy into a list": (
            lambda: bridge.copy_([1, 2], np.ones(2)),
            r"^a list has no memory to copy into; pass an array, such as numpy\.array\(x\)",
        ),
        "a copy into a number": (
            lambda: bridge.copy_(3, np.ones(())),
            "^an int has no memory to copy into",
        ),
        "a copy into lists that are no tensor": (
            lambda: bridge.copy_([[1, 2], [3]], np.ones(2)),
            "^a list has no memory to copy into",
        ),
        "a copy into memory that is read-only": (
            lambda: bridge.copy_(bytes(4), np.ones(4, "u1")),
            r"is read-only and cannot be copied into; copy into memory of its own: t = dlbridge\.empty_like",
        ),
        "a target of another byte order": (
            lambda: bridge.copy_(np.zeros(2, ">f4"), np.ones(2, "f4")),
            r"cannot copy into a ndarray of '>f4'.*numpy can: x\[\.\.\.\] = dlbridge\.to_device\(",
        ),
        "a target between other fields": (
            lambda: bridge.copy_(np.zeros(3, [("i", "i1"), ("a", "f8")])["a"], np.ones(3)),
            r"byte strides \(9,\), which DLPack does not have; numpy can: x\[\.\.\.\] = ",
        ),
        "the source of a copy first": (
            lambda: bridge.copy_(np.broadcast_to(np.ones(()), (2, 3)), np.ones((2, 3))),
            r"is read-only .*; the target comes first: dlbridge\.copy_\(target, source\)$",
        ),
        "a copy into what nobody can have": (
            lambda: bridge.copy_(peer("torch").ones(2, requires_grad=True), np.ones(2, "f4")),
            r"requires grad; pass x\.detach\(\)",
        ),
        "a capsule on the CPU without a copy": (
            lambda: np.from_dlpack(on("ext_dev:0"), device="cpu", copy=False),
            r"the host cannot map it .*; copy=None copies it, copy=False forbids it$",
        ),
        "numpy() of memory that must be copied": (
            lambda: on("ext_dev:0").numpy(copy=False),
            r"the tensor is on ext_dev:0, .*to_device\(t, 'cpu'\) copies its 12 bytes",
        ),
        "torch of a device's tensor": (
            lambda: (peer("torch"), bridge.to_device(on("opencl:0"), "opencl:0", like="torch")),
            r"torch has no arrays on opencl:0; dlbridge\.to_device\(t, 'cpu', like='torch'\)",
        ),
        "numbers as a type that numpy does not have": (
            lambda: bridge.asarray([1, 2, 3, 4], dtype="float4_e2m1fn_x2"),
            r"no vector types.*dlbridge\.asarray\(raw\)\.view\('float4_e2m1fnx2'\)",
        ),
    },
    ModuleNotFoundError: {
        "a dtype as the library": (
            lambda: bridge.to_device([1.0], "cpu", like="float32"),
            r"like='float32': that is a dtype; dlbridge\.astype\(",
        ),
        "a library spelled wrongly": (
            lambda: bridge.to_device(np.ones(3), "cpu", like="nunpy"),
            r"there is no module 'nunpy' here \(did you mean 'numpy'\?\)",
        ),
        "a library by its usual short name": (
            lambda: bridge.to_device(np.ones(3), "cpu", like="np"),
            r"no module 'np' here \(did you mean 'numpy'\?\)",
        ),
    },
    FileNotFoundError: {
        "a module that is not there": (
            lambda: (peer("tvm_ffi"), bridge.ffi.load_module("./nope.so")),
            r"nope\.so",
        ),
    },
}
"""Error -> what was done -> the call, and words of the message."""
ROWS = {
    name: (call, error, message)
    for error, rows in CASES.items()
    for name, (call, message) in rows.items()
}

SWITCHES = {
    "DLBRIDGE_VULKAN_EXPORT": "vulkan",
    "DLBRIDGE_VULKAN_STAGED": "vulkan",
    "DLBRIDGE_CUDA_EXPORT": "cuda",
    "DLBRIDGE_FAKE_SHARED": "ext_dev",
}


@pytest.mark.parametrize("variable", SWITCHES)
def test_a_variable_that_says_yes_or_no_takes_nothing_else(variable, monkeypatch):
    """Whether the driver is here makes no difference."""
    if SWITCHES[variable] not in bridge.backends():
        pytest.skip(f"{SWITCHES[variable]} is not installed")
    monkeypatch.setenv(variable, "banana")
    monkeypatch.delitem(LOADED, SWITCHES[variable], raising=False)
    with pytest.raises(
        bridge.BackendUnavailable, match=f"^{variable} is 'banana'; set it to 1 for yes, or to 0"
    ):
        bridge.backend(SWITCHES[variable])


def nested(depth):
    made = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("name", ROWS)
def test_the_message_says_what_to_do(name):
    call, error, message = ROWS[name]
    with pytest.raises(error, match=message):
        call()


def test_a_library_that_is_known_and_not_here_is_not_suggested_for_itself():
    if find_spec("cupy") is not None:
        pytest.skip("cupy is installed here")
    with pytest.raises(ModuleNotFoundError, match="there is no module 'cupy' here; install"):
        bridge.to_device(np.ones(3), "cpu", like="cupy")


@pytest.mark.parametrize("name", PACKAGE_NAMES)
def test_names_of_other_packages(name):
    with pytest.raises(AttributeError) as told:
        getattr(bridge, name)
    assert str(told.value) == f"module 'dlbridge' has no attribute {name!r}; {PACKAGE_NAMES[name]}"
    assert not hasattr(bridge, name)


@pytest.mark.parametrize("name", ["opencl", "vulkan", "cuda"])
def test_a_backend_as_a_name_of_the_package(name):
    with pytest.raises(AttributeError, match=rf"dlbridge\.backend\('{name}'\).*'{name}:0'"):
        getattr(bridge, name)


def tensors():
    bfloat16 = bridge.zeros(3, "bfloat16")  # numpy does not export it: another class
    return [bridge.from_dlpack(np.ones(3)), bfloat16, bridge.empty(0), bridge.ones(3)]


@pytest.mark.parametrize("name", DEVICE_NAMES)
def test_names_of_other_devices(name):
    device = bridge.device("cpu")
    with pytest.raises(AttributeError) as told:
        getattr(device, name)
    assert str(told.value) == f"'Device' object has no attribute {name!r}; {DEVICE_NAMES[name]}"
    assert not hasattr(bridge.Device, name)
    assert name not in dir(device)
    assert name not in dir(bridge.Device)
    assert {"index", "memory", "type", "uuid"} <= set(dir(device))


@pytest.mark.parametrize("name", TENSOR_NAMES)
def test_names_of_other_tensors(name):
    for tensor in [*tensors(), on("ext_dev:0")]:
        with pytest.raises(AttributeError) as told:
            getattr(tensor, name)
        assert str(told.value) == f"'Tensor' object has no attribute {name!r}; {TENSOR_NAMES[name]}"
        assert not hasattr(tensor, name)
        assert not hasattr(type(tensor), name)
        assert name not in dir(tensor)
    assert {"shape", "to_device", "numpy"} <= set(dir(tensor))


def test_names_that_nobody_has():
    with pytest.raises(AttributeError, match=r"^'Tensor' object has no attribute 'xyzzy'$"):
        _ = bridge.ones(3).xyzzy
    assert not hasattr(bridge, "")
    with pytest.raises(AttributeError, match=r"^module 'dlbridge' has no attribute 'xyzzy'$"):
        _ = bridge.xyzzy
    with pytest.raises(AttributeError, match=r"has no attribute '__dlpack__'$"):
        _ = bridge.__dlpack__  # of a Tensor, and no public name


@pytest.mark.parametrize(("name", "meant"), [("__verison__", "__version__"), ("_Tensor", "Tensor")])
def test_names_that_begin_with_an_underscore(name, meant):
    with pytest.raises(AttributeError, match=rf"'{name}' \(did you mean '{meant}'\?\)$"):
        getattr(bridge, name)


def test_operators_name_a_library_that_computes():
    tensor = bridge.ones(3)
    for call in (
        lambda: -tensor,
        lambda: +tensor,
        lambda: ~tensor,
        lambda: abs(tensor),
        lambda: tensor > 0,
        lambda: tensor <= tensor,
        lambda: tensor >= 1.5,
        lambda: tensor + 1,
        lambda: 2.0 * tensor,
        lambda: tensor - tensor,
        lambda: tensor / 2,
        lambda: 1 // tensor,
        lambda: tensor % 2,
        lambda: tensor**2,
        lambda: tensor @ tensor,
        lambda: tensor & tensor,
        lambda: 1 | tensor,
        lambda: tensor ^ True,
        lambda: tensor << 1,
        lambda: 1 >> tensor,
        lambda: divmod(tensor, 2),
        lambda: divmod(2, tensor),
        lambda: round(tensor),
        lambda: round(tensor[0], 2),
        lambda: tensor + object(),
        lambda: object() < tensor,
    ):
        with pytest.raises(TypeError, match=r"does not compute \(operator .*like='numpy'"):
            call()


def test_a_class_that_takes_tensors_decides():
    class Other:
        def __radd__(self, left):
            return "added", left

        def __gt__(self, left):
            return "compared", left

    tensor = bridge.ones(3)
    assert tensor + Other() == ("added", tensor)
    assert (tensor < Other()) == ("compared", tensor)


def test_operators_of_other_libraries_are_theirs():
    tensor = bridge.ones(3)
    for result in (tensor + np.ones(3), np.ones(3) + tensor, np.float32(1) + tensor):
        assert result.tolist() == [2, 2, 2]
    assert (tensor * np.float64(3)).tolist() == [3, 3, 3]
    assert (tensor < np.full(3, 2)).tolist() == [True] * 3


def test_only_libraries_that_are_here_are_listed():
    with pytest.raises(ModuleNotFoundError) as told:
        bridge.to_device(np.ones(3), "cpu", like="nothing_of_that_name")
    (listed,) = re.findall(r"a library that is installed \((.*)\)", str(told.value))
    assert {"dlbridge", "numpy"} <= set(listed.split(", "))
    for name in listed.split(", "):
        assert find_spec(name) is not None


def test_a_device_without_a_backend_as_a_library(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    for like in ("cuda", "rocm"):
        function = bridge.accepts(like)(len)
        with pytest.raises(
            ModuleNotFoundError, match=f"pip install backends/{like}, in the folder"
        ):
            function(np.ones(3))


class FromIndex:
    """The metadata of a dlbridge that pip took by its name: it has no direct_url.json."""

    def read_text(self, name):
        assert name == "direct_url.json"


def test_a_backend_is_named_as_pip_finds_it_where_dlbridge_came_from(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: FromIndex())
    for name, words in (
        ("cuda", "pip install dlbridge-cuda"),
        ("torch-npu", "pip install dlbridge-torch"),
        ("ext_dev", "pip install backends/fake, in the folder with dlbridge's source"),
    ):
        monkeypatch.delitem(LOADED, name, raising=False)
        with pytest.raises(bridge.BackendUnavailable) as told:
            bridge.backend(name)
        assert str(told.value).endswith(f"; try: {words}")


def test_accepts_takes_like_by_name_too():
    assert bridge.accepts(like="numpy")(lambda x: x.sum(0))(bridge.ones(3)).item() == 3


def test_a_backend_of_the_simulated_device_names_its_package(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    monkeypatch.delitem(LOADED, "ext_dev", raising=False)
    with pytest.raises(bridge.BackendUnavailable, match=r"'ext_dev'.*pip install backends/fake"):
        bridge.backend("ext_dev")


def test_messages_have_no_cause_that_speaks_of_something_else():
    with pytest.raises(bridge.ExchangeError, match="a list has no memory") as told:
        bridge.copy_([[1.0]], np.ones((1, 1)))
    assert told.value.__cause__ is None
    assert told.value.__context__ is None
    with pytest.raises(ValueError, match="no device is called 'gpu'") as told:
        bridge.to_device(np.ones(3), "gpu")
    assert told.value.__cause__ is None
    for function in (bridge.to_device, bridge.plan):
        for device, like in (("cpu:7", None), (None, None), ([], None), ("cpu", 5), ("cpu", list)):
            with pytest.raises((TypeError, bridge.DeviceNotFound)) as told:
                function(np.ones(3), device, like)
            assert told.value.__context__ is None


def test_numbers_are_copied_as_what_the_target_has():
    tensor = bridge.zeros(3, "float32")
    bridge.copy_(tensor, [1.0, 2.0, 3.0])
    assert tensor.tolist() == [1, 2, 3]
    bridge.copy_(tensor, (4, 5, 6))
    assert tensor.tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match=r"1\.5"):
        bridge.copy_(bridge.zeros(1, "int32"), [1.5])
    with pytest.raises(ValueError, match="float64"):
        bridge.copy_(tensor, np.ones(3))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_jax_takes_a_tensor_as_an_array(name):
    jnp = peer("jax.numpy")
    tensor = bridge.ones((2, 3), name)
    for made in (jnp.asarray(tensor), jnp.array(tensor)):
        assert made.dtype == name
        assert made.tolist() == [[1, 1, 1]] * 2
    with pytest.raises(bridge.ExchangeError, match=r"jax has no arrays on opencl:0"):
        jnp.asarray(on("opencl:0"))


def test_an_assignment_names_the_copy():
    tensor = bridge.zeros(3)
    with pytest.raises(TypeError, match=r"copy_\(t\[index\], array\).*full_like"):
        tensor[0] = 1
    bridge.copy_(tensor[0], bridge.full_like(tensor[0], 1))  # what the message says
    assert tensor.tolist() == [1, 0, 0]


def test_the_classes_of_tensors_have_one_name():
    for tensor in [*tensors(), on("ext_dev:0")]:
        assert f"{type(tensor)}" == "<class 'dlbridge.Tensor'>"
        assert pickle.loads(pickle.dumps(tensor)).tolist() == tensor.tolist()


def test_numpy_of_memory_that_can_be_shared():
    """It says what the plan says, which may be that nothing is copied."""
    for device in ("opencl:0", "vulkan:0"):
        tensor = on(device)
        copied = bridge.plan(tensor, "cpu").nbytes
        way = "copies its 12 bytes" if copied else "gives its memory to the host without a copy"
        with pytest.raises(bridge.ExchangeError, match=way):
            tensor.numpy(copy=False)


def test_memory_that_is_not_aligned_names_the_way_to_memory_that_is():
    backend_or_skip("opencl")
    pages = bridge.empty(4097, "uint8", alignment=4096).numpy()
    if bridge.plan(pages[:4096], "opencl:0").nbytes:
        pytest.skip("this device never uses host memory in place")
    assert "dlbridge.empty(shape, dtype, alignment=" in bridge.explain(pages[1:], "opencl:0")


def test_one_family_of_errors():
    """A device that is not there is one, however it is named; and it is a LookupError, too."""
    for name in ("cpu:9", "ext_dev:no such"):
        with pytest.raises(bridge.Error) as told:
            bridge.empty(3, device=name)
        assert isinstance(told.value, bridge.DeviceNotFound)
        assert isinstance(told.value, (LookupError, BufferError))
        assert isinstance(pickle.loads(pickle.dumps(told.value)), bridge.DeviceNotFound)


def test_functions_and_modules_name_themselves():
    peer("tvm_ffi")
    ffi = bridge.ffi
    assert repr(ffi.get_global_func("ffi.Array")).startswith("<ffi.Function ffi.Array at 0x")
    assert repr(ffi.convert_func(len)).startswith("<ffi.Function len at 0x")
    module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
    assert repr(module).startswith("<ffi.Module libtvm_ffi_testing")
    assert "_file" not in dir(module)
    function = module.testing_dll_schema_id_int
    assert repr(function).startswith(
        "<ffi.Function testing_dll_schema_id_int of libtvm_ffi_testing"
    )
