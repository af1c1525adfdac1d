"""Imports run one way: what each module of dlbridge, and each backend, may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The order of rooms, and of the modules in each. A module may import the modules
# before it, and none of those behind it. (An import for types only does not
# count.) A new module is entered here on purpose.
TABLE = """
errors
protocol

kit.resources kit.status kit.limits kit.fork kit.devices kit.host_views kit.gate kit.callbacks kit.handles kit.single_queue
kit.through_host kit.buffer_array
kit.driver kit.helpers
kit.capture kit.events kit.pointers kit.regions kit.consumers
kit.streams kit.memory
kit.pool kit.pinned kit.staging
kit.host_copies
kit.backend
kit.device_backend kit.host_backend
kit

core.implementation_details core.implementation_details.interpreters
core core._cdefs core.public
core.implementation_details.python_api
core.implementation_details.numpy_arrays core.implementation_details.capsules
core.implementation_details.handlers core.implementation_details.callbacks
core.implementation_details.finalizers core.implementation_details.callers

core.values core.values.suggestions core.values.units core.values.layout core.values.dtypes core.values.subbyte
core.values.devices core.values.identity
typing

core.dlpack core.dlpack.structs core.dlpack.requests core.dlpack.capsules
core.dlpack.foreign_tables core.dlpack.exports

core.plugins core.plugins.cpu core.plugins.contract core.plugins.registry
core.plugins.records core.plugins.lookup core.plugins.streams

core.tensor core.tensor.other_names core.tensor.memory core.tensor.carriers core.tensor.metadata
core.tensor.ordering
core.tensor.indexing core.tensor.tensor core.tensor.array_tensor core.tensor.operand core.tensor.exports
core.tensor.resized_views core.tensor.consumers core.tensor.adopt core.tensor.expired

core.libraries core.libraries.library core.libraries.descriptions core.libraries.lookup
libraries
core.interfaces core.interfaces.lists

core.moves core.moves.regions core.moves.within_host
core.moves.copies core.moves.plans core.moves.traces core.moves.progress core.moves.transfer
core.moves.filling core.moves.host_views core.moves.printing

core.processes core.processes.host_blocks core.processes.device_blocks
core.processes.pickles core.processes.shared_tensors

core.interfaces.dlpack core.interfaces.native core.interfaces.buffers core.interfaces.arrow
core.interfaces.cuda_array_interface core.interfaces.own_table core.interfaces.anything

core.libraries.like core.libraries.numpy core.libraries.torch core.libraries.jax core.libraries.tvm_ffi
core.libraries.tensorflow core.libraries.pandas core.libraries.pyarrow

core.prepared core.api core.creation core.accepting core.sharing

core.casts
core.files core.files.source core.files.safetensors core.files.npy core.files.gguf
core.files.loading core.files.saving
dask

ffi._lib ffi.any ffi.objects ffi.errors ffi.tensors ffi.calls ffi.functions ffi.containers
ffi.modules ffi.classes ffi.structural ffi.serialization ffi.dataclasses
ffi

dlbridge

diagnosis diagnosis.display diagnosis.findings diagnosis.report diagnosis.files diagnosis.kernels diagnosis.device_trial diagnosis.trials
diagnosis.checks

conformance.rules conformance.producer conformance.subject conformance.cases
conformance.producer_cases conformance.consumer_cases conformance.table_cases
conformance.stream_cases conformance.worker
conformance.runner conformance.expectations conformance conformance.plugin

cli.info cli.doctor cli.explain cli.demo cli.new_backend cli.conformance
cli.bench
cli
__main__

testing.backend_base
testing.backend_contract testing.backend_memory testing.backend_copy
testing.backend_host testing.backend_streams testing.backend_order testing.backend_process
testing.backend_moves
testing.backend_exchange testing.backend_native testing.backend_refusals testing.backend_leaks
testing.backend_threads testing.backend_lost testing.backend_trim testing.backend_exportable
testing.backend
testing
"""
ORDER = TABLE.split()

# Functions that import a later module when they are called: a method of Tensor
# that moves or exports, for example. Each is off the fast paths.
LATE = {
    "core.values.devices": {"core.plugins.lookup"},
    "core.tensor.tensor": {
        "core.tensor.array_tensor",
        "core.tensor.operand",
        "core.tensor.resized_views",
        "core.moves.transfer",
        "core.processes.pickles",
        "core.moves.printing",
        "core.moves.host_views",
        "core.interfaces.dlpack",
        "core.interfaces.buffers",
        "core.interfaces.arrow",
        "core.interfaces.cuda_array_interface",
        "core.interfaces.native",
        "core.interfaces.own_table",
        "core.api",
        "dask",
    },
}

# Uses of attributes that begin with an underscore and belong to another module:
# of another room, and in all. Lower these numbers, and never raise them.
NOT_OURS = {
    "os._exit",
    "loaded._name",
    "last._replace",
    "kind._make",
    "sys._getframe",
    "torch._C",  # torch has no public name for DisableTorchFunctionSubclass
}  # of the standard library, and of others
PRIVATE_USES_ACROSS_ROOMS = 10
PRIVATE_USES = 19

FRAMEWORKS = [
    "numpy",
    "torch",
    "jax",
    "tvm_ffi",
    "cupy",
    "ml_dtypes",
    "pyarrow",
    "tqdm",
    "rich",
    "PIL",
]


def modules(folder):
    """Dotted name below *folder*'s parent -> file, for every module in *folder*."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules(ROOT / "dlbridge")
BACKENDS = sorted(path.parent for path in ROOT.glob("backends/*/dlbridge_*/__init__.py"))


def statements(tree):
    """All nodes of *tree*, except what stands under ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (inner for other in node.orelse for inner in ast.walk(other))
        else:
            yield node
            yield from statements(node)


def imports(path, name, types=False):
    """Dotted names of all that the module *name* at *path* imports, wherever it does so."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree) if types else statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join([*base, *filter(None, [node.module])]) if node.level else node.module
            # `from package import module` imports the module, `from module import name` not.
            inside = {f"{origin}.{alias.name}" for alias in node.names}
            found |= (inside & MODULES.keys()) or {origin}
    return found


def place(name):
    """Where *name* ("dlbridge.capsule") stands in the order."""
    return ORDER.index(name.removeprefix("dlbridge."))


def test_every_module_has_a_place():
    names = {name.removeprefix("dlbridge.") for name in MODULES}
    assert sorted(names) == sorted(ORDER), "enter new modules in TABLE, and take old ones out"


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_only_what_stands_before_them(name):
    ours = {other for other in imports(MODULES[name], name) if other in MODULES}
    later = {other for other in ours if place(other) >= place(name)}
    allowed = LATE.get(name.removeprefix("dlbridge."), set())
    assert {other.removeprefix("dlbridge.") for other in later} == allowed


@pytest.mark.parametrize("name", LATE)
def test_late_imports_are_inside_functions(name):
    tree = ast.parse(MODULES[f"dlbridge.{name}"].read_text(encoding="utf-8"))
    top = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {f"dlbridge.{late}" for late in LATE[name]} & top


def defined_names(tree):
    """The functions, classes, variables, slots and attributes of self that *tree* defines."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            names |= {slot.value for slot in ast.walk(node.value) if isinstance(slot, ast.Constant)}
    return names


def foreign_private_uses(tree):
    """The expressions ``x._name`` whose name *tree* does not define.

    Names as ``_missing_`` are documented protocols, of enum for example.
    """
    own = defined_names(tree)
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("_")
        and node.attr != "_replace"  # of named tuples, and public
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr not in own
    ]


def private_uses():
    """Place -> expression, for each use of another module's private attribute."""
    found = {}
    for name, path in MODULES.items():
        for use in foreign_private_uses(ast.parse(path.read_text(encoding="utf-8"))):
            if ast.unparse(use) not in NOT_OURS:
                found[f"{name}:{use.lineno}:{use.col_offset}"] = ast.unparse(use)
    return found


def room_of_a_private_attribute():
    """Name of a private attribute -> the rooms that define it."""
    rooms = {}
    for name, path in MODULES.items():
        for attribute in defined_names(ast.parse(path.read_text(encoding="utf-8"))):
            rooms.setdefault(attribute, set()).add(name.rpartition(".")[0])
    return rooms


def test_few_uses_of_the_private_attributes_of_other_modules():
    found = private_uses()
    assert len(found) <= PRIVATE_USES, found


def test_few_uses_of_the_private_attributes_of_other_rooms():
    """Inside a room a module may know how its neighbour is made: `operand_of` reads a Tensor."""
    rooms = room_of_a_private_attribute()
    foreign = {
        place: use
        for place, use in private_uses().items()
        if place.partition(":")[0].rpartition(".")[0] not in rooms.get(use.rpartition(".")[2], ())
    }
    assert len(foreign) <= PRIVATE_USES_ACROSS_ROOMS < 20, foreign


def test_the_reader_of_private_uses():
    tree = ast.parse(
        "class A:\n"
        "    __slots__ = ('_slot',)\n"
        "    def f(self, x):\n"
        "        self._mine = x._mine, x._slot, x.__dunder__, x._sunder_, x._f()\n"
        "        return self._other, x._other, x.y._data\n"
        "def _f(): ...\n"
    )
    assert {ast.unparse(use) for use in foreign_private_uses(tree)} == {"x._other", "x.y._data"}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda path: path.name)
def test_backends_import_only_the_contract(backend):
    kit = {name for name in MODULES if name.startswith("dlbridge.kit")}
    allowed = {"dlbridge.protocol", "dlbridge.errors", "dlbridge.libraries"} | kit
    for name, path in modules(backend).items():
        found = imports(path, name, types=True)
        foreign = {other for other in found if other.startswith("dlbridge")} - allowed
        assert {other for other in foreign if other.split(".")[0] != backend.name} == set(), path


def test_the_kit_imports_only_the_contract():
    for name, path in MODULES.items():
        if name.startswith("dlbridge.kit"):
            found = {other for other in imports(path, name) if other.startswith("dlbridge")}
            outside = {other for other in found if not other.startswith("dlbridge.kit")}
            assert outside <= {"dlbridge.protocol", "dlbridge.errors"}, name


def test_the_backends_are_found():
    assert {"dlbridge_fake", "dlbridge_opencl"} <= {path.name for path in BACKENDS}


def test_import_dlbridge_imports_nothing_heavy():
    """No backend, no numpy, no framework, and not importlib.metadata (10 to 30 ms)."""
    code = "import sys, dlbridge; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert "dlbridge" in loaded
    assert {*FRAMEWORKS, "dlbridge.core.plugins.cpu", "importlib.metadata"} & loaded == set()
    assert [name for name in loaded if name.startswith("dlbridge_")] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import dlbridge.tensor", {"dlbridge.tensor"}),
        ("from . import errors", {"dlbridge.errors"}),
        ("from .tensor import Tensor", {"dlbridge.tensor"}),
        ("from dlbridge import protocol, errors", {"dlbridge.protocol", "dlbridge.errors"}),
        ("def f():\n    from .tensor import Tensor", {"dlbridge.tensor"}),
        ("try:\n    import numpy as np\nexcept ImportError:\n    pass", {"numpy"}),
        ("if TYPE_CHECKING:\n    from .tensor import Tensor", set()),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
    ],
)
def test_the_reader_of_imports(tmp_path, source, found):
    """A check that cannot fail would be none."""
    path = tmp_path / "module.py"
    path.write_text(source)
    assert imports(path, "dlbridge.module") == found
