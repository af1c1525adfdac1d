"""dlbridge.core.moves.within_host: copies of any strides are byte for byte those of numpy."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dlbridge.core.moves import within_host
from dlbridge.extending import copy_array
from tests.support.scripts import run_script
from tests.support.threads import others_run_during

MIB = 1 << 20
KINDS = ["V100", "u1", "i2", "f2", "f4", "i8", "f8", "c8", "c16", "V3", "V12", "V16", "?"]
KINDS += [">f4", "g"]


def noise(nbytes, seed=0):
    """Bytes of every pattern: NaNs that signal, booleans that are no 0 or 1."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


def as_bytes(array):
    """The elements' bytes, in order, by a way that does not use numpy's casts."""
    return np.ascontiguousarray(array.view(f"V{array.itemsize}")).tobytes()


def flipped(draw, array):
    """*array* with some axes backwards."""
    flips = (slice(None, None, -1) if draw(st.booleans()) else slice(None) for _ in array.shape)
    index = (*flips, ...)
    return array[index]


@st.composite
def layouts(draw, kind):
    """Two arrays of one shape, each somewhere in memory of its own."""
    extents = st.lists(st.integers(0, 40), min_size=0, max_size=4)
    shape = tuple(draw(extents.filter(lambda shape: np.prod(shape, dtype=int) <= 4000)))
    arrays = []
    dense = draw(st.booleans())
    for seed in (1, 2):
        order = draw(st.permutations(range(len(shape))))
        steps = [1 if dense else draw(st.integers(1, 3)) for _ in shape]
        memory = [shape[axis] * steps[axis] for axis in order]
        size = int(np.prod(memory, dtype=int)) * np.dtype(kind).itemsize
        offset = 0 if dense else draw(st.integers(0, 1))  # unaligned elements
        array = noise(size + offset, seed)[offset:].view(kind).reshape(memory)
        array = array.transpose(np.argsort(order))
        every = (*(slice(None, None, step) for step in steps), ...)
        array = array[every]
        arrays.append(array if dense else flipped(draw, array))
    target, source = arrays
    if draw(st.booleans()) and source.ndim:
        axis = draw(st.integers(0, source.ndim - 1))
        if source.shape[axis]:
            once = source.take([0], axis)
            source = np.broadcast_to(once, source.shape)
    return target, source


@pytest.fixture
def tiny_limits(monkeypatch):
    """Every way of copying, on arrays of a few KiB."""
    tiny = {
        "_SMALL": 1,
        "_CHUNK": 1000,
        "_THREADED": 3000,
        "_THREADED_STRIDED": 500,
        "usable_cores": lambda: 3,
        "_CACHE_REACH": 256,
        "_LEAST_CONFLICT": 0,
        "_LINE": 4,
        "_STRIP": 16,
        "_SHORT_COLUMN": 3,
        "_BUFFER": 128,
        "_TLB": 2,
        "_PAGE": 64,
        "_BLOCK": 256,
    }
    for name, value in tiny.items():
        monkeypatch.setattr(within_host, name, value)


@pytest.fixture
def used(monkeypatch):
    """The ways of copying that were used."""
    names = set()
    for name in ("_copy_by_element", "_copy_strips", "_copy_blocks"):
        move = getattr(within_host, name)

        def noted(*arguments, name=name, move=move):
            names.add(name)
            move(*arguments)

        monkeypatch.setattr(within_host, name, noted)
    return names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", ["numpy's", "all"])
def test_bytes_are_those_of_numpy(kind, ways, request, used):  # P26
    if ways != "numpy's":
        request.getfixturevalue("tiny_limits")

    @settings(max_examples=60)
    @given(st.data())
    def check(data):
        target, source = data.draw(layouts(kind))
        expected = as_bytes(source)
        beside = target.base.copy() if target.base is not None else None
        copy_array(target, source)
        assert as_bytes(target) == expected
        # What lies between the target's elements is as before.
        if beside is not None and target.size:
            raw = target.view(f"V{target.itemsize}")
            raw[...] = np.zeros((), raw.dtype)
            after = target.base.copy()
            target.base[...] = beside
            raw[...] = np.zeros((), raw.dtype)
            assert after.tobytes() == target.base.tobytes()

    check()
    assert ways == "all" or not used


@pytest.mark.parametrize("kind", ["u1", "f2", "f4", "f8", "c16", "V12", "V32"])
@pytest.mark.parametrize(
    "shape",
    [(512, 512), (513, 1031), (2048, 512), (40, 32768), (32768, 40), (3, 1024, 256)],
)
def test_transposed_pairs_at_full_size(kind, shape):
    source = noise(int(np.prod(shape)) * np.dtype(kind).itemsize).view(kind).reshape(shape)
    for view in (np.moveaxis(source, 0, -1), np.moveaxis(source[:, ::-1], 0, -1)):
        target = np.empty(view.shape, kind)
        copy_array(target, view)
        assert as_bytes(target) == as_bytes(view)


@pytest.mark.parametrize(
    ("shape", "kind", "way", "threads"),
    [
        ((4096, 4096), "f4", "_copy_strips", 3),
        ((4096, 4096), "u1", "_copy_strips", 3),
        ((64, 512, 512), "f4", "_copy_strips", 3),
        ((64, 64, 4096), "f4", "_copy_strips", 1),  # short strips
        ((512, 1024), "f4", "_copy_strips", 1),  # few bytes
        ((64, 256, 1024), "f4", "_copy_strips", 3),
        ((4096, 512), "V32", "_copy_blocks", 3),
        ((4000, 4000), "u1", "_copy_blocks", 3),
        ((3, 70000), "u1", "_copy_by_element", 1),
        ((1000, 1000), "f4", "copyto", 1),
        ((16, 65536), "f4", "copyto", 1),
    ],
)
def test_which_way_is_chosen_and_how_many_threads(shape, kind, way, threads, monkeypatch):
    monkeypatch.setattr(within_host, "usable_cores", lambda: 3)
    source = np.empty(shape, kind).swapaxes(-1, -2)
    pair = within_host._arrange(np.empty(source.shape, kind), source)
    move = within_host._fastest(*pair)
    assert getattr(move, "func", move).__name__ == way
    assert within_host._count_threads(move, *pair) == threads


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_overlapping_arrays(size):
    for make in (
        lambda a: (a[1:], a[:-1]),
        lambda a: (a[:-1], a[1:]),
        lambda a: (a, a[::-1]),
        lambda a: (a[::2], a[1::2]),
        lambda a: (a[: size // 2], a[: size // 2 * 2 : 2]),
    ):
        ours, numpys = noise(size // 8 * 8).view("u8"), noise(size // 8 * 8).view("u8")
        target, source = make(ours)
        other, copied = make(numpys)
        source, copied = source[: len(target)], copied[: len(other)]
        target, other = target[: len(source)], other[: len(copied)]
        np.copyto(other, copied.copy())
        copy_array(target, source)
        assert (ours == numpys).all()


def test_progress_after_each_chunk_and_at_the_end():
    for shape in ((130 * MIB,), (130, MIB)):
        source = np.zeros(shape, "u1")
        target = np.empty(shape, "u1")
        calls = []
        copy_array(target, source, lambda *now, calls=calls: calls.append(now))
        assert len(calls) >= 3
        assert calls == sorted(set(calls))
        assert calls[-1] == (source.nbytes, source.nbytes)
    calls = []
    copy_array(np.empty(3, "u1"), np.zeros(3, "u1"), lambda *now: calls.append(now))
    assert calls == [(3, 3)]


def test_progress_with_threads_is_told_in_this_thread(tiny_limits):
    calls = []

    def progress(done, total):
        assert threading.current_thread() is threading.main_thread()
        calls.append((done, total))

    copy_array(np.empty((100, 100), "u1"), noise(10_000).reshape(100, 100).T, progress)
    assert calls == sorted(set(calls))
    assert calls[-1] == (10_000, 10_000)


def test_an_error_in_progress_ends_the_copy(tiny_limits):
    def progress(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        copy_array(np.empty((100, 100), "u1"), noise(10_000).reshape(100, 100).T, progress)


def pairs(count):
    target, source = np.zeros(count), np.ones(count)
    return target, [(target[i : i + 1], source[i : i + 1]) for i in range(count)]


def test_threads_copy_at_the_same_time():
    together = threading.Barrier(3, timeout=60)

    def move(target, source):
        together.wait()
        np.copyto(target, source)

    target, pieces = pairs(6)
    within_host._copy_pieces(move, pieces, 3, None)
    assert target.all()


def test_an_error_in_another_thread_is_raised_here():
    failed = threading.Event()

    def move(target, source):
        if threading.current_thread() is threading.main_thread():
            assert failed.wait(60)
        else:
            failed.set()
            raise MemoryError("no room for a strip")

    with pytest.raises(MemoryError, match="no room for a strip"):
        within_host._copy_pieces(move, pairs(4)[1], 2, None)


def test_no_thread_can_be_started(tiny_limits, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(within_host, "start_new_thread", refuse)
    source, target = noise(10_000).reshape(100, 100), np.empty((100, 100), "u1")
    copy_array(target, source.T)
    assert (target == source.T).all()


def test_elements_that_are_written_twice_keep_the_last_value(tiny_limits):
    source = noise(10_000).reshape(100, 100)
    target = np.lib.stride_tricks.as_strided(np.zeros(100, "u1"), (100, 100), (0, 1))
    copy_array(target, source)
    assert (target[0] == source[-1]).all()


@pytest.mark.skipif(os.name != "posix", reason="sends itself signals")
def test_whoever_interrupts_it_no_thread_copies_afterwards():
    """Each exception may come while the one before is handled."""
    out = run_script(
        """
        import signal, threading, time
        import numpy as np
        from dlbridge.core.moves import within_host
        left, holding, ended = [1, 2, 3], threading.Event(), []
        class Struck(Exception): pass
        def strike(*_):
            if left:
                left.pop()
                raise Struck
        def move(target, source):
            if threading.current_thread() is threading.main_thread():
                holding.wait(60)
                while left: time.sleep(0.01)
                return
            holding.set()
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)
            while left: time.sleep(0.01)
            target[...] = source
            ended.append(1)
        target = np.zeros(4)
        pieces = [(target[i : i + 1], np.ones(1)) for i in range(2)]
        signal.signal(signal.SIGALRM, strike)
        try:
            within_host._copy_pieces(move, pieces, 2, None)
        except Struck:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(ended, target.sum() == 1, pieces)
        """
    )
    assert out == "[1] True []\n"


def test_an_exception_at_any_step_leaves_no_thread_that_copies():
    out = run_script(
        """
        import threading, time
        import numpy as np
        from dlbridge.core.moves import within_host
        from tests.support.interrupted import at_each_step
        copying, main = [], threading.main_thread()
        def move(target, source):
            if threading.current_thread() is not main:
                copying.append(1)
                time.sleep(0.005)
                copying.pop()
        def work():
            pieces = [(np.zeros(1), np.ones(1)) for _ in range(4)]
            within_host._copy_pieces(move, pieces, 3, None)
        steps = [within_host._copy_pieces, within_host._start, within_host._wait_for_all]
        found = at_each_step(steps, work, lambda: len(copying))
        print(len(found) > 20, sum(found))
        """
    )
    assert out == "True 0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_that_is_forked_during_a_copy_has_the_whole_copy():
    """Its threads are those of the parent, which the child has not."""
    out = run_script(
        """
        import os, signal, threading
        import numpy as np
        from dlbridge.core.moves import within_host
        holding, forked = threading.Event(), threading.Event()
        def move(target, source):
            if threading.current_thread() is not threading.main_thread():
                holding.set()
                forked.wait(60)
            target[...] = source
        def progress(done, total):
            holding.wait(60)
            if not children:
                children.append(os.fork())
                signal.alarm(60 if children == [0] else 0)
                forked.set()
        children, target = [], np.zeros(4)
        pieces = [(target[i : i + 1], np.ones(1)) for i in range(4)]
        within_host._copy_pieces(move, pieces, 2, progress)
        if children == [0]:
            os._exit(0 if target.all() else 3)
        print(target.all(), os.waitpid(children[0], 0)[1])
        """
    )
    assert out == "True 0\n"


def test_bad_input():
    with pytest.raises(ValueError, match=r"\(3,\).*\(1,\)"):
        copy_array(np.empty(3), np.empty(1))
    with pytest.raises(ValueError, match="4 and 8 bytes"):
        copy_array(np.empty(3, "f4"), np.empty(3, "f8"))
    with pytest.raises(TypeError, match="Python objects"):
        copy_array(np.empty(3, "O"), np.empty(3, "O"))
    for shape in ((3,), (1024, 1024)):
        readonly = np.empty(shape)
        readonly.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            copy_array(readonly, np.empty(shape[::-1]).T)


def test_other_threads_run_meanwhile():
    source = np.zeros(64 * MIB, "u1")
    target = np.empty_like(source)
    assert others_run_during(lambda: copy_array(target, source))
