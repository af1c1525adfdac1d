"""What each rank of test_mpi.py runs: ``mpi_matrix.py PART DEVICE``; prints the number of checks."""

from __future__ import annotations

import ctypes
import sys

import ml_dtypes
import numpy as np
from mpi4py import MPI

import dlbridge

COMM = MPI.COMM_WORLD
RANK, RANKS = COMM.rank, COMM.size

NUMBERS = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
"""Types that MPI adds up."""

RAW = [
    "bool",
    "handle",
    "bfloat16",
    *(
        f"float8_{kind}"
        for kind in (
            *("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz"),
            *("e5m2", "e5m2fnuz", "e8m0fnu"),
        )
    ),
]
"""Types that MPI carries and does not add up."""

PACKED = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7)),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
]
VECTORS = ["float32x2", "float32x4", "int8x4", "uint8x16", "float4_e2m1fn_x2", "complex32"]
"""Types whose bytes MPI would add up, or that it has no datatype for."""

SHAPES = [(), (1,), (5, 7), (0,), (0, 3), (100_003,)]
"""The last is above the size from which mpich sends without a copy of its own."""

checks = 0


def check(right: bool, *what: object) -> None:
    global checks
    assert right, (RANK, *what)
    checks += 1


def raw(nbytes: int, seed: int, kind: str) -> bytes:
    codes = np.random.default_rng(seed).integers(0, 2 if kind == "bool" else 256, nbytes, "u1")
    return codes.tobytes()


def tensor_of(content: bytes, kind: str, shape: tuple[int, ...], device: str) -> dlbridge.Tensor:
    host = dlbridge.empty(shape, kind)
    assert host.nbytes == len(content)
    ctypes.memmove(host.data_ptr(), content, len(content))
    return dlbridge.to_device(host, device)


def for_mpi(tensor: dlbridge.Tensor) -> object:
    """The CPU's tensors as they are, the others by their host view."""
    return tensor if tensor.device.is_host else tensor.host_view()


def right_neighbour() -> int:
    return (RANK + 1) % RANKS


def left_neighbour() -> int:
    return (RANK - 1) % RANKS


# Every type --------------------------------------------------------------------------


def carries(device: str) -> None:
    """Sendrecv, and Isend and Irecv, whose requests keep the host views until they are done."""
    for kind in [*NUMBERS, *RAW]:
        for shape in SHAPES:
            nbytes = dlbridge.dtype(kind).nbytes(int(np.prod(shape)))
            mine, theirs = raw(nbytes, RANK, kind), raw(nbytes, left_neighbour(), kind)
            source = tensor_of(mine, kind, shape, device)
            into, later = (dlbridge.zeros(shape, kind, device) for _ in range(2))
            COMM.Sendrecv(
                for_mpi(source), right_neighbour(), recvbuf=for_mpi(into), source=left_neighbour()
            )
            check(into.tobytes() == theirs, "Sendrecv", kind, shape)
            check(source.tobytes() == mine, "Sendrecv changed its source", kind, shape)
            requests = [
                COMM.Irecv(for_mpi(later), left_neighbour()),
                COMM.Isend(for_mpi(source), right_neighbour()),
            ]
            MPI.Request.Waitall(requests)
            del requests
            check(later.tobytes() == theirs, "Isend and Irecv", kind, shape)


def parts(device: str) -> None:
    """A part of a tensor: nothing beside it is sent or written."""
    whole = tensor_of(raw(400, RANK, "float32"), "float32", (10, 10), device)
    into = dlbridge.zeros((10, 10), "float32", device)
    COMM.Sendrecv(
        for_mpi(whole[2:5]), right_neighbour(), recvbuf=for_mpi(into[7:]), source=left_neighbour()
    )
    wanted = bytes(280) + raw(400, left_neighbour(), "float32")[80:200]
    check(into.tobytes() == wanted, "a part of a tensor")
    with dlbridge.zeros((10, 10), "float32", device).host_view() as view:
        COMM.Sendrecv(for_mpi(whole), right_neighbour(), recvbuf=view, source=left_neighbour())
        check(view.tobytes() == raw(400, left_neighbour(), "float32"), "the tensor of a block")
    for uneven in (whole[:, ::2], whole[:, 1]):
        refused(lambda uneven=uneven: COMM.Bcast(for_mpi(uneven), 0), "not contiguous")


def reduces(device: str) -> None:
    """Allreduce in place of each type that MPI adds up; of the others an error."""
    for kind in NUMBERS:
        for shape in SHAPES:
            count = int(np.prod(shape))
            each = [
                (np.arange(count) % 5 + rank).astype(kind).reshape(shape) for rank in range(RANKS)
            ]
            source = dlbridge.to_device(each[RANK], device, copy=True)
            total = sum(each[1:], each[0]).astype(kind)
            COMM.Allreduce(MPI.IN_PLACE, for_mpi(source), MPI.SUM)
            check(source.tobytes() == total.tobytes(), "Allreduce in place", kind, shape)
    flags = dlbridge.to_device(np.arange(8) % RANKS == RANK, device, copy=True)
    COMM.Allreduce(MPI.IN_PLACE, for_mpi(flags), MPI.LOR)
    check(flags.tobytes() == (np.arange(8) % RANKS < RANKS).tobytes(), "Allreduce of bool")
    for kind in RAW:
        source = tensor_of(raw(dlbridge.dtype(kind).nbytes(6), 1, kind), kind, (6,), device)
        before = source.tobytes()
        try:
            COMM.Allreduce(MPI.IN_PLACE, for_mpi(source), MPI.SUM)
        except MPI.Exception as error:
            check(error.Get_error_class() == MPI.ERR_OP, kind)
        else:
            raise AssertionError(f"MPI added up {kind}")
        check(source.tobytes() == before, "an Allreduce that failed", kind)


# What is refused ------------------------------------------------------------------------


def refused(call, *words: str) -> None:
    try:
        call()
    except BufferError as error:
        check(all(word in str(error) for word in words), str(error))
    else:
        raise AssertionError(f"not refused: {words}")


def calls_on(tensor: dlbridge.Tensor):
    """Each form of a buffer, on this tensor: the call must end before MPI is called."""
    good = np.zeros(64, "u1")
    return [
        lambda: COMM.Send(tensor, right_neighbour()),
        lambda: COMM.Irecv(tensor, left_neighbour()),
        lambda: COMM.Recv([tensor, 1, MPI.BYTE], left_neighbour()),
        lambda: COMM.Allreduce(good, tensor),
        lambda: COMM.Allreduce(MPI.IN_PLACE, tensor),
        lambda: MPI.Win.Create(tensor, comm=MPI.COMM_SELF),
        lambda: MPI.buffer.frombuffer(tensor),
    ]


def handles_are_refused(device: str) -> None:
    """Memory whose `data` is a handle, of every type: each call says what to do."""
    way = "to_device(t, 'cpu')"
    for kind in [*NUMBERS, *RAW]:
        tensor = dlbridge.zeros(16, kind, device)
        before = tensor.tobytes()
        for call in calls_on(tensor):
            refused(call, way, device.partition(":")[0])
        check(tensor.tobytes() == before, kind)
    refused(lambda: COMM.Bcast(dlbridge.zeros(0, "float32", device), 0), way)
    for kind in [*PACKED, *VECTORS]:
        for call in calls_on(dlbridge.zeros(16, kind, device)):
            refused(call, "comm.send(t)")


def elements_are_refused(device: str) -> None:
    """Packed and vector elements, in memory that the host can read; what is advised works."""
    for kind in [*PACKED, *VECTORS]:
        nbytes = dlbridge.dtype(kind).nbytes(16)
        content = raw(nbytes, RANK, kind)
        tensor = tensor_of(content, kind, (16,), device)
        for call in calls_on(for_mpi(tensor)):
            refused(call, "comm.send(t)", "comm.Send(t.tobytes())", "comm.Recv(t.view('uint8'))")
        check(tensor.tobytes() == content, kind)
        request = COMM.isend(tensor, right_neighbour())
        got = COMM.recv(source=left_neighbour())
        request.wait()
        check((got.dtype, got.device) == (tensor.dtype, tensor.device), kind)
        check(got.tobytes() == raw(nbytes, left_neighbour(), kind), kind)
        request = COMM.Isend(tensor.tobytes(), right_neighbour())
        received = bytearray(nbytes)
        COMM.Recv(received, left_neighbour())
        request.Wait()
        check(bytes(received) == raw(nbytes, left_neighbour(), kind), kind)
        with_bytes = dlbridge.zeros((16,), kind)
        request = COMM.Isend(tensor.tobytes(), right_neighbour())
        COMM.Recv(with_bytes.view("uint8"), left_neighbour())
        request.Wait()
        check(with_bytes.tobytes() == raw(nbytes, left_neighbour(), kind), kind)


def one_byte_each_is_carried(device: str) -> None:
    """Padded int4 has a byte for each element: no byte too many, and MPI does not add them up."""
    padded = dlbridge.from_dlpack(np.array([1, -2, 3, -8, 7]).astype(ml_dtypes.int4))
    check(padded.is_padded and MPI.buffer.frombuffer(padded).nbytes == 5)
    before = padded.tobytes()
    try:
        COMM.Allreduce(MPI.IN_PLACE, padded, MPI.SUM)
    except MPI.Exception as error:
        check(error.Get_error_class() == MPI.ERR_OP)
    else:
        raise AssertionError("MPI added up padded int4")
    check(padded.tobytes() == before)


def read_only_memory(device: str) -> None:
    """It is sent, and nothing is received into it."""
    array = np.full(4, RANK, "float32")
    array.flags.writeable = False
    for frozen in (dlbridge.from_dlpack(array), dlbridge.from_dlpack(array).view("int32")):
        refused(lambda frozen=frozen: COMM.Recv(frozen, left_neighbour()), "not writable")
        into = np.zeros(4, "float32")
        COMM.Sendrecv(frozen, right_neighbour(), recvbuf=into, source=left_neighbour())
        check(bool((into == left_neighbour()).all()))


PARTS = {
    function.__name__: function
    for function in (
        carries,
        parts,
        reduces,
        handles_are_refused,
        elements_are_refused,
        one_byte_each_is_carried,
        read_only_memory,
    )
}

if __name__ == "__main__":
    for chosen in sys.argv[1].split(","):
        PARTS[chosen](sys.argv[2])
    done = COMM.gather(checks, 0)
    if RANK == 0:
        print(*done)
