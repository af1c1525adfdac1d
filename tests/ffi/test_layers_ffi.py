"""The modules of dlbridge.ffi: how they are loaded, and the one list of public names."""

from __future__ import annotations

import ast
import inspect
import operator
import pickle
import subprocess
import sys

import pytest

import dlbridge
from dlbridge import ffi
from dlbridge.ffi import _methods
from tests.support.scripts import ROOT, run_script

FOLDER = ROOT / "dlbridge" / "ffi"

MODULES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ffi.nothing


@pytest.mark.parametrize("name", ["errors", "functions"])
def test_the_hint_for_a_name_that_is_a_module_which_is_not_loaded(name):
    run_script(
        f"""
        from dlbridge import ffi
        try:
            ffi.{name}
        except AttributeError as exc:
            assert str(exc).endswith("(did you mean '{name[:-1].title()}'?)"), exc
        else:
            raise AssertionError
        """
    )


def test_no_module_has_the_name_of_a_public_function():
    assert MODULES & {name for name in ffi.__all__ if callable(getattr(ffi, name))} == set()


def test_the_list_of_names_is_what_type_checkers_see():
    tree = ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {}
    for node in block.body:
        if isinstance(node, ast.FunctionDef):
            assert node.name == "_dtypes"
            continue
        if isinstance(node, ast.Assign):
            typed |= {name.id: "" for name in node.targets[0].elts}
            continue
        for alias in node.names:
            if alias.name == "DType":  # the class of those by name
                continue
            assert alias.asname == alias.name  # else it is not exported
            typed[alias.name] = "." * node.level + (node.module or "")
    homes = {**ffi._HOMES, **dict.fromkeys(ffi._MODULES, ".")}
    assert typed == homes
    assert sorted(typed) == ffi.__all__
    assert set(ffi.__all__) <= set(dir(ffi))


ONE_OF_EACH_MODULE = {ffi._HOMES.get(name, name): name for name in ffi.__all__}.values()


@pytest.mark.parametrize("name", ONE_OF_EACH_MODULE)
def test_a_name_of_each_module_alone_in_a_fresh_process(name):
    run_script(
        f"""
        import sys
        from dlbridge.ffi import {name}
        assert "difflib" not in sys.modules  # our own imports need no hint
        from dlbridge import ffi
        x = ffi.convert([1, 'text', None, {{'a': 2.5}}])
        assert list(x)[:2] == [1, 'text'] and x[3]['a'] == 2.5, x
        assert ffi.get_global_func('ffi.Array')(3)[0] == 3
    """,
        imported=("numpy",),
    )


@pytest.mark.parametrize("name", ["Module", "StructuralKey"])
def test_the_class_of_a_type_does_not_depend_on_what_was_loaded(name):
    """The library's own types have our classes, also where nobody has named these before."""
    run_script(
        f"""
        from dlbridge.ffi import object_class
        cls = object_class("ffi.{name}")
        from dlbridge import ffi
        assert cls is ffi.{name}, cls
    """,
        imported=("numpy",),
    )


def test_generated_calls_can_be_read_by_debuggers():
    assert "words[2] = INT" in inspect.getsource(ffi.Function.__call__)
    assert "call_c(*passed)" in inspect.getsource(ffi.convert_func(len).bind())


def test_no_code_is_made_of_text():
    """What an editor opens is what runs."""
    made = [
        (path.name, node.func.id)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("compile", "eval", "exec")
    ]
    assert made == []


def test_the_table_of_what_is_looked_up_in_modules_above():
    """Type checkers read the same names."""
    typed = {}
    for block in ast.parse((FOLDER / "_methods.py").read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                typed |= dict.fromkeys([alias.asname for alias in node.names], node.module)
    assert typed == _methods._MODULES


# Public name -> where users find it; a pickle names this place.
PLACES = {name: "dlbridge.ffi" for name in ffi.__all__ if ffi._HOMES.get(name, ".").startswith(".")}
PLACES |= {
    f"{module}.{name}": ("dlbridge.ffi" if name in ffi.__all__ else f"dlbridge.ffi.{module}")
    for module in ffi._MODULES
    for name in getattr(ffi, module).__all__
}
for plain in (*ffi._MODULES, "library_path", "version"):  # modules, a str, a tuple
    del PLACES[plain]


def public_object(name):
    return operator.attrgetter(name)(ffi)


@pytest.mark.parametrize("name", PLACES)
def test_public_objects_say_where_they_are_public(name):
    thing = public_object(name)
    dtypes = "dlbridge" if type(thing) is dlbridge.DType else None
    assert thing.__module__ == (dtypes or PLACES[name])


@pytest.mark.parametrize("name", ["convert", "use_stream", "dataclasses.fields"])
def test_public_functions_can_be_found_in_their_source(name):
    """``__module__`` is not where the source is; inspect must find it all the same."""
    assert name.rpartition(".")[2] in inspect.getsource(inspect.unwrap(public_object(name)))


def test_pickles_do_not_know_the_rooms():
    """So that a pickle can be read after a function has moved between the rooms."""
    values = [
        {name: public_object(name) for name in PLACES},
        ffi.Array([1, ffi.List([2])]),
        ffi.Dict({"a": ffi.Map({1: 2})}),
        ffi.Shape((2, 3)),
        ffi.Error("ValueError", "text"),
        ffi.ModulePropertyMask.RUNNABLE,
        ffi.StructuralKey(3),
    ]
    data = pickle.dumps(values)
    for room in MODULES - set(ffi._MODULES):
        assert f"ffi.{room}".encode() not in data
    code = (
        "import operator, pickle, sys\n"
        "names, *values = pickle.loads(sys.stdin.buffer.read())\n"
        "from dlbridge import ffi\n"
        "assert [name for name, x in names.items() if x is not operator.attrgetter(name)(ffi)] == []\n"
        "assert values[0] == [1, ffi.List([2])] and type(values[0]) is ffi.Array, values\n"
        "assert values[1]['a'][1] == 2 and values[2] == (2, 3) and values[3].message == 'text'\n"
        "assert values[4] is ffi.ModulePropertyMask.RUNNABLE and values[5].key == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, input=data, check=True)
