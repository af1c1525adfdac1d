"""What a plan of a move says: its steps, the bytes that each copies, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core.public import public
from dlbridge.core.values.units import bytes_text

if TYPE_CHECKING:
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType

__all__ = ["Plan", "Step"]


@public
class Step(NamedTuple):
    """One step of a move.

    Attributes
    ----------
    kind : str
        ``share``, ``relabel`` (host memory under another name), ``host view``
        (a device's memory addressed by the host), ``host import`` (host memory
        used by a device), ``memory import`` (memory of another driver of the
        same device), ``by library`` (the library that made the array brings
        it to the CPU), or a copy: ``copy``, ``pack``, ``upload``, ``download``,
        ``peer copy``, ``as library``, ``read`` (into new memory, from a file or
        from an object that has no memory to share, such as a list).
    source, target : Device
        From where to where.
    nbytes : int
        The bytes that it copies, 0 for none. A reversed or transposed tensor
        comes to the host with the gaps between its elements.
    reason : str
        Why the step is needed, or why nothing is copied.

    Examples
    --------
    >>> bridge.plan(np.zeros(4), "cpu", copy=True).steps[0].kind
    'copy'
    """

    kind: str
    source: Device
    target: Device
    nbytes: int
    reason: str

    def __str__(self) -> str:
        if self.kind == "as library" and not self.nbytes:
            return self.reason  # which says that nothing is copied
        cost = f"{bytes_text(self.nbytes)} copied" if self.nbytes else "no copy"
        return f"{self.kind}: {self.source} -> {self.target}, {cost}: {self.reason}"


@public
class Plan:
    """The steps of one move, in order. ``print(plan)`` explains them.

    Attributes
    ----------
    dtype, shape, origin : DType, tuple of int, str
        The tensor: its type, extents in elements, and the source of its memory.
    source, target : Device
        From where to where.
    may_copy : bool
        Whether it may copy if a driver refuses to use the memory in place.
    alignment : int
        Of new memory, in bytes; 1 for what each device gives.
    steps : list of Step
        In order.
    address, result_address : int
        `Tensor.data_ptr` at the start and of the result; 0 until it ran.
    seconds : float
        How long it took; 0 until it ran.

    Examples
    --------
    >>> print(bridge.plan(np.zeros(4, "float32"), "cpu"))
    float32 (4,) from numpy.ndarray: cpu:0 -> cpu:0, no copy
      1. share: cpu:0 -> cpu:0, no copy: it is there already: the same memory
    """

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        origin: str,
        source: Device,
        target: Device,
        *,
        may_copy: bool = True,
        alignment: int = 1,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.origin = origin
        self.source = source
        self.target = target
        self.may_copy = may_copy
        self.alignment = alignment
        self.steps: list[Step] = []
        self.address = self.result_address = 0
        self.seconds: float = 0.0

    @property
    def what(self) -> str:
        """The dtype, shape and origin of the tensor, as text."""
        return f"{self.dtype} {self.shape} from {self.origin}"

    @property
    def nbytes(self) -> int:
        """The bytes that all steps copy."""
        return sum(step.nbytes for step in self.steps)

    @property
    def copies(self) -> int:
        """The number of steps that copy."""
        return sum(step.nbytes > 0 for step in self.steps)

    def add(self, kind: str, source: Device, target: Device, nbytes: int, reason: str) -> None:
        """Append a step.

        Parameters
        ----------
        kind, source, target, nbytes, reason
            As in `Step`.

        Examples
        --------
        >>> plan = bridge.plan(np.zeros(4), "cpu")
        >>> plan.add("copy", plan.source, plan.target, 32, "an example")
        >>> plan.nbytes
        32
        """
        self.steps.append(Step(kind, source, target, nbytes, reason))

    def __str__(self) -> str:
        copies = "no copy" if not self.copies else f"{bytes_text(self.nbytes)} copied"
        head = f"{self.what}: {self.source} -> {self.target}, {copies}"
        lines = [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([head, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain values, for JSON.

        Returns
        -------
        dict
            ``what``, ``source``, ``target``, ``nbytes`` and ``steps``, a list of
            dictionaries with the attributes of `Step`.

        Examples
        --------
        >>> bridge.plan(np.zeros(4), "cpu", copy=True).as_dict()["nbytes"]
        32
        """
        return {
            "what": self.what,
            "source": str(self.source),
            "target": str(self.target),
            "nbytes": self.nbytes,
            "steps": [
                {
                    "kind": step.kind,
                    "source": str(step.source),
                    "target": str(step.target),
                    "nbytes": step.nbytes,
                    "reason": step.reason,
                }
                for step in self.steps
            ],
        }
