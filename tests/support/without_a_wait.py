"""A pytest plugin that takes one wait out of a package, to see whether a test misses it.

    python -m pytest -p tests.support.without_a_wait ...      with DLBRIDGE_MUTATION, the JSON of `Mutation.encode()`

A wait is a call, by its own name (``wait_for_device``, ``streams.wait``), or by
the name of the driver's function that is its first argument
(``call("hipStreamSynchronize", ...)``). A site is ``module.function:wait``, with
``#2`` for the second of its kind in the function.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "DLBRIDGE_MUTATION"


@dataclass
class Mutation:
    """Which calls of *package* are waits, and the one that is taken out."""

    package: str
    waits: list[str]
    success: dict[str, str]
    """What calls a driver's function by its name, and the expression for what it gives
    when it is taken out. Other waits give None."""
    site: str = ""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    def sites(self) -> set[str]:
        """Every wait of the package."""
        modules = sorted(self._folder().glob("*.py"))
        trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in modules}
        return {site for name, tree in trees.items() for site in self._find(name, tree)}

    def without(self, source: str) -> ast.Module:
        """The module of the site with the call replaced."""
        tree = ast.parse(source)
        call = self._find(self.site.partition(".")[0], tree)[self.site]
        given = ast.parse(self.success.get(ast.unparse(call.func), "None"), mode="eval").body
        return ast.fix_missing_locations(Replace(call, given).visit(tree))

    def _folder(self) -> Path:
        return Path(importlib.util.find_spec(self.package).origin).parent

    def _find(self, module: str, tree: ast.Module) -> dict[str, ast.Call]:
        found: dict[str, ast.Call] = {}
        for function, call in calls(tree, module):
            name = self._wait(call)
            site, number = f"{function}:{name}", 1
            while name and site in found:
                number += 1
                site = f"{function}:{name}#{number}"
            if name:
                found[site] = call
        return found

    def _wait(self, call: ast.Call) -> str:
        """The wait that *call* is; empty if it is none."""
        called = ast.unparse(call.func)
        if called in self.success and call.args and isinstance(call.args[0], ast.Constant):
            called = call.args[0].value
        return called if called in self.waits else ""


class Changed:
    """Finds one *module*, and has its source changed, to a text or a tree, before it is compiled."""

    def __init__(self, module: str, change: Callable[[str], str | ast.Module]) -> None:
        self.module, self.change = module, change

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        origin = importlib.machinery.PathFinder.find_spec(name, path).origin
        loader = ChangedLoader(name, origin)
        loader.change = self.change
        return importlib.util.spec_from_file_location(name, origin, loader=loader)


class ChangedLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # without a cached file of bytecode
        return compile(self.change(self.get_source(fullname)), self.path, "exec")


class Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit_Call(self, node):
        return self.new if node is self.old else self.generic_visit(node)


def calls(node, where):
    """(dotted name of the function around it, call) of every call below *node*."""
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inside = f"{where}.{child.name}"
        if isinstance(child, ast.Call):
            yield where, child
        yield from calls(child, inside)


if os.environ.get(VARIABLE):
    chosen = Mutation(**json.loads(os.environ[VARIABLE]))
    in_module = f"{chosen.package}.{chosen.site.partition('.')[0]}"
    sys.meta_path.insert(0, Changed(in_module, chosen.without))
