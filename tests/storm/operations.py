"""The operations of the storms: a table. To add one, write a function here.

    @operation()                       # in any thread; `device` is "cpu"
    @operation(devices=True)           # ... for each device of the machine in turn
    @operation("torch")                # only where this library can be imported
    @operation(main=True)              # in the main thread only
    def name(pick, device): ...

*pick* is the thread's `random.Random`. The function makes something, compares it with
numpy (`same`), and drops it; tensors that outlive it belong into `Shared`. In the main
thread the exception of a signal handler may come at each of its lines, so it must
not need a clean-up. Arrays from `host` are watched: each must be freed in the end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from inspect import signature
from itertools import permutations, product
from typing import Any, ClassVar, NamedTuple

import numpy as np

import dlbridge as bridge
from dlbridge.testing import TensorMachine
from dlbridge.testing.stateful import BOUNDS, PACKED, SLICES, WAYS, WHOLE
from tests.storm.disturbances import calmly
from tests.support.foreign_arrays import OneCapsule

__all__ = ["ROWS", "Operation", "Shared", "Wrong", "watched"]


class Wrong(AssertionError):
    """A result that is not what numpy says."""


class Operation(NamedTuple):
    """One row of the table."""

    function: Callable[[random.Random, str], None]
    needs: str
    devices: bool
    main: bool
    weight: int

    @property
    def name(self) -> str:
        return self.function.__name__


ROWS: dict[str, Operation] = {}


def operation(
    needs: str = "", *, devices: bool = False, main: bool = False, weight: int = 4
) -> Callable[[Any], Any]:
    """A decorator that enters a function in the table; a larger *weight* is chosen more often."""

    def enter(function: Any) -> Any:
        ROWS[function.__name__] = Operation(function, needs, devices, main, weight)
        return function

    return enter


class Watch(weakref.ref[Any]):
    """A reference to an array, and the operation that made it."""

    made_by = ""


watched: list[Watch] = []
"""The arrays that `host` has made."""

SHAPES = [(), (1,), (3,), (64,), (1000,), (5, 7), (2, 3, 4), (40, 50), (0, 3), (30_000,)]
DTYPES = ["f4", "f8", "i4", "i8", "u1"]


def host(pick: random.Random, dtypes: Any = DTYPES, shapes: Any = SHAPES) -> np.ndarray[Any, Any]:
    """A new array of random bytes."""
    shape, dtype = pick.choice(shapes), np.dtype(pick.choice(dtypes))
    count = int(np.prod(shape, dtype=int))
    array = np.frombuffer(pick.randbytes(count * dtype.itemsize), dtype).reshape(shape).copy()
    watched.append(Watch(array))
    watched[-1].made_by = sys._getframe(1).f_code.co_name
    return array


def same(got: Any, want: np.ndarray[Any, Any]) -> None:
    """Raise `Wrong` unless the array *got* has the bytes, shape and dtype of *want*."""
    if not isinstance(got, np.ndarray):
        got = np.from_dlpack(got)
    if got.shape != want.shape or got.dtype != want.dtype or got.tobytes() != want.tobytes():
        kinds = f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
        raise Wrong(f"wrong result: {kinds}: {got.ravel()[:4]}, not {want.ravel()[:4]}")


def fetched(tensor: Any) -> np.ndarray[Any, Any]:
    """A copy of the tensor's elements, on the host."""
    array: np.ndarray[Any, Any] = bridge.to_device(tensor, "cpu", copy=True).numpy()
    return array


# Several threads at one tensor --------------------------------------------------


class Ticket:
    """A tensor that several threads use at the same moment."""

    def __init__(self, tensor: Any, want: np.ndarray[Any, Any], threads: int) -> None:
        self.tensor, self.want, self.threads = tensor, want, threads
        self.arrived: list[None] = []

    def wait_for_others(self) -> None:
        """Wait until all have come, or for a moment."""
        self.arrived.append(None)
        end = time.monotonic() + 2e-3
        while len(self.arrived) < self.threads and time.monotonic() < end:
            pass


class Shared:
    """What the threads of one storm share."""

    tickets: ClassVar[deque[Ticket]] = deque()
    tensors: ClassVar[dict[str, tuple[Any, np.ndarray[Any, Any]]]] = {}
    """A tensor on each device that exists during the whole storm, and what it contains."""

    @classmethod
    def of(cls, device: str) -> tuple[Any, np.ndarray[Any, Any]]:
        found = cls.tensors.get(device)
        if found is None:
            want = np.arange(4096, dtype="f8")
            made = bridge.to_device(want.copy(), device), want
            found = cls.tensors.setdefault(device, made)
        return found

    @classmethod
    def clear(cls) -> None:
        cls.tickets.clear()
        cls.tensors.clear()


def ticket(pick: random.Random) -> Ticket:
    """A ticket that another thread has left, or a new one, left for others."""
    try:
        return Shared.tickets.popleft()
    except IndexError:
        want = host(pick, ["f4"], [(3, 5), (64,), (7,)])
        made = Ticket(bridge.from_dlpack(want), want, 3)
        Shared.tickets.extend([made] * (made.threads - 1))
        return made


@operation("tvm_ffi", weight=8)
def first_exports_together(pick: random.Random, device: str) -> None:
    """Several threads export one new tensor by the exchange table; the tensor goes first."""
    import tvm_ffi

    mine = ticket(pick)
    mine.wait_for_others()
    held = [tvm_ffi.from_dlpack(mine.tensor) for _ in range(pick.randrange(1, 4))]
    want = mine.want.copy()
    del mine
    for one in held:
        if tuple(one.shape) != want.shape:
            raise Wrong(f"shape {tuple(one.shape)}, not {want.shape}")
        same(one, want)


@operation("tvm_ffi", weight=6)
def one_tensor_lent_often(pick: random.Random, device: str) -> None:
    """All threads borrow structs of one tensor, which stays."""
    import tvm_ffi

    tensor, want = Shared.of("cpu")
    held = [tvm_ffi.from_dlpack(tensor) for _ in range(pick.randrange(1, 5))]
    pick.shuffle(held)
    while held:
        one = held.pop()
        if tuple(one.shape) != want.shape or np.from_dlpack(one)[7] != 7:
            raise Wrong("a borrowed struct is not the tensor's")


@operation("tvm_ffi", weight=6)
def consumers_outlive_tensors(pick: random.Random, device: str) -> None:
    """The last consumer deletes a tensor of ours, in a destructor of C++."""
    import tvm_ffi

    want = host(pick, ["f4"], [(5,)])
    one = tvm_ffi.from_dlpack(bridge.from_dlpack(want))
    same(one, want)
    del one
    for _ in range(30):
        tvm_ffi.from_dlpack(bridge.from_dlpack(want))


# Libraries ----------------------------------------------------------------------


@operation("torch")
def torch_and_back(pick: random.Random, device: str) -> None:
    import torch

    want = host(pick)
    there = torch.from_dlpack(bridge.from_dlpack(want))
    same(there, want)
    same(bridge.from_dlpack(there, like="numpy"), want)
    # A type that numpy does not have: the struct is our own.
    half = torch.arange(5).to(torch.bfloat16)
    back = torch.from_dlpack(bridge.from_dlpack(half))
    if not torch.equal(half, back):
        raise Wrong(f"bfloat16: {back}, not {half}")


@operation("jax")
def jax_and_back(pick: random.Random, device: str) -> None:
    want = host(pick, ["f4", "i4", "u1"], [(3,), (64,), (5, 7)])
    there = bridge.from_dlpack(want, like="jax")
    same(np.asarray(there), want)
    same(bridge.asarray(there).numpy(), want)


@operation("tvm_ffi")
def tvm_ffi_and_back(pick: random.Random, device: str) -> None:
    want = host(pick)
    there = bridge.from_dlpack(want, like="tvm_ffi")
    same(there, want)
    same(bridge.from_dlpack(there).numpy(), want)


@operation("torch")
def torch_asks_for_another_device(pick: random.Random, device: str) -> None:
    """torch refuses the device, and deletes the tensor twice (a fault of torch 2.13)."""
    place = pick.choice([name for name in Shared.tensors if name[:4] in ("open", "vulk")] or [""])
    if not place:
        return
    calmly(_refused_by_torch, bridge.to_device(host(pick, ["f4"], [(64,)]), place), place)


def _refused_by_torch(tensor: Any, place: str) -> None:
    import torch

    # By a producer that is not ours: torch itself is refused before it gets a capsule.
    where = tensor.__dlpack_device__()
    try:
        torch.from_dlpack(OneCapsule(tensor.__dlpack__(max_version=(1, 0)), where))
    except (RuntimeError, BufferError, ValueError, TypeError) as error:
        refused = error  # its traceback keeps torch's capsule, which deletes once more
    else:
        raise Wrong(f"torch took a tensor on {place}")
    # New structs, where the one that torch has deleted may have been.
    again = [OneCapsule(bridge.zeros(9, "float32", place).__dlpack__(), where) for _ in range(9)]
    refused.__traceback__ = None
    del refused
    for one in again:
        if bridge.from_dlpack(one).shape != (9,):
            raise Wrong("the struct of another tensor")


# Imports and exports ------------------------------------------------------------


@operation(weight=6)
def structs_made_by_hand(pick: random.Random, device: str) -> None:
    """Structs whose deletions are counted, one by one."""
    from tests.support.raw_producer import Producer

    dtype = pick.choice([(2, 32, 1), (4, 16, 1), (0, 8, 1)])
    producer = calmly(lambda: Producer((4,), dtype=dtype, version=pick.choice([None, (1, 0)])))
    capsule = calmly(producer.capsule)
    tensor = bridge.from_dlpack(OneCapsule(capsule))
    if tensor.shape != (4,):
        raise Wrong(f"shape {tensor.shape}")
    # Deleted where no signal comes: the producer's deleter is a Python function.
    calmly(lambda: None)


@operation("torch", weight=6)
def structs_of_torch(pick: random.Random, device: str) -> None:
    """Capsules and table exports of another library, which frees them by C code."""
    import torch

    source = calmly(lambda: torch.arange(6).to(torch.bfloat16))
    capsule = calmly(torch.utils.dlpack.to_dlpack, source)
    if bridge.from_dlpack(OneCapsule(capsule)).shape != (6,) or bridge.asarray(source).size != 6:
        raise Wrong("shape")


@operation(devices=True)
def capsules(pick: random.Random, device: str) -> None:
    """Consumed, dropped, refused the second time; both kinds."""
    want = host(pick)
    tensor = bridge.to_device(want, device)
    version = pick.choice([None, (1, 0), (1, 3)])
    dropped = tensor.__dlpack__(max_version=version)
    used = OneCapsule(tensor.__dlpack__(max_version=version), tensor.__dlpack_device__())
    same(fetched(bridge.from_dlpack(used)), want)
    try:
        bridge.from_dlpack(used)
    except bridge.ExchangeError:
        del dropped
    else:
        raise Wrong("a used capsule was taken again")


@operation()
def refusals(pick: random.Random, device: str) -> None:
    """What is refused is not kept."""
    want = host(pick)
    want.flags.writeable = False
    tensor = bridge.from_dlpack(want)
    for act in (
        tensor.__dlpack__,
        lambda: bridge.from_dlpack(object()),
        lambda: bridge.to_device(tensor, "ext_dev:99"),
        lambda: bridge.copy_(tensor, bridge.zeros(77_777, "uint8")),
        lambda: bridge.empty(-1),
    ):
        try:
            act()
        except (bridge.Error, BufferError, TypeError, ValueError):
            continue
        raise Wrong("not refused")


# Copies and moves ---------------------------------------------------------------


CHOICES: dict[str, Any] = {
    **dict.fromkeys(("index", "at"), tuple(product(SLICES, repeat=3))),
    "part": list(product(BOUNDS, repeat=3)),
    "shape": [(), (16,), (5, 7), (8, 3, 4), (0, 3)],
    "way": WAYS,
    "again way": [4, 5, "like", "astype"],
    "dtype": [*WHOLE[1:], *PACKED],
    "copy": [True, None, False],
    "version": [None, (1, 0), (1, 3)],
    "library": ["numpy", "memoryview"],
    "axes": list(permutations(range(3))),
    "columns": [1, 2, 3, 4, -1],
    "by": [1, 2, 3],
    "value": range(4),
    **dict.fromkeys(("axis", "device"), range(3)),
    **dict.fromkeys(("kind", "seed", "which"), range(256)),
    **dict.fromkeys(("back", "flip", "twin", "turn", "gather"), (True, False)),
}
"""The arguments of `TensorMachine`'s rules, but for the tensors."""

RULES = (
    *("make", "make_in_place", "slice", "transpose", "reshape", "view", "copy", "shift", "spread"),
    *("copy_new", "fill", "move", "share", "cast", "again", "exchange", "write", "copy_from_view"),
)
"""All of its rules but `drop` and `use_stream`."""


@cache
def machine_on(*used: str) -> type[TensorMachine]:
    """Tensors on these devices, beside a model in numpy."""

    class Machine(TensorMachine):
        devices = used

    return Machine


@operation(devices=True, weight=40)
def tensors_beside_a_model(pick: random.Random, device: str) -> None:
    """A few rules of `TensorMachine` on tensors of this thread."""
    used = ("cpu:0", device, pick.choice(list(Shared.tensors) or [device]))
    used = tuple(dict.fromkeys("cpu:0" if each == "cpu" else each for each in used))
    machine = machine_on(*used)()
    shape, kind = pick.choice(CHOICES["shape"]), pick.choice(CHOICES["kind"])
    machine.make_three(tuple(pick.choices(WAYS, k=3)), shape, kind)
    for _ in range(pick.randrange(1, 8)):
        name = pick.choice(RULES)
        rule, given = getattr(machine, name), {}
        for each in signature(rule).parameters:
            some = CHOICES.get(f"{name} {each}") or CHOICES.get(each) or machine.live
            given[each] = pick.choice(some)
        rule(**given)
        machine.every_tensor_is_as_its_model()


@operation(devices=True, weight=8)
def to_a_device_and_back(pick: random.Random, device: str) -> None:
    want = host(pick)
    tensor = bridge.to_device(want, device, copy=pick.choice([None, True]))
    same(fetched(tensor), want)


# Memory that host and device share ----------------------------------------------


@operation(devices=True, weight=8)
def host_view_of_a_shared_tensor(pick: random.Random, device: str) -> None:
    """All threads look at one tensor."""
    tensor, want = Shared.of(device)
    first = pick.randrange(4000)
    try:
        view = tensor[first:].host_view()
    except bridge.ExchangeError:
        return  # the device has memory of its own
    with view as seen:
        if seen.numpy()[0] != want[first]:
            raise Wrong("a host view of other memory")


@operation(devices=True)
def objects_of_the_device(pick: random.Random, device: str) -> None:
    """The own objects of pyopencl and others, and back."""
    want = host(pick, ["f4"], [(64,), (5, 7)])
    tensor = bridge.to_device(want, device, copy=True)
    try:
        native = calmly(tensor.to_native)
    except (bridge.Error, TypeError):
        return
    same(fetched(bridge.asarray(native)), want)


# Calls --------------------------------------------------------------------------


@operation("tvm_ffi", weight=6)
def ffi_calls(pick: random.Random, device: str) -> None:
    """Through C into Python and back."""
    from dlbridge import ffi

    want = host(pick)
    tensor = bridge.from_dlpack(want)
    call = ffi.convert_func(lambda x, *rest: x)
    same(call(tensor, want, 1.5, "text", None), want)


@operation("tvm_ffi")
def ffi_containers(pick: random.Random, device: str) -> None:
    from dlbridge import ffi

    want = host(pick)
    array = ffi.Array([bridge.from_dlpack(want), 3, "text", [1, 2]])
    same(array[0], want)
    table = ffi.Map({"a": array, "b": lambda: 1})
    if list(table["a"][3]) != [1, 2]:
        raise Wrong("an element of a container")


@operation("tvm_ffi")
def ffi_errors(pick: random.Random, device: str) -> None:
    from dlbridge import ffi

    def fail(x: object) -> None:
        raise KeyError("of a callback")

    try:
        ffi.convert_func(fail)(host(pick))
    except KeyError:
        return
    raise Wrong("an error of a callback was lost")


# Collections, finalizers, forks ---------------------------------------------------


class Collected:
    """An object in a cycle, whose finalizer works with a device."""

    deep, device = 0, "cpu"  # also if a signal cuts __init__ off

    def __init__(self, device: str) -> None:
        self.device = device
        self.itself = self

    def __del__(self) -> None:
        if Collected.deep < 2:
            Collected.deep += 1
            try:
                with contextlib.suppress(bridge.DeviceError):  # of a forked child
                    bridge.zeros(1000, "uint8", self.device)
            finally:
                Collected.deep -= 1


@operation(devices=True, weight=6)
def finalizers(pick: random.Random, device: str) -> None:
    """Garbage whose finalizers allocate, collected in the middle of anything."""
    for _ in range(pick.randrange(1, 4)):
        Collected(device)
    bridge.zeros(pick.choice([100, 5000]), "uint8", device)


@operation(weight=2)
def collections(pick: random.Random, device: str) -> None:
    gc.collect(pick.randrange(3))


@operation(main=True)
def forks(pick: random.Random, device: str) -> None:
    """A child that works on the CPU, is refused the drivers of its parent, and ends."""
    way = pick.choice(["os._exit", "sys.exit"])
    if "dpctl" in sys.modules:
        # The exit handler of Intel's CPU runtime waits there for the parent's work: docs/oneapi.md.
        way = "os._exit"
    calmly(_fork, way, Shared.tensors.copy())


CHILD_SECONDS = float(os.environ.get("DLBRIDGE_STORM_CHILD_SECONDS", "200"))


def _fork(way: str, tensors: dict[str, Any]) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = sys.__unraisablehook__
        _in_child(tensors)
        if way == "os._exit":
            os._exit(0)
        raise SystemExit(0)
    end = time.monotonic() + CHILD_SECONDS
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGABRT)  # faulthandler writes where it is
            os.waitpid(child, 0)
            raise Wrong(f"a forked child that ends by {way} hangs")
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(found[1])
    if code:
        raise Wrong(f"a forked child that ends by {way} has the exit status {code}")


def _in_child(tensors: dict[str, Any]) -> None:
    want = np.arange(100.0)
    tensor = bridge.from_dlpack(want)
    same(np.from_dlpack(tensor), want)
    moved = bridge.zeros(100, "float64")
    bridge.copy_(moved, tensor[::-1])
    same(moved.numpy(), want[::-1].copy())
    for device, (inherited, _) in tensors.items():
        if not device.startswith("cpu"):
            for act in (
                lambda d=device: bridge.zeros(9, "uint8", d),
                lambda t=inherited: fetched(t),
            ):
                with contextlib.suppress(bridge.Error):
                    act()
    tensors.clear()
    gc.collect()
