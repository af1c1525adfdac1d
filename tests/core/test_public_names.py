"""The public names of the package: one list, and objects that say where they are public."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import pickle
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.scripts import run_script

NAMES = sorted(set(bridge.__all__) - {"__version__", "ffi"})
SOURCE = ast.parse(Path(bridge.__file__).read_text(encoding="utf-8"))


def typed_imports():
    """Name -> module, as the imports for type checkers give them."""
    (block,) = [
        node
        for node in SOURCE.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    found = {}
    for node in block.body:
        if node.level:
            for alias in node.names:
                assert alias.asname == alias.name, f"{alias.name}: a re-export says `as`"
                found[alias.name] = node.module
    return found


def test_type_checkers_see_the_same_names_from_the_same_modules():
    assert typed_imports() == {**bridge._MODULES, "ffi": None}


def test_all_and_dir_are_the_list():
    assert bridge.__all__ == sorted({*typed_imports(), "__version__"})
    assert dir(bridge) == bridge.__all__


def test_dir_of_the_names_in_c_has_those_that_are_not_loaded():
    """Completion and `help` ask it."""
    run_script(
        """
        from dlbridge import abi
        assert set(abi.__all__) <= set(dir(abi)), set(abi.__all__) - set(dir(abi))
        """
    )


ONE_OF_EACH_MODULE = {module: name for name, module in bridge._MODULES.items()}.values()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each in a process of its own, by fork")
def test_a_name_of_each_module_can_be_had_first():
    """Here another test may have loaded it. No hint is made for the imports that follow."""
    names = [*ONE_OF_EACH_MODULE, "ffi", "__version__"]
    run_script(
        f"""
        import os, sys
        for name in {names}:
            child = os.fork()
            if not child:
                import dlbridge
                print(getattr(dlbridge, name))
                exec(f"from dlbridge import {{name}}")
                assert "difflib" not in sys.modules, name
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, name
        """
    )


def test_no_module_has_the_name_of_a_public_object():
    """``import dlbridge.device`` must not replace the function ``dlbridge.device``."""
    modules = {module.name for module in pkgutil.iter_modules(bridge.__path__)}
    assert {"core", "errors", "typing"} <= modules
    assert modules & set(NAMES) == set()


@pytest.mark.parametrize("name", NAMES)
def test_public_objects_say_where_they_are_public(name):
    thing = getattr(bridge, name)
    where = "dlbridge.errors" if bridge._MODULES[name] == "errors" else "dlbridge"
    assert thing.__module__ == where
    assert getattr(importlib.import_module(where), name) is thing
    assert thing.__qualname__ == name


class Reader(pickle.Unpickler):
    """Notes the modules that a pickle imports."""

    def __init__(self, obj, protocol):
        super().__init__(io.BytesIO(pickle.dumps(obj, protocol)))
        self.modules = set()

    def find_class(self, module, name):
        self.modules.add(module)
        return super().find_class(module, name)


def pickled_modules(obj, protocol):
    """The names of the modules that a pickle of *obj* imports."""
    reader = Reader(obj, protocol)
    reader.load()
    return reader.modules


PICKLED = {
    "tensor": lambda: bridge.asarray([1, 2]),
    "tensor of bfloat16": lambda: bridge.zeros(3, "bfloat16"),
    "device": lambda: bridge.device("cuda:1"),
    "dtype": lambda: bridge.dtype("float32x4"),
    "device type": lambda: bridge.DLDeviceType.kDLCUDA,
    "type code": lambda: bridge.DLDataTypeCode.kDLFloat,
    "plan": lambda: bridge.plan(np.zeros(3), "cpu", copy=True),
    "error": lambda: bridge.ExchangeError("no"),
    "function": lambda: bridge.to_device,
    "class": lambda: bridge.Tensor,
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", PICKLED)
def test_pickles_name_public_modules_only(kind, protocol):
    """So that a pickle can be read after a class has moved between the rooms."""
    foreign = {"builtins", "__builtin__", "_codecs", "copyreg", "copy_reg"}
    foreign.add("tblib.pickling_support")  # of errors, once a test has imported distributed
    modules = pickled_modules(PICKLED[kind](), protocol)
    assert modules <= {"dlbridge", "dlbridge.errors"} | foreign
    assert modules & {"dlbridge", "dlbridge.errors"}


@pytest.mark.parametrize("name", NAMES)
def test_public_functions_can_be_found_in_their_source(name):
    """``__module__`` is not where the source is; inspect must find it all the same."""
    thing = inspect.unwrap(getattr(bridge, name))
    if inspect.isfunction(thing):
        assert inspect.getsource(thing).lstrip().startswith(("@", "def "))
