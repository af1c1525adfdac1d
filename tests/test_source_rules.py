"""The rules for shared state of CONTRIBUTING.md that can be read off the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in (ROOT / "dlbridge", *ROOT.glob("backends/*/dlbridge_*"))
    for path in folder.rglob("*.py")
    if path.name != "_cdefs.py"
)

# `ffi.gc` gives a pointer a destructor: each place says who owns what. The collector runs
# it before the finalizers of other objects in the same cycle, so today there is none.
GC_HOMES: set[str] = set()

# A lock that is not `shared_lock`'s: a thread that Python has ended may hold it in the last
# collection, and in a child of fork(). Each says why that does no harm.
OWN_LOCKS = {
    "backends/vulkan/dlbridge_vulkan/devices.py",  # looks at the type only
    "dlbridge/files/source.py",  # of one file, which a finalizer does not read
    "dlbridge/kit/gate.py",  # it lets nobody in by then
    "dlbridge/kit/resources.py",  # makes them
}

# A generator of `contextmanager` that a signal handler's exception has cut off before its block
# ends when it is collected: later, and perhaps in another thread. Here that does no harm.
LATE_GENERATORS = {
    "dlbridge/core/moves/progress.py",  # a bar
    "dlbridge/core/moves/plans.py",  # of a block that only its own function has
    "dlbridge/processes/pickles.py",  # restores what its own thread had
    "dlbridge/core/plugins/streams.py",  # likewise
    "dlbridge/tracing.py",  # a trace that nobody reads
    "dlbridge/ffi/streams.py",  # does nothing in another thread
}

# Tables of weakref, which call Python code when a thing ends (`remember` of dlbridge.kit.resources
# says what that does in a destructor of C++). What is in these ends by itself, or has a `__del__`.
WEAK_TABLES = {
    "backends/fake/dlbridge_fake/stream.py",  # streams, which finish their work in `__del__`
    "backends/webgpu/dlbridge_webgpu/backend.py",  # devices
    "backends/webgpu/dlbridge_webgpu/devices.py",  # buffers, which wgpu ends by Python code
    "backends/webgpu/dlbridge_webgpu/handles.py",  # likewise
    "dlbridge/conformance/producer.py",  # of the suite
    "dlbridge/core/dlpack/foreign_tables.py",  # classes
    "dlbridge/core/libraries/lookup.py",  # classes
    "dlbridge/kit/resources.py",  # one for each kind of resource
}


def claims(tree: ast.Module) -> list[int]:
    """The lines of ``if key not in table: ... table[key] = ...`` outside any ``with``.

    Tables that only one call knows, which are names of its own, do not count.
    """
    found = []

    def visit(node: ast.AST, local: set[str]) -> None:
        if isinstance(node, ast.With):
            return
        if isinstance(node, ast.FunctionDef):
            stores = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            local = {n.id for n in stores if isinstance(n.ctx, ast.Store)}
            local |= {argument.arg for argument in node.args.args}
        if isinstance(node, ast.If):
            asked = {
                ast.unparse(compare.comparators[0])
                for compare in ast.walk(node.test)
                if isinstance(compare, ast.Compare) and isinstance(compare.ops[0], ast.NotIn)
            }
            written = {
                ast.unparse(target.value)
                for statement in node.body
                for target in ast.walk(statement)
                if isinstance(target, ast.Subscript) and isinstance(target.ctx, ast.Store)
            }
            if (asked & written) - local:
                found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, local)

    visit(tree, set())
    return found


def filled_in(tree: ast.Module) -> list[int]:
    """Lines at the top of a module that change what another module has.

    Which table holds what must not depend on the modules that were loaded.
    """
    theirs = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    found = []
    for node in tree.body:
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            changed = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed = [node.target]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            method = node.value.func
            changers = {"add", "append", "extend", "insert", "setdefault", "update"}
            if isinstance(method, ast.Attribute) and method.attr in changers:
                changed = [method]
        for target in changed:
            owner = target
            while isinstance(owner, ast.Attribute | ast.Subscript):
                owner = owner.value
            if owner is not target and isinstance(owner, ast.Name) and owner.id in theirs:
                found.append(node.lineno)
    return found


def found(source: str) -> dict[str, list[int]]:
    """The lines where *source* breaks, or has to explain, a rule."""
    lines: dict[str, list[int]] = {"acquire": [], "gc": [], "lock": [], "pairs": []}
    lines["generator"], lines["weak"] = [], []
    tree = ast.parse(source)
    lines["claim"], lines["filled"] = claims(tree), filled_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "value", None)))
            if name in ("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"):
                lines["weak"].append(node.lineno)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Lock", "Condition")):
            lines["lock"].append(node.lineno)
        if isinstance(node, ast.FunctionDef):
            names = [ast.unparse(decorator) for decorator in node.decorator_list]
            lines["generator"] += [node.lineno for name in names if "contextmanager" in name]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr == "acquire":
                lines["acquire"].append(node.lineno)
            if node.func.attr == "gc" and owner == "ffi":
                lines["gc"].append(node.lineno)
        # A pair is a new object, whose making may start a collection, and that may change the table.
        pairs = ("list(", "tuple(", "sorted(")
        text = ast.unparse(node) if isinstance(node, ast.Call) else ""
        if text.startswith(pairs) and text.endswith(".items())") and ".copy()" not in text:
            lines["pairs"].append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_rules(path):
    name = path.relative_to(ROOT).as_posix()
    lines = found(path.read_text(encoding="utf-8"))
    assert not lines["acquire"], "use `with lock`: a Ctrl-C may come between acquire() and try"
    assert not lines["pairs"], "copy a table by one step: table.copy().items()"
    assert not lines["filled"], "nothing is filled in while loading"
    assert not lines["claim"], "claim by one step (dict.setdefault), or under `with lock`"
    assert bool(lines["generator"]) == (name in LATE_GENERATORS), (
        "call a function inside, as `Gate.run` does: a generator may end in another thread"
    )
    assert bool(lines["gc"]) == (name in GC_HOMES), "ffi.gc outside its homes, or a home without"
    assert bool(lines["weak"]) == (name in WEAK_TABLES), "use `remember` or `join`"
    assert bool(lines["lock"]) == (name in OWN_LOCKS), "use `shared_lock` of dlbridge.kit.resources"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("lock.acquire()\ntry:\n    pass\nfinally:\n    lock.release()", "acquire"),
        ("p = ffi.gc(pointer, destructor)", "gc"),
        ("def f():\n    lock = threading.Lock()", "lock"),
        ("table = weakref.WeakSet()", "weak"),
        ("def f(x):\n    if x not in table:\n        table[x] = 1", "claim"),
        (
            "class A:\n    def f(self, x):\n        if x not in self.t:\n            self.t[x] = 1",
            "claim",
        ),
        ("for key, value in list(table.items()):\n    pass", "pairs"),
        ("@contextlib.contextmanager\ndef f():\n    yield", "generator"),
        ("lock = RLock()", "lock"),
        ("class A:\n    lock = threading.RLock()", "lock"),
        ("from dlbridge.core.interfaces.dlpack import TABLE\nTABLE['name'] = print", "filled"),
        ("from . import a\na.t.update(x=1)", "filled"),
        ("from .b import B\nB.f = 2", "filled"),
    ],
)
def test_each_rule_is_seen(source, rule):
    assert [name for name, lines in found(source).items() if lines] == [rule]


def test_backends_state_the_version_of_the_contract_as_a_number():
    """With ``api = API`` a backend would claim versions that it was not written for."""
    found = {}
    for path in SOURCES:
        for cls in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = cls.body if isinstance(cls, ast.ClassDef) else []
            values = {
                ast.unparse(node.targets[0]): ast.unparse(node.value)
                for node in body
                if isinstance(node, ast.Assign)
            }
            if "device_type" in values:
                found[f"{path}:{cls.lineno}"] = values.get("api")
    assert len(found) >= 9
    assert set(found.values()) == {"2"}


TESTS = sorted(
    path
    for folder in ("tests", "backends/*/tests", "dlbridge/testing", "dlbridge/conformance")
    for place in ROOT.glob(folder)
    for path in place.rglob("*.py")
    if path != Path(__file__) and "hardware" not in path.parts
)
LIMIT = re.compile(
    r"\btimeout=([\d.]+)|(?<!Event\(\))\.(?:join|wait|poll|result)\(([\d.]+)\)"
    r"|\b(?:alarm|Timer)\(([\d.]+)|^SECONDS = ([\d.]+)"
)
CLOCK = re.compile(r"\bassert\b.*\b(?:monotonic|perf_counter|time|process_time)\(\)")


def judged_by_a_clock(text: str) -> list[str]:
    """Lines whose limit a slow machine may reach, or that compare times; scripts in strings too.

    ``while not event.wait(0.01)`` looks again. ``threading.Event().wait(0.01)`` is a pause.
    """
    return [
        line.strip()
        for line in text.splitlines()
        if "# no verdict" not in line and not line.lstrip().startswith("while not")
        if CLOCK.search(line)
        or any(0 < float(next(filter(None, found))) < 60 for found in LIMIT.findall(line))
    ]


def test_no_verdict_depends_on_a_clock():
    """CONTRIBUTING.md has the rule, and what may say ``# no verdict``."""
    found = {str(path): judged_by_a_clock(path.read_text(encoding="utf-8")) for path in TESTS}
    assert len(found) > 300
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "thread.join(20)",
        "assert done.wait(0.3)",
        "subprocess.run(command, timeout=30)",
        "signal.alarm(10)",
        "threading.Timer(0.1, go.set).start()",
        "SECONDS = 40",
        "assert time.monotonic() - begin < 10",
    ],
)
def test_each_clock_is_seen(line):
    assert judged_by_a_clock(line) == [line]
    assert judged_by_a_clock(f"{line}  # no verdict: a fault may come later, unseen") == []
