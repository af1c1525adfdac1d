"""Pickles: buffers that are kept, one staging buffer for devices, and devices that are not here."""

from __future__ import annotations

import pickle
import threading
import tracemalloc

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.processes.pickles import unpickle
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_scene, run_script

EXT = "ext_dev:1"
BIG = 1 << 20
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def tensor(device):
    return bridge.to_device(np.arange(BIG, dtype="u1"), device, copy=True)


# Buffers that are kept


@pytest.mark.parametrize("nbytes", [0, 1, 2, 1000, 1001, 5000])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_came_inside_the_pickle_may_be_written(protocol, nbytes):
    """Short bytes may be an object that the interpreter shares, and must not change."""
    before = [bytes([code]) for code in range(256)]
    raw = pickle.dumps(bridge.to_device(np.full(nbytes, 7, "u1"), "cpu"), protocol)
    first, second = pickle.loads(raw), pickle.loads(raw)
    first.numpy()[:] = 9
    assert first.tolist() == [9] * nbytes
    assert second.tolist() == [7] * nbytes
    assert [value[0] for value in before] == list(range(256))
    assert pickle.loads(raw).tolist() == [7] * nbytes


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_the_bytes_of_a_pickle_are_not_copied_again(protocol):
    """Peak memory while loading: the bytes, once."""
    raw = pickle.dumps(bridge.zeros(BIG, "u1"), protocol)
    pickle.loads(raw)
    tracemalloc.start()
    again = pickle.loads(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again.nbytes == BIG
    assert BIG <= peak < 1.1 * BIG


@pytest.mark.parametrize("buffer", [bytes, bytearray, np.frombuffer, memoryview])
def test_a_buffer_beside_the_pickle_is_kept(buffer):
    """In place: writable memory stays writable, and read-only memory read-only."""
    buffers = []
    raw = pickle.dumps(bridge.zeros(5000, "u1"), 5, buffer_callback=buffers.append)
    given = buffer(bytearray(buffers[0].raw()))
    again = pickle.loads(raw, buffers=[given])
    assert again.data_ptr() == np.frombuffer(given, "u1").ctypes.data
    assert again.numpy().flags.writeable == (buffer is not bytes)


def test_read_only_bytes_beside_the_pickle_become_a_device_tensor_that_can_be_written(tensor):
    buffers = []
    raw = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    again = pickle.loads(raw, buffers=[bytes(buffers[0].raw())])
    assert again.device is tensor.device
    assert again.operand().readonly == tensor.device.is_host
    assert again.tobytes() == tensor.tobytes()


# What goes out


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_tensor_goes_out_with_one_staging_buffer(tensor, protocol):
    """Protocol 5 out of band on the CPU needs none."""
    taken = []

    def dump():
        if protocol == 5:
            pickle.dumps(tensor, 5, buffer_callback=taken.append)
        else:
            taken.append(tensor.__reduce_ex__(protocol))

    dump()
    taken.clear()
    tracemalloc.start()
    dump()
    staged = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if protocol == 5 and tensor.device.is_host:
        assert staged < 0.1 * BIG
    else:
        assert BIG <= staged < 1.1 * BIG


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("device", [EXT, "opencl:0", "vulkan:0"])
def test_a_pickle_is_a_copy_of_the_devices_memory(device, protocol):
    """Of the CPU's memory, the buffer of protocol 5 is that memory, as numpy's is."""
    backend_or_skip(device.partition(":")[0])
    tensor = bridge.to_device(np.arange(BIG, dtype="u1"), device, copy=True)
    buffers = []
    callback = buffers.append if protocol == 5 else None
    raw = pickle.dumps(tensor, protocol, buffer_callback=callback)
    bridge.copy_(tensor, bridge.zeros(BIG, "u1"))
    again = pickle.loads(raw, buffers=buffers)
    assert again.tobytes() == np.arange(BIG, dtype="u1").tobytes()
    assert len(buffers) == (protocol == 5)


def test_views_of_all_kinds(tensor):
    """Rows with gaps, transposed, backwards where the host has them, and no elements."""
    a = np.arange(64 * 64, dtype="u1").reshape(64, 64)
    t = bridge.to_device(a, tensor.device, copy=True)
    for pick in (np.s_[3:9], np.s_[:, ::2], np.s_[5:5], np.s_[7, 1:]):
        for protocol in PROTOCOLS:
            again = pickle.loads(pickle.dumps(t[pick], protocol))
            assert again.device is t.device
            assert again.tobytes() == a[pick].tobytes() == t[pick].tobytes()
    assert t.T.tobytes() == a.T.tobytes()


# Devices that are not here


def elsewhere(device):
    """A pickle of [1, 2, 3] on a device that another process had."""
    here = pickle.dumps(bridge.to_device(np.array([1, 2, 3], "u1"), EXT), 2)
    name = EXT.encode()
    assert here.count(name) == 1
    at = here.index(name)
    changed = device.encode()
    length = here[at - 4 : at]
    assert length == len(name).to_bytes(4, "little")
    return here[: at - 4] + len(changed).to_bytes(4, "little") + changed + here[at + len(name) :]


MISSING = ["cuda:7", "ext_dev:77", "metal:0", "no_such_backend:0", "type77:3"]


@pytest.mark.parametrize("device", MISSING)
def test_by_default_it_lands_on_the_cpu_and_says_so(device):
    with pytest.warns(RuntimeWarning, match=rf"pickled on {device} is on the CPU.*unpickle_to"):
        again = pickle.loads(elsewhere(device))
    assert (str(again.device), again.tolist()) == ("cpu:0", [1, 2, 3])


@pytest.mark.parametrize("device", MISSING)
def test_none_asks_for_the_device_or_an_error(device):
    with bridge.unpickle_to(None):
        with pytest.raises((bridge.Error, ValueError), match=device.partition(":")[0]):
            pickle.loads(elsewhere(device))
        assert str(pickle.loads(elsewhere(EXT)).device) == EXT


@pytest.mark.parametrize("device", [*MISSING, EXT, "cpu:0"])
def test_a_device_for_all(device, recwarn):
    for wanted in ("cpu", "ext_dev:0"):
        with bridge.unpickle_to(wanted):
            again = pickle.loads(elsewhere(device))
        assert again.device is bridge.to_device(np.zeros(1), wanted).device
        assert again.tolist() == [1, 2, 3]
    assert not recwarn.list


def test_a_device_for_each():
    places = {"cuda:7": "ext_dev:0", "cuda": "cpu", "metal": EXT}
    with bridge.unpickle_to(places):
        for device, wanted in (("cuda:7", "ext_dev:0"), ("cuda:6", "cpu:0"), ("metal:3", EXT)):
            assert str(pickle.loads(elsewhere(device)).device) == wanted
        assert str(pickle.loads(elsewhere(EXT)).device) == EXT
        with pytest.warns(RuntimeWarning, match="type77:3"):
            pickle.loads(elsewhere("type77:3"))


def test_blocks_nest_and_end():
    with bridge.unpickle_to("ext_dev:0"):
        with bridge.unpickle_to("cpu"):
            assert str(pickle.loads(elsewhere(EXT)).device) == "cpu:0"
        assert str(pickle.loads(elsewhere(EXT)).device) == "ext_dev:0"
        with pytest.raises(KeyError), bridge.unpickle_to(None):
            raise KeyError
        assert str(pickle.loads(elsewhere("cuda:7")).device) == "ext_dev:0"
    assert str(pickle.loads(elsewhere(EXT)).device) == EXT


def test_a_block_is_of_its_thread():
    found = []
    with bridge.unpickle_to("cpu"):
        thread = threading.Thread(
            target=lambda: found.append(str(pickle.loads(elsewhere(EXT)).device))
        )
        thread.start()
        thread.join()
    assert found == [EXT]


def test_a_device_that_is_not_here_is_refused_when_the_block_begins():
    for wrong in ("ext_dev:77", {"cuda": "ext_dev:77"}):
        with pytest.raises(BufferError, match="there is no ext_dev:77"), bridge.unpickle_to(wrong):
            raise AssertionError
    with pytest.raises(TypeError), bridge.unpickle_to(1.5):
        raise AssertionError


NO_NAMES = ["", ":", "cpu:", "1x", "a b", "../x", "cuda:x", "cuda:-1"]


@pytest.mark.parametrize("old", [*NO_NAMES, 1, None, ("cuda", 0), bridge.device("cuda:0")])
def test_an_old_device_that_no_pickle_can_name_is_refused(old):
    kind = ValueError if isinstance(old, str) else TypeError
    rule = "write 'name' or 'name:index', as in 'cuda:0'"
    with pytest.raises(kind, match=rule) as caught, bridge.unpickle_to({old: "cpu"}):
        raise AssertionError
    assert repr(old) in str(caught.value)


def test_an_old_device_of_a_backend_that_is_not_here():
    with bridge.unpickle_to({"no_such_backend": "cpu"}):
        assert str(pickle.loads(elsewhere("no_such_backend:0")).device) == "cpu:0"
    with bridge.unpickle_to({"no_such_backend:00": "cpu"}):
        assert str(pickle.loads(elsewhere("no_such_backend:0")).device) == "cpu:0"


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", "float32", (3,), "cpu:0", 0),
        (bytes(11), "float32", (3,), "cpu:0", 0),
        (bytes(12), "float32", (-3,), "cpu:0", 0),
        (bytes(12), "float32", (-3, -1), "cpu:0", 0),
        (bytes(12), "float32", (1 << 62, 4), "cpu:0", 0),
        (bytes(12), "float33", (3,), "cpu:0", 0),
        (bytes(12), "float32", (3,), "cpu 0", 0),
        ("text", "float32", (3,), "cpu:0", 0),
        (None, "float32", (3,), "cpu:0", 0, True),
        (7, "float32", (3,), "cpu:0", 0, True),
        (bytes(11), "float32", (3,), "cpu:0", 0, True),
        (bytearray(11), "float32", (3,), "cpu:0", 0, True),
        (b"", "float32", (3,), "cpu:0", 0, True),
    ],
    ids=str,
)
def test_broken_pickles_are_refused(arguments):
    with pytest.raises((ValueError, TypeError, BufferError, AttributeError)):
        unpickle(*arguments)


def test_torch_loads_them_when_one_function_is_allowed(tmp_path):
    """`torch.load` names what it must be allowed: a function of ours, and none of Python's."""
    torch = peer("torch")
    torch.save({"a": bridge.asarray([1, 2, 3], dtype="int8")}, tmp_path / "a.pt")
    with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL dlbridge\.unpickle "):
        torch.load(tmp_path / "a.pt")
    with torch.serialization.safe_globals([unpickle]):
        assert torch.load(tmp_path / "a.pt")["a"].tolist() == [1, 2, 3]


def test_another_process_has_no_such_backend():
    """A worker without the backend takes the tensor on its CPU."""
    raw = pickle.dumps(bridge.to_device(np.array([1, 2, 3], "u1"), EXT))
    code = (
        f"import pickle; t = pickle.loads({raw!r}); print(t.device, t.tolist())\n"
        f"import dlbridge\nwith dlbridge.unpickle_to(None):\n"
        f"    try: pickle.loads({raw!r})\n"
        f"    except dlbridge.Error as error: print(type(error).__name__)\n"
    )
    printed = run_script(code, env={"DLBRIDGE_BACKENDS": "cpu"})
    assert printed == "cpu:0 [1, 2, 3]\nBackendUnavailable\n"


@pytest.mark.parametrize(
    ("device", "method"),
    [
        ("cpu:0", "forkserver"),
        *((name, "spawn") for name in ("cpu:0", EXT, "opencl:0", "vulkan:0")),
    ],
)
def test_multiprocessing(device, method):
    """There and back through a pool of another process."""
    backend_or_skip(device.partition(":")[0])
    run_scene("sharing.pickled_there_and_back", method, device)


def test_cloudpickle_and_torch_see_ordinary_pickles():
    """`torch.save` and `torch.load` use pickle for objects that torch does not know."""
    torch = peer("torch")
    import io

    file = io.BytesIO()
    torch.save({"ours": bridge.asarray([1.0, 2.0])}, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)["ours"].tolist() == [1.0, 2.0]
