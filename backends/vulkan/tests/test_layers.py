"""Imports inside dlbridge_vulkan run one way: the order of its modules."""

import ast
from pathlib import Path

import dlbridge_vulkan
import pytest

FOLDER = Path(dlbridge_vulkan.__file__).parent

# A module imports only what stands before it, inside functions too, and for types too.
# Modules in one line do not know each other. A new module is entered here.
ORDER = """
_cdefs              C declarations, generated
library             the loader
spirv instance      reading modules; the physical devices
queue               one VkQueue
memory              buffers in blocks
device              an open device
devices copies native shared  all devices, opened or adopted; moving bytes; handles; memory of others
compute             kernels
backend             dlbridge's contract
"""


def rows():
    """The modules of each line: the words before two spaces."""
    for line in ORDER.strip().splitlines():
        yield [word for word in line.split("  ")[0].split() if (FOLDER / f"{word}.py").exists()]


PLACE = {name: place for place, row in enumerate(rows()) for name in row}
MODULES = {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}


def imported(path):
    """The package's own modules that the module at *path* imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update(names)
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.partition(".")[2]
                for alias in node.names
                if alias.name.split(".")[0] == "dlbridge_vulkan"
            )
    return found


def test_every_module_has_a_place():
    assert sorted(MODULES) == sorted(PLACE), "enter new modules in ORDER, and take old ones out"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name):
    later = {other for other in imported(MODULES[name]) if PLACE[other] >= PLACE[name]}
    assert later == set(), f"{name} imports what stands beside or after it"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_are_at_the_top(name):
    """None stands inside a function, where it would hide a circle."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    inside = [
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert inside == []


def test_the_check_sees_a_circle(tmp_path):
    """With one import that runs backwards, it would fail."""
    text = MODULES["queue"].read_text() + "\nfrom .device import Device\n"
    (tmp_path / "queue.py").write_text(text)
    assert any(PLACE[other] >= PLACE["queue"] for other in imported(tmp_path / "queue.py"))
