"""The end of a process and of a forked child, beyond the kit's scenes: shaders, imports, threads."""

import os

import pytest

pytestmark = pytest.mark.usefixtures("vulkan")

START = """
import struct
import dlbridge as bridge
from held_buffers import HELD, allocate, free, import_host
backend = bridge.backend("vulkan")
data = allocate(backend, 0, 4, 4, 0)
kernel = backend.kernel(open({spirv!r}, "rb").read(), buffers=1, push_nbytes=12)
def work(repeats, data=data):
    allocation = backend.devices.buffer(data)
    kernel.run([(allocation, 0, 4)], (1, repeats), struct.pack("=IIf", 1, 60_000, 1.0))
"""

SCENES = {
    "work is queued": "work(60)",
    "a tensor is freed while the interpreter ends": """
class Owner:
    def __init__(self, memory): self.memory = memory
import builtins
builtins.keep = Owner(HELD[data])
work(30)
""",
    "a daemon thread works": """
import threading
def forever():
    while True: work(1)
threading.Thread(target=forever, daemon=True).start()
import time; time.sleep(0.2)
""",
    "host memory is imported": """
import mmap, numpy as np
pages = mmap.mmap(-1, 8192)
address = np.frombuffer(pages, "u1").__array_interface__["data"][0]
imported, _ = import_host(backend, 0, address, 8192, False)
work(60, imported)
""",
    "the device is closed first": "free(backend, 0, data, 0); backend.close_device(0)",
    "threads free at once": """
import threading
made = [allocate(backend, 0, 1000, 4, 0) for _ in range(400)]
threads = [threading.Thread(target=lambda i=i: [free(backend, 0, d) for d in made[i::4]])
           for i in range(4)]
for thread in threads: thread.start()
""",
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_process_ends_cleanly(run_python, scale_spirv, tmp_path, scene):
    """Exit status 0 and nothing on stderr."""
    spirv = tmp_path / "scale.spv"
    spirv.write_bytes(scale_spirv)
    code = START.format(spirv=str(spirv)) + SCENES[scene] + "\nprint('ok')\n"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "ok" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
@pytest.mark.parametrize("driver", ["first", "whose exit functions crash"])
def test_after_a_fork(run_python, scale_spirv, tmp_path, driver, request):
    """Each use in the child says the way out; it frees without harm and ends; the parent goes on.

    The simulated driver ends a forked child by a signal, as NVIDIA's on an H100.
    """
    environment = {}
    if driver != "first":
        environment = request.getfixturevalue("simulated_environment")
    spirv = tmp_path / "scale.spv"
    spirv.write_bytes(scale_spirv)
    code = START.format(spirv=str(spirv)) + (
        "import os, gc\n"
        "from dlbridge.errors import DeviceError\n"
        "from dlbridge.protocol import Span\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    said = 0\n"
        "    for call in (lambda: allocate(backend, 0, 4, 4, 0),\n"
        "                 lambda: backend.fill(Span(0, data, 0, 4), 0, 0),\n"
        "                 lambda: backend.host_view_refusal(0, data),\n"
        "                 lambda: kernel.run([], (1, 1), b''), kernel.close,\n"
        "                 lambda: backend.synchronize(0, 0)):\n"
        "        try: call()\n"
        "        except DeviceError as exc: said += 'fork' in str(exc) and 'spawn' in str(exc)\n"
        "    free(backend, 0, data, 0)\n"
        "    del kernel; gc.collect()\n"
        "    print('child')\n"
        "    raise SystemExit(10 + said)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "work(1)\n"
        "backend.synchronize(0, 0)\n"
        "print('ok')\n"
    )
    done = run_python(code, **environment)
    assert done.stdout.split() == ["child", "16", "ok"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
@pytest.mark.parametrize("generations", [1, 2])
def test_a_forked_child_writes_the_files_of_c(run_python, tmp_path, generations):
    """What a library has written to a file of C, and not closed, is in the file after the end."""
    code = (
        "import ctypes, os, sys\n"
        "import dlbridge as bridge\n"
        "bridge.empty(4, device='vulkan:0')\n"
        "c = ctypes.CDLL(None)\n"
        "c.fopen.restype = ctypes.c_void_p\n"
        "c.fputs.argtypes = ctypes.c_char_p, ctypes.c_void_p\n"
        "def child(generations):\n"
        "    pid = os.fork()\n"
        "    if pid:\n"
        "        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    code = child(generations - 1) if generations > 1 else 7\n"
        f"    c.fputs(b'text', c.fopen(b'{tmp_path}/' + str(generations).encode(), b'w'))\n"
        "    sys.exit(code)\n"
        f"print(child({generations}))\n"
    )
    done = run_python(code)
    assert done.stdout.split() == ["7"], done.stderr
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {str(each + 1): "text" for each in range(generations)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
def test_a_fork_while_another_thread_works(run_python, scale_spirv, tmp_path):
    """The child inherits no lock that nobody will release, and does not wait at its end."""
    spirv = tmp_path / "scale.spv"
    spirv.write_bytes(scale_spirv)
    code = START.format(spirv=str(spirv)) + (
        "import gc, os, sys, threading, time\n"
        "from dlbridge.errors import DeviceError\n"
        "from dlbridge.protocol import Span\n"
        "inside, done = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with backend.devices[0].queue.lock:\n"
        "        inside.set(); done.wait()\n"
        "from dlbridge.kit import gate; gate.PATIENCE = 1000\n"
        "work(300)\n"  # a child that waits for it hangs
        "threading.Thread(target=hold).start(); inside.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for call in (lambda: allocate(backend, 0, 4, 4, 0), lambda: work(1),\n"
        "                 lambda: backend.copy_to_host(Span(0, data, 0, 4), memoryview(bytearray(4)), 0),\n"
        "                 lambda: backend.synchronize(0, 0)):\n"
        "        try: call()\n"
        "        except DeviceError: pass\n"
        "        else: os._exit(2)\n"
        "    free(backend, 0, data, 0)\n"
        "    del kernel; gc.collect()\n"
        "    raise SystemExit(0)\n"
        "end = time.monotonic() + 100\n"
        "while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "if found == (0, 0): os.kill(child, 9)\n"
        "print(os.waitstatus_to_exitcode(found[1]) if found[0] else 'hangs')\n"
        "done.set()\n"
        "backend.synchronize(0, 0)\n"
    )
    done = run_python(code)
    assert done.stdout.split() == ["0"], done.stderr
