"""How libtvm_ffi and modules are loaded, and what needs a process that has loaded nothing."""

from __future__ import annotations

import ctypes
import decimal
import gc
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dlbridge import LibraryUnavailable, ffi
from dlbridge.abi import ffi as cffi
from dlbridge.extending import LOADED

from .scene import raised, testing


def refused(*words: Any) -> None:
    """The library that the environment names is refused with these words."""
    error = raised(LibraryUnavailable, getattr, ffi, "version")
    assert all(word in str(error) for word in words), error


def mended() -> None:
    """A library that could not be loaded is looked for again."""
    good = os.environ.pop("DLBRIDGE_TVM_FFI_LIB", None)
    os.environ["DLBRIDGE_TVM_FFI_LIB"] = "/no/such/library.so"
    refused("/no/such/library.so")
    del os.environ["DLBRIDGE_TVM_FFI_LIB"]
    if good:
        os.environ["DLBRIDGE_TVM_FFI_LIB"] = good
    assert ffi.get_global_func("ffi.String")("loaded") == "loaded"


def module_stays_loaded(library: Any) -> None:
    """Its code frees what its functions return."""

    def loaded() -> Any:
        gc.collect()
        return library in Path("/proc/self/maps").read_text()

    ffi.load_module(library, keep_module_alive=False).answer()
    assert not loaded()
    answer = ffi.load_module(library, keep_module_alive=False).answer
    assert loaded()  # the function keeps it
    assert answer() == 42
    del answer
    assert not loaded()
    ffi.load_module(library)
    assert loaded()


def no_backend_for_other_objects() -> None:
    before = set(LOADED)
    for thing in (type("Anything", (), {})(), decimal):
        assert ffi.convert(thing) is thing
    assert set(LOADED) == before


def object_of_a_backend_that_is_off() -> None:
    thing = type("Array", (), {"__module__": "pyopencl.array"})()
    assert ffi.convert(thing) is thing


def memmap(path: Any) -> None:
    """A kernel cannot write to one that was opened for reading: that would end the process."""
    apply, x = testing("apply"), np.memmap(path, dtype="f8", mode="r")
    error = raised(BufferError, apply, lambda t: ctypes.memset(t.data_ptr(), 1, 8), x)
    assert "readonly" in str(error)


def null_function() -> None:
    assert ffi.convert(1) == 1  # which loads all
    from dlbridge.ffi._lib import C, address
    from dlbridge.ffi.any import unpack

    out = cffi.new("void **")
    assert C.TVMFFIFunctionCreate(cffi.NULL, cffi.NULL, cffi.NULL, out) == 0
    function = unpack(C.kTVMFFIFunction, address(out[0]))
    for call in (function, function.bind):
        assert "NULL" in str(raised(ValueError, call))


def bound_argument_that_moves() -> None:
    step = ffi.get_global_func("ffi.ArraySize").bind(array := ffi.Array([1, 2, "on the heap"]))
    ffi.convert_func(lambda value: None)(array._move())
    gc.collect()
    others = [ffi.Array([i, "another long string on the heap"]) for i in range(100)]
    assert step() == 3
    assert len(others) == 100


def _of_tvm_ffi() -> Any:
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi would import it; not needed, and slow
    import tvm_ffi

    theirs = tvm_ffi.List([1])
    theirs.append(theirs)
    return theirs


def endless(kind: Any) -> None:
    """C sees another value than the argument: a list that contains itself."""

    class Convertible(ffi.ObjectConvertible):
        def asobject(self) -> Any:
            return values

    values = ffi.List()
    values.append(values)
    makers: dict[str, Any] = {
        "readonly": lambda: ffi.readonly(values),
        "readonly, inside": lambda: [ffi.readonly(values)],
        "convertible": Convertible,
        "convertible, inside": lambda: {1: Convertible()},
        "tvm_ffi": _of_tvm_ffi,
        "tvm_ffi, inside": lambda: [_of_tvm_ffi()],
    }
    value = makers[kind]()
    for call in (
        lambda: ffi.structural_hash(value),
        lambda: ffi.structural_equal(value, value),
        lambda: ffi.StructuralKey(value),
        lambda: ffi.serialization.to_json_graph_str(value),
    ):
        assert str(raised(ValueError, call)) == "a List contains itself"


def keys_that_contain_themselves_later() -> None:
    a, b = ffi.List(), ffi.List()
    one, other = ffi.StructuralKey(a), ffi.StructuralKey(b)
    a.append(a)
    b.append(b)
    assert str(raised(ValueError, lambda: one == other)) == "a List contains itself"
