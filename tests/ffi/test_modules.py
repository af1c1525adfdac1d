"""Modules. Section 1.4 of the notes on the TVM-FFI C API."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge import ffi
from dlbridge.abi import ffi as cffi
from dlbridge.ffi.modules import ModulePropertyMask
from tests.ffi.building import KERNELS, build
from tests.support.peers import peer


@pytest.fixture(scope="module")
def module(plain_library):
    return ffi.load_module(plain_library)


@pytest.fixture
def imported(tmp_path):
    return ffi.load_module(build(KERNELS / "imported.c", tmp_path))


# --- Loading ----------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, Path])
def test_load(plain_library, form):
    assert ffi.load_module(form(plain_library)).answer() == 42


def test_load_by_relative_path(plain_library, monkeypatch):
    monkeypatch.chdir(plain_library.parent)
    # The system's loader would not look into the working directory.
    assert ffi.load_module(plain_library.name).answer() == 42
    assert ffi.load_module(f"./{plain_library.name}").answer() == 42


def test_load_what_is_not_there(tmp_path):
    path = tmp_path / "absent.so"
    with pytest.raises(FileNotFoundError, match=r"absent\.so.*build it first"):
        ffi.load_module(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.so.*loader does not find it, either"):
        ffi.load_module("nowhere.so")


OTHER_ENDINGS = {
    "library": "rename the file",
    "library.txt": "rename the file",
    "library.so.1": r"load a link to it .*\(os\.symlink\), or take ctypes\.CDLL\(path\)",
    "a.c": r"this is source: compile it \(`gcc -shared -fPIC -o a.so a.c`",
    "a.cc": r"this is source: compile it \(`g\+\+ -shared -fPIC -o a.so a.cc`",
    "a.cu": r"this is source: compile it \(`nvcc -shared -Xcompiler -fPIC -o a.so a.cu`",
    "a.hip": r"this is source: compile it \(`hipcc -shared -fPIC -o a.so a.hip`",
    "a.py": "this is source of Python: import it",
}


@pytest.mark.parametrize("name", OTHER_ENDINGS)
def test_load_a_file_of_another_ending(tmp_path, name):
    path = tmp_path / name
    path.write_text("text")
    says = rf"{name}.*loader for .*\.so only; {OTHER_ENDINGS[name]}"
    with pytest.raises(RuntimeError, match=says) as caught:
        ffi.load_module(path)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_load_a_link_to_a_library_with_a_version(plain_library, tmp_path):
    versioned = shutil.copy(plain_library, tmp_path / "library.so.1")
    link = tmp_path / "library.so"
    link.symlink_to(versioned)
    assert ffi.load_module(link).answer() == 42


def test_load_what_is_no_library(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no machine code")
    with pytest.raises(
        RuntimeError, match=r"text\.so' cannot be loaded: .*too short.*shared library"
    ):
        ffi.load_module(path)


# --- Functions --------------------------------------------------------------------


def test_functions(module):
    assert module.answer() == module["answer"]() == module.get_function("answer")() == 42
    assert module.answer is module.answer
    assert module(1, 2) == 1002  # the function main
    assert {"answer", "get_function", "kind"} <= set(dir(module))
    assert {"_path", "_names"}.isdisjoint(dir(module))
    with pytest.raises(ValueError, match="the kernel said no"):
        module.fails()


def test_function_whose_name_the_class_has(module):
    assert module.kind == "library"
    assert module["kind"]() == 42


def test_function_that_is_not_there(module):
    for get in (
        lambda: module.absent,
        lambda: module["absent"],
        lambda: module.get_function("absent", query_imports=True),
    ):
        with pytest.raises(AttributeError, match=r"'absent'.*__tvm_ffi_absent"):
            get()
    assert not hasattr(module, "absent")
    assert not hasattr(module, "__array__")
    with pytest.raises(TypeError, match="str, not int"):
        module[5]


def test_metadata_documentation_keywords(module):
    assert module.get_function_metadata("twice")["arg_names"] == ["x"]
    assert module.get_function_metadata("answer") is None
    assert module.get_function_doc("twice") == "Twice the integer."
    assert module.get_function_doc("answer") is None
    assert module.twice(x=21) == 42
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        module.twice(y=1)
    with pytest.raises(TypeError, match="twice"):
        module.twice("text")


def test_properties(module):
    assert module.get_property_mask() == (
        ModulePropertyMask.RUNNABLE | ModulePropertyMask.BINARY_SERIALIZABLE
    )
    assert module.is_runnable()
    assert module.is_binary_serializable()
    assert not module.is_compilation_exportable()
    assert module.inspect_source() == ""
    assert module.get_write_formats() == []
    assert isinstance(module, ffi.Module)
    assert "Module" in repr(module)


def test_write_what_cannot_be_written(module, tmp_path):
    with pytest.raises(RuntimeError, match="does not support"):
        module.write_to_file(tmp_path / "copy.so")


def test_empty_module_object():
    with pytest.raises(TypeError, match="no constructor"):
        ffi.Module()
    empty = ffi.Module.__new__(ffi.Module)
    with pytest.raises(AttributeError):
        empty.answer


# --- Imports ----------------------------------------------------------------------


def test_imports(plain_library, imported, tmp_path):
    copied = tmp_path / "copied.so"
    shutil.copy(plain_library, copied)
    module = ffi.load_module(copied)
    assert module.imports == []
    module.import_module(imported)
    assert module.imports == [imported]
    assert module.imports[0] is imported
    assert not module.implements_function("only_here")
    assert module.implements_function("only_here", query_imports=True)
    assert module.get_function("only_here", query_imports=True)() == 7
    with pytest.raises(AttributeError):
        module.only_here
    with pytest.raises(RuntimeError, match="Cyclic"):
        imported.import_module(module)
    module.clear_imports()
    assert module.imports == []


# --- The system library -----------------------------------------------------------


@cffi.callback("int(void *, TVMFFIAny *, int32_t, TVMFFIAny *)")
def add_two(_self, arguments, _count, result):
    result.type_index = 1
    result.v_int64 = arguments[0].v_int64 + 2
    return 0


def test_system_library():
    ffi.register_system_lib_symbol("dlbridge.test.add_two", add_two)
    module = ffi.system_lib("dlbridge.test.")
    assert module["add_two"](40) == 42
    assert ffi.system_lib()["dlbridge.test.add_two"](40) == 42
    assert ffi.system_lib("dlbridge.test.") is module
    ffi.register_system_lib_symbol("dlbridge.test.void", cffi.cast("void *", add_two))
    assert module["void"](1) == 3
    with pytest.raises(ValueError, match="is NULL"):
        ffi.register_system_lib_symbol("dlbridge.test.null", cffi.NULL)
    with pytest.raises(AttributeError):
        module["absent"]


def test_system_library_takes_addresses_and_full_names(testing):
    symbol = testing("get_add_one_c_symbol")()
    ffi.register_system_lib_symbol("__tvm_ffi_dlbridge.test.add_one", symbol)
    assert ffi.system_lib("dlbridge.test.").get_function("add_one")(41) == 42


NO_FUNCTIONS = {
    "float": (1.5, TypeError, "is an int, not 1.5"),
    "str": ("a", TypeError, "is an int, not 'a'"),
    "bytes": (b"a", TypeError, "is an int, not b'a'"),
    "bool": (True, TypeError, "is an int, not True"),
    "None": (None, TypeError, "is an int, not None"),
    "pointer": (cffi.new("int *"), TypeError, "is an int, not <cdata"),
    "integer of C": (cffi.cast("int", 5), TypeError, "is an int, not <cdata"),
    "negative": (-1, ValueError, "-0x1 is not the address of a C function"),
    "large": ((1 << 64) + 5, ValueError, "0x10000000000000005 is not the address of a C function"),
    "0": (0, ValueError, "is NULL"),
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_symbols_that_are_no_functions(name):
    """A call of such a symbol would end the process."""
    symbol, error, says = NO_FUNCTIONS[name]
    for make in (
        lambda symbol: ffi.register_system_lib_symbol("dlbridge.test.no_symbol", symbol),
        ffi.Function.__from_extern_c__,
        ffi.Function.__from_mlir_packed_safe_call__,
    ):
        with pytest.raises(error, match=says):
            make(symbol)
    assert not ffi.system_lib("dlbridge.test.").implements_function("no_symbol")


@pytest.mark.parametrize("name", ["answer\0", "answer\0zz", "\0"])
def test_names_with_a_nul_are_no_functions(module, name):
    """C would look for what is before the NUL."""
    assert not hasattr(module, name)
    with pytest.raises(
        AttributeError, match=r"a function's name is text without NUL, not '.*\\x00"
    ):
        module.get_function(name)
    assert module.implements_function(name) is False
    assert module.get_function_metadata(name) is None
    assert module.get_function_doc(name) is None


# --- Names that are not there -----------------------------------------------------


def test_a_misspelt_function_is_answered_with_the_one_that_was_meant(module):
    with pytest.raises(AttributeError) as caught:
        module.answr  # the look-up itself raises
    text = str(caught.value)
    assert text.startswith("the module has no function 'answr' (did you mean 'answer'?): ")
    assert "__tvm_ffi_answr" in text
    assert re.search(r"; its functions are .*\banswer\b", text)
    for name in re.search("its functions are ([^;]*)$", text)[1].split(", "):
        assert module.implements_function(name)


def test_only_the_first_of_many_names_are_listed(tmp_path):
    source = tmp_path / "many.c"
    export = '__attribute__((visibility("default")))'
    functions = [
        f"{export} int __tvm_ffi_f{n:02}(void *s, const void *a, int n, void *r) {{ return 0; }}"
        for n in range(40)
    ]
    source.write_text("\n".join(functions))
    module = ffi.load_module(build(source, tmp_path))
    with pytest.raises(AttributeError, match=r"functions are f00, f01, .*, f19 and 20 more$"):
        module.absent  # the look-up itself raises


def test_a_library_whose_file_is_gone_is_asked_for_names_too(plain_library, tmp_path):
    copy = shutil.copy(plain_library, tmp_path / "gone.so")
    module = ffi.load_module(copy)
    Path(copy).unlink()
    with pytest.raises(AttributeError, match=r"no symbol __tvm_ffi_absent$"):
        module.absent  # the look-up itself raises
    assert "absent" not in dir(module)


def test_a_module_without_a_file_names_no_functions():
    with pytest.raises(AttributeError, match=r"no symbol __tvm_ffi_nothing_at_all$"):
        ffi.system_lib()["nothing_at_all"]


# Modules that are loaded for a device -----------------------------------------------------


def test_a_module_for_the_host_refuses_tensors_of_a_device(plain_library):
    module = ffi.load_module(plain_library, device="cpu")
    there, here = bridge.ones(3, device="ext_dev:0"), bridge.ones(3)
    match = r"on ext_dev:0 cannot be passed to main of .*to_device\(x, 'cpu:0'\).*x\.host_view"
    wrong = [
        [there],
        [1, here, there],
        [[here, there]],
        [{"x": [there]}],
        [ffi.Array([there])],
        [ffi.convert({"x": there})],
        [1, 2, 3, 4, 5, 6, there],
        [ffi.readonly(there)],
    ]
    for function in (module.main, module["main"], module.get_function("main")):
        for arguments in wrong:
            with pytest.raises(BufferError, match=match):
                function(*arguments)
            with pytest.raises(BufferError, match=match):
                function.bind(*arguments)
        with pytest.raises(BufferError, match=match):
            function.reading()(there)
        step = function.bind(here)
        with pytest.raises(BufferError, match=match):
            step.replace(0, there)
        assert step() == 1001
    with pytest.raises(BufferError, match=match):
        module(there)
    assert module.main(here, here.numpy(), [here]) == 1003
    assert module.main() == 1000
    assert module.main(*range(9)) == 1009
    assert module.twice(x=4) == module.twice(4) == 8
    with pytest.raises(TypeError, match="the function takes"):
        module.twice(y=4)
    with pytest.raises(ValueError, match="the kernel said no"):
        module.fails(here)


def test_a_module_for_a_device_refuses_the_hosts_tensors(plain_library):
    module = ffi.load_module(plain_library, device="ext_dev:0")
    there, here = bridge.ones(3, device="ext_dev:0"), bridge.ones(3)
    for argument in (here, np.ones(3), [here], ffi.Array([there, here])):
        with pytest.raises(BufferError, match=r"on cpu:0 .*to_device\(x, 'ext_dev:0'\)\. What"):
            module.main(argument)
    assert module.main(there, [there], 5, "text") == 1004


def test_a_module_without_a_device_takes_what_it_gets(plain_library):
    there = bridge.ones(3, device="ext_dev:0")
    host = ffi.load_module(plain_library, device="cpu")
    plain = ffi.load_module(plain_library)
    assert plain.main(there) == 1001
    with pytest.raises(BufferError, match="loaded for cpu:0"):
        host.main(there)
    assert type(plain.main) is ffi.Function
    assert "_device" not in dir(host)
    with pytest.raises(ValueError, match="nowhere"):
        ffi.load_module(plain_library, device="nowhere:0")


def test_tensors_of_tvm_ffi_are_looked_at(plain_library):
    tvm_ffi = peer("tvm_ffi")
    module = ffi.load_module(plain_library, device="cpu")
    here = tvm_ffi.from_dlpack(bridge.ones(3))
    there = tvm_ffi.from_dlpack(bridge.ones(3, device="ext_dev:0"))
    assert module.main(here, [here], tvm_ffi.Array([here])) == 1003
    for argument in (there, [there], tvm_ffi.Array([there])):
        with pytest.raises(BufferError, match="loaded for cpu:0"):
            module.main(argument)
