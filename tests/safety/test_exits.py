"""The end of the process with every device and every holder, while daemon threads work on.

One exit of each kind by `make test-all`, a hundred by `make stress`: exit status 0, and
nothing on stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from expected import backend_or_skip, expected
from peers import peer

ROOT = Path(__file__).resolve().parents[2]
HUNDRED = 100

# device: how a script gets a stream of it; empty if it has none of its own
DEVICES = {
    "cpu": "",
    "ext_dev:0": "__import__('dlbridge_fake').Stream()",
    "opencl:0": "t.to_native().queue",
    "opencl:1": "t.to_native().queue",
    "vulkan:0": "",
    "webgpu:0": "",
    "oneapi:0": "bridge.backend('oneapi').queue(0)",
}

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
    *((each, "host view") for each in ("webgpu:0", "oneapi:0")),
}

# Intel's runtime for CPUs, where it is installed, is the device of oneAPI.
INTEL = Path(sys.prefix, "lib", "libintelocl.so")

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
    if name == "oneapi":
        if not INTEL.exists() and not expected(name):
            pytest.skip("Intel's runtime is not installed")
        return  # it is looked for in the script, which says where the runtime is
    count = backend_or_skip(name).device_count()
    if int(index or 0) >= count:
        pytest.skip(f"there are {count} devices of {name} here")


def exits(device: str, holder: str, times: int) -> None:
    usable(device)
    library = holder.partition(" ")[0]
    imports = ""
    if library in ("torch", "tvm_ffi"):
        peer(library)
        imports = f"import {library}"
    elif "ffi" in holder:
        peer("tvm_ffi")
    expression = HOLDERS[holder].format(device=device, stream=DEVICES[device])
    # torch aborts the process if a daemon thread is inside it (docs/safety.md).
    work = f"t = bridge.to_device(np.arange(64.0), {device!r}); t[1:]"
    code = SCRIPT.format(
        imports=imports,
        device=device,
        holder=expression,
        work=work if library == "torch" else "make()",
    )
    paths = [str(ROOT), *map(str, ROOT.glob("backends/*/")), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "POCL_DEVICES": os.environ.get("POCL_DEVICES", "pthread pthread"),
        "DLBRIDGE_FAKE_SHARED": "1",
        # Without one, Mesa writes to stderr when wgpu begins.
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),
    }
    if device == "oneapi:0":
        environment["OCL_ICD_FILENAMES"] = str(INTEL)
    for number in range(times):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        ended = done.returncode, done.stdout, done.stderr
        assert ended == (0, "end\n", ""), f"exit {number}: {ended}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("device", "holder"), CASES)
def test_an_exit(device, holder):  # P53
    exits(device, holder, 1)


@pytest.mark.stress
@pytest.mark.parametrize(("device", "holder"), CASES)
def test_a_hundred_exits_with_threads_at_work(device, holder):  # P53
    exits(device, holder, HUNDRED)
