"""A pytest plugin that takes one wait out of the backend: ``-p cuda_mutate``, CUDA_MUTATION=site.

A site is ``module.function:what``, with ``#2`` for the second of its kind in
the function. The call becomes "it returned success".
"""

import ast
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

DRIVER_WAITS = {
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuEventRecord",
    "cuCtxSynchronize",
}
OUR_WAITS = {
    "wait_for_helper",
    "wait_for_dma",
    "wait_for_devices",
    "record",
    "_finish",
    "_wait_before_free",
    "_synchronize_with_all_threads",
    "streams.synchronize",
    "streams.wait",
}


def what(node):
    """The name of the wait that *node* is; None if it is none."""
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    if called in ("call", "status") and isinstance(node.args[0], ast.Constant):
        return node.args[0].value if node.args[0].value in DRIVER_WAITS else None
    for name in (called, called.rpartition(".")[2]):
        if name in OUR_WAITS:
            return name
    return None


def sites(module, tree):
    """Every wait of a module: its site -> the node."""
    found = {}

    def visit(node, function):
        if isinstance(node, ast.FunctionDef):
            function = f"{function}.{node.name}" if function else node.name
        elif isinstance(node, ast.ClassDef):
            function = node.name
        name = what(node)
        if name:
            site = f"{module}.{function}:{name}"
            again = sum(other.partition("#")[0] == site for other in found)
            found[f"{site}#{again + 1}" if again else site] = node
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def package():
    return Path(importlib.util.find_spec("dlbridge_cuda").origin).parent


def all_sites():
    found = set()
    for path in sorted(package().glob("*.py")):
        found |= set(sites(path.stem, ast.parse(path.read_text())))
    return found


class Mutant(importlib.machinery.SourceFileLoader):
    """Loads a module without one of its waits."""

    def get_code(self, fullname):
        tree = ast.parse(self.get_data(self.path))
        node = sites(Path(self.path).stem, tree)[os.environ["CUDA_MUTATION"]]
        answered = isinstance(node.func, ast.Name) and node.func.id == "status"
        done = "(lambda *_: (0, None))()" if answered else "(lambda *_: None)()"
        new = ast.copy_location(ast.parse(done, mode="eval").body, node)
        node.func, node.args, node.keywords = new.func, new.args, new.keywords
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class Finder:
    """Finds the module of CUDA_MUTATION before the usual finders do."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        module = os.environ["CUDA_MUTATION"].partition(".")[0]
        if fullname != f"dlbridge_cuda.{module}":
            return None
        source = str(package() / f"{module}.py")
        return importlib.util.spec_from_file_location(
            fullname, source, loader=Mutant(fullname, source)
        )


if os.environ.get("CUDA_MUTATION"):
    sys.meta_path.insert(0, Finder)
