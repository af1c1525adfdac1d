"""Attacks by public names only, which run on older versions too: ``python holes.py NAME``.

Each prints "closed", or what went wrong; some versions crash.
"""

from __future__ import annotations

import collections
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dlbridge as bridge

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from interrupted import Alarm, interrupted

__all__ = ["HOLES"]

SECONDS = float(os.environ.get("DLBRIDGE_STORM_SECONDS", "3"))


def in_threads(work: Callable[[], None], count: int = 4) -> None:
    """Run *work* in threads that change places as often as CPython allows."""
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def storm(work: Callable[[], object], kind: type[BaseException]) -> collections.Counter[str]:
    """Interrupt *work* after many different times; the names of other exceptions."""

    wrong: collections.Counter[str] = collections.Counter()

    def counted() -> None:
        try:
            work()
        except kind:
            raise
        except BaseException as error:
            wrong[type(error).__name__] += 1

    interrupted(counted, kind, int(500 * SECONDS))
    gc.collect()
    return wrong


def first_exports() -> str:
    """The first exports of one tensor by the exchange table, in four threads (hole 1)."""
    import tvm_ffi

    wrong: list[str] = []
    for _ in range(int(10 * SECONDS)):
        tensors = [bridge.from_dlpack(np.ones((3, 5), "f4")) for _ in range(300)]
        begin = threading.Barrier(4)

        def convert(
            tensors: list[bridge.Tensor] = tensors, begin: threading.Barrier = begin
        ) -> None:
            begin.wait()
            try:
                converted = [tvm_ffi.convert(tensor) for tensor in tensors]
                shapes = {tuple(tensor.shape) for tensor in converted}
            except BaseException as error:
                wrong.append(repr(error))
            else:
                wrong.extend(map(str, shapes - {(3, 5)}))

        in_threads(convert)
    return f"{len(wrong)} wrong: {wrong[:3]}" if wrong else "closed"


def one_loan() -> str:
    """One struct of the exchange table, lent to two threads (hole 2): errors on stderr."""
    import tvm_ffi

    tensor = bridge.from_dlpack(np.ones((3, 5), "f4"))
    end = time.monotonic() + 4 * SECONDS

    def work() -> None:
        while time.monotonic() < end:
            kept = [tvm_ffi.from_dlpack(tensor) for _ in range(3)]
            assert all(one.shape == (3, 5) for one in kept)

    in_threads(work)
    return "closed"


def interrupted_imports() -> str:
    """Signals during `from_dlpack`, which deleted the producer's struct twice (hole 3)."""
    array = np.ones(3)
    importing = False

    class Ready:
        """A capsule that was made before: only the import is interrupted."""

        def __init__(self) -> None:
            self.capsule = array.__dlpack__()  # a legacy one, which numpy does not import for us

        def __dlpack__(self, **_keywords: object) -> object:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    def handler(*_: object) -> None:
        if importing:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 50e-6)

    signal.signal(signal.SIGALRM, handler)
    bridge.from_dlpack(Ready())
    before, signals = sys.getrefcount(array), 0
    end, delay = time.monotonic() + 2 * SECONDS, 0
    while time.monotonic() < end:
        ready = Ready()
        delay = (delay + 7) % 199
        signal.setitimer(signal.ITIMER_REAL, (20 + delay) * 1e-6)
        try:
            importing = True
            bridge.from_dlpack(ready)
        except KeyboardInterrupt:
            signals += 1
        importing = False
        del ready
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.collect()
    off = sys.getrefcount(array) - before
    return f"{off:+d} references after {signals} signals" if off else "closed"


def lost_exceptions() -> str:
    """An exception of a signal handler, other than KeyboardInterrupt, in the table (hole 12)."""
    import tvm_ffi

    nop = tvm_ffi.get_global_func("testing.nop")
    tensor = bridge.from_dlpack(np.arange(4, dtype="f4"))
    wrong = storm(lambda: nop(tensor, tensor, tensor), Alarm)
    return f"wrong: {dict(wrong)}" if wrong else "closed"


def growing_registry() -> str:
    """Backends that are registered while another thread imports a tensor (hole 13)."""
    from dlbridge_fake import Fake

    capsules = bridge.zeros(3, device="ext_dev:0")
    wrong: list[str] = []
    done = threading.Event()

    def importing() -> None:
        while not done.is_set():
            try:
                bridge.from_dlpack(capsules)
                bridge.from_dlpack(capsules.__dlpack__(max_version=(1, 0)))
            except RuntimeError as error:
                wrong.append(str(error))

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=importing) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(int(50 * SECONDS)):
        bridge.register_backend(f"made_{number}", Fake)
        bridge.zeros(1, device=f"made_{number}:0")
    done.set()
    for thread in threads:
        thread.join()
    return f"{len(wrong)} wrong: {wrong[:2]}" if wrong else "closed"


def refusal(act: Callable[[], object]) -> str:
    """The name of the exception that *act* raises."""
    try:
        act()
    except BaseException as error:
        return type(error).__name__
    return "accepted"


def messages() -> str:
    """Bad input that was accepted, or refused by the wrong error (hole 14)."""
    from dlbridge import ffi

    endless = ffi.List([1])
    endless.append(endless)
    extern = ffi.Function.__from_extern_c__
    found = {
        "extern 1.5": (refusal(lambda: extern(1.5)), "TypeError"),
        "extern -1": (refusal(lambda: extern(-1)), "ValueError"),
        "extern 2**64": (refusal(lambda: extern(2**64)), "ValueError"),
        "endless list": (refusal(lambda: pickle.dumps(endless)) != "ArgumentError", True),
    }
    wrong = {name: got for name, (got, wanted) in found.items() if got != wanted}
    return f"wrong: {wrong}" if wrong else "closed"


def read_only_memory() -> str:
    """Read-only memory, given to a function that may write to it (hole 16)."""
    from dlbridge import ffi

    frozen = np.ones(4)
    frozen.flags.writeable = False
    taken = refusal(lambda: ffi.convert_func(lambda _tensor: None)(frozen))
    return "closed" if taken == "ExchangeError" else f"a read-only array was {taken}"


def open_views() -> str:
    """A host view that a function call kept busy, and device work inside its block (hole 17)."""
    from dlbridge import ffi

    wrong = []
    tensor = bridge.zeros(3, "float32")
    try:
        with tensor.host_view() as view:
            ffi.convert_func(lambda _tensor: None)(view)
    except BufferError as error:
        wrong.append(str(error))
    there = bridge.zeros(3, "float32", "ext_dev:0")
    with there.host_view():
        inside = refusal(lambda: bridge.copy_(there, tensor))
    if inside != "ExchangeError":
        wrong.append(f"copy_ inside the block was {inside}")
    return f"wrong: {wrong}" if wrong else "closed"


def differences() -> str:
    """Differences from the compiled binding (hole 18)."""
    from dlbridge import ffi

    echo = ffi.convert_func(lambda x: x)
    error = ValueError("text")
    tensor = bridge.from_dlpack(np.ones(2))
    checks: dict[str, Callable[[], object]] = {
        "in compares strictly": lambda: 1.0 not in ffi.Array([1]),
        "in with tensors": lambda: tensor in ffi.Array([tensor]),
        "repr of a complex tensor": lambda: bool(repr(ffi.Array([np.ones(2, "c8")]))),
        "a Map and a Dict differ": lambda: ffi.Map({1: 2}) != ffi.Dict({1: 2}),
        "one exception is equal": lambda: ffi.Array([error]) == ffi.Array([error]),
        "shape beyond int64": lambda: refusal(lambda: ffi.Shape((2**63,))) != "accepted",
        "float32x0": lambda: refusal(lambda: bridge.dtype("float32x0")) == "ValueError",
        "scalable lanes": lambda: bridge.dtype("float32xvscalex4").bits == 32,
        "dtype constants": lambda: ffi.float32 == bridge.dtype("float32"),
        "numel": lambda: tensor.numel() == 2,
        "size(dim)": lambda: tensor.size(0) == 2,
        "same_as": lambda: tensor.same_as(tensor),
        "require_contiguous": lambda: (
            refusal(lambda: ffi.from_dlpack(np.ones((2, 2)).T, require_contiguous=True))
            == "ValueError"
        ),
        "release_gil": lambda: hasattr(ffi.Function, "release_gil"),
        "dataclasses": lambda: all(
            hasattr(ffi.dataclasses, name) for name in ("fields", "asdict", "replace")
        ),
        "names of device types": lambda: bridge.device("cuda").type == "cuda",
        "calls": lambda: echo("more than eight bytes") == "more than eight bytes",
    }
    wrong = []
    for name, check in checks.items():
        try:
            closed = bool(check())
        except Exception:
            closed = False
        wrong.extend([name] * (not closed))
    return f"{len(wrong)} of {len(checks)} wrong: {', '.join(wrong)}" if wrong else "closed"


HOLES = {
    "1": first_exports,
    "2": one_loan,
    "3": interrupted_imports,
    "12": lost_exceptions,
    "13": growing_registry,
    "14": messages,
    "16": read_only_memory,
    "17": open_views,
    "18": differences,
}

if __name__ == "__main__":
    print(HOLES[sys.argv[1]](), flush=True)
