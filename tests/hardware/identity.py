"""One GPU under CUDA, OpenCL and Vulkan: who it is, and memory that Vulkan and CUDA share.

    python tests/hardware/identity.py

It prints a line for each step and goes on after a failure, so that one run on a borrowed
machine says all that it can. ``ok``: the step ran, and what it checks was true. ``no``: it was
not, or an exception came. ``--``: what it needs is not here. The exit status is the number of
lines that begin with ``no``. It takes a few seconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
import time
import traceback
from pathlib import Path

faulthandler.enable()
sys.stdout.reconfigure(line_buffering=True)  # a crash loses no line
os.environ.setdefault("DLBRIDGE_VULKAN_EXPORT", "1")  # before the first use of Vulkan

import numpy as np  # noqa: E402

import dlbridge as bridge  # noqa: E402

NAMES = ("cuda", "opencl", "vulkan")
BYTES = 8 << 20
failures: list[str] = []
shared: dict[str, object] = {}


class Missing(Exception):
    """What the step needs is not on this machine."""


def step(function):
    """Run *function* now; print its lines, or what went wrong."""
    start = time.perf_counter()
    try:
        for line in function() or ["done"]:
            print(f"ok  {function.__name__}: {line}")
    except Missing as exc:
        print(f"--  {function.__name__}: {exc}")
    except Exception as exc:
        failures.append(function.__name__)
        print(f"no  {function.__name__}: {type(exc).__name__}: {exc}")
        traceback.print_exc(limit=-3, file=sys.stdout)
    print(f"    ({function.__name__} took {time.perf_counter() - start:.2f} s)", flush=True)
    gc.collect()
    return function


def needed(name):
    """The step's device of *name*; `Missing` with the reason if it is not here."""
    if name not in shared:
        raise Missing(f"there is no {name} device of this GPU here")
    return shared[name]


def values(seed=0, count=BYTES):
    return np.random.default_rng(seed).integers(0, 256, count, dtype="u1")


def host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True, like="numpy")


def same(tensor, wanted):
    """Fail unless the bytes of *tensor* are those of *wanted*."""
    found = host(tensor)
    if not (found == wanted).all():
        wrong = int((found != wanted).sum())
        at = int((found != wanted).reshape(-1).argmax())
        raise AssertionError(f"{wrong} of {wanted.size} elements differ, the first at {at}")


def files():
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def context():
    """The primary context of ``cuda:0``, for calls of the driver's own."""
    from dlbridge_cuda.gpu import gpu

    call("cuCtxPushCurrent", gpu.contexts[0])
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def call(name, *arguments):
    """What the driver's function *name* gives beside its status."""
    from cuda.bindings import driver

    code, *results = getattr(driver, name)(*arguments)
    if code:
        raise AssertionError(f"{name}: {code}")
    return results[0] if len(results) == 1 else results


@step
def devices():
    """Every device of each backend: name, UUID, PCI address, as all backends write them."""
    for name in NAMES:
        try:
            plugin = bridge.backend(name)
        except bridge.BackendUnavailable as exc:
            yield f"{name} is not here: {exc}"
            continue
        for index in range(plugin.device_count()):
            device = bridge.device(f"{name}:{index}")
            info = plugin.device_info(index)
            yield (
                f"{device}: {info['name']}; uuid {device.uuid}, pci {device.pci}"
                f" (says {info.get('uuid')}, {info.get('pci')})"
            )


@step
def same_device():
    """The GPU of ``cuda:0`` under the others, and back again."""
    first = bridge.device("cuda:0")
    shared["cuda"] = first
    for name in NAMES[1:]:
        try:
            other = first.same_device(name)
        except bridge.BackendUnavailable as exc:
            yield f"{name} is not here: {str(exc)[:80]}"
            continue
        if other is None:
            yield f"NOT FOUND: cuda:0 under {name}"
            continue
        shared[name] = other
        if other.same_device("cuda") is not first:
            raise AssertionError(f"{other} is not cuda:0 under cuda")
        yield (
            f"cuda:0 is {other}; same UUID {other.uuid == first.uuid}, "
            f"same PCI address {other.pci == first.pci}"
        )


@step
def what_vulkan_says_of_export():
    """vkGetPhysicalDeviceExternalBufferProperties, memory types, and the refusal, if any."""
    from dlbridge_vulkan.library import ffi, load, struct
    from dlbridge_vulkan.memory import USAGE

    index = needed("vulkan").index
    device = bridge.backend("vulkan").devices[index]
    info = struct("VkPhysicalDeviceExternalBufferInfo", usage=USAGE, handleType=1)
    found = struct("VkExternalBufferProperties")
    load().vkGetPhysicalDeviceExternalBufferProperties(device.physical.pointer, info, found)
    features = found.externalMemoryProperties.externalMemoryFeatures
    yield f"features {features} (1 dedicated only, 2 exportable, 4 importable)"
    yield f"refusal {device.export_refusal!r}, get_memory_fd {device.get_memory_fd != ffi.NULL}"
    for heap in device.heaps[:2]:
        kind = heap.kind
        yield f"memory type {kind.index}: mapped {kind.mapped}, {kind.size >> 20} MiB"


@step
def explain():
    """What dlbridge would do, before it does it."""
    there = bridge.to_device(values(), needed("vulkan"), copy=True)
    for line in str(bridge.explain(there, "cuda:0")).splitlines():
        yield line.strip()


@step
def vulkan_to_cuda():
    """``to_device(vulkan_tensor, "cuda:0")`` without a copy; each side sees the other's writes."""
    wanted = values(1)
    there = bridge.to_device(wanted, needed("vulkan"), copy=True)
    with bridge.trace() as trace:
        here = bridge.to_device(there, "cuda:0", copy=False)
    yield f"steps {[s.kind for s in trace.plans[0].steps]}, {trace.plans[0].seconds * 1e6:.0f} us"
    same(here, wanted)
    yield "CUDA reads what Vulkan wrote"
    bridge.copy_(here, wanted[::-1].copy())
    bridge.synchronize("cuda:0")
    same(there, wanted[::-1])
    yield "Vulkan reads what CUDA wrote"
    bridge.copy_(there, wanted)
    bridge.synchronize(there.device)
    same(here, wanted)
    yield "CUDA reads what Vulkan wrote afterwards"


@step
def fill_by_cuda():
    """A fill by a device's own engine, not a copy from the host."""
    there = bridge.to_device(values(), needed("vulkan"), copy=True)
    here = bridge.to_device(there, "cuda:0", copy=False)
    bridge.copy_(here, bridge.zeros(BYTES, "u1", "cuda:0"))
    bridge.synchronize("cuda:0")
    same(there, np.zeros(BYTES, "u1"))


@step
def vulkan_kernel_on_what_cuda_wrote():
    """A compute shader reads memory that CUDA wrote, and CUDA reads what the shader wrote."""
    from dlbridge.diagnosis.kernels import by_vulkan

    shape = (256, 256, 4)
    device = needed("vulkan")
    image, blurred = (bridge.empty(shape, "u1", device) for _ in range(2))
    pixels = values(5, 256 * 256 * 4).reshape(shape)
    bridge.copy_(bridge.to_device(image, "cuda:0", copy=False), pixels)
    result = bridge.to_device(blurred, "cuda:0", copy=False)
    bridge.synchronize("cuda:0")
    by_vulkan(image, blurred, 1)
    bridge.synchronize(device)
    padded = np.pad(pixels.astype("u4"), ((1, 1), (1, 1), (0, 0)))
    counts = np.pad(np.ones((256, 256, 1), "u4"), ((1, 1), (1, 1), (0, 0)))

    def nine(array):
        return sum(array[y : y + 256, x : x + 256] for y in range(3) for x in range(3))

    same(result, ((nine(padded) + nine(counts) // 2) // nine(counts)).astype("u1"))


@step
def many_in_one_block():
    """Small tensors at offsets of one Vulkan block; a view with strides; a block of its own."""
    wanted = [values(k, 1000 + k) for k in range(6)]
    there = [bridge.to_device(each, needed("vulkan"), copy=True) for each in wanted]
    here = [bridge.to_device(each, "cuda:0", copy=False) for each in there]
    bridge.copy_(here[3], np.full(1003, 7, "u1"))
    bridge.synchronize("cuda:0")
    wanted[3][:] = 7
    for tensor, theirs, each in zip(here, there, wanted, strict=True):
        same(tensor, each)
        same(theirs, each)
    yield "6 tensors, none touched by its neighbour"
    table = values(9, 1 << 20).reshape(1024, 1024)
    view = bridge.to_device(table, needed("vulkan"), copy=True)[5:, 1::3]
    same(bridge.to_device(view, "cuda:0", copy=False), table[5:, 1::3])
    yield "a view with strides"
    large = values(10, 96 << 20)
    same(bridge.to_device(bridge.to_device(large, needed("vulkan"), copy=True), "cuda:0"), large)
    yield "96 MiB, a block of its own"


@step
def lifetimes():
    """The import outlives the Vulkan tensor; a hundred rounds leave no file and no memory."""
    wanted = values(2)
    vulkan = bridge.backend("vulkan")
    here = bridge.to_device(bridge.to_device(wanted, needed("vulkan"), copy=True), "cuda:0")
    gc.collect()
    same(here, wanted)
    yield "it lives after its Vulkan tensor was dropped"
    del here
    gc.collect()
    with context():
        before, open_before, live = call("cuMemGetInfo")[0], files(), vulkan.live_allocations()
        start = time.perf_counter()
        for _ in range(100):
            there = bridge.empty(BYTES, "u1", needed("vulkan"))
            bridge.to_device(there, "cuda:0", copy=False)
        del there
        gc.collect()
        took = (time.perf_counter() - start) * 1e4
        after = call("cuMemGetInfo")[0]
    lost = (int(before) - int(after)) >> 20
    yield (
        f"100 rounds, {took:.0f} us each: files {files() - open_before:+d}, Vulkan buffers "
        f"{vulkan.live_allocations() - live:+d}, device memory {lost} MiB less"
    )
    if files() != open_before or vulkan.live_allocations() != live or lost > 100:
        raise AssertionError("something was not given back")


@step
def torch_on_vulkans_memory():
    """torch computes on it, if torch is here with CUDA."""
    try:
        import torch
    except ImportError as exc:
        raise Missing("torch is not here") from exc
    if not torch.cuda.is_available():
        raise Missing("torch sees no GPU")
    wanted = np.arange(1 << 20, dtype="f4")
    there = bridge.to_device(wanted, needed("vulkan"), copy=True)
    array = torch.from_dlpack(bridge.to_device(there, "cuda:0", copy=False))
    array.mul_(2)
    torch.cuda.synchronize()
    same(there, wanted * 2)
    yield "torch multiplied a Vulkan tensor in place"


@step
def cuda_tensor_to_vulkan():
    """``to_device(cuda_tensor, "vulkan:0")`` without a copy, as with DLBRIDGE_CUDA_EXPORT=1."""
    memory = bridge.backend("cuda")._device_memory
    wanted = values(6)
    memory.export_all()
    try:
        here = bridge.to_device(wanted, "cuda:0", copy=True)
    finally:
        del memory.obtain
    with bridge.trace() as trace:
        there = bridge.to_device(here, needed("vulkan"), copy=False)
    yield f"steps {[s.kind for s in trace.plans[0].steps]}, {trace.plans[0].seconds * 1e6:.0f} us"
    same(there, wanted)
    yield "Vulkan reads what CUDA wrote"
    bridge.copy_(there, wanted[::-1].copy())
    bridge.synchronize(there.device)
    same(here, wanted[::-1])
    yield "CUDA reads what Vulkan wrote"
    bridge.copy_(here, wanted)
    bridge.synchronize("cuda:0")
    same(there, wanted)
    yield "Vulkan reads what CUDA wrote afterwards"


@step
def speed():
    """The move in place beside the copy through the host, 8 MiB and 96 MiB."""
    for nbytes in (BYTES, 96 << 20):
        there = bridge.to_device(values(4, nbytes), needed("vulkan"), copy=True)
        times = {}
        for copy in (False, True):
            best = 1e9
            for _ in range(3):
                start = time.perf_counter()
                here = bridge.to_device(there, "cuda:0", copy=copy)
                bridge.synchronize("cuda:0")
                best = min(best, time.perf_counter() - start)
                del here
            times[copy] = best
        yield f"{nbytes >> 20} MiB: in place {times[False] * 1e6:.0f} us, copied {times[True] * 1e6:.0f} us"


print(f"{len(failures)} steps failed{': ' if failures else ''}{', '.join(failures)}")
sys.exit(len(failures))
