"""The end of the process with every device and every holder, while daemon threads work on.

One exit of each kind by `make test-all`, a hundred by `make stress`: exit status 0, and
nothing on stderr.
"""

from __future__ import annotations

import os
import tempfile

import pytest

from tests.drivers import build
from tests.support.expected_parts import backend_or_skip, expected
from tests.support.intel import RUNTIME
from tests.support.peers import peer
from tests.support.scripts import ROOT, finished

# device: how a script gets a stream of it; empty if it has none of its own
DEVICES = {
    "cpu": "",
    "ext_dev:0": "__import__('dlbridge_fake').Stream()",
    "opencl:0": "t.to_native().queue",
    "opencl:1": "t.to_native().queue",
    "vulkan:0": "",
    "webgpu:0": "",
    "oneapi:0": "bridge.backend('oneapi').queue(0)",
    "cuda:0": "cuda_stream()",
    "rocm:0": "hip_stream()",
}

# Before anybody looks for a real driver: on the simulated ones.
SIMULATED = """
import ctypes
from tests.drivers import build
build.load("cuda"), build.load("hip")
def cuda_stream():
    from cuda.core import Device
    Device(0).set_current()
    return Device(0).create_stream()
def hip_stream():
    stream = ctypes.c_void_p()
    assert build.load("hip").hipStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    return stream.value
"""

# holder: what a script keeps of the tensor `t`
HOLDERS = {
    "Tensor": "t[1:]",
    "numpy view": "np.from_dlpack(on_host(t))",
    "torch tensor": "torch.from_dlpack(on_host(t))",
    "tvm_ffi tensor": "tvm_ffi.from_dlpack(on_host(t))",
    "capsule": "t.__dlpack__(max_version=(1, 0))",
    "object of dlbridge.ffi": "bridge.ffi.Array([on_host(t), lambda: t])",
    "host view": "entered(t.host_view())",
    "native object": "t.to_native()",
    "stream": "entered(bridge.use_stream({device!r}, {stream}))",
}

# Nothing of the kind: the CPU, for example, has no objects of its own, and no streams.
WITHOUT = {
    ("cpu", "native object"),
    *((each, "stream") for each in ("cpu", "vulkan:0", "webgpu:0")),
    *((each, "host view") for each in ("webgpu:0", "oneapi:0", "cuda:0", "rocm:0")),
    ("rocm:0", "native object"),
}

CASES = [
    (device, holder) for device in DEVICES for holder in HOLDERS if (device, holder) not in WITHOUT
]

SCRIPT = """
import random, sys, threading, time
import numpy as np
import dlbridge as bridge
{imports}
def on_host(t):
    try:
        return bridge.from_dlpack(t.host_view())
    except bridge.ExchangeError:
        return bridge.to_device(t, "cpu")
def entered(context):
    return context, context.__enter__()
def make():
    t = bridge.to_device(np.arange(64, dtype="f4"), {device!r})
    return {holder}, t
def forever():
    while True:
        try:
            {work}
        except bridge.Error:
            time.sleep(0.01)  # OpenCL refuses other threads' calls while the process ends
held = [make() for _ in range(3)]
itself = [held]; itself.append(itself)
threads = [threading.Thread(target=forever, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
time.sleep(random.uniform(0.01, 0.15))
print("end")
"""


def usable(device: str) -> None:
    """Skip the test without the device; fail it if DLBRIDGE_EXPECT names it."""
    name, _, index = device.partition(":")
    if name in ("cuda", "rocm"):
        if build.compiler() is None and not expected(name):
            pytest.skip("the simulated drivers need a C compiler")
        build.library("cuda"), build.library("hip")  # the folder is in the environment now
        return
    if name == "oneapi":
        if not RUNTIME.exists() and not expected(name):
            pytest.skip("Intel's runtime is not installed")
        return  # it is looked for in the script, which says where the runtime is
    count = backend_or_skip(name).device_count()
    if int(index or 0) >= count:
        pytest.skip(f"there are {count} devices of {name} here")


@pytest.mark.parametrize(
    "times",
    [pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(100, marks=pytest.mark.stress)],
)
@pytest.mark.parametrize(("device", "holder"), CASES)
def test_exits_with_threads_at_work(device, holder, times):  # P53
    usable(device)
    library = holder.partition(" ")[0]
    imports = ""
    if library in ("torch", "tvm_ffi"):
        peer(library)
        imports = f"import {library}"
    elif "ffi" in holder:
        peer("tvm_ffi")
    expression = HOLDERS[holder].format(device=device, stream=DEVICES[device])
    simulated = SIMULATED if device in ("cuda:0", "rocm:0") else ""
    # torch and cuda.core abort the process if a daemon thread is inside them (docs/safety.md).
    aborts = library == "torch" or (device, holder) == ("cuda:0", "stream")
    code = SCRIPT.format(
        imports=simulated + imports,
        device=device,
        holder=expression,
        work=f"bridge.to_device(np.arange(64.0), {device!r})[1:]" if aborts else "make()",
    )
    paths = tuple(ROOT.glob("backends/*/"))
    environment = {
        "POCL_DEVICES": os.environ.get("POCL_DEVICES", "pthread pthread"),
        "DLBRIDGE_FAKE_SHARED": "1",
        # Without one, Mesa writes to stderr when wgpu begins.
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),
    }
    if device == "oneapi:0":
        environment["OCL_ICD_FILENAMES"] = str(RUNTIME)
    for number in range(times):
        done = finished(code, env=environment, paths=paths, timeout=120)
        ended = done.returncode, done.stdout, done.stderr
        assert ended == (0, "end\n", ""), f"exit {number}: {ended}"
