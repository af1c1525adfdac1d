"""bench ffi: what calls of compiled functions cost, beside tvm_ffi and the floor of ABI mode.

The floor of a call is one cffi call of the same library function with everything
packed beforehand; the floor of a callback is one to a Python function that does
nothing. Both are what any binding in ABI mode pays before it does anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .timing import Row, best_of

__all__ = ["rows"]

Function = Callable[[], object]
TEXT = "a string longer than seven bytes"


def rows() -> list[Row]:
    """One row per operation; without tvm_ffi or torch their columns and rows are left out."""
    get, keep = _library()
    peer = _peer()
    floors = {"call": _call_floor(get), "callback": _callback_floor(keep)}
    found = []
    for operation, contenders in _operations(get, peer).items():
        # In every contest anew: on a busy machine the floor moves too.
        kind = "callback" if operation.startswith("Python callback") else "call"
        times = best_of({**contenders, "floor": floors[kind]})
        floor = times.pop("floor")
        found.append(Row(operation, times.pop("dlbridge"), times, floor))
    return [*found, *_imports(peer is not None)]


def _library() -> tuple[Callable[[str], Any], list[Any]]:
    """Ours to get a testing function, and a list of what must stay alive."""
    from dlbridge import ffi
    from dlbridge._cdefs import ffi as cffi

    path = Path(ffi.library_path)
    testing = cffi.dlopen(str(path.with_stem(f"{path.stem}_testing")), cffi.RTLD_NOW)
    return lambda name: ffi.get_global_func(f"testing.{name}"), [testing]


def _peer() -> Any:
    try:
        import tvm_ffi
    except ImportError:
        return None
    return tvm_ffi


def _call_floor(get: Callable[[str], Any]) -> Function:
    from dlbridge.ffi import _lib

    arguments = _lib.ffi.new("TVMFFIAny[1]")
    result = _lib.ffi.new("TVMFFIAny *")
    return partial(_lib.C.TVMFFIFunctionCall, get("nop")._pointer, arguments, 0, result)


def _callback_floor(keep: list[Any]) -> Function:
    from dlbridge.ffi import _lib

    ffi = _lib.ffi
    closure = ffi.callback("TVMFFISafeCallType", lambda _self, _args, _count, _result: 0)
    out = ffi.new("void **")
    _lib.C.TVMFFIFunctionCreate(ffi.NULL, closure, ffi.NULL, out)
    arguments = ffi.new("TVMFFIAny[1]")
    result = ffi.new("TVMFFIAny *")
    keep += [closure, out]
    return partial(_lib.C.TVMFFIFunctionCall, out[0], arguments, 1, result)


def _operations(get: Callable[[str], Any], peer: Any) -> dict[str, dict[str, Function]]:
    """Operation -> library -> what is timed."""

    def both(name: str, *arguments: Any) -> dict[str, Function]:
        found = {"dlbridge": _calling(get(name), arguments)}
        if peer:
            theirs = peer.get_global_func(f"testing.{name}")
            found["tvm_ffi"] = _calling(theirs, arguments)
        return found

    operations = {
        "nop()": both("nop"),
        "nop(1)": both("nop", 1),
        "nop(1, 2, 3)": both("nop", 1, 2, 3),
        "nop(1.5, 'text', None)": both("nop", 1.5, "text", None),
        "add_one(41)": both("add_one", 41),
        "echo('text')": both("echo", "text"),
        "echo(a long string)": both("echo", TEXT),
        "bound nop(1, 2, 3)": {"dlbridge": get("nop").bind(1, 2, 3)},
    }
    operations.update(_with_tensors(get, peer, both))
    operations.update(_with_python(get, peer))
    return operations


def _calling(function: Any, arguments: tuple[Any, ...]) -> Function:
    # A lambda adds 20 ns to both sides, functools.partial 60.
    if not arguments:
        return function  # type: ignore[no-any-return]
    if len(arguments) == 1:
        (a,) = arguments
        return lambda: function(a)
    a, b, c = arguments
    return lambda: function(a, b, c)


def _with_tensors(
    get: Callable[[str], Any], peer: Any, both: Callable[..., dict[str, Function]]
) -> dict[str, dict[str, Function]]:
    import numpy as np

    import dlbridge

    array = np.zeros(8, "float32")
    own = dlbridge.from_dlpack(array)
    operations = {
        "nop(x), x of numpy": both("nop", array),
        "nop(x, x, x), our Tensors": {"dlbridge": _calling(get("nop"), (own, own, own))},
    }
    if find_spec("torch"):
        import torch

        x = torch.zeros(8)
        calls = both("nop", x, x, x)
        operations["nop(x), x of torch"] = both("nop", x)
        operations["nop(x, x, x), x of torch"] = calls
        bound: dict[str, Function] = {"dlbridge": get("nop").bind(x, x, x)}
        if peer:
            bound["tvm_ffi, not bound"] = calls["tvm_ffi"]
        operations["bound nop(x, x, x), x of torch"] = bound
        view = get("schema_tensor_view_input").bind(x)
        operations["bound f(x) that returns nothing"] = {"dlbridge": view}
    return operations


def _with_python(get: Callable[[str], Any], peer: Any) -> dict[str, dict[str, Function]]:
    """Callbacks, containers, errors."""
    from dlbridge import ffi

    numbers = list(range(1000))
    ours: dict[str, Any] = {
        "Python callback(1)": _raw_callback(ffi.convert_func(_nothing)),
        "list(Array of 1000 ints)": partial(list, ffi.Array(numbers)),
        "Array(list of 1000 ints)": partial(ffi.Array, numbers),
        "error raised by C++": partial(_failing, get("test_raise_error")),
    }
    found: dict[str, dict[str, Function]] = {
        name: {"dlbridge": function} for name, function in ours.items()
    }
    if peer:
        theirs = {
            "Python callback(1)": partial(peer.convert(_nothing), 1),
            "list(Array of 1000 ints)": partial(list, peer.Array(numbers)),
            "Array(list of 1000 ints)": partial(peer.Array, numbers),
            "error raised by C++": partial(
                _failing, peer.get_global_func("testing.test_raise_error")
            ),
        }
        for name, function in theirs.items():
            found[name]["tvm_ffi"] = function
    return found


def _raw_callback(function: Any) -> Function:
    """C calls the Python function with the argument 1: the callback alone."""
    from dlbridge.ffi import _lib

    arguments = _lib.ffi.new("TVMFFIAny *")
    arguments.type_index, arguments.v_int64 = 1, 1
    result = _lib.ffi.new("TVMFFIAny *")
    call = partial(_lib.C.TVMFFIFunctionCall, function._pointer, arguments, 1, result)
    call.__dict__["keep"] = function
    return call


def _nothing(_x: int) -> None:
    return None


def _failing(function: Any) -> None:
    try:
        function("ValueError", "what happened")
    except ValueError:
        return


def _imports(with_peer: bool) -> list[Row]:
    """Import and first call, each in fresh processes; ns, best of several."""
    code = (
        "import time; t = time.perf_counter_ns(); {prelude}"
        "{module}.get_global_func('ffi.String')('first'); print(time.perf_counter_ns() - t)"
    )
    ours = "import dlbridge.ffi as f; "
    rows = []
    for note, block in (
        ("torch installed", ""),
        ("without torch", "sys.modules['torch'] = None; "),
    ):
        contenders = {"dlbridge": ours}
        if with_peer:
            contenders["tvm_ffi"] = "import tvm_ffi as f; "
        times = {
            name: min(
                _process("import sys; " + block + code.format(prelude=prelude, module="f"))
                for _ in range(3)
            )
            for name, prelude in contenders.items()
        }
        rows.append(Row("import and first call", times.pop("dlbridge"), times, note=note))
    return rows


def _process(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    for row in rows():
        peers = "  ".join(f"{name} {ns:.0f}" for name, ns in row.peers.items())
        floor = f"{row.ns / row.floor:.2f}x floor" if row.floor else ""
        print(f"{row.operation:50s} {row.ns:10.0f}  {floor:14s} {peers} {row.note}")
