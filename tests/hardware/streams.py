"""What NVIDIA's driver does with streams that were destroyed, and with captures; answers in lines.

Each question is a process of its own, since an answer can be a crash.

    python tests/hardware/streams.py [default]

With ``default`` only those about the default mode of captures.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from cuda.bindings import driver as cu

from backends.cuda.tests.spin import SPIN  # beside the tests of the backend

NON_BLOCKING = 1
ASKING = ("IsCapturing", "GetId", "Query", "GetFlags", "GetCtx", "GetPriority", "GetDevice")
SECOND = 1_700_000_000


def call(name: str, *arguments):
    """The result of a driver call; RuntimeError with its status."""
    error, *found = getattr(cu, name)(*arguments)
    if int(error):
        raise RuntimeError(f"{name}: {error.name}")
    return found[0] if found else None


def say(name: str, *arguments) -> str:
    """The name of the status of a driver call."""
    return getattr(cu, name)(*arguments)[0].name.removeprefix("CUDA_")


def start() -> None:
    """The primary context of GPU 0, current in this thread."""
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))


def spin(stream, seconds: float) -> None:
    """A kernel that runs so long."""
    function = call("cuModuleGetFunction", call("cuModuleLoadData", SPIN), b"spin")
    arguments = ((int(seconds * SECOND),), (ctypes.c_uint64,))
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)


def relaxed() -> None:
    """This thread may call what another's capture forbids."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call("cuThreadExchangeStreamCaptureMode", mode)


def destroyed(name: str, later: str) -> str:
    """Ask about a destroyed stream, at once or after other calls."""
    if not hasattr(cu, f"cuStream{name}"):
        return "not in these bindings"
    start()
    stream = call("cuStreamCreate", NON_BLOCKING)
    call("cuStreamDestroy", stream)
    if later == "later":
        for _ in range(50):
            call("cuEventCreate", 2)
            call("cuMemAlloc", 1000)
        call("cuStreamCreate", 0)
    return say(f"cuStream{name}", stream)


def event_time(flags: int, record: str, destroy: str) -> str:
    """Whether an event covers work on a stream: *record* names how, the stream may be gone."""
    start()
    context = call("cuCtxGetCurrent")
    stream = call("cuStreamCreate", flags)
    event = call("cuEventCreate", 2)
    spin(stream, 0.001)
    call("cuCtxSynchronize")
    begin = time.perf_counter()
    spin(stream, 0.5)
    if destroy == "destroyed":
        call("cuStreamDestroy", stream)
    if record == "context":
        call("cuCtxRecordEvent", context, event)
    else:
        call("cuEventRecord", event, 1)
    recorded = time.perf_counter() - begin
    call("cuEventSynchronize", event)
    return f"recorded after {recorded:.3f} s, passed after {time.perf_counter() - begin:.3f} s"


def beside_a_capture(
    what: str, mode: str, thread: str, flags: int = NON_BLOCKING, in_mode: str = "relaxed"
) -> str:
    """A call in the relaxed or the default mode while a stream captures; whether that lived."""
    start()
    host = (ctypes.c_ubyte * 64)()
    pool = call("cuDeviceGetDefaultMemPool", 0)
    context = call("cuCtxGetCurrent")
    stream = call("cuStreamCreate", flags)
    other = call("cuStreamCreate", NON_BLOCKING)
    event = call("cuEventCreate", 2)
    plain = call("cuMemAlloc", 1 << 20)
    pooled = call("cuMemAllocAsync", 1 << 20, 1)
    call("cuCtxSynchronize")
    call("cuEventRecord", event, other)
    calls: dict[str, Callable[[], str]] = {
        "context event": lambda: say("cuCtxRecordEvent", context, event),
        "context wait": lambda: say("cuCtxSynchronize"),
        "free": lambda: say("cuMemFree", plain),
        "free on the legacy stream": lambda: say("cuMemFreeAsync", pooled, 1),
        "event on the legacy stream": lambda: say("cuEventRecord", event, 1),
        "event on another stream": lambda: say("cuEventRecord", event, other),
        "event query": lambda: say("cuEventQuery", event),
        "is the legacy stream capturing": lambda: say("cuStreamIsCapturing", 1),
        "is another stream capturing": lambda: say("cuStreamIsCapturing", other),
        "allocate of the pool": lambda: say("cuMemAllocFromPoolAsync", 1 << 12, pool, other),
        "free to the pool": lambda: say("cuMemFreeAsync", pooled, other),
        "copy inside": lambda: say("cuMemcpyDtoDAsync", plain, int(plain) + 64, 64, other),
        "fill": lambda: say("cuMemsetD8Async", plain, 1, 64, other),
        "copy from the host": lambda: say(
            "cuMemcpyHtoDAsync", plain, ctypes.addressof(host), 64, other
        ),
        "copy to the host": lambda: say(
            "cuMemcpyDtoHAsync", ctypes.addressof(host), plain, 64, other
        ),
        "wait of a stream": lambda: say("cuStreamWaitEvent", other, event, 0),
        "wait for a stream": lambda: say("cuStreamSynchronize", other),
        "push a context": lambda: say("cuCtxPushCurrent", context),
    }
    modes = cu.CUstreamCaptureMode
    call("cuStreamBeginCapture", stream, getattr(modes, f"CU_STREAM_CAPTURE_MODE_{mode}"))
    spin_in_graph = say("cuMemsetD8Async", plain, 1, 16, stream) if what != "free" else ""
    said: list[str] = []

    def do() -> None:
        call("cuCtxSetCurrent", context)
        if in_mode == "relaxed":
            relaxed()
        said.append(calls[what]())

    if thread == "same":
        do()
    else:
        worker = threading.Thread(target=do)
        worker.start()
        worker.join()
    return f"{said[0]}; the capture: {say('cuStreamEndCapture', stream)} {spin_in_graph}"


def free_waits(stream_flags: int) -> str:
    """Whether cuMemFree waits for a kernel on a stream."""
    start()
    stream = call("cuStreamCreate", stream_flags)
    plain = call("cuMemAlloc", 1 << 20)
    spin(stream, 0.001)
    call("cuCtxSynchronize")
    begin = time.perf_counter()
    spin(stream, 0.5)
    call("cuMemFree", plain)
    return f"cuMemFree returned after {time.perf_counter() - begin:.3f} s"


def beside_a_kernel(what: str) -> str:
    """How long a call takes beside a kernel of a second on another, non-blocking stream."""
    import mmap

    start()
    context = call("cuCtxGetCurrent")
    busy, other = (call("cuStreamCreate", NON_BLOCKING) for _ in "12")
    plain, pinned = call("cuMemAlloc", 1 << 24), call("cuMemHostAlloc", 1 << 22, 3)
    pages = mmap.mmap(-1, 1 << 24)
    pages[:] = bytes(1 << 24)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    locked = mmap.mmap(-1, 1 << 22)
    locked_address = ctypes.addressof(ctypes.c_char.from_buffer(locked))
    call("cuMemHostRegister", locked_address, 1 << 22, 3)
    pool = call("cuDeviceGetDefaultMemPool", 0)
    event, destroyed = call("cuEventCreate", 2), call("cuStreamCreate", NON_BLOCKING)
    spin(busy, 0.001)
    call("cuCtxSynchronize")
    calls: dict[str, Callable[[], str]] = {
        "page-lock 4 MiB of new memory": lambda: say("cuMemHostAlloc", 1 << 22, 3),
        "page-lock 4 MiB in place": lambda: say("cuMemHostRegister", address, 1 << 22, 3),
        "free pinned memory": lambda: say("cuMemFreeHost", pinned),
        "undo a page-lock": lambda: say("cuMemHostUnregister", locked_address),
        "allocate of a pool that has to grow": lambda: say(
            "cuMemAllocFromPoolAsync", 1 << 26, pool, other
        ),
        "upload of 1 KiB pageable": lambda: say("cuMemcpyHtoDAsync", plain, address, 1024, other),
        "upload of 16 MiB pageable": lambda: say(
            "cuMemcpyHtoDAsync", plain, address, 1 << 24, other
        ),
        "make a stream": lambda: say("cuStreamCreate", NON_BLOCKING),
        "destroy a stream": lambda: say("cuStreamDestroy", destroyed),
        "make an event": lambda: say("cuEventCreate", 2),
        "event of the context": lambda: say("cuCtxRecordEvent", context, event),
        "load a module": lambda: say("cuModuleLoadData", SPIN),
        "allocate plain memory": lambda: say("cuMemAlloc", 1 << 20),
    }
    spin(busy, 1)
    begin = time.perf_counter()
    status = calls[what]()
    return f"{status} after {time.perf_counter() - begin:.3f} s"


BESIDE_A_KERNEL = (
    *("page-lock 4 MiB of new memory", "page-lock 4 MiB in place", "free pinned memory"),
    *("undo a page-lock", "allocate of a pool that has to grow", "upload of 1 KiB pageable"),
    *("upload of 16 MiB pageable", "make a stream", "destroy a stream", "make an event"),
    *("event of the context", "load a module", "allocate plain memory"),
)


def in_default_mode() -> list[str]:
    """What ends a global capture of another thread unless the mode is changed before."""
    whats = ("allocate of the pool", "free to the pool", "copy inside", "fill")
    whats += ("copy from the host", "copy to the host", "wait of a stream", "wait for a stream")
    whats += ("event on another stream", "event query", "is another stream capturing")
    whats += ("push a context", "free")
    flags = NON_BLOCKING
    return [f"beside_a_capture({w!r}, 'GLOBAL', 'another', {flags}, 'default')" for w in whats]


def questions() -> list[str]:
    """The expressions that are put, each in its process."""
    found = [f"destroyed({name!r}, {when!r})" for name in ASKING for when in ("at once", "later")]
    for flags in (0, NON_BLOCKING):
        for record in ("context", "legacy"):
            states = ("alive", "destroyed")
            found += [f"event_time({flags}, {record!r}, {state!r})" for state in states]
    whats = ("context event", "context wait", "free", "free on the legacy stream")
    whats += ("event on the legacy stream", "event on another stream", "event query")
    whats += ("is the legacy stream capturing",)
    for what in whats:
        for mode in ("GLOBAL", "THREAD_LOCAL", "RELAXED"):
            threads = ("same", "another")
            found += [f"beside_a_capture({what!r}, {mode!r}, {each!r})" for each in threads]
        found.append(f"beside_a_capture({what!r}, 'GLOBAL', 'another', 0)")
    found += in_default_mode()
    found += [f"beside_a_kernel({what!r})" for what in BESIDE_A_KERNEL]
    return [*found, "free_waits(0)", f"free_waits({NON_BLOCKING})"]


def ask(question: str) -> str:
    """What the process of one question printed, or how it ended."""
    command = [sys.executable, __file__, question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "no answer within a minute"
    lines = (done.stdout or done.stderr).strip().splitlines() or ["nothing"]
    return lines[-1] if done.returncode == 0 else f"exit {done.returncode}: {lines[-1][:150]}"


def main() -> None:
    """Put every question, eight at a time."""
    from concurrent.futures import ThreadPoolExecutor

    if len(sys.argv) > 1 and sys.argv[1] != "default":
        print(eval(sys.argv[1]))  # one of `questions`
        return
    put = in_default_mode() if len(sys.argv) > 1 else questions()
    with ThreadPoolExecutor(8) as processes:
        for question, answer in zip(put, processes.map(ask, put), strict=True):
            print(f"{question}: {answer}", flush=True)


if __name__ == "__main__":
    main()
