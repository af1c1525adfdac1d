"""`from_dlpack` with the requirements that tvm_ffi's users can make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core import api
from dlbridge.core.public import public_in

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.typing import SupportsDLPack

__all__ = ["from_dlpack"]


@public_in("dlbridge.ffi")
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    require_alignment: int = 0,
    require_contiguous: bool = False,
    **keywords: Any,  # those of dlbridge.from_dlpack
) -> Tensor:
    """Return a Tensor on the memory of a DLPack producer; ValueError unless it is as required.

    Parameters
    ----------
    x : SupportsDLPack
        Any object with ``__dlpack__`` and ``__dlpack_device__``, or a capsule.
    require_alignment : int, optional
        The number of bytes that the address of the first element must be a multiple
        of. 0: any address.
    require_contiguous : bool, optional
        Whether the elements must lie row-major without gaps.
    **keywords : object
        *device*, *copy* and *stream*, as in `dlbridge.from_dlpack`.

    Returns
    -------
    Tensor
        On the same memory, which it keeps alive.

    Raises
    ------
    ValueError
        If a requirement is not met.

    Examples
    --------
    >>> ffi.from_dlpack(np.ones((2, 3)), require_contiguous=True).shape
    (2, 3)
    """
    tensor: Tensor = api.from_dlpack(x, **keywords)
    if require_contiguous and not tensor.is_contiguous():
        raise ValueError(
            f"the tensor of shape {tensor.shape} with strides {tensor.strides} is not contiguous, "
            "as require_contiguous=True asks; make a copy: numpy.ascontiguousarray(x)"
        )
    if require_alignment > 0 and tensor.data_ptr() % require_alignment:
        raise ValueError(
            f"the data at {tensor.data_ptr():#x} is not aligned to {require_alignment} bytes, "
            "as require_alignment asks; make a copy: dlbridge.from_dlpack(x, copy=True)"
        )
    return tensor
