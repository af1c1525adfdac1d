"""Imports run one way: `lint-imports` reads the order of rooms in ``pyproject.toml``.

What its configuration cannot say is tested here: that each module has a place in the order,
what a backend may import, whose private attributes are used, and what `import dlbridge` loads.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

from dlbridge import _methods as methods
from dlbridge.api import on_demand
from tests.support.expected_parts import expected

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LINTER = tomllib.loads(CONFIGURATION)["tool"]["importlinter"]
LAYERS = [name for line in LINTER["contracts"][0]["layers"] for name in line.split(" : ")]

# Uses of attributes that begin with an underscore and belong to another module:
# of another room, and in all. Lower these numbers, and never raise them.
NOT_OURS = {
    "importlib._bootstrap",
    "importlib._bootstrap._module_locks",
    "sys._current_frames",
    "os._exit",
    "loaded._name",
    "last._replace",
    "kind._make",
    "sys._getframe",
    "torch._C",  # torch has no public name for DisableTorchFunctionSubclass
}  # of the standard library, and of others
PRIVATE_USES_ACROSS_ROOMS = 10
PRIVATE_USES = 15

LATE_IMPORTS = 12  # inside the core; each of them keeps something heavy from being loaded early

FRAMEWORKS = [
    *("numpy", "torch", "jax", "tvm_ffi", "cupy", "ml_dtypes", "pyarrow", "tqdm", "rich", "PIL"),
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


def lint_imports(folder, configuration):
    """What `lint-imports` says of the *configuration*, a text; a skip where it is not installed."""
    if find_spec("importlinter") is None and not expected("typing"):
        pytest.skip("import-linter is not installed here")
    file = folder / "importlinter.toml"
    file.write_text(configuration[configuration.index("[tool.importlinter]") :])
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache", "--no-logo", "--config", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_run_one_way(tmp_path):
    done = lint_imports(tmp_path, CONFIGURATION)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_late_import_against_the_order_is_found(tmp_path):
    """A check that cannot fail would be none. This order has a room below one that it imports."""
    line, late = (
        '    "dlbridge.core.dlpack",\n',
        "dlbridge.core.plugins.cpu -> dlbridge.core.dlpack.exports",
    )
    assert line in CONFIGURATION
    above = '    "dlbridge.core.plugins",\n'
    done = lint_imports(tmp_path, CONFIGURATION.replace(line, "").replace(above, f"{line}{above}"))
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert late in done.stdout


def test_no_import_is_excepted_from_the_order():
    assert [contract for contract in LINTER["contracts"] if "ignore_imports" in contract] == []


def imported(module, path, known):
    """Name -> whether it is late, of the *known* modules that *module* imports when it runs.

    Late is an import inside a function. What only type checkers read does not count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = {}

    def visit(node, late):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child, late)
            return
        late = late or isinstance(node, ast.FunctionDef)
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in known else base for name in names]
        for name in {*names} & {*known} - {module}:
            found[name] = found.get(name, True) and late
        for child in ast.iter_child_nodes(node):
            visit(child, late)

    visit(tree, False)
    return found


@pytest.mark.parametrize("package", [ROOT / "dlbridge", *BACKENDS], ids=lambda path: path.name)
def test_no_modules_import_each_other_in_a_circle(package):
    """Late imports count: one inside a function closes a circle as well."""
    known = modules(package)
    graph = {name: [*imported(name, path, known)] for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_a_circle_of_late_imports_is_seen(tmp_path):
    for name, text in {
        "__init__": "",
        "a": "import os\nfrom typing import TYPE_CHECKING\nfrom . import b\n",
        "b": "def f():\n    from toy.c import g\n",
        "c": "if TYPE_CHECKING:\n    from .a import x\nelse:\n    from .a import y as x\n",
        "d": "if TYPE_CHECKING:\n    from .d import x\n    import toy.a\n",
    }.items():
        (tmp_path / "toy").mkdir(exist_ok=True)
        (tmp_path / "toy" / f"{name}.py").write_text(text)
    known = modules(tmp_path / "toy")
    assert {name: imported(name, path, known) for name, path in known.items()} == {
        "toy": {},
        "toy.a": {"toy.b": False},
        "toy.b": {"toy.c": True},
        "toy.c": {"toy.a": False},
        "toy.d": {},
    }


def typed_imports(path):
    """Name -> module, as the imports for type checkers give them."""
    found = {}
    for block in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                home = "." * (node.level - 1) + node.module
                found |= dict.fromkeys([alias.asname for alias in node.names], home)
    return found


def test_the_table_of_methods():
    """Type checkers read the same functions. Others import what they need, by the order."""
    assert typed_imports(MODULES["dlbridge._methods"]) == methods._MODULES
    users = {
        name
        for name, path in MODULES.items()
        if "dlbridge._methods" in imported(name, path, MODULES)
    }
    assert users == {
        "dlbridge.core.tensor.array_tensor",
        "dlbridge.core.tensor.tensor",
        "dlbridge.core.values.devices",
        "dlbridge.api.creation",
    }
    used = {
        node.attr
        for name in users
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "methods"
    }
    assert used == set(methods._MODULES)


def test_the_table_of_what_the_api_loads_on_demand():
    """The same: what the API calls for objects without DLPack, and for `like=`."""
    assert typed_imports(MODULES["dlbridge.api.on_demand"]) == on_demand._MODULES
    users = [
        name
        for name, path in MODULES.items()
        if "dlbridge.api.on_demand" in imported(name, path, MODULES)
    ]
    assert users == [f"dlbridge.api.{name}" for name in ("anything", "moving", "routes")]
    for name, module in on_demand._MODULES.items():
        home = import_module(f".{module}", "dlbridge.api")
        assert getattr(on_demand, name) is getattr(home, name)


@pytest.mark.parametrize("name", methods._MODULES)
def test_a_function_of_the_table_stands_in_it_after_the_first_use(name, monkeypatch):
    monkeypatch.delitem(vars(methods), name, raising=False)
    function = getattr(methods, name)
    assert vars(methods)[name] is function
    assert function is getattr(import_module(f"dlbridge.{methods._MODULES[name]}"), name)


def test_few_late_imports_inside_the_core():
    late = [
        f"{name} -> {other}"
        for name, path in MODULES.items()
        if name.startswith("dlbridge.core")
        for other, is_late in imported(name, path, MODULES).items()
        if is_late
    ]
    assert len(late) <= LATE_IMPORTS, late


def test_every_module_has_a_place():
    rooms = {
        "dlbridge",
        "dlbridge.core",
        "dlbridge.core.libraries",
        "dlbridge.core.interfaces",
        "dlbridge.interop",
        "dlbridge.api",
    }
    without = [
        name
        for name in MODULES
        if name not in rooms and not any(f"{name}.".startswith(f"{layer}.") for layer in LAYERS)
    ]
    assert without == [], "enter them in the layers of pyproject.toml"


ROOMS = [
    name for name, path in MODULES.items() if path.name == "__init__.py" and name != "dlbridge"
]


def room_of(module):
    """The name by which first lines call the room of *module*; "" for helpers of all rooms."""
    inside = module.removeprefix("dlbridge.")
    room = ".".join(inside.split(".")[: 2 if inside.startswith("core.") else 1])
    is_helper = room.startswith(("_", "dlbridge")) or (
        room.startswith("core.") and f"dlbridge.{room}" not in ROOMS
    )
    return "" if is_helper else room


@pytest.mark.parametrize("room", ROOMS)
def test_the_first_lines_of_a_room_say_what_it_may_import(room):
    """All of it, and no more: who imports another room writes that down, and sees the order."""
    # In a comment: what stands in the docstring is read in help() and in the API's reference, too.
    text = re.sub(r"\n# ", " ", MODULES[room].read_text())
    said = re.search(r" May import: (.+?)\.(?=\s|$)", text, re.DOTALL)
    assert said, f"the first lines of {room} do not say what it may import"
    assert "May import" not in (import_module(room).__doc__ or "")
    own = room.removeprefix("dlbridge.")
    used = {
        room_of(name)
        for module, path in MODULES.items()
        if f"{module}.".startswith(f"{room}.")
        for name in imported(module, path, MODULES)
    }
    assert set(re.findall(r"`([\w.]+)`", said[1])) == {
        name for name in used - {""} if not f"{name}.".startswith(f"{own}.")
    }


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
        and node.attr not in ("_replace", "_asdict")  # of named tuples, and public
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr not in own
    ]


def private_uses():
    """Place -> expression, for each use of another module's private attribute.

    Generated modules are left out: one line of their text stands there many times.
    """
    found = {}
    for name, path in MODULES.items():
        if name == "dlbridge.ffi._calls":
            continue
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


ALLOWED = re.compile(r"dlbridge\.(protocol|errors|libraries|kit)\b")


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda path: path.name)
def test_backends_import_only_the_contract(backend):
    for path in backend.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = [
            f"{node.module}.{alias.name}"
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        names += [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
        ours = [name for name in names if re.match(r"dlbridge\b", name)]
        assert [name for name in ours if not ALLOWED.match(name)] == [], path


def test_the_core_names_no_backend():
    """Also not for type checkers, whose imports of backends are in ``dlbridge/typing.py``."""
    for path in (ROOT / "dlbridge" / "core").rglob("*.py"):
        names = re.findall(r"(?:from|import) dlbridge_\w+", path.read_text(encoding="utf-8"))
        assert names == [], path


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


@pytest.mark.parametrize("use", ["to_device(numpy.zeros(3), 'cpu')", "from_dlpack(numpy.zeros(3))"])
def test_the_first_move_on_the_host_does_not_look_at_distributions(use):
    code = f"import sys, numpy, dlbridge; dlbridge.{use}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dlbridge.core.plugins.registry" in out.stdout
    assert "importlib.metadata" not in out.stdout.split()
