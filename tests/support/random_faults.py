"""Random faults in dlbridge, put in one at a time: which tests find each.

    python -m tests.support.random_faults --seed 1 --count 100 \\
        --of tests/core/moves/test_old.py --rest tests/core/moves/test_new.py --rest tests/core

Before a test goes, this shows what is lost with it. A fault is one change of one node of the source:
another comparison, a constant one higher or lower, a statement left out, `and` for `or`, a condition
turned, two arguments exchanged, another sum. It is drawn from the lines that the tests of ``--of``
run. Those run first; the faults that they find are then asked of each ``--rest`` in turn, until one
finds it too. The last line counts those that only ``--of`` finds, and each has a line above.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.without_a_wait import Changed

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("numpy", "ml_dtypes", "hypothesis.stateful", "pytest", "_pytest.assertion.rewrite")
"""What each run needs, imported once; nothing of dlbridge."""

OTHER: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}  # fmt: skip


def changes(node: ast.AST) -> list[str]:
    """The kinds of faults that *node* can have."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in OTHER:
            return ["other comparison"]
        case ast.BoolOp():
            return ["and for or"]
        case ast.BinOp(op=op) if type(op) in OTHER and not isinstance(node.left, ast.Constant):
            return ["other sum"]
        case ast.Constant(value=int()) if not isinstance(node.value, bool):
            return ["one more", "one less"]
        case ast.If() | ast.While() | ast.IfExp():
            return ["condition turned"]
        case ast.Call(args=[ast.expr(), ast.expr(), *_]):
            return ["arguments exchanged"]
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            return ["left out"]
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return ["left out"]
    return []


def sites(source: str, lines: set[int]) -> list[tuple[int, str]]:
    """Each fault of a module on these lines: the number of the node, and the kind."""
    tree = ast.parse(source)
    notes = {
        id(each)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for each in ast.walk(part)
    }
    return [
        (number, kind)
        for number, node in enumerate(ast.walk(tree))
        if getattr(node, "lineno", 0) in lines and id(node) not in notes
        for kind in changes(node)
    ]


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def with_fault(source: str, number: int, kind: str) -> tuple[ast.Module, str]:
    """The module with one fault, and what it is, in words."""
    tree = ast.parse(source)
    node: Any = list(ast.walk(tree))[number]
    new = copy.deepcopy(node)
    if kind == "other comparison":
        new.ops = [OTHER[type(node.ops[0])]()]
    elif kind in ("and for or", "other sum"):
        new.op = OTHER[type(node.op)]()
    elif kind in ("one more", "one less"):
        new.value += 1 if kind == "one more" else -1
    elif kind == "condition turned":
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif kind == "arguments exchanged":
        new.args[:2] = new.args[1::-1]
    else:
        new = ast.Pass()
    ast.copy_location(new, node)
    text = (node if kind == "left out" else getattr(new, "test", None) or new) and node
    words = f"line {node.lineno}, {kind}: {ast.unparse(getattr(text, 'test', text))[:70]}"
    return ast.fix_missing_locations(_Put(node, new).visit(tree)), words


def in_child(work: Any, seconds: float) -> int | None:
    """The exit status of *work* in a fork of this process; None if it does not end in time."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(null, each)
        os._exit(int(work()))
    end = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def run(tests: list[str]) -> int:
    import pytest

    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", *tests])


def lines_of(tests: list[str], seconds: float) -> dict[str, set[int]]:
    """The lines of dlbridge that *tests* run, by file; the tests must pass."""
    package = f"{ROOT / 'dlbridge'}{os.sep}"
    seen: dict[str, set[int]] = {}

    def local(frame: Any, event: str, _: Any) -> Any:
        seen.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return (
            local(frame, event, argument) if frame.f_code.co_filename.startswith(package) else None
        )

    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:

        def work() -> int:
            threading.settrace(trace)
            sys.settrace(trace)
            status = run(tests)
            sys.settrace(None)
            found = {name: sorted(lines) for name, lines in seen.items()}
            Path(file.name).write_text(json.dumps(found))
            return status

        if (status := in_child(work, seconds)) != 0:
            raise SystemExit(f"{' '.join(tests)}: exit status {status} without a fault")
        return {name: set(lines) for name, lines in json.load(file).items()}


def draw(lines: dict[str, set[int]], only: list[str], seed: int, count: int) -> list[Any]:
    """(file, number, kind) of *count* faults, in the files whose path has one of *only* in it."""
    every = [
        (name, number, kind)
        for name in sorted(lines)
        if any(each in name for each in only)
        for number, kind in sites(Path(name).read_text(encoding="utf-8"), lines[name])
    ]
    print(f"{len(every)} faults are possible on the lines that these tests run", flush=True)
    return random.Random(seed).sample(every, min(count, len(every)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Which tests find random faults.")
    parser.add_argument("--of", action="append", required=True, help="tests that would go")
    parser.add_argument("--rest", action="append", default=[], help="tests that stay, each in turn")
    parser.add_argument("--only", action="append", help="parts of the paths of dlbridge's modules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300, help="for each run of tests")
    given = parser.parse_args()
    for name in FIRST:
        importlib.import_module(name)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    rest = [shlex.split(each) for each in given.rest]
    for tests in rest:
        if (status := in_child(lambda tests=tests: run(tests), 600)) != 0:
            raise SystemExit(f"{' '.join(tests)}: exit status {status} without a fault")
    of = [each for one in given.of for each in shlex.split(one)]
    faults = draw(lines_of(of, 1200), given.only or ["/dlbridge/"], given.seed, given.count)
    counts: Counter[str] = Counter()
    for name, number, kind in faults:
        module = ".".join(Path(name).relative_to(ROOT).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        tree, words = with_fault(Path(name).read_text(encoding="utf-8"), number, kind)

        def work(tests: list[str], module: str = module, tree: ast.Module = tree) -> int:
            sys.meta_path.insert(0, Changed(module, lambda _: tree))
            return run(tests)

        def finds(tests: list[str], work: Any = work) -> bool:
            return in_child(lambda: work(tests), given.seconds) not in (0, 5)

        where = "nobody"
        if finds(of):
            where = next((" ".join(tests) for tests in rest if finds(tests)), "only those that go")
        counts[where] += 1
        print(f"{module}, {words}: {where}", flush=True)
    print(f"seed {given.seed}, {len(faults)} faults: {dict(counts)}")


if __name__ == "__main__":
    main()
