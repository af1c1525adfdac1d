"""bench ffi: the cost of calls of compiled functions, beside tvm_ffi and the floor of ABI mode.

The floor of a call is one cffi call of the same library function with everything
packed beforehand; the floor of a callback is one to a Python function that does
nothing. Every binding in ABI mode has at least these costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import Timer
from typing import Any

from dlbridge.cli.bench import REPEATS, Row

Case = tuple[str, dict[str, Any]]
"""A statement and its names. Calls are timed in line: a function around one
that takes 200 ns would add a sixth to it."""

TEXT = "a string longer than seven bytes"
FIRST = "import and first call"
SHORTER = 9
"""Turns here for each of other benchmarks."""
WINDOW = 1e-3
"""Seconds of one turn: short, so that many of them fall between other processes'."""


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row per operation that is wanted; none for a peer that is not installed."""
    get, keep = _library()
    peer = _peer()
    floors = {"call": _call_floor(get), "callback": _callback_floor(keep)}
    found = []
    for operation, contenders in _operations(get, peer).items():
        if not wanted(operation):
            continue
        # In every contest anew: on a busy machine the floor moves too.
        kind = "callback" if operation.startswith("Python callback") else "call"
        times = _best({**contenders, "floor": floors[kind]}, repeats * SHORTER)
        floor = times.pop("floor")
        found.append(Row(operation, times.pop("dlbridge"), times, floor))
    if wanted(FIRST) and repeats >= REPEATS:  # each takes seconds
        found += _imports(peer is not None)
    return found


def _best(cases: dict[str, Case], turns: int) -> dict[str, float]:
    """Ns of each statement: the best of many short turns, in the processor's time of this thread.

    So a machine on which others work gives the same figures, as far as they share no cache.
    """
    timers = {
        name: Timer(statement, globals=names, timer=time.thread_time)
        for name, (statement, names) in cases.items()
    }
    counts = {name: max(1, int(WINDOW / (timer.timeit(20) / 20))) for name, timer in timers.items()}
    found = dict.fromkeys(cases, float("inf"))
    for _ in range(turns):
        for name, timer in timers.items():
            found[name] = min(found[name], timer.timeit(counts[name]) / counts[name] * 1e9)
    return found


def _library() -> tuple[Callable[[str], Any], list[Any]]:
    """The function that finds a testing function of ours, and a list of objects to keep alive."""
    from dlbridge import ffi
    from dlbridge.ffi import _lib  # an earlier tree has no dlbridge.abi

    path = Path(ffi.library_path)
    name = str(path.with_stem(f"{path.stem}_testing"))
    testing = _lib.ffi.dlopen(name, _lib.ffi.RTLD_NOW)  # by cffi alone
    return lambda name: ffi.get_global_func(f"testing.{name}"), [testing]


def _peer() -> Any:
    try:
        import tvm_ffi
    except ImportError:
        return None
    return tvm_ffi


def _raw_call(pointer: Any, count: int) -> Case:
    """A call of the function at *pointer* with *count* ints, by cffi alone."""
    from dlbridge.ffi import _lib

    arguments = _lib.ffi.new("TVMFFIAny[]", max(count, 1))
    for i in range(count):
        arguments[i].type_index, arguments[i].v_int64 = 1, 1
    names = {
        "call": _lib.C.TVMFFIFunctionCall,
        "pointer": pointer,
        "arguments": arguments,
        "count": count,
        "result": _lib.ffi.new("TVMFFIAny *"),
    }
    return "call(pointer, arguments, count, result)", names


def _call_floor(get: Callable[[str], Any]) -> Case:
    return _raw_call(get("nop")._pointer, 0)


def _callback_floor(keep: list[Any]) -> Case:
    from dlbridge.ffi import _lib

    ffi = _lib.ffi
    closure = ffi.callback("TVMFFISafeCallType", lambda _self, _args, _count, _result: 0)
    out = ffi.new("void **")
    _lib.C.TVMFFIFunctionCreate(ffi.NULL, closure, ffi.NULL, out)
    keep += [closure, out]
    return _raw_call(out[0], 1)


def _operations(get: Callable[[str], Any], peer: Any) -> dict[str, dict[str, Case]]:
    """Operation -> library -> what is timed."""

    def both(name: str, *arguments: Any) -> dict[str, Case]:
        found = {"dlbridge": _calling(get(name), arguments)}
        if peer:
            found["tvm_ffi"] = _calling(peer.get_global_func(f"testing.{name}"), arguments)
        return found

    operations = {
        "nop()": both("nop"),
        "nop(1)": both("nop", 1),
        "nop(1, 2, 3)": both("nop", 1, 2, 3),
        "nop(1.5, 'text', None)": both("nop", 1.5, "text", None),
        "add_one(41)": both("add_one", 41),
        "echo('text')": both("echo", "text"),
        "echo(a long string)": both("echo", TEXT),
        "bound nop(1, 2, 3)": {"dlbridge": _calling(get("nop").bind(1, 2, 3), ())},
        "bound f(1), f known to return nothing": {
            "dlbridge": _calling(get("schema_no_return").bind(1), ())
        },
    }
    operations.update(_with_tensors(get, both))
    operations.update(_with_python(get, peer))
    return operations


def _calling(function: Any, arguments: tuple[Any, ...]) -> Case:
    names = [f"a{i}" for i in range(len(arguments))]
    return f"f({', '.join(names)})", {"f": function, **dict(zip(names, arguments, strict=True))}


def _with_tensors(
    get: Callable[[str], Any], both: Callable[..., dict[str, Case]]
) -> dict[str, dict[str, Case]]:
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
        bound = {"dlbridge": _calling(get("nop").bind(x, x, x), ())}
        if "tvm_ffi" in calls:
            bound["tvm_ffi, not bound"] = calls["tvm_ffi"]
        operations["bound nop(x, x, x), x of torch"] = bound
    return operations


def _with_python(get: Callable[[str], Any], peer: Any) -> dict[str, dict[str, Case]]:
    """Callbacks, containers, errors."""
    from dlbridge import ffi

    numbers = list(range(1000))
    callback = ffi.convert_func(_nothing)
    statement, names = _raw_call(callback._pointer, 1)
    found: dict[str, dict[str, Case]] = {
        "Python callback(1), called by C": {"dlbridge": (statement, {**names, "keep": callback})},
        "list(Array of 1000 ints)": {"dlbridge": _calling(list, (ffi.Array(numbers),))},
        "Array(list of 1000 ints)": {"dlbridge": _calling(ffi.Array, (numbers,))},
        "error raised by C++": {"dlbridge": _calling(_failing, (get("test_raise_error"),))},
    }
    if peer:
        fail = peer.get_global_func("testing.test_raise_error")
        theirs = [
            _calling(peer.convert(_nothing), (1,)),
            _calling(list, (peer.Array(numbers),)),
            _calling(peer.Array, (numbers,)),
            _calling(_failing, (fail,)),
        ]
        for contenders, case in zip(found.values(), theirs, strict=True):
            contenders["tvm_ffi"] = case
    return found


def _nothing(_x: int) -> None:
    return None


def _failing(function: Any) -> None:
    try:
        function("ValueError", "what happened")
    except ValueError:
        return


def _imports(with_peer: bool) -> list[Row]:
    """Import and first call, each in fresh processes; ns of the processor, best of several.

    All with their bytecode cached, as it is from the second process on: compiling
    our sources takes longer than running them, and pip compiles tvm_ffi's.
    """
    code = (
        "import time; t = time.process_time_ns(); {prelude}"
        "{module}.get_global_func('ffi.String')('first'); print(time.process_time_ns() - t)"
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
        times = dict.fromkeys(contenders, float("inf"))
        with TemporaryDirectory() as cache:
            for turn in range(6):
                for name, prelude in contenders.items():
                    script = "import sys; " + block + code.format(prelude=prelude, module="f")
                    taken = _process(script, cache)
                    if turn:  # the first fills the cache
                        times[name] = min(times[name], taken)
        rows.append(Row(FIRST, times.pop("dlbridge"), times, note=note))
    return rows


def _process(code: str, cache: str) -> float:
    """The number that *code* prints, in a process with its bytecode in the folder *cache*."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(done.stdout)
