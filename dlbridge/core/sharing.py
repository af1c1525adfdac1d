"""share: a tensor that another process gets without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.interfaces.dlpack import needs_its_library
from dlbridge.core.plugins.lookup import find_device
from dlbridge.core.processes.shared_tensors import share_tensor
from dlbridge.core.public import public
from dlbridge.core.values.devices import CPU

from .api import asarray, to_device

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.typing import ArrayLike, DeviceLike


@public
def share(x: ArrayLike, device: DeviceLike | None = None) -> Tensor:
    """Return *x* in memory that other processes can have without a copy.

    It is host memory, which the device uses in place. A GPU with memory of its own gets that
    instead, if its driver can give it to other processes (Vulkan, CUDA).

    The pickler of multiprocessing passes such a tensor on as a file descriptor: through
    a ``Pipe`` or a ``Queue``, in the arguments of a ``Process``, a ``Pool`` or a
    ``ProcessPoolExecutor``, with every start method. The receiver gets a tensor on the
    same memory, and so do those that it sends it to. Ordinary pickles copy.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes.
    device : DeviceLike, optional
        The device that works on the memory, in place. None: the one that *x* is on.

    Returns
    -------
    Tensor
        *x* itself if its memory is shared and on *device*, another tensor on that
        memory if *device* uses it in place, otherwise a compact copy. ``empty(shape,
        dtype, device, shared=True)`` makes one to be filled in place.

    Raises
    ------
    TypeError
        If *x* is nothing that `asarray` takes.
    ValueError
        If no device has such a name.
    ExchangeError
        If *device* neither uses host memory in place nor has memory of its own for other
        processes, or this system has no file descriptors (Windows). It is also a BufferError.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if there is no room.

    Notes
    -----
    The processes must agree on who works on the memory when: wait for the device
    (`synchronize`) before you tell another process to go on. Sending a tensor waits for
    the work that dlbridge has queued on it.

    Examples
    --------
    >>> t = bridge.share(np.arange(3))
    >>> t
    dlbridge.Tensor(int64, shape=(3,), device=cpu:0, memory from shared memory)
    >>> bridge.share(t) is t
    True
    """
    tensor = asarray(x)
    target = tensor.device if device is None else find_device(device)
    if needs_its_library(x, tensor, CPU):
        tensor = to_device(x, CPU)
    return share_tensor(tensor, target)
