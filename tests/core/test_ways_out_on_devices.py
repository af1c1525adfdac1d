"""Every way out that a message about a Tensor, or about a name, shows is taken on each device.

The code in a message is what the reader copies: it runs as it stands, where ``dlbridge`` and
``numpy`` are the modules, ``t`` the tensor, ``x`` the object and ``h`` a host view. The ways out
of other libraries' arrays, which are on the host: test_ways_out.py.
"""

from __future__ import annotations

import ast
import copy
import ctypes
import io
import operator
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge._absent_names import PACKAGE_NAMES, TENSOR_NAMES
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer

PLACES = ["cpu", "ext_dev:0", "opencl:0", "vulkan:0", "webgpu:0"]
ROOT = Path(bridge.__file__).parents[1]
START = re.compile(r"(?<![\w.'/])(?:dlbridge|numpy|t|x|h|source|comm|array)(?=[.\[])")
NO_CODE = re.compile(
    r"dlbridge\.(Tensor|Operand|HostView|device|opencl|ffi)\b(?!\()|dlbridge\.Tensor\("
)
BARE = re.compile(
    r"(?<![\w.])(?:to_device|asarray|astype|copy_|empty|empty_like|full_like|share|unpack_bits|load)"
    r"\((?:t|x|h|flat|shape|path|io|copy=)\b"
)
EACH = re.compile(r"\[dlbridge\.\w+\(each, device\) for each in x\]")
CLOSING = {"(": ")", "[": "]", "{": "}"}


def end_of_brackets(text, begin):
    """The position behind the bracket that closes the one at *begin*."""
    expected, quote = [], ""
    for position in range(begin, len(text)):
        letter = text[position]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in CLOSING:
            expected.append(CLOSING[letter])
        elif expected and letter == expected[-1]:
            expected.pop()
            if not expected:
                return position + 1
    raise AssertionError(f"a bracket stays open: {text[begin:]}")


def code_in(message):
    """The calls, attributes and indices that *message* shows, as a reader copies them."""
    found, at = EACH.findall(message), 0
    message = EACH.sub("", message)
    while start := START.search(message, at):
        at = start.end()
        while at < len(message):
            if message[at] in "([":
                at = end_of_brackets(message, at)
            elif name := re.match(r"\.[A-Za-z_]\w*", message[at:]):
                at += name.end()
            else:
                break
        code = message[start.start() : at]
        if not NO_CODE.match(code):
            found.append(code)
    return found


class Comm:
    """As a communicator of mpi4py: it takes what the message gives it."""

    def Send(self, x):
        assert bridge.asarray(x).device.is_host or hasattr(x, "__dlpack__")

    Recv = Send

    def send(self, x):
        assert x is not None

    recv = object


def names_of(place, tmp_path):
    """What the code of a message may speak of, on the device *place*."""
    t = bridge.full((2, 3), 2.0, "float32", device=place)
    memory = np.zeros(6)
    bridge.save(tmp_path / "a.npy", np.ones(2))
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    return {
        "__name__": "rows",
        "dlbridge": bridge,
        "numpy": np,
        "operator": operator,
        "copy": copy,
        "place": place,
        "t": t,
        "x": t,
        "source": bridge.zeros((2, 3), "float32", place),
        "target": bridge.zeros((2, 3)),
        "array": np.zeros(3, "float32"),
        "index": 0,
        "device": place,
        "name": place,
        "dtype": "float64",
        "shape": (6,),
        "n": 2,
        "value": 2,
        "axis": 1,
        "address": memory.ctypes.data,
        "path": tmp_path / "a.npy",
        "stream": None,
        "comm": Comm(),
        "frozen": bridge.asarray(np.frombuffer(bytes(24), "f4").reshape(2, 3)),
        "capsule": t.__dlpack__(max_version=(1, 3)),
        "fill_value": t[0, 0],
        "h": bridge.ones(3),
        "odd": np.zeros(9, "float32")[np.zeros(9, "float32").ctypes.data % 8 // 4 + 1 :][:4],
        "raw": bytes(2),
        "flat": [1.0] * 6,
        "received": bridge.zeros((2, 3)),
        "ctypes": ctypes,
        "io": io,
        "nested": nested,
        "read_only": read_only,
        "Loader": Loader,
        "contents": (tmp_path / "a.npy").read_bytes(),
        "dlbridge_opencl": sys.modules.get("dlbridge_opencl"),
        "pickled": tmp_path / "pickled.npy",
    }


def nested(depth):
    return 1 if depth == 0 else [nested(depth - 1)]


def read_only():
    array = bridge.zeros(64, alignment=4096).numpy()
    array.flags.writeable = False
    return array


class Loader:
    """As a DataLoader."""

    def __init__(self, t):
        self.t = t

    def __iter__(self):
        return iter([self.t, {"a": self.t}])


def take(message, names):
    """Run each piece of code of *message*; the results by the code."""
    assert not BARE.search(message), "dlbridge. is missing"
    results = {}
    for code in code_in(message):
        if "cuda" in code or any(f"backend('{name}')" in code for name in ("rocm", "oneapi")):
            continue  # their drivers are loaded in processes of their own
        for name in re.findall(r"backend\('(\w+)'\)|'(\w+):0'", code):
            backend_or_skip(name[0] or name[1])
        for name in re.findall(r"like='(\w+)'", code):
            if name not in bridge.backends():
                peer(name)
        results[code] = eval(code.replace("axis, ...", "1, 0"), names)
    return results


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hint", sorted({*PACKAGE_NAMES.values(), *TENSOR_NAMES.values()}))
def test_each_call_that_a_hint_names_runs_on_each_device(hint, place, tmp_path):
    backend_or_skip(place.partition(":")[0])
    take(hint, names_of(place, tmp_path))
    assert code_in(hint) or not re.search(r"dlbridge\.|\bt\.\w+\(", hint)


class Row(NamedTuple):
    """What was done, and what its message must show."""

    call: str
    right: tuple[str, ...] = ()
    """Where it is no mistake."""
    ways: int = 1
    """How many pieces of code the message shows at least."""
    t: str = "t"
    """The tensor of the mistake."""
    again: bool = False
    """Whether the same call is right with the result of the way out."""
    only: tuple[str, ...] = tuple(PLACES)
    """Where it can be done."""


SHARED = ("cpu", "opencl:0", "vulkan:0")
PACKED = "dlbridge.to_device(dlbridge.asarray(b'\x21\x43').view('uint4'), place, copy=True)"
COPY_OF_ANOTHER_TYPE = "dlbridge.copy_(dlbridge.zeros((2, 3), 'float16', place), source)"
OWN = {
    "numpy without a copy": Row("t.numpy(copy=False)", ("cpu",), 2),
    "numpy on the device": Row("dlbridge.to_device(t, place, like='numpy')", ("cpu",)),
    "jax on the device": Row("dlbridge.to_device(t, place, like='jax')", ("cpu",)),
    "torch on the device": Row("dlbridge.to_device(t, place, like='torch')", ("cpu",)),
    "torch's from_dlpack": Row("torch.from_dlpack(t)", ("cpu",), again=True),
    "pyopencl's array elsewhere": Row("dlbridge.to_device(t, 'cpu', like='opencl')"),
    "reshape of strides": Row("t.reshape(6)", t="t.T", again=True),
    "view of strides": Row("t.view('uint8')", t="t.T", again=True),
    "view as a larger type": Row("t.view('float64')", again=True),
    "view between elements": Row("t.view('float32')", t="t.view('uint8')[:, 2:10]", again=True),
    "view without dimensions": Row("t.view('uint8')", t="t[0, 0]", again=True),
    "T of three dimensions": Row("t.T", t="t[None]"),
    "item": Row("t.item()", ways=2),
    "float": Row("float(t)", ways=2),
    "format": Row("f'{t:.2f}'"),
    "truth": Row("bool(t)", ways=2),
    "a sum": Row("t + 1", again=True),
    "a comparison": Row("t < 1", again=True),
    "an index": Row("operator.index(t)", ways=1),
    "a list of indices": Row("t[[0, 1]]"),
    "a mask": Row("t[numpy.ones((2, 3), bool)]"),
    "an assignment": Row("t.__setitem__(0, 1)", ways=2),
    "a copy of another shape": Row("dlbridge.copy_(t.T, source)"),
    "a copy of a part": Row("dlbridge.copy_(t[:1], source)", ways=2),
    "a copy of another type": Row(COPY_OF_ANOTHER_TYPE),
    "a copy of a number": Row("dlbridge.copy_(t, 2)"),
    "a copy into a list": Row("dlbridge.copy_([1, 2], t)"),
    "a copy into what is read-only": Row("dlbridge.copy_(frozen, source)", ways=2),
    "packed, numpy": Row("t.numpy()", ways=2, t=PACKED),
    "packed, numpy as the library": Row(
        "dlbridge.to_device(t, 'cpu', like='numpy')", ways=2, t=PACKED
    ),
    "packed, torch": Row("dlbridge.to_device(t, 'cpu', like='torch')", ways=2, t=PACKED),
    "float8 that torch has not": Row(
        "dlbridge.to_device(t, 'cpu', like='torch')",
        ways=2,
        t="dlbridge.zeros((2, 3), 'float8_e3m4', place)",
    ),
    "lanes, torch": Row(
        "dlbridge.to_device(t, 'cpu', like='torch')", t="dlbridge.zeros(3, 'float32x4', place)"
    ),
    "packed, an odd part": Row("t[1:3]", t=PACKED),
    "packed, native": Row("t.to_native()", ways=2, t=PACKED),
    "a host view": Row("t.host_view().__enter__()", SHARED),
    "a host view used as the tensor": Row("t.host_view().numpy()"),
    "a copy of a host view": Row("copy.copy(t.host_view())"),
    "numpy of a host view": Row("numpy.asarray(t.host_view())"),
    "a host view after its block": Row("expired(t).tolist()"),
    "a descriptor": Row("t.to_fd()", ways=2),
    "a column": Row("dlbridge.to_device(t, 'cpu', like='pandas')", ways=2),
    "a turned tensor, exported": Row(
        "t.__dlpack__(max_version=(1, 3), copy=False)", t="t[::-1]", again=True
    ),
    "the array interface": Row("t.__array_interface__", ("cpu",), again=True),
    "the device first": Row("dlbridge.to_device(place, t)"),
    "the library as the device": Row("t.to_device('numpy')"),
    "the array as an address": Row("dlbridge.from_blob(t, (2, 3), 'float32')"),
    "a list as the library": Row("dlbridge.to_device(t, 'cpu', like=list)"),
    "bytes as the library": Row("dlbridge.to_device(t, 'cpu', like=bytes)"),
    "memory as the library": Row("dlbridge.to_device(t, 'cpu', like=memoryview)"),
    "a dtype as the library": Row("dlbridge.to_device(t, 'cpu', like='float16')"),
    "a device as the library": Row("dlbridge.to_device(t, 'cpu', like='opencl:0')"),
    "a dictionary": Row("dlbridge.to_device({'a': t}, place)"),
    "lists of unequal tensors": Row("dlbridge.to_device([t, t[0]], place)"),
    "torch's view": Row("t.view(3, 2)"),
    "the dtype of asarray": Row("dlbridge.asarray(t, dtype='int32')", ways=2),
    "a capsule's device": Row("dlbridge.device_of(capsule)"),
    "the path second": Row("dlbridge.save(t, 'x.npy')"),
    "a method as a function": Row("dlbridge.host_view(t)"),
    "the trace before its block": Row("dlbridge.trace().nbytes"),
    "a text as the new shape": Row("t.reshape('a')"),
    "no backend": Row("dlbridge.backend(None)"),
    "the class of devices": Row("dlbridge.Device('cpu:0')"),
    "an array as the device": Row("dlbridge.device(x)", t="t.to_native()", only=("opencl:0",)),
    "a function for accepts": Row("dlbridge.accepts(numpy.sum)"),
    "shared memory": Row("dlbridge.share(t)", only=("webgpu:0",)),
    "read-only, native": Row(
        "t.to_native()",
        t="dlbridge.to_device(read_only(), place)",
        only=("opencl:0",),
    ),
    "a type that pyopencl has not": Row(
        "t.to_native()", t="dlbridge.zeros(3, 'uint64', place).view('handle')", only=("opencl:0",)
    ),
    "memory that a device cannot use": Row(
        "dlbridge.to_device(t, place, copy=False)", t="odd", only=("opencl:0", "vulkan:0")
    ),
    "a context that is none": Row("dlbridge_opencl.use_context(3)", only=("opencl:0",)),
    "float4 that torch has in pairs": Row(
        "dlbridge.to_device(t, 'cpu', like='torch')",
        t="dlbridge.zeros((2, 6), 'float4_e2m1fn', place)",
        again=True,
    ),
    "bools for Arrow": Row(
        "dlbridge.to_device(t, 'cpu', like='pyarrow')",
        t="dlbridge.zeros(3, 'bool', place)",
        again=True,
    ),
    "complex numbers for Arrow": Row(
        "dlbridge.to_device(t, 'cpu', like='pyarrow')",
        t="dlbridge.zeros(3, 'complex64', place)",
        again=True,
    ),
    "strides for Arrow": Row(
        "t.__arrow_c_array__()", t="t.reshape(-1)[::2]", again=True, only=("cpu",)
    ),
    "several pictures": Row(
        "dlbridge.to_device(t, 'cpu', like='PIL')",
        t="dlbridge.zeros((5, 7, 8), 'uint8', place)",
        again=True,
    ),
    "a picture with the channels first": Row(
        "dlbridge.to_device(t, 'cpu', like='PIL')",
        t="dlbridge.zeros((3, 7, 8), 'uint8', place)",
        again=True,
    ),
    "a line for a picture": Row(
        "dlbridge.to_device(t, 'cpu', like='PIL')",
        t="dlbridge.zeros(8, 'uint8', place)",
        again=True,
    ),
    "lanes for astype": Row(
        "dlbridge.astype(t, 'float16x8')", t="dlbridge.zeros(4, 'float32x4')", only=("cpu",)
    ),
    "read-only memory for who cannot know it": Row("t.__dlpack__()", t="frozen", only=("cpu",)),
    "the other byte order, without a copy": Row(
        "dlbridge.asarray(t, copy=False)", t="numpy.arange(3, dtype='>f4')", again=True
    ),
    "strides of bytes": Row(
        "dlbridge.asarray(t, copy=False)", t="numpy.zeros(3, 'f4,i1')['f0']", again=True
    ),
    "a type without an array interface": Row(
        "t.__array_interface__", t="dlbridge.zeros(3, 'bfloat16')", again=True, only=("cpu",)
    ),
    "numbers of a type that numpy has not": Row(
        "dlbridge.asarray([1, 2, 3, 4], dtype='float4_e2m1fn_x2')", ways=2
    ),
    "a number that does not fit": Row("dlbridge.asarray(t, dtype='uint8')", t="[300]"),
    "a text in numbers": Row("dlbridge.asarray(t, dtype='uint8')", t="[1, -1]"),
    "a large integer": Row("dlbridge.asarray(t)", t="[2**70]"),
    "a large number": Row("dlbridge.asarray(t)", t="2**70"),
    "dates in a list": Row(
        "dlbridge.asarray(t)", t="[numpy.datetime64('2026-01-01'), numpy.datetime64('2026-01-02')]"
    ),
    "arrays of objects": Row("dlbridge.asarray(t)", t="[numpy.array([1, 2], object)]"),
    "lists that are too deep": Row("dlbridge.asarray(nested(65))"),
    "arrays beside a text": Row("dlbridge.to_device(x, place)", t="[t, 'a']"),
    "a module": Row("dlbridge.to_device(x, place)", t="torch.nn.Linear(2, 2)"),
    "a module in a tree": Row("dlbridge.tree_to_device([x], place)", t="torch.nn.Linear(2, 2)"),
    "a module for a file": Row("dlbridge.save('f.npz', x)", t="torch.nn.Linear(2, 2)"),
    "items": Row("dlbridge.to_device(x, place)", t="{'a': t}.items()"),
    "a file's name": Row("dlbridge.to_device('a.npy', place)"),
    "what gives batches": Row("dlbridge.to_device(x, place)", t="Loader(t)"),
    "what gives batches, as a tree": Row("dlbridge.tree_to_device(x, place)", t="Loader(t)"),
    "a file that must be unpickled": Row("dlbridge.load(t)", t="pickled"),
    "contents as a path": Row("dlbridge.load(t)", t="contents"),
    "an open file": Row("dlbridge.to_device(t, place)", ways=2, t="io.BytesIO(contents)"),
    "an address of the host for a device": Row(
        "dlbridge.from_blob(t.ctypes.data, (2,), 'float32', device=place)",
        ("cpu",),
        t="numpy.zeros(2, 'f4')",
    ),
    "bytes as an address": Row("dlbridge.from_blob(t, (2,), 'uint8')", t="bytearray(2)"),
    "a number of ctypes as an address": Row(
        "dlbridge.from_blob(t, (2,), 'uint8')", t="ctypes.c_longlong(5)"
    ),
    "strides for tvm_ffi": Row(
        "dlbridge.ffi.from_dlpack(t, require_contiguous=True)", t="t.T", again=True, only=("cpu",)
    ),
    "alignment for tvm_ffi": Row(
        "dlbridge.ffi.from_dlpack(t, require_alignment=64)", t="odd", again=True, only=("cpu",)
    ),
    "MPI, memory of a device": Row(
        "t.__dlpack__(stream=-1, max_version=(1, 0), copy=False)",
        ways=2,
        only=tuple(PLACES[1:]),
    ),
    "MPI, packed elements": Row(
        "t.__dlpack__(max_version=(1, 0), copy=False)", t=PACKED, ways=4, only=("cpu",)
    ),
}


def expired(t):
    with t.host_view() as h:
        return h


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OWN)
def test_the_way_out_of_a_message_about_a_tensor_runs_on_each_device(
    name, place, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    backend_or_skip(place.partition(":")[0])
    row = OWN[name]
    names = {**names_of(place, tmp_path), "expired": expired}
    if place not in row.only:
        return
    for library in re.findall(r"\b(torch|jax|pandas|pyarrow|PIL)\b", f"{row.call} {row.t}"):
        names[library] = peer(library)
    if "ffi." in row.call:
        peer("tvm_ffi")
    if "__arrow_" in row.call:
        peer("pyarrow")  # for the way out
    if "opencl" in row.call:
        backend_or_skip("opencl")
    names["t"] = names["x"] = eval(row.t, names)
    if isinstance(names["t"], Path):
        names["path"] = names["t"]
    if place in row.right:
        eval(row.call, names)
        return
    mistakes = (bridge.Error, TypeError, ValueError, AttributeError, ModuleNotFoundError, OSError)
    with pytest.raises(mistakes) as told:
        eval(row.call, names)
    taken = take(str(told.value), names)
    assert len(taken) >= row.ways, str(told.value)
    if row.again:
        (result,) = taken.values()
        eval(row.call, {**names, "t": result})


def messages(file):
    """The texts in the code of *file*, without its docstrings: a value in one is ``{}``."""
    tree = ast.parse(file.read_text())
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docs = {id(node.value) for node in statements}
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in parts:
            parts |= {id(value) for value in node.values}
            texts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield node.lineno, "".join(texts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs | parts
        ):
            yield node.lineno, node.value


def test_a_message_names_the_package_of_each_function_that_it_shows():
    """``to_device(t, 'cpu')`` is a NameError in a program that has ``import dlbridge``."""
    files = [*ROOT.glob("dlbridge/**/*.py"), *ROOT.glob("backends/*/dlbridge_*/**/*.py")]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in files
        for line, text in messages(file)
        if BARE.search(text) and "\n" not in text
    ]
    assert found == []
