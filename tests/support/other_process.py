"""Another process for the tests of shared memory: it does what it is asked, case by case.

To start a process and to import numpy there takes longer than all the cases.
"""

from __future__ import annotations

import gc
import multiprocessing
import struct
from collections.abc import Callable
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge as bridge

SECONDS = 200
SHADER = Path(__file__).parents[2] / "backends/vulkan/tests/shaders/scale.spv"
SOURCE = """
__kernel void scale(__global float *x, ulong first, uint rounds, float by) {
    float value = x[first + get_global_id(0)];
    for (uint round = 0; round < rounds; ++round)
        value *= by;
    x[first + get_global_id(0)] = value;
}
"""
_kept: list[Any] = []
_moves: list[bridge.Plan] = []


class Other:
    """A process that calls functions of modules of the tests; it ends with `close`."""

    def __init__(self, method: str = "spawn") -> None:
        context = multiprocessing.get_context(method)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.connection.send((function, arguments))
        assert self.connection.poll(SECONDS), f"{function} did not end in the other process"
        well, result = self.connection.recv()
        if not well:
            raise result
        return result

    def close(self) -> None:
        self.connection.close()
        self.process.join(SECONDS)
        assert self.process.exitcode == 0


def _serve(connection: Any) -> None:
    while True:
        try:
            with bridge.trace() as trace:
                function, arguments = connection.recv()
            _moves[:] = trace.plans or _moves
        except EOFError:
            return
        except Exception as error:
            connection.send((False, error))
            continue
        try:
            result = True, function(*arguments)
        except Exception as error:
            result = False, error
        connection.send(result)
        del function, arguments, result


def check_views(other: Other, t: bridge.Tensor) -> None:
    """Send views of *t*, of (4, 256) elements, there and back; a part is doubled there."""
    for part in (t[1:3], t[2, 64:128], t[:, ::2], t.T, t[3, 255], t[1:]):
        assert other(described, part) == described(part)
        back = other(give_back, part)
        assert (back.data_ptr(), back.byte_offset) == (t.data_ptr(), part.byte_offset)
    other(scale, t[2, 64:128], 2)


def described(t: bridge.Tensor) -> tuple[Any, ...]:
    return str(t.device), str(t.dtype), t.shape, t.strides, t.readonly, t.tobytes()


def fill(t: bridge.Tensor, value: int) -> None:
    """Write into the memory of the sender."""
    t.view("u1" if t.itemsize == 1 else f"u{t.itemsize}").numpy()[...] = value


def give_back(*tensors: Any) -> Any:
    return tensors if len(tensors) > 1 else tensors[0]


def keep(*tensors: Any) -> int:
    _kept.extend(tensors)
    return len(_kept)


def forget() -> None:
    _kept.clear()


def last_moves() -> list[tuple[str, int]]:
    """The steps of the last message that moved something, and the bytes that they copied."""
    return [(step.kind, step.nbytes) for plan in _moves for step in plan.steps]


def scale(t: bridge.Tensor, by: float, *, rounds: int = 1, wait: bool = True) -> None:
    """Multiply a part of float32 memory by a kernel of its device, *rounds* times."""
    if t.device.name == "opencl":
        import pyopencl as cl

        array = t.to_native()
        kernel = cl.Kernel(cl.Program(array.context, SOURCE).build(), "scale")
        numbers = np.uint64(array.offset // 4), np.uint32(rounds), np.float32(by)
        kernel(array.queue, (t.size,), None, array.base_data, *numbers)
    else:
        kernel = bridge.backend("vulkan").kernel(SHADER.read_bytes(), buffers=1, push_nbytes=12)
        kernel(t, groups=-(-t.size // 64), push=struct.pack("=IIf", t.size, rounds, by))
    if wait:
        bridge.synchronize(t.device)


def open_files() -> int:
    """The number of open descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


def fds() -> int:
    """The same, without those of multiprocessing's thread that sends them."""
    resource_sharer.stop(SECONDS)
    gc.collect()
    return open_files()


def protection(t: bridge.Tensor) -> str:
    """What the system lets this process do with the memory: ``rw-s``."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, allowed, *_ = line.split()
        start, end = (int(part, 16) for part in place.split("-"))
        if start <= t.data_ptr() < end:
            return allowed
    raise AssertionError(t)


def prefer_own_memory() -> None:
    """As on a discrete GPU: Vulkan devices share memory of their own, and not the host's."""
    import dlbridge_vulkan

    refusal = dlbridge_vulkan.Vulkan.host_import_refusal

    def prefer(self: Any, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        return refusal(self, device_id, address, nbytes, demanded) or (
            "" if demanded else "as on a discrete GPU"
        )

    dlbridge_vulkan.Vulkan.host_import_refusal = prefer


class Given:
    """A descriptor in the place of multiprocessing's DupFd; who receives it owns it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        return self.fd


def holders(inode: int, name: str) -> set[int]:
    """The processes that have the file of a block open, whose path has *name* in it."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if name in str(path.readlink()) and path.stat().st_ino == inode:
                found.add(int(path.parts[2]))
        except OSError:  # it has ended or closed it, or is another user's
            continue
    return found


def share_and_keep(values: Any, device: str) -> Any:
    """Shared by this process, which keeps it until `forget`."""
    t = bridge.share(values, device)
    _kept.append(t)
    return t


def live(name: str) -> int:
    """What the backend *name* has allocated and not freed."""
    gc.collect()
    return int(bridge.backend(name).live_allocations())
