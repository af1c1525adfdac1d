"""A script that holds our tensors ends as it should, whoever holds them and however it ends.

Each case runs in a process of its own, whose exit status is the result: a fork of one that has
imported everything and used nothing. A comment ``# P53`` names the line of docs/conformance.md
that the test shows.
"""

from __future__ import annotations

import pytest

from tests.support import harness
from tests.support.peers import peer
from tests.support.scripts import finished, run_script

OURS = ("numpy", "dlbridge.abi", "tests.support.raw_producer")

# How the libraries take a tensor of ours.
TAKE = {
    "numpy": "numpy.from_dlpack(t)",
    "torch": "torch.from_dlpack(t)",
    "tvm_ffi": "tvm_ffi.from_dlpack(t)",
    "jax": "jax.dlpack.from_dlpack(t)",
}
MODULES = {"numpy": "numpy", "torch": "torch", "tvm_ffi": "tvm_ffi", "jax": "jax.dlpack"}

# What kinds of tensors there are, each with its own way out.
MAKE = {
    "array": "dlbridge.from_dlpack(numpy.arange(64, dtype='float32'))",
    "allocated": "dlbridge.zeros(64, 'int32')",
    "imported": "dlbridge.from_dlpack(Producer((64,), content=bytes(256)))",
    "carried": "dlbridge.from_dlpack(numpy.arange(64, dtype='uint16')).view('bfloat16')",
}


def run(code, *arguments, library="numpy", **environment):
    """Run *code* beside *library*; its output, or a failure that shows how it ended."""
    absent = () if library == "torch" else ("-torch",)  # tvm_ffi imports it where it can: 1.5 s
    return run_script(
        BEGIN + code,
        *arguments,
        env={"JAX_PLATFORMS": "cpu", **environment},
        imported=(*absent, MODULES[library], *OURS),
        silent=True,
    )


BEGIN = """
import sys, numpy, dlbridge
from tests.support.raw_producer import Producer
"""


@pytest.mark.parametrize("library", TAKE)
def test_globals_hold_our_tensors_at_exit(library):  # P53
    """All of them, theirs or ours."""
    peer(library)
    kinds = [make for kind, make in MAKE.items() if (kind, library) != ("carried", "numpy")]
    for last in ("", "del tensors, t", "del held"):
        code = f"""
import {MODULES[library]}
tensors = [{", ".join(kinds)}]
held = [{TAKE[library]} for t in tensors]
t = None
{last}
print('end')
"""
        assert run(code, library=library) == "end\n"


@pytest.mark.parametrize("library", TAKE)
def test_all_at_once_in_a_cycle(library):  # P53
    """Held in cycles, in modules, in other threads' locals and by their own holders."""
    peer(library)
    code = f"""
import {MODULES[library]}
t = {MAKE["array"]}
held = {TAKE[library]}
class Holder: pass
a = Holder(); a.itself = a; a.held = {TAKE[library]}; a.t = t
sys.modules['made_up'] = a
import threading, builtins, atexit
builtins.held = {TAKE[library]}
threading.Thread(target=lambda x: threading.Event().wait(), args=(held,), daemon=True).start()
atexit.register(lambda: {TAKE[library]})
print('end')
"""
    assert run(code, library=library) == "end\n"


def test_capsules_that_nobody_consumed():  # P53, P42
    code = "".join(
        f"t{i} = {make}\nc{i} = t{i}.__dlpack__()\nd{i} = t{i}.__dlpack__(max_version=(1, 3))\n"
        for i, make in enumerate(MAKE.values())
    )
    assert run(code + "print('end')") == "end\n"


@pytest.mark.parametrize("library", ["numpy", "torch", "tvm_ffi", "jax"])
def test_we_hold_theirs_at_exit(library):  # P53, C15
    peer(library)
    make = {
        "numpy": "numpy.arange(4.)",
        "torch": "torch.arange(4).to(torch.bfloat16)",
        "tvm_ffi": "tvm_ffi.from_dlpack(numpy.arange(4.))",
        "jax": "jax.numpy.arange(4.)",
    }[library]
    code = f"import {MODULES[library]}{', jax.numpy' if library == 'jax' else ''}\n"
    code += f"held = dlbridge.from_dlpack({make})\nprint('end')"
    assert run(code, library=library) == "end\n"


# Held by C until Python is gone


HELD = """
import ctypes
from tests.support import harness
from tests.support.raw_producer import address, set_name, immortal, struct_in, ffi
library = harness.load()
t = eval(sys.argv[1])
if sys.argv[3] == 'capsule':
    capsule = t.__dlpack__(max_version=(1, 3))
    set_name(capsule, immortal(b'used_dltensor_versioned'))
    managed = struct_in(capsule)
else:
    table = ffi.cast('DLPackExchangeAPI *', __import__('raw_producer').pointer_in(type(t).__dlpack_c_exchange_api__))
    out = ffi.new('DLManagedTensorVersioned **')
    assert table.managed_tensor_from_py_object_no_sync(ffi.cast('void *', id(t)), out) == 0
    managed = out[0]
getattr(library, 'harness_' + sys.argv[2])(address(managed))
"""


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("way", ["capsule", "table"])
@pytest.mark.parametrize("when", ["hold", "hold_until_exit"])
def test_released_after_python_has_gone(kind, way, when):  # P53
    """By a static destructor of C's, and by C's atexit."""
    harness.path()
    assert run(HELD + "print('end')", MAKE[kind], when, way) == "end\n"


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("way", ["capsule", "table"])
def test_released_by_a_thread_while_python_goes(kind, way):  # P54
    harness.path()
    busy = """
class Slow:
    def __del__(self, let_go=library.harness_let_go):
        let_go()
sys.modules['slow'] = Slow()
"""
    done = finished(BEGIN + HELD + busy, MAKE[kind], "delete_late", way, imported=OURS)
    assert (done.returncode, done.stderr) == (0, "late thread calls\n")


DAEMONS = """
import threading, time, torch, tvm_ffi
makers = [
    lambda: dlbridge.from_dlpack(numpy.ones(3)),
    lambda: dlbridge.zeros(3, 'int32'),
    lambda: dlbridge.from_dlpack(numpy.arange(4, dtype='uint16')).view('bfloat16'),
    lambda: dlbridge.zeros(3, 'int32', 'ext_dev:0'),
    lambda: dlbridge.from_dlpack(tvm_ffi.from_dlpack(numpy.ones(3))),
    lambda: torchs[...],
]
# torch itself aborts the process if a daemon thread makes or deletes a tensor of torch then.
torchs = dlbridge.from_dlpack(torch.ones(3, dtype=torch.bfloat16))
def work():
    while True:
        for make in makers:
            tvm_ffi.from_dlpack(make())
            # The capsule of a tensor on the CPU has numpy's deleter, without one of ours before it.
            tvm_ffi.from_dlpack(make().__dlpack__(max_version=(1, 0)))
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print('end', flush=True)
"""


def test_daemon_threads_drop_our_tensors_in_destructors_of_cpp():  # P53, P54
    """A thread that waits for the GIL when Python ends is ended by CPython before 3.14.

    Inside a destructor of C++ that is std::terminate; nothing may release the GIL there.
    """
    for name in ("torch", "tvm_ffi", "dlbridge_fake"):
        peer(name)
    for _ in range(8):
        imported = (*OURS, "torch", "tvm_ffi")
        assert run_script(BEGIN + DAEMONS, imported=imported, silent=True) == "end\n"


LAST_COLLECTION = """
import contextlib, threading
from dlbridge.kit import resources
import dlbridge as bridge
devices = []
for name in ("cpu", "ext_dev", "opencl", "vulkan", "webgpu"):
    with contextlib.suppress(bridge.BackendUnavailable):
        bridge.backend(name)
        devices.append(name)
def work():
    for device in devices:
        with contextlib.suppress(bridge.Error):  # OpenCL refuses calls while the process ends
            t = bridge.to_device(bridge.zeros(1000, "uint8", device), "cpu", copy=True)
            numpy.from_dlpack(t[::-1])
class Collected:
    def __init__(self):
        self.itself = self
    def __del__(self):
        work()
        print("finalized", sys.is_finalizing(), flush=True)
work()
def hold():
    with contextlib.ExitStack() as stack:
        for each in list(resources._locks):
            stack.enter_context(each())
        held.set()
        while True:
            pass
held, kept = threading.Event(), Collected()
threading.Thread(target=hold, daemon=True).start()
held.wait()
del kept
print(len(resources._locks) > 3)
"""


def test_a_finalizer_in_the_last_collection_meets_no_lock_of_a_thread_that_was_ended():
    """It hung: Python had ended a daemon thread in the middle of a call."""
    environment = {"DLBRIDGE_VULKAN_STAGED": "1"}  # where each fill takes a lock
    assert run(LAST_COLLECTION, **environment) == "True\nfinalized True\n"


# Errors on the way out


def test_the_end_by_an_exception():  # P53
    code = """
t = dlbridge.zeros(4)
held = numpy.from_dlpack(t)
def fail():
    inner = numpy.from_dlpack(dlbridge.zeros(8))
    raise SystemExit(0)
fail()
"""
    assert run(code) == ""


def test_the_end_by_exit_in_a_thread_and_by_os_exit():  # P53
    code = """
import os, threading
t = dlbridge.zeros(4); held = numpy.from_dlpack(t)
threading.Thread(target=sys.exit).start()
print('end', flush=True)
os._exit(0)
"""
    assert run(code) == "end\n"


@pytest.mark.parametrize("order", ["numpy, dlbridge", "dlbridge, numpy"])
@pytest.mark.parametrize("library", ["torch", "tvm_ffi", "jax"])
def test_the_order_of_imports_does_not_matter(library, order):  # P53
    """Handlers of `atexit` run backwards."""
    peer(library)
    code = f"import {order}\nt = dlbridge.from_dlpack(numpy.arange(4.))\n"
    code += f"import {MODULES[library]}\nheld = {TAKE[library]}\nprint('end')"
    if not order.startswith("numpy"):
        code = f"import {MODULES[library]}\n{code}"
    if library != "torch":
        code = f'import sys; sys.modules["torch"] = None\n{code}'
    assert run_script(code, env={"JAX_PLATFORMS": "cpu"}, silent=True) == "end\n"


# Subinterpreters


SUBINTERPRETERS = """
import sys
try:
    import _interpreters as interpreters  # 3.13
    kinds = {'isolated': 'isolated', 'legacy': 'legacy'}
    make = interpreters.create
except ImportError:
    import _xxsubinterpreters as interpreters
    kinds = {'isolated': True, 'legacy': False}
    make = lambda isolated: interpreters.create(isolated=isolated)
for kind in sys.argv[2:]:
    made = make(kinds[kind])
    error = interpreters.run_string(made, f'''
try:
    import dlbridge
    dlbridge.{sys.argv[1]}
except ImportError as error:
    print("dlbridge" in str(error), "subinterpreter" in str(error), flush=True)
''')
    assert error is None, error
    interpreters.destroy(made)
"""


@pytest.mark.parametrize(
    "use", ["from_dlpack", "Tensor", "zeros(3)", "devices()", "ffi.load_module", "ffi.Array"]
)
def test_subinterpreters_are_refused(use):  # P53
    """numpy's and cffi's callbacks deadlock or run in the wrong interpreter there.

    Of every kind, one after the other: in CPython 3.12 cffi aborts in one after an isolated one;
    so it is not touched before.
    """
    if use.startswith("ffi"):
        peer("tvm_ffi")
    for kinds in (["isolated", "legacy"] * 3, ["legacy"]):
        said = run_script(SUBINTERPRETERS, use, *kinds, silent=True)
        assert said == "True True\n" * len(kinds)


def test_the_main_interpreter_goes_on_beside_a_subinterpreter():  # P53
    code = f"import dlbridge\nt = dlbridge.zeros(3)\n{SUBINTERPRETERS}print(t.tolist())"
    assert run_script(code, "Tensor", "legacy", silent=True) == "True True\n[0.0, 0.0, 0.0]\n"
