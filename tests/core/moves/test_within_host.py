"""dlbridge.core.moves.within_host: copies of any strides are byte for byte those of numpy."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections import deque
from queue import SimpleQueue

import numpy as np
import pytest
from expected import expected
from hypothesis import given, settings, strategies as st

from dlbridge.core.moves import transposed, within_host as pack
from dlbridge.core.moves.within_host import copy_host

MIB = 1 << 20
KINDS = [
    "V100",
    "u1",
    "i2",
    "f2",
    "f4",
    "i8",
    "f8",
    "c8",
    "c16",
    "V3",
    "V12",
    "V16",
    "?",
    ">f4",
    "g",
]


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


try:
    import cv2
except ImportError:
    if expected("peers"):
        raise
    cv2 = None
needs_opencv = pytest.mark.skipif(cv2 is None, reason="OpenCV is not installed")


@pytest.fixture(autouse=True)
def without_opencv(monkeypatch):
    """The other ways are used only where the script has not imported it."""
    monkeypatch.delitem(sys.modules, "cv2", raising=False)


@pytest.fixture
def opencv(without_opencv, monkeypatch):
    """OpenCV as a script has imported it; gives the shapes that it has copied."""
    copied = []
    transpose = cv2.transpose

    def counted(source, target):
        copied.append(target.shape)
        return transpose(source, target)

    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setattr(cv2, "transpose", counted)
    return copied


class Lazy(type(sys)):
    """As importlib.util.LazyLoader's: the first look at an attribute would import it."""

    def __getattribute__(self, name):
        raise AssertionError(f"looked at {name}")


@pytest.fixture
def tiny_limits(monkeypatch):
    """Every way of copying, on arrays of a few KiB."""
    monkeypatch.setattr(pack, "_SMALL", 1)
    monkeypatch.setattr(pack, "_CHUNK", 1000)
    monkeypatch.setattr(pack, "_THREADS_FROM", 3000)
    monkeypatch.setattr(pack, "_THREADS_FROM_TRANSPOSED", 2000)
    monkeypatch.setattr(transposed, "_CACHE_REACH", 256)
    monkeypatch.setattr(transposed, "_LEAST_CONFLICT", 0)
    monkeypatch.setattr(transposed, "_LINE", 16)
    monkeypatch.setattr(transposed, "_STRIP_AT_LEAST", 256)
    monkeypatch.setattr(transposed, "_SHORT_COLUMN", 3)
    monkeypatch.setattr(transposed, "_BUFFER", 1024)
    monkeypatch.setattr(transposed, "_TLB", 2)
    monkeypatch.setattr(transposed, "_PAGE", 64)
    monkeypatch.setattr(transposed, "_BLOCK", 256)
    monkeypatch.setattr(transposed, "_OPENCV_PLANE", 1)
    monkeypatch.setattr(pack, "usable_cores", lambda: 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", ["numpy's", "all", pytest.param("opencv", marks=needs_opencv)])
def test_bytes_are_those_of_numpy(kind, ways, request):  # P26
    copied = []
    if ways != "numpy's":
        request.getfixturevalue("tiny_limits")
    if ways == "opencv":
        copied = request.getfixturevalue("opencv")

    @settings(max_examples=60)
    @given(st.data())
    def check(data):
        target, source = data.draw(layouts(kind))
        expected = as_bytes(source)
        beside = target.base.copy() if target.base is not None else None
        copy_host(target, source)
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
    assert not copied or np.dtype(kind).itemsize in (1, 2, 4)


@pytest.mark.parametrize("kind", ["u1", "f2", "f4", "f8", "c16", "V12", "V32"])
@pytest.mark.parametrize(
    "shape",
    [(512, 512), (513, 1031), (2048, 512), (40, 32768), (32768, 40), (3, 1024, 256)],
)
def test_transposed_pairs_at_full_size(kind, shape):
    source = noise(int(np.prod(shape)) * np.dtype(kind).itemsize).view(kind).reshape(shape)
    for view in (np.moveaxis(source, 0, -1), np.moveaxis(source[:, ::-1], 0, -1)):
        target = np.empty(view.shape, kind)
        copy_host(target, view)
        assert as_bytes(target) == as_bytes(view)


@pytest.mark.parametrize("threads", [1, 2])
def test_channels_last_and_back(threads, monkeypatch):
    monkeypatch.setattr(pack, "_THREADS", threads)
    images = noise(8 * 64 * 64 * 64 * 4).view("f4").reshape(8, 64, 64, 64)
    last = np.empty((8, 64, 64, 64), "f4")
    copy_host(last, images.transpose(0, 2, 3, 1))
    assert as_bytes(last) == as_bytes(images.transpose(0, 2, 3, 1))
    back = np.empty_like(images)
    copy_host(back, last.transpose(0, 3, 1, 2))
    assert as_bytes(back) == as_bytes(images)


@needs_opencv
@pytest.mark.parametrize("kind", ["u1", "?", "f2", "i4", ">f4"])
@pytest.mark.parametrize("shape", [(128, 256), (2000, 1700), (8, 300, 200), (224, 224, 3)])
@pytest.mark.parametrize("parts", ["whole", "windows", "backwards"])
def test_transposed_by_opencv_where_the_script_has_imported_it(kind, shape, parts, opencv):
    source = noise(int(np.prod(shape)) * np.dtype(kind).itemsize).view(kind).reshape(shape)
    target = np.zeros((*shape[:-2], *shape[:-3:-1]), kind)
    if parts == "windows":
        source, target = source[..., 1:-1, 1:], target[..., 1:, 1:-1]
    if parts == "backwards":
        target = target[..., ::-1, ::-1]
    before = target.base.copy() if parts == "windows" else None
    copy_host(target, source.swapaxes(-1, -2))
    assert as_bytes(target) == as_bytes(source.swapaxes(-1, -2))
    if before is not None:
        target[...] = before[..., 1:, 1:-1]
        assert as_bytes(target.base) == as_bytes(before)
    assert bool(opencv) == (parts != "backwards" and shape[-1] > 3)


@needs_opencv
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_photographs_by_opencv(kind, opencv):
    photograph = noise(224 * 224 * 3 * np.dtype(kind).itemsize).view(kind).reshape(224, 224, 3)
    planes = np.empty((3, 224, 224), kind)
    copy_host(planes, photograph.transpose(2, 0, 1))
    assert as_bytes(planes) == as_bytes(photograph.transpose(2, 0, 1))
    back = np.empty_like(photograph)
    copy_host(back, planes.transpose(1, 2, 0))
    assert as_bytes(back) == as_bytes(photograph)
    assert opencv == [(3, 224 * 224), (224 * 224, 3)]


@needs_opencv
def test_opencv_gives_memory_of_its_own(monkeypatch, opencv):
    """As it does where the target is not a matrix of its: the copy is done all the same."""
    monkeypatch.setattr(cv2, "transpose", lambda source, target: source.T.copy())
    source, target = noise(40_000).reshape(200, 200), np.zeros((200, 200), "u1")
    copy_host(target, source.T)
    assert (target == source.T).all()


@needs_opencv
@pytest.mark.parametrize("step", [(1 << 31) - 64, 1 << 31, (1 << 32) + 64])
def test_rows_two_gibibytes_apart(step, opencv):
    """From there on OpenCV ends the process, or reads and writes elsewhere."""
    try:
        apart = np.zeros((2, step), "u1")[:, :20_000]  # pages that nobody touches take no memory
    except MemoryError:
        pytest.skip("the system does not give more than it has, and it has less than 9 GB")
    apart[...] = np.arange(20_000) % 251
    near = np.empty((20_000, 2), "u1")
    copy_host(near, apart.T)
    assert (near == apart.T).all()
    apart[...] = 0
    copy_host(apart, near.T)
    assert (apart == near.T).all()
    assert bool(opencv) == (step < 1 << 31)


ANOTHER_CV2 = {
    "being imported by another thread": lambda: type(sys)("cv2"),
    "lazy": lambda: Lazy("cv2"),
    "None": lambda: None,
    "object": object,
    "namespace": lambda: types.SimpleNamespace(transpose=3),
}


@pytest.mark.parametrize("kind", ANOTHER_CV2)
def test_another_cv2(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", ANOTHER_CV2[kind]())
    source, target = noise(40_000).reshape(200, 200), np.zeros((200, 200), "u1")
    copy_host(target, source.T)
    assert (target == source.T).all()


def test_strips_are_chosen_only_where_columns_share_cache_sets():
    def strip(shape, kind="f4"):
        source = np.empty(shape, kind).T
        return transposed._strip_nbytes(*pack._arrange(np.empty(source.shape, kind), source), 0)

    assert strip((4096, 4096)) == 128
    assert strip((4096, 4096), "u1") == 64
    assert strip((1000, 1000)) == 0
    assert strip((16, 65536)) == 0  # too short to be worth Python's overhead


def test_strips_of_small_planes_are_copied_by_one_thread(monkeypatch):
    """Two would wait for the GIL; of larger elements numpy's copy in two threads is faster."""

    def way(shape, kind, threads=2):
        source = np.empty(shape, kind).swapaxes(-1, -2)
        pair = pack._arrange(np.empty(source.shape, kind), source)
        move, *_, threads = transposed.way_to_transpose(*pair, len(shape) - 2, threads)
        return getattr(move, "func", move), threads

    assert way((4096, 4096), "f4") == (transposed._copy_strips, 2)
    assert way((4096, 4096), "f8") == (transposed._copy_strips, 2)
    assert way((64, 256, 1024), "f4") == (transposed._copy_strips, 1)
    assert way((64, 256, 1024), "f8") == (np.copyto, 2)
    assert way((64, 256, 1024), "f8", threads=1) == (transposed._copy_strips, 1)


def test_nothing_is_converted():
    source = np.array([0x7F800001, 0x7FC00001, 0xFF812345], "u4")  # signalling and quiet NaNs
    target = np.zeros(3, "f4")
    copy_host(target, source)
    assert target.tobytes() == source.tobytes()
    copy_host(target, source.view(">i4"))
    assert target.tobytes() == source.tobytes()
    copy_host(target, np.array(["a", "b", "c"], "U1"))
    assert target.tobytes() == b"a\0\0\0b\0\0\0c\0\0\0"


def test_structures_keep_their_padding():
    kind = np.dtype([("a", "u1"), ("b", "u4")], align=True)
    source = noise(8 * 100).view(kind)
    target = np.zeros(100, kind)
    copy_host(target, source)
    assert target.tobytes() == source.tobytes()


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
        copy_host(target, source)
        assert (ours == numpys).all()


def test_a_matrix_onto_its_own_transpose():
    matrix = noise(1024 * 1024).reshape(1024, 1024)
    expected = matrix.T.copy()
    copy_host(matrix, matrix.T)
    assert (matrix == expected).all()


def test_progress_after_each_chunk_and_at_the_end():
    for shape in ((130 * MIB,), (130, MIB)):
        source = np.zeros(shape, "u1")
        target = np.empty(shape, "u1")
        calls = []
        copy_host(target, source, lambda *now, calls=calls: calls.append(now))
        assert len(calls) >= 3
        assert calls == sorted(set(calls))
        assert calls[-1] == (source.nbytes, source.nbytes)
    calls = []
    copy_host(np.empty(3, "u1"), np.zeros(3, "u1"), lambda *now: calls.append(now))
    assert calls == [(3, 3)]


def test_progress_with_two_threads(tiny_limits):
    source = noise(100 * 100).reshape(100, 100)
    target = np.empty((100, 100), "u1")
    calls = []
    threads = set()

    def progress(done, total):
        calls.append((done, total))
        threads.add(threading.current_thread())

    copy_host(target, source.T, progress)
    assert (target == source.T).all()
    assert calls == sorted(calls)
    assert calls[-1] == (10_000, 10_000)
    assert [done for done, _ in calls].count(10_000) == 1
    assert threads == {threading.current_thread()}


def test_an_error_in_progress_ends_the_copy_and_its_threads(tiny_limits):
    def progress(done, total):
        raise RuntimeError("stop")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="stop"):
        copy_host(np.empty((100, 100), "u1"), noise(10_000).reshape(100, 100).T, progress)
    assert threading.active_count() == before


def test_an_error_in_the_other_thread_is_raised_here(tiny_limits, monkeypatch):
    begun = threading.Event()

    def move(target, source):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            raise MemoryError("no room for a strip")
        assert begun.wait(60)  # leaves a piece to the other

    monkeypatch.setattr(transposed, "_copy_by_element", move)
    with pytest.raises(MemoryError, match="no room for a strip"):
        copy_host(np.empty((3000, 2), "u1"), noise(6000).reshape(2, 3000).T)


@pytest.mark.parametrize("kind", ["u1", "i4", "c16", "V3"])
@pytest.mark.parametrize("turn", ["plain", "backwards", "gaps", "planes"])
def test_columns_on_many_pages_are_copied_in_blocks(kind, turn, monkeypatch):
    used = []
    blocks = transposed._copy_blocks
    monkeypatch.setattr(
        transposed, "_copy_blocks", lambda *pair: (used.append(pair[0].shape), blocks(*pair))
    )
    item = np.dtype(kind).itemsize
    shape = (2100, 2100 // item + 1)
    source = noise(shape[0] * shape[1] * item).view(kind).reshape(shape)
    target = np.zeros(shape[::-1], kind)
    if turn == "backwards":
        source, target = source[::-1, ::-1], target[:, ::-1]
    if turn == "gaps":
        source = source[:, : -max(1, 20 // item)]
        target = target[: source.shape[1]]
    if turn == "planes":
        source = np.stack([source, source[::-1]])
        target = np.zeros(source.transpose(0, 2, 1).shape, kind)
    copy_host(target, np.swapaxes(source, -1, -2))
    assert as_bytes(target) == as_bytes(np.swapaxes(source, -1, -2))
    assert used


def test_no_thread_can_be_started(tiny_limits, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pack, "start_new_thread", refuse)
    source = noise(10_000).reshape(100, 100)
    target = np.empty((100, 100), "u1")
    copy_host(target, source.T)
    assert (target == source.T).all()


def test_bad_input():
    with pytest.raises(ValueError, match=r"\(3,\).*\(1,\)"):
        copy_host(np.empty(3), np.empty(1))
    with pytest.raises(ValueError, match="4 and 8 bytes"):
        copy_host(np.empty(3, "f4"), np.empty(3, "f8"))
    with pytest.raises(TypeError, match="Python objects"):
        copy_host(np.empty(3, "O"), np.empty(3, "O"))
    for shape in ((3,), (1024, 1024)):
        readonly = np.empty(shape)
        readonly.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            copy_host(readonly, np.empty(shape[::-1]).T)


def test_other_threads_run_meanwhile():
    """A thread that waits for the GIL gets it during a copy, or never."""
    source = np.zeros(64 * MIB, "u1")
    target = np.empty_like(source)
    go, ran = threading.Event(), []
    thread = threading.Thread(target=lambda: ran.append(go.wait()))
    thread.start()
    interval, end = sys.getswitchinterval(), time.monotonic() + 60
    sys.setswitchinterval(1000)  # nobody takes the GIL from this thread
    try:
        go.set()
        while not ran and time.monotonic() < end:
            copy_host(target, source)
        during = list(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert during == [True]


@pytest.mark.skipif(os.name != "posix", reason="sends itself SIGINT")
def test_ctrl_c_between_chunks():
    script = """
        import os, signal
        import numpy as np
        from dlbridge.core.moves.within_host import copy_host
        calls = []
        def progress(done, total):
            calls.append(done)
            os.kill(os.getpid(), signal.SIGINT)
        try:
            copy_host(np.empty(200 << 20, "u1"), np.zeros(200 << 20, "u1"), progress)
        except KeyboardInterrupt:
            assert calls == [50 << 20], calls
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "interrupted\n", done.stderr
    assert done.returncode not in (-signal.SIGINT, -signal.SIGSEGV)


def test_importing_it_does_not_import_numpy():
    script = "import sys, dlbridge.core.moves.within_host; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer that sends signals")
def test_interruptions_while_another_thread_copies(monkeypatch):
    """Each of them may come while the first is being handled; then nobody copies any more."""
    main, ended, over = threading.main_thread(), [], threading.Event()
    strikes, waits = SimpleQueue(), SimpleQueue()

    class Struck(Exception):
        pass

    def strike(*_):
        strikes.put(None)
        raise Struck

    class News(SimpleQueue):
        """Says when the main thread waits for the other."""

        def get(self, **keywords):
            waits.put(None)
            return super().get(**keywords)

    def move(target, source):
        if threading.current_thread() is main:
            while not over.wait(0.01):  # the first strike comes here, or sooner
                pass
            return
        try:
            for _ in range(3):
                signal.pthread_kill(main.ident, signal.SIGALRM)
                strikes.get(timeout=60)
                while not waits.empty():
                    waits.get()
                if over.is_set():
                    return  # nobody waited for this copy
                waits.get(timeout=60)
            target[...] = source
            ended.append(None)
        finally:
            over.set()

    target = np.zeros(4)
    waiting = deque((target[i : i + 1], np.ones(1)) for i in range(2))
    monkeypatch.setattr(pack, "SimpleQueue", News)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(Struck):
            pack._run(move, waiting, 16, 2, None)
        done = len(ended)
    finally:
        over.set()
        signal.signal(signal.SIGALRM, before)
    assert done == 1
    assert target.sum() == 1
