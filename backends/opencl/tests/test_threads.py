"""Two threads and one buffer, a Ctrl-C at every moment, finalizers while a lock is held."""

from __future__ import annotations

import threading

import numpy as np
import pyopencl as cl

import dlbridge as bridge
from dlbridge.protocol import Span

VIEWS = """
import sys, threading, time
import numpy as np
import dlbridge as bridge

sys.setswitchinterval(1e-6)
t = bridge.to_device(np.arange(4096.0), "opencl:0", copy=True)
views, end = [0] * 4, time.monotonic() + 4

def look(number):
    while not views[number] or time.monotonic() < end:
        with t[number * 8 :].host_view() as host:
            assert host.numpy()[0] == number * 8
        views[number] += 1

threads = [threading.Thread(target=look, args=(n % 2,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
from dlbridge_opencl import views as inside
assert not inside._mapped, inside._mapped
"""


def test_host_views_of_one_tensor_in_several_threads(script, shared):
    """PoCL crashes if two threads map and unmap one buffer at once."""
    script(VIEWS)


def test_a_view_of_every_thread_is_given_back(opencl, make, shared):
    """Many views of one region have one address, and the list of them is not lost."""
    from dlbridge_opencl import views

    memory = make(4096)
    barrier = threading.Barrier(4)

    def look():
        for _ in range(300):
            barrier.wait()
            address = opencl.host_view(Span(0, memory.data, 0, 64), False, memory.stream)
            opencl.release_host_view(Span(0, memory.data, 0, 1), address, memory.stream)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not views._mapped
    assert memory.buffer.map_count == 0


def test_a_view_that_waits_does_not_lock_out_others(opencl, make, kernels, gate, context, shared):
    """One thread waits for a kernel on the buffer; a finalizer on the same buffer does not."""
    from dlbridge_opencl import views

    memory = make(4096)
    queue = cl.CommandQueue(context)
    stream = opencl.normalize_stream(0, queue)
    kernels("late_fill", queue, memory.buffer, 16, 7, 0, wait_for=gate.closed)
    queue.flush()
    given = []
    look = threading.Thread(
        target=lambda: given.append(opencl.host_view(Span(0, memory.data, 0, 64), False, stream))
    )
    look.start()
    look.join(0.2)  # no verdict: a view that does not wait may come later, unseen
    assert not given, "it did not wait for the kernel"
    taken = []

    def finalizer():  # takes the lock and finds no view of this address
        opencl.release_host_view(Span(0, memory.data, 0, 1), 12345, 0)
        lock = views._lock(memory.data)
        taken.append(lock.acquire(timeout=100))
        lock.release()

    other = threading.Thread(target=finalizer)
    other.start()
    other.join(100)
    gate.open()
    look.join()
    assert taken == [True]
    opencl.release_host_view(Span(0, memory.data, 0, 1), given[0], stream)


STORM = """
import random, signal, sys, threading, time
import numpy as np
import dlbridge as bridge

opencl = bridge.backend("opencl")
x = bridge.empty(4096, "uint8").numpy()
address = x.__array_interface__["data"][0]
opencl.free(0, opencl.allocate(0, 64, 64, 0), opencl.current_stream(0))

class Owner:
    '''What the core has: it exists before the memory.'''
    data = 0
    def __del__(self):
        if self.data:
            data, self.data = self.data, 0
            opencl.free(0, data, opencl.current_stream(0))

def allocate(owner):
    owner.data = opencl.allocate(0, 1 << random.randrange(4, 16), 64, 0)

def import_(owner):
    owner.data, _ = opencl.import_host(0, address, 4096, False)

def interrupt(signum, frame):
    global armed
    while frame:  # finalizers swallow exceptions: that is the core's matter
        if frame.f_code is Owner.__del__.__code__:
            return
        frame = frame.f_back
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
armed, heard = False, 0

def loop():
    global armed, heard
    while heard < 1000:
        owner = Owner()
        try:
            armed = True
            {what}(owner)
            armed = False
        except KeyboardInterrupt:
            heard += 1
        del owner

signal.setitimer(signal.ITIMER_REAL, 1e-4, 1.3e-4)
loop()
signal.setitimer(signal.ITIMER_REAL, 0)
assert opencl.live_allocations() == 0, (opencl.live_allocations(), heard)
print(heard)
"""


def test_a_ctrl_c_loses_no_memory(script):
    """Where the owner exists before: `allocate` records the buffer as its last step."""
    script(STORM.replace("{what}", "allocate"))


def test_a_ctrl_c_loses_no_imported_memory(script, shared):
    script(STORM.replace("{what}", "import_"))


LOCKED = """
import signal, sys, threading, time
import numpy as np
import dlbridge as bridge

x = np.arange(64.0)
t = bridge.to_device(x, "opencl:Oclgrind", copy=True)
opencl, device, heard = bridge.backend("opencl"), t.device.index, 0

armed = False

def interrupt(signum, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1.3e-4)
while heard < 1000:
    try:
        armed = True
        while True:
            opencl.synchronize(device, 0)
    except KeyboardInterrupt:
        heard += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(heard, flush=True)

def copy():
    bridge.copy_(t, x)
    print("not locked", flush=True)

thread = threading.Thread(target=copy, daemon=True)
thread.start()
thread.join(100)
"""


def test_a_ctrl_c_leaves_no_driver_locked(opencl):
    """The lock of a driver that only one thread may call: another thread can still have it."""
    import subprocess
    import sys

    import pytest

    platforms = [opencl.device_info(i)["platform"] for i in range(opencl.device_count())]
    if "Oclgrind" not in platforms:
        pytest.skip("no driver here is for one thread at a time")
    done = subprocess.run(
        [sys.executable, "-c", LOCKED], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.endswith("not locked\n"), done.stdout + done.stderr


def test_no_thread_gets_a_queue_that_another_replaces(opencl, context):
    """One queue for each context of a user, however many threads ask at once."""
    from dlbridge_opencl import queues

    for _ in range(20):
        elsewhere = cl.Context(context.devices)
        barrier = threading.Barrier(4)
        got = []

        def ask(elsewhere=elsewhere, barrier=barrier, got=got):
            barrier.wait()
            got.append(queues.elsewhere(0, elsewhere))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({queue.int_ptr for queue in got}) == 1


def test_host_memory_is_waited_for_though_a_ctrl_c_comes(opencl, make, kernels, gate, shared):
    """It is raised when the work is done: before, a kernel could write to memory of others."""
    from dlbridge_opencl import memory, queues

    host = bridge.empty(4096, "uint32").numpy()
    data, _ = opencl.import_host(0, host.__array_interface__["data"][0], host.nbytes, False)
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    buffer = cl.MemoryObject.from_int_ptr(data, True)
    kernels("late_fill", queue, buffer, 4096, 7, 0, wait_for=gate.closed)
    queue.flush()
    interrupted = []
    finish = queues.finish

    def interrupt_once(device_id, queue):
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        finish(device_id, queue)

    raised = []

    def free():
        memory.queues.finish = interrupt_once
        try:
            opencl.free(0, data, 0)
        except KeyboardInterrupt as exc:
            raised.append(exc)
        finally:
            memory.queues.finish = finish

    gate.holds(free)
    assert raised
    assert (host == 7).all()
    assert isinstance(host, np.ndarray)


def indent(line):
    return len(line) - len(line.lstrip())


def interrupted_at_each_line(work):
    """Call *work* again and again, with a KeyboardInterrupt before its first, second ... line.

    As an exception of a signal handler that comes in a destructor, where nobody calls
    again. CPython raises it after calls and where a function begins. (At the beginning
    of the function of a backend the core calls it again.) After the last call of a
    ``with`` block it raises it inside the block; a trace function could do so only when the
    block has been left and its lock not yet been released, so that moment is left out.
    """
    import linecache
    import sys

    for count in range(1, 1000):
        left = count
        before = {}

        def trace(frame, event, _argument, before=before):
            nonlocal left
            file = frame.f_code.co_filename
            if event == "line" and "dlbridge_opencl" in file:
                last = before.get(frame, "(" if before else "")
                before[frame] = line = linecache.getline(file, frame.f_lineno)
                leaves = line.lstrip().startswith("with ") and indent(last) > indent(line)
                left -= "(" in last and not leaves
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        call = work()
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(None)
            before.clear()  # the frames, with what they hold
        assert count > 4, "no line was interrupted"
        return
    raise AssertionError("it never ended")


def test_memory_is_freed_though_a_handler_raises(opencl):
    """The exception came after the owner had let go, and the buffer stayed for ever."""
    before = opencl.live_allocations()

    def work():
        stream = opencl.current_stream(0)
        data = opencl.allocate(0, 1 << 12, 64, stream)
        return lambda: opencl.free(0, data, stream)

    interrupted_at_each_line(work)
    assert opencl.live_allocations() == before


def test_no_buffer_is_kept_twice_though_a_handler_raises(opencl):
    """Two tensors would get the same memory."""
    stream = opencl.current_stream(0)

    def work():
        data = opencl.allocate(0, 12_345, 64, stream)
        return lambda: opencl.free(0, data, stream)

    interrupted_at_each_line(work)
    taken = [opencl.allocate(0, 12_345, 64, stream) for _ in range(60)]
    assert len(set(taken)) == 60
    for data in taken:
        opencl.free(0, data, stream)


def test_a_view_is_given_back_though_a_handler_raises(opencl, make, shared):
    from dlbridge_opencl import views

    memory = make(4096)
    span = Span(0, memory.data, 0, 64)

    def release():
        address = opencl.host_view(span, False, memory.stream)
        return lambda: opencl.release_host_view(span, address, memory.stream)

    interrupted_at_each_line(release)
    assert not views._mapped
    assert memory.buffer.map_count == 0


ANOTHER_VIEW = """
import dlbridge as bridge
from dlbridge.protocol import Span

opencl = bridge.backend("opencl")
stream = opencl.current_stream(0)
data = opencl.allocate(0, 4096, 64, stream)
span = Span(0, data, 0, 64)

from dlbridge_opencl import memory, views

buffer = memory.buffer_of(data)
other = opencl.host_view(span, False, stream)

def release():
    assert buffer.map_count == 1, buffer.map_count
    address = opencl.host_view(span, False, stream)
    assert buffer.map_count == 2, buffer.map_count
    return lambda: opencl.release_host_view(span, address, stream)

interrupted_at_each_line(release)
assert buffer.map_count == 1, buffer.map_count
assert len(views._mapped) == 1
opencl.release_host_view(span, other, stream)
assert buffer.map_count == 0, buffer.map_count
assert not views._mapped
print("done")
"""


def test_another_view_stays_mapped_though_a_handler_raises(script, shared):
    """PoCL takes a second release of one view for that of another, which has the same address."""
    import inspect

    functions = inspect.getsource(indent) + inspect.getsource(interrupted_at_each_line)
    assert script(functions + ANOTHER_VIEW) == "done\n"


REFUSED = """
import gc
import numpy as np
import dlbridge as bridge

t = bridge.to_device(np.arange(3000), "opencl:0", copy=True)
view = bridge.to_device(t, "cpu", like="numpy", copy=False)
del view
gc.collect()

opencl = bridge.backend("opencl")
from dlbridge.protocol import Span
from dlbridge_opencl import views

data, stream = t.operand().data, opencl.current_stream(0)
span = Span(0, data, 0, 64)

def release():
    address = opencl.host_view(span, False, stream)
    return lambda: opencl.release_host_view(span, address, stream)

interrupted_at_each_line(release)
try:
    with views.mapped(0, views.buffer_of(data), 0, 64):
        pass
except Exception as exc:
    print(exc)
gc.collect()
assert not views._mapped
print("done")
"""


def test_a_view_that_the_driver_does_not_unmap(script, shared):
    """As of a lost context. pyopencl's destructor would try again, and end the process."""
    import inspect

    functions = inspect.getsource(indent) + inspect.getsource(interrupted_at_each_line)
    said = script(functions + REFUSED, refuse_unmap=-34).splitlines()
    assert "INVALID_CONTEXT" in said[0]
    assert said[1:] == ["done"]


def test_a_view_that_is_not_returned_is_not_kept(opencl, make, shared):
    from dlbridge_opencl import views

    memory = make(4096)
    span = Span(0, memory.data, 0, 64)
    addresses = []

    def look():
        return lambda: addresses.extend(map(opencl.host_view, [span], [False], [memory.stream]))

    interrupted_at_each_line(look)
    assert len(addresses) == 1
    opencl.release_host_view(span, addresses[0], memory.stream)
    assert not views._mapped
    assert memory.buffer.map_count == 0
