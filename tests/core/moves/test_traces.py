"""What dlbridge copies is in the trace and in the log: its bytes, its reason and its line."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.extending import TRACES
from tests.support.peers import peer

HOST, FAR = "cpu:0", "ext_dev:0"


def values():
    return np.arange(24, dtype="float32").reshape(4, 6)


def on(device):
    return bridge.to_device(values(), device, copy=True)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def backwards():
    return bridge.asarray(values()[::-1])


class Row(NamedTuple):
    """One kind of copy: what is made before, what copies it, and what the trace then has."""

    make: object
    copy: object
    steps: list[tuple[str, int]]
    reason: str
    way: tuple[str, str] = (HOST, HOST)


ROWS = {
    "to_device, up": Row(
        values, lambda a: bridge.to_device(a, FAR), [("upload", 96)], "cannot reach", (HOST, FAR)
    ),
    "to_device, down": Row(
        lambda: on(FAR),
        lambda t: t.to_device("cpu"),
        [("download", 96)],
        "the host cannot map it",
        (FAR, HOST),
    ),
    "copy_, host": Row(
        lambda: (bridge.empty((4, 6)), values()),
        lambda pair: bridge.copy_(*pair),
        [("copy", 96)],
        "copy_ writes into memory that is there",
    ),
    "copy_, up": Row(
        lambda: (bridge.empty((4, 6), device=FAR), values()),
        lambda pair: bridge.copy_(*pair),
        [("upload", 96)],
        "copy_ writes",
        (HOST, FAR),
    ),
    "copy_, down": Row(
        lambda: (values(), on(FAR)),
        lambda pair: bridge.copy_(*pair),
        [("download", 96)],
        "copy_ writes",
        (FAR, HOST),
    ),
    "copy_, with progress": Row(
        lambda: (values(), values()),
        lambda pair: bridge.copy_(*pair, progress=lambda done, total: None),
        [("copy", 96)],
        "copy_ writes",
    ),
    "astype": Row(
        lambda: on(HOST),
        lambda t: bridge.astype(t, "float16"),
        [("convert", 48)],
        "astype makes it float16",
    ),
    "astype to what it is": Row(
        lambda: on(HOST), lambda t: bridge.astype(t, "float32"), [("convert", 96)], "float32"
    ),
    "share": Row(
        values, bridge.share, [("copy", 96)], "share puts it into memory that processes share"
    ),
    "zeros": Row(lambda: (4, 6), bridge.zeros, [("fill", 96)], "each element is set"),
    "ones": Row(
        lambda: (4, 6), lambda s: bridge.ones(s, device=FAR), [("fill", 96)], "set", (FAR, FAR)
    ),
    "full": Row(lambda: (4, 6), lambda s: bridge.full(s, 2.5), [("fill", 96)], "is set"),
    "full_like": Row(values, lambda a: bridge.full_like(a, 2.5), [("fill", 96)], "is set"),
    "tobytes": Row(
        lambda: on(FAR),
        lambda t: t.tobytes(),
        [("download", 96)],
        "the elements become bytes of Python",
        (FAR, HOST),
    ),
    "a pickle": Row(
        lambda: on(HOST), lambda t: pickle.dumps(t, 4), [("copy", 96)], "become bytes of Python"
    ),
    "a pickle of protocol 5": Row(
        lambda: on(HOST), lambda t: pickle.dumps(t, 5), [("pickle", 96)], "the pickle has it"
    ),
    "asarray of a list": Row(
        lambda: [1.0, 2.0], bridge.asarray, [("read", 16)], "builtins.list has no memory"
    ),
    "asarray that stacks": Row(
        lambda: [values(), values(), values()],
        bridge.asarray,
        [("read", 288)],
        "builtins.list is of 3 arrays, which are stacked",
    ),
    "asarray that stacks lists of arrays": Row(
        lambda: [[values(), values()], [values(), values()]],
        lambda x: bridge.asarray(x, device="cpu"),
        [("read", 384)],
        "builtins.list is of 4 arrays, which are stacked",
    ),
    "asarray of the other byte order": Row(
        lambda: values().astype(">f4"), bridge.asarray, [("read", 96)], "the other byte order"
    ),
    "a memoryview of the other byte order": Row(
        lambda: memoryview(values().astype(">f4")),
        bridge.asarray,
        [("read", 96)],
        "the other byte order",
    ),
    "asarray with a copy": Row(
        values, lambda a: bridge.asarray(a, copy=True), [("copy", 96)], "copy=True was asked for"
    ),
    "from_dlpack with a copy": Row(
        values, lambda a: bridge.from_dlpack(a, copy=True), [("copy", 96)], "copy=True was asked"
    ),
    "from_dlpack to a library that cannot share it": Row(
        lambda: peer("torch") and backwards(),  # a thread cannot skip
        lambda t: bridge.from_dlpack(t, like=peer("torch")),
        [("as library", 96)],
        "torch takes no negative strides (-6, 1): what is written into the copy does not reach",
    ),
    "numpy with a copy": Row(
        lambda: on(HOST),
        lambda t: t.numpy(copy=True),
        [("copy", 96)],
        "numpy(copy=True) was asked for",
    ),
    "numpy with a copy, of a device": Row(
        lambda: on(FAR),
        lambda t: t.numpy(copy=True),
        [("download", 96)],
        "numpy(copy=True) was asked for",
        (FAR, HOST),
    ),
    "numpy of a device": Row(
        lambda: on(FAR),
        lambda t: t.numpy(),
        [("download", 96)],
        "numpy has no views of that memory",
        (FAR, HOST),
    ),
    "numpy's asarray of a device": Row(
        lambda: on(FAR),
        np.asarray,
        [("download", 96)],
        "numpy has no views of that memory",
        (FAR, HOST),
    ),
    "numpy with a copy, of a dtype that numpy has not": Row(
        lambda: bridge.astype(values(), "bfloat16"),
        lambda t: t.numpy(copy=True),
        [("copy", 48)],
        "numpy(copy=True) was asked for",
    ),
    "an export of negative strides": Row(
        backwards,
        np.from_dlpack,
        [("copy", 96)],
        "a consumer gets no negative strides (-6, 1): what is written into the copy does not reach",
    ),
    "tree_to_device": Row(
        lambda: {"a": [values()]},
        lambda tree: bridge.tree_to_device(tree, FAR),
        [("upload", 96)],
        "cannot reach",
        (HOST, FAR),
    ),
}


def steps_of(trace):
    return [(step.kind, step.nbytes) for plan in trace.plans for step in plan.steps if step.nbytes]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("threads", [False, True])
def test_each_kind_of_copy_is_recorded_once(name, threads):
    """20 kinds and more: each in the trace with its bytes, its reason and its line."""
    row = ROWS[name]
    x = row.make()
    with bridge.trace(**({"threads": True} if threads else {})) as trace:
        if threads:
            in_thread(lambda: row.copy(x))
        else:
            row.copy(x)
    assert steps_of(trace) == row.steps
    (plan,) = trace.plans
    (step,) = [step for step in plan.steps if step.nbytes]
    assert row.reason in step.reason
    assert (str(step.source), str(step.target)) == row.way
    assert plan.seconds > 0
    assert plan.where.startswith(f"{__file__}:")
    text = trace.summary()
    assert f" bytes in 1 copy, {plan.seconds * 1e6:.0f} us: {plan.where}: {step.kind}: " in text
    assert text.endswith(f"\n1 move, {trace.nbytes} bytes copied")


@pytest.mark.parametrize("name", ROWS)
def test_the_log_says_each_kind_of_copy_in_one_line(name, caplog):
    row = ROWS[name]
    x = row.make()
    with caplog.at_level(logging.DEBUG, "dlbridge"):
        row.copy(x)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dlbridge", "DEBUG")
    assert "\n" not in record.getMessage()
    assert f", {row.steps[0][1]} bytes copied: {row.steps[0][0]}: " in record.getMessage()
    assert row.reason in record.getMessage()
    assert f"{__file__}:" in record.getMessage()
    caplog.clear()
    row.copy(row.make())  # at the level INFO, nothing
    assert not caplog.records


@pytest.mark.parametrize("error", [None, ValueError])
def test_what_a_progress_function_of_copy_moves_is_recorded(error):
    """It is the user's own; the copy itself is recorded as before, if it ends well."""
    target, source = values(), values()

    def progress(done, total):
        bridge.to_device(source, FAR, copy=True)
        if error is not None:
            raise error

    with bridge.trace() as trace:
        with suppress(ValueError):
            bridge.copy_(target, source, progress=progress)
        bridge.copy_(target, source)
    copied = [("copy", 96)] * (1 if error else 2)
    assert sorted(steps_of(trace)) == [*copied, ("upload", 96)]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("device", [HOST, FAR])
def test_what_is_saved_and_loaded_is_recorded(suffix, device, tmp_path):
    path = tmp_path / f"x{suffix}"
    tensor = on(device)
    with bridge.trace() as trace:
        bridge.save(path, tensor if suffix == ".npy" else {"x": tensor})
    assert steps_of(trace) == [("write", 96)]
    assert trace.plans[0].where.startswith(f"{__file__}:")
    with bridge.trace() as trace:
        file = bridge.load(path, device, copy=True)
        _ = file if suffix == ".npy" else file["x"]
    assert steps_of(trace) == [("read", 96)]
    assert trace.plans[0].where.startswith(f"{__file__}:")


def test_what_shares_is_not_in_the_log(caplog):
    t = bridge.zeros(3)
    with caplog.at_level(logging.DEBUG):
        for x in (np.zeros(3), b"abc", bytearray(3), memoryview(b"abc"), t):
            assert bridge.to_device(bridge.asarray(x), "cpu").device.is_host
        np.from_dlpack(t)
        np.asarray(t)
    assert not caplog.records


def test_an_operation_that_fails_is_not_recorded():
    overlapping = np.lib.stride_tricks.as_strided(values(), (4, 6), (0, 4))
    with bridge.trace() as trace, pytest.raises(bridge.ExchangeError):
        bridge.copy_(overlapping, values())
    assert not trace.plans
    with bridge.trace() as trace:
        bridge.zeros(3)  # the block that has failed has ended
    assert trace.copies == 1


def test_only_a_trace_of_all_threads_records_others():
    with bridge.trace() as mine, bridge.trace(threads=True) as all_of_them:
        in_thread(lambda: bridge.zeros(3))
        bridge.ones(3)
    assert (mine.copies, all_of_them.copies) == (1, 2)
    assert "<lambda>" in all_of_them.plans[0].where


def test_a_summary_adds_up_by_line_and_reason():
    frame, place = bridge.empty((4, 6)), bridge.empty((4, 6), device=FAR)
    with bridge.trace() as trace:
        for _ in range(3):
            bridge.copy_(place, frame)
        bridge.zeros(2)
    first, second, total = trace.summary().splitlines()
    assert first.startswith("288 bytes in 3 copies, ")
    assert first.endswith(": upload: copy_ writes into memory that is there")
    assert "in test_a_summary_adds_up_by_line_and_reason: " in first
    assert second.startswith("8 bytes in 1 copy, ")
    assert total == "4 moves, 296 bytes copied"


def test_the_log_costs_no_import():
    """`logging` takes 4 ms, and who does not use it asks for no lines."""
    script = (
        "import sys, dlbridge as b; t = b.zeros(3); b.copy_(t, [1, 2, 3]); b.astype(t, 'int8')\n"
        "with b.trace() as trace: t.numpy(copy=True)\n"
        "assert trace.copies == 1 and 'logging' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_trace_is_a_sequence_of_plans():
    with bridge.trace() as trace:
        assert len(trace) == 0
        bridge.to_device([1.0], "cpu")
        bridge.to_device([1.0, 2.0], "cpu")
    assert len(trace) == 2
    assert [plan.nbytes for plan in trace] == [8, 16]
    assert trace[-1] is trace.plans[-1]
    assert trace[:1] == trace.plans[:1]


def test_a_trace_without_its_block_says_how_it_is_written():
    with pytest.raises(AttributeError, match=r"`with dlbridge\.trace\(\) as trace:`"):
        _ = bridge.trace().nbytes
    assert "with dlbridge.trace()" in repr(bridge.trace())
    assert not hasattr(bridge.trace(), "xyzzy")


def test_a_traced_function():
    @bridge.trace(threads=True)
    def traced():
        return len(TRACES)

    outside = len(TRACES)
    assert traced() == traced() == outside + 1
    assert len(TRACES) == outside
