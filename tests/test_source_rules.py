"""Rules of docs/safety.md that can be read off the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in (ROOT / "dlbridge", *ROOT.glob("backends/*/dlbridge_*"))
    for path in folder.rglob("*.py")
    if path.name != "_cdefs.py"
)

# `ffi.gc` gives a pointer a destructor: each place says who owns what.
GC_HOMES = {
    "dlbridge/core/dlpack/capsules.py",  # the one owner of other libraries' structs
    "dlbridge/ffi/_lib.py",  # delivers a Ctrl-C again, when a frame ends
    "dlbridge/ffi/calls/bound.py",  # keeps Python objects of a prepared call alive
}

# A plain lock, where no finalizer may come and ask for it: each says why at its place.
PLAIN_LOCKS = {
    "dlbridge/kit/staging.py",
    "backends/cuda/dlbridge_cuda/driver.py",
    "backends/rocm/dlbridge_rocm/driver.py",
    "backends/vulkan/dlbridge_vulkan/locks.py",  # looks at the type only
}


def found(source: str) -> dict[str, list[int]]:
    """The lines where *source* breaks, or has to explain, a rule."""
    lines: dict[str, list[int]] = {"acquire": [], "gc": [], "lock": [], "filled": []}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr == "acquire":
                lines["acquire"].append(node.lineno)
            if node.func.attr == "gc" and owner == "ffi":
                lines["gc"].append(node.lineno)
            if node.func.attr == "Lock" and owner == "threading":
                lines["lock"].append(node.lineno)
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlbridge")
        for alias in node.names
    }
    for node in tree.body:  # a table of another module that is filled while loading
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in imported:
            lines["filled"].append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_rules(path):
    name = path.relative_to(ROOT).as_posix()
    lines = found(path.read_text(encoding="utf-8"))
    assert not lines["acquire"], "use `with lock`: a Ctrl-C may come between acquire() and try"
    assert not lines["filled"], "nothing is filled in while loading"
    assert bool(lines["gc"]) == (name in GC_HOMES), "ffi.gc outside its homes, or a home without"
    assert bool(lines["lock"]) == (name in PLAIN_LOCKS), "use RLock: a finalizer may come inside"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("lock.acquire()\ntry:\n    pass\nfinally:\n    lock.release()", "acquire"),
        ("p = ffi.gc(pointer, destructor)", "gc"),
        ("lock = threading.Lock()", "lock"),
        ("from dlbridge.core.outgoing.producer import TABLE\nTABLE['name'] = print", "filled"),
    ],
)
def test_each_rule_is_seen(source, rule):
    assert [name for name, lines in found(source).items() if lines] == [rule]
