"""The end of a process and of a forked child, beyond the kit's scenes: shaders, imports, threads."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("vulkan")

SPIRV = str(Path(__file__).with_name("shaders") / "scale.spv")
START = f"""
import gc, os, struct, threading, time
from dlbridge.errors import DeviceError
from dlbridge.protocol import Span
import dlbridge as bridge
from backends.vulkan.tests.held_buffers import allocate, free, import_host
backend = bridge.backend("vulkan")
data = allocate(backend, 0, 4, 4, 0)
kernel = backend.kernel(open({SPIRV!r}, "rb").read(), buffers=1, push_nbytes=12)
def work(repeats, data=data):
    allocation = backend.devices.buffer(data)
    kernel.run([(allocation, 0, 4)], (1, repeats), struct.pack("=IIf", 1, 60_000, 1.0))
"""

SCENES = {
    "work is queued": "work(60)",
    "host memory is imported": """
import mmap, numpy as np
pages = mmap.mmap(-1, 8192)
address = np.frombuffer(pages, "u1").__array_interface__["data"][0]
imported, _ = import_host(backend, 0, address, 8192, False)
work(60, imported)
""",
    "the device is closed first": "free(backend, 0, data, 0); backend.close_device(0)",
    "threads free at once": """
made = [allocate(backend, 0, 1000, 4, 0) for _ in range(400)]
threads = [threading.Thread(target=lambda i=i: [free(backend, 0, d) for d in made[i::4]])
           for i in range(4)]
for thread in threads: thread.start()
""",
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_process_ends_cleanly(run_python, scene):
    """Exit status 0 and nothing on stderr."""
    done = run_python(START + SCENES[scene] + "\nprint('ok')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")

FORK = """
child = os.fork()
if child == 0:
    said = 0
    for call in (lambda: allocate(backend, 0, 4, 4, 0),
                 lambda: backend.fill(Span(0, data, 0, 4), 0, 0),
                 lambda: backend.host_view_refusal(0, data),
                 lambda: kernel.run([], (1, 1), b''), kernel.close,
                 lambda: backend.synchronize(0, 0)):
        try: call()
        except DeviceError as exc: said += 'fork' in str(exc) and 'spawn' in str(exc)
    free(backend, 0, data, 0)
    del kernel; gc.collect()
    print('child')
    raise SystemExit(10 + said)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
work(1)
backend.synchronize(0, 0)
print('ok')
"""


@needs_fork
@pytest.mark.parametrize("driver", ["first", "whose exit functions crash"])
def test_after_a_fork(run_python, driver, request):
    """Each use in the child says the way out; it frees without harm and ends; the parent goes on.

    The simulated driver ends a forked child by a signal, as NVIDIA's on an H100.
    """
    environment = {}
    if driver != "first":
        environment = request.getfixturevalue("simulated_environment")
    done = run_python(START + FORK, **environment)
    assert done.stdout.split() == ["child", "16", "ok"], done.stderr


FILES = """
import ctypes, sys
folder, generations = sys.argv[1], int(sys.argv[2])
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fputs.argtypes = ctypes.c_char_p, ctypes.c_void_p
def child(generations):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = child(generations - 1) if generations > 1 else 7
    c.fputs(b"text", c.fopen(f"{folder}/{generations}".encode(), b"w"))
    sys.exit(code)
print(child(generations))
"""


@needs_fork
@pytest.mark.parametrize("generations", [1, 2])
def test_a_forked_child_writes_the_files_of_c(run_python, tmp_path, generations):
    """What a library has written to a file of C, and not closed, is in the file after the end."""
    done = run_python(START + FILES, tmp_path, generations)
    assert done.stdout.split() == ["7"], done.stderr
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {str(each + 1): "text" for each in range(generations)}


HELD = """
inside, done = threading.Event(), threading.Event()
def hold():
    with backend.devices[0].queue.lock:
        inside.set(); done.wait()
from dlbridge.kit import gate; gate.PATIENCE = 1000
work(300)  # a child that waits for it hangs
threading.Thread(target=hold).start(); inside.wait()
child = os.fork()
if child == 0:
    for call in (lambda: allocate(backend, 0, 4, 4, 0), lambda: work(1),
                 lambda: backend.copy_to_host(Span(0, data, 0, 4), memoryview(bytearray(4)), 0),
                 lambda: backend.synchronize(0, 0)):
        try: call()
        except DeviceError: pass
        else: os._exit(2)
    free(backend, 0, data, 0)
    del kernel; gc.collect()
    raise SystemExit(0)
end = time.monotonic() + 100
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
    time.sleep(0.05)
if ended == (0, 0): os.kill(child, 9)
print(os.waitstatus_to_exitcode(ended[1]) if ended[0] else 'hangs')
done.set()
backend.synchronize(0, 0)
"""


@needs_fork
def test_a_fork_while_another_thread_works(run_python):
    """The child inherits no lock that nobody will release, and does not wait at its end."""
    done = run_python(START + HELD)
    assert done.stdout.split() == ["0"], done.stderr
