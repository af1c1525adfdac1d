"""Questions of mpi4py that it could not answer for itself: refused, with the way out.

mpi4py asks every producer for a capsule of version 1.0 without a copy, and does
not look at the device: it takes `data` plus the offset for an address that its
MPI can read. It gives each element a whole number of bytes, and it reads lanes
as bytes or as a complex number. Source: mpi4py 4.1, ``asdlpack.pxi``; the
questions of all peers are in ``tests/core/outgoing/test_questions.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.implementation_details.callers import is_called_by_torch
from dlbridge.core.moves.plans import why_no_host_view
from dlbridge.core.tensor.operand import operand_of
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["refuse_elements", "refuse_handle"]


def refuse_handle(tensor: Tensor, stream: object, version: tuple[int, int] | None) -> None:
    """ExchangeError if *tensor* has a handle, and the consumer would take it for an address.

    To be called where ``copy=False`` and no ``dl_device`` were given, or no version
    (mpi4py before 4.1). On CUDA, ROCm and oneAPI `data` is an address, and an MPI
    that is built for them reads it.
    """
    device = tensor.device
    if device.is_address or stream != -1 or version == DLPACK_VERSION:
        return
    try:
        refusal = why_no_host_view(operand_of(tensor))
    except ExchangeError as exc:  # no backend here serves the device
        refusal = str(exc)
    if refusal:
        way = (
            f"{refusal}, so send a copy, comm.Send(dlbridge.to_device(t, 'cpu')); to receive, make "
            "a tensor on the CPU and then dlbridge.copy_(t, received)"
        )
    else:
        way = (
            "use its host view, comm.Send(t.host_view()) or comm.Recv(t.host_view()), or send a "
            "copy, dlbridge.to_device(t, 'cpu')"
        )
    raise ExchangeError(
        f"memory of {device} was asked for as MPI asks (stream=-1, copy=False, no dl_device), "
        f"which would take a handle for an address: {way}"
    )


def refuse_elements(tensor: Tensor, version: tuple[int, int] | None) -> None:
    """ExchangeError if the consumer would count the bytes of *tensor* wrongly, or add them up.

    To be called where ``copy=False`` and no ``dl_device`` were given.
    """
    dtype = tensor.dtype
    if version != (1, 0) or tensor.is_padded:
        return
    if dtype.is_subbyte:
        reason = f"packed {dtype} elements are less than a byte, and MPI would read past the end"
    elif dtype.name == "complex32":
        reason = f"MPI has no datatype for {dtype}"
    elif dtype.lanes != 1:
        reason = f"MPI would reduce the bytes of {dtype} elements as numbers"
    else:
        return
    if is_called_by_torch():
        return  # its from_dlpack(t, copy=False) asks the same
    raise ExchangeError(
        f"the tensor was asked for as MPI asks (version 1.0, copy=False), and {reason}: send it as "
        "an object, comm.send(t) and comm.recv(), or send its bytes, comm.Send(t.tobytes()), and "
        "receive them, comm.Recv(t.view('uint8')), if its last dimension is compact and a whole "
        "number of bytes"
    )
