"""What leaves a backend: foreign exceptions, lost devices, devices that appear."""

from __future__ import annotations

import ctypes
import gc
import signal
import weakref

import numpy as np
import pytest
from dlbridge_fake import Array, Fake, Stream

import dlbridge as bridge
from dlbridge import protocol
from dlbridge.core.plugins.contract import CONTRACTS
from dlbridge.core.plugins.registry import Plugin
from dlbridge.errors import BackendError, DeviceError, DeviceMemoryError, Error
from dlbridge.extending import check_device
from tests.support.interrupted import Alarm, handled

NAME = "failing_in_a_test"
ZERO, ONE = f"{NAME}:0", f"{NAME}:1"
HOST = np.arange(6000, dtype="f4").reshape(60, 100)


class Failing(Fake):
    """*wrong* names the member that raises *error* from now on, or gets signal *number*."""

    wrong = ""
    number = 0
    error: Exception = RuntimeError("no such luck")

    def __init__(self):
        super().__init__()
        self.shared = True

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name != super().__getattribute__("wrong"):
            return found
        raised, number = super().__getattribute__("error"), super().__getattribute__("number")

        def refuse(*_arguments):
            if number:
                signal.raise_signal(number)
            raise raised

        return refuse

    def trim(self, device_id):
        """There is nothing to give back."""


@pytest.fixture
def failing(register):
    return register(NAME, Failing)


def upload(host=HOST):
    return bridge.to_device(host, ZERO, copy=True)


def write_columns(source):
    there = upload()
    bridge.copy_(there[::2, 3:9], source)


def through_streams(_plugin):
    there = upload()
    with bridge.use_stream(ZERO, Stream()):
        bridge.to_device(there, ZERO, copy=True)


def native(plugin):
    return Array(plugin.to_native(described(plugin)).description)


def described(plugin):
    memory = plugin.allocate(0, 16, 1, 0)
    return protocol.NativeArray(0, memory.data, 0, "float32", (4,), None, False, memory)


# Member -> what makes the core call it; the first part runs while the backend is sound.
CALLS = {
    "device_count": lambda _: (None, lambda: check_device(f"{NAME}:1")),
    "allocate": lambda _: (None, lambda: bridge.empty(3, device=ZERO)),
    "copy_from_host": lambda _: (None, upload),
    "copy_to_host": lambda _: (upload(), lambda t: bridge.to_device(t, "cpu", copy=True)),
    "current_stream": lambda _: (None, lambda: bridge.current_stream(ZERO)),
    "synchronize": lambda _: (None, lambda: bridge.synchronize(ZERO)),
    "wait": lambda plugin: (None, lambda: through_streams(plugin)),
    "normalize_stream": lambda _: (None, lambda: bridge.use_stream(ZERO, 7).__enter__()),
    "copy": lambda _: (upload(), lambda t: bridge.to_device(t, ONE, copy=True)),
    "copy_strided": lambda _: (upload(), lambda t: bridge.to_device(t[::2, :9], ZERO, copy=True)),
    "copy_strided_from_host": lambda _: (HOST[::2, 3:9].copy(), write_columns),
    "copy_strided_to_host": lambda _: (
        upload(),
        lambda t: bridge.to_device(t[::2, 3:9], "cpu", copy=True),
    ),
    "fill": lambda _: (None, lambda: bridge.zeros(3, "uint8", ZERO)),
    "host_view_refusal": lambda _: (upload(), lambda t: bridge.to_device(t, "cpu")),
    "host_view": lambda _: (upload(), lambda t: bridge.to_device(t, "cpu")),
    "host_import_refusal": lambda _: (None, lambda: bridge.to_device(HOST, ZERO)),
    "import_host": lambda _: (None, lambda: bridge.to_device(aligned(), ZERO, copy=False)),
    "from_native": lambda plugin: (native(plugin), lambda x: bridge.asarray(x, device=ZERO)),
    "to_native": lambda _: (upload(), lambda t: t.to_native()),
    "import_data": lambda _: (upload(), lambda t: bridge.from_dlpack(t.__dlpack__())),
    "find_device": lambda _: (None, lambda: bridge.empty(3, device=f"{NAME}:zero")),
    "trim": lambda _: (None, lambda: bridge.trim(ZERO)),
    "device_info": lambda _: (None, lambda: bridge.device(ZERO).uuid),
}

NOT_CALLED = {
    # Between two backends: tests/core/moves/test_memory_imports.py.
    "memory_export_refusal",
    "export_memory",
    "memory_import_refusal",
    "import_memory",
    # By `share`: tests/processes/test_device_blocks.py.
    "allocate_exportable",
}


def aligned():
    return bridge.empty(100, "uint8", alignment=4096)


def test_every_member_is_here():
    names = {
        name
        for contract in CONTRACTS
        for name, function in CONTRACTS[contract].items()
        if function is not None
    }
    assert names == set(CALLS) | NOT_CALLED


@pytest.mark.parametrize("member", CALLS)
def test_a_foreign_exception_names_backend_and_member(failing, member):
    before, call = CALLS[member](failing)
    arguments = () if before is None else (before,)
    failing.wrong = member
    find_again()
    try:
        says = rf"backend '{NAME}' failed in .*RuntimeError: no such luck.*Failing .registered by"
        with pytest.raises(Error, match=says) as caught:
            call(*arguments)
        assert caught.value.__cause__ is Failing.error
    finally:
        failing.wrong = ""


def find_again():
    """Forget what has been found before, so that members are called again."""
    from dlbridge.core.plugins import lookup, registry

    registry._usable.clear()
    for text in [text for text in lookup.FOUND if NAME in text]:
        del lookup.FOUND[text]


def test_lack_of_memory_stays_that(failing):
    failing.error, failing.wrong = MemoryError("full"), "allocate"
    with pytest.raises(DeviceMemoryError, match=f"'{NAME}' failed in allocate: .*full"):
        upload()


class Nothing:
    """An argument that ctypes cannot convert for lack of memory."""

    @property
    def _as_parameter_(self):
        raise MemoryError


def test_lack_of_memory_inside_ctypes_is_that(failing):
    """ctypes tells the argument's own exception by the name of its class only."""
    with pytest.raises(ctypes.ArgumentError) as caught:
        ctypes.pythonapi.Py_IncRef(Nothing())
    failing.error, failing.wrong = caught.value, "fill"
    with pytest.raises(DeviceMemoryError, match=f"'{NAME}' failed in fill: .*MemoryError") as told:
        bridge.zeros(3, "uint8", ZERO)
    assert told.value.__cause__ is caught.value
    assert "report it" not in str(told.value)
    failing.error = ctypes.ArgumentError("argument 1: TypeError: of another kind")
    with pytest.raises(BackendError, match="report it"):
        bridge.zeros(3, "uint8", ZERO)


@pytest.mark.parametrize("error", [DeviceError("mine"), bridge.ExchangeError("mine")])
def test_errors_of_dlbridge_pass_as_they_are(failing, error):
    failing.error, failing.wrong = error, "copy_from_host"
    with pytest.raises(Error) as caught:
        upload()
    assert caught.value is error
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(failing, error):
    failing.error, failing.wrong = error(), "copy_from_host"
    with pytest.raises(error):
        upload()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a POSIX signal")
@pytest.mark.parametrize("member", CALLS)
def test_exceptions_of_signal_handlers_pass(failing, member):
    """They came while the backend ran, and do not mean that it failed."""
    before, call = CALLS[member](failing)
    arguments = () if before is None else (before,)
    failing.number, failing.wrong = signal.SIGUSR1, member
    find_again()
    try:
        with handled(Alarm, signal.SIGUSR1), pytest.raises(Alarm):
            call(*arguments)
    finally:
        failing.wrong = ""


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_streams_may_be_refused_as_the_standard_says(failing, error):
    failing.error, failing.wrong = error("not a stream"), "normalize_stream"
    with pytest.raises(error, match=r"^not a stream$"):
        bridge.to_device(HOST, ZERO, stream=7)


def test_an_error_of_the_users_progress_is_the_users(failing):
    def report(_done, _total):
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match=r"^of the user$"):
        bridge.to_device(HOST, ZERO, copy=True, progress=report)


def test_a_device_that_appears(register):
    class Opening(Fake):
        opened = 1

        def device_count(self):
            return self.opened

    find_again()
    plugin = register(NAME, Opening)
    with pytest.raises(bridge.ExchangeError, match=f"there is no {ONE}"):
        bridge.to_device(HOST, ONE)
    plugin.opened = 2
    there = bridge.to_device(HOST, ONE)
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == HOST).all()


@pytest.mark.parametrize("error", [ValueError, bridge.ExchangeError])
def test_a_failure_leaves_no_cycle(error):
    """What the failed move held is freed at once: device memory must not wait for a collection."""

    class Held:
        pass

    class Refusing(Fake):
        def allocate(self, device_id, nbytes, alignment, stream, content=None):
            raise error("from a driver")

    plugin = Plugin(NAME, Refusing())

    def move():
        held = Held()
        try:
            plugin.allocate(0, 16, 1, 0)
        except Error:
            return weakref.ref(held)

    gc.disable()
    try:
        assert move()() is None
    finally:
        gc.enable()


class Broken(Fake):
    """A backend of the device type of the simulated device, with faults of its own."""

    def import_data(self, device_id, data, module):
        raise KeyError("its own fault")

    def from_native(self, obj):
        raise KeyError("its own fault")


@pytest.fixture
def broken(register):
    bridge.backend("ext_dev")
    register("broken_in_a_test", Broken)


@pytest.mark.usefixtures("broken")
def test_one_broken_backend_does_not_break_another():
    """It was asked too, and its error was raised instead of the other's answer."""
    tensor = bridge.to_device(HOST, "ext_dev:0")
    assert bridge.from_dlpack(tensor.__dlpack__(max_version=(1, 0))).device.name == "ext_dev"
    native = tensor.to_native()
    again = bridge.asarray(native)
    assert again.device.name == "ext_dev"
    assert (bridge.to_device(again, "cpu", copy=True).numpy() == HOST).all()


@pytest.mark.usefixtures("broken")
def test_the_fault_of_a_backend_where_nobody_else_answers():
    class Stranger:
        pass

    with pytest.raises(BackendError, match="from_native") as caught:
        bridge.asarray(Stranger())
    assert isinstance(caught.value.__cause__, KeyError)
