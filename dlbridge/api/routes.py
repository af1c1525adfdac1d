"""Routes: how the arrays of one class come to one device as one library's; found once, then kept.

`to_device`, `plan` and `explain` all take the route of their arguments, at the first call
and at each later one, with a trace and without. What depends on the array itself, such as
its layout and its address, is chosen for each array (``core/moves/transfer.py``). Where the class
alone says that the memory is there already, a route has a function that gives the result at
once: the class's importer, or its library's function for the memory of a numpy array.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dlbridge.api import on_demand
from dlbridge.api.anything import (
    arrays_in,
    import_anything,
    is_copied,
    is_in_our_order,
    is_read_once,
)
from dlbridge.core.interfaces.dlpack import import_producer, needs_its_library
from dlbridge.core.libraries.library import HOST_ONLY, origin_of
from dlbridge.core.libraries.lookup import IMPORTERS, importer_of, library_of
from dlbridge.core.moves.plans import Step, as_one, record_run
from dlbridge.core.moves.progress import reporter
from dlbridge.core.moves.transfer import choose, copies, cost_of, described, run
from dlbridge.core.plugins.contract import parameters_of
from dlbridge.core.plugins.lookup import check_device
from dlbridge.core.plugins.streams import use_stream
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.traces import is_recording
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import ForeignByteOrder
from dlbridge.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.api.like import Conversion
    from dlbridge.core.moves.plans import Plan
    from dlbridge.core.moves.transfer import Choice
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.typing import DeviceLike, ProgressLike, StreamLike

    Function = Callable[[Any], Any]


def ITSELF(x: Any) -> Any:
    """The function of a route that changes nothing; `to_device` need not call it."""
    return x


class Route:
    """The way to *device* and *like* for the arrays of a class."""

    __slots__ = ("at_once", "conversion", "importer", "is_plain", "target")

    at_once: Function | None
    """Gives the result for an array, or None if its steps must be chosen."""
    is_plain: bool
    """Whether the steps are all: `move` brings an array of the class there."""

    def __init__(self, importer: Function | None, device: DeviceLike, like: object) -> None:
        self.importer = importer
        self.target = check_device(device)
        self.conversion = None if like is None else on_demand.Conversion(like, self.target)
        self.at_once = None
        self.is_plain = False


ROUTES: dict[tuple[type, object, object], Route] = {}
"""(class, device, like) -> the route.

The device is a text or a `Device`, and like is a text, a module or None: objects of other types
may be equal to these and mean something else. The class is one that lives as long as the process.
"""


def find_route(x: Any, device: DeviceLike, like: object, miss: Exception) -> Route:
    """The route of *x*; its errors do not show *miss*, which says only that none was kept.

    Python would print it before each of them. (A call outside of the caller's ``except`` costs
    `to_device` a comparison each time.)
    """
    try:
        return _new_route(x, device, like)
    except _WRONG as exc:
        last: BaseException = exc
        while last.__context__ not in (None, miss):
            last = last.__context__
        last.__context__ = None
        raise


_WRONG = (Error, ImportError, TypeError, ValueError)


def _new_route(x: Any, device: DeviceLike, like: object) -> Route:
    """What is wrong with *x* is said before what is wrong with the others."""
    cls = type(x)
    importer = None if isinstance(x, Tensor) else importer_of(cls)
    key = None
    if (cls in IMPORTERS or cls in _TENSORS) and type(device) in (str, Device):
        is_module = type(like) is ModuleType and sys.modules.get(like.__name__) is like
        if is_module or type(like) in (str, type(None)):
            key = cls, device, like
    try:
        route = Route(importer, device, like)
    except _WRONG:
        if not is_read_once(x):
            at_its_place(x, importer, None, device)
        raise
    if key is not None and (route.conversion is None or route.conversion.is_lasting):
        route.at_once = _at_once(cls, route)
        route.is_plain = _is_plain(cls, route)
        ROUTES[key] = route
    return route


_TENSORS = (Tensor, NumpyTensor, ArrayTensor)


def at_its_place(
    x: Any, importer: Function | None, copy: bool | None, device: DeviceLike
) -> Tensor:
    """A Tensor of *x* where it is: the plan makes the copy that brings it to *device*."""
    if isinstance(x, Tensor):
        return x
    if importer is not None and copy is None:
        try:
            tensor: Tensor = importer(x)
            return tensor
        except ForeignByteOrder:
            pass  # it is converted below
    return import_anything(x, None, False if copy is False else None, device)


# What needs no plan ------------------------------------------------------------


def _at_once(cls: type, route: Route) -> Function | None:
    """What gives the result for an array by its class alone, or None for one that it cannot."""
    target, conversion, importer = route.target, route.conversion, route.importer
    if conversion is None and cls is Tensor and target is not CPU:
        return lambda tensor: tensor if tensor.device is target else None
    if target is not CPU:
        return None
    if importer is not None:
        return _of_array(cls, importer, conversion)
    if conversion is None:
        return ITSELF if cls in (NumpyTensor, ArrayTensor) else None
    of_numpy = conversion.of_numpy
    if of_numpy is None or cls is not ArrayTensor:
        return None
    return lambda tensor: of_numpy(tensor.numpy())


def _is_plain(cls: type, route: Route) -> bool:
    """Whether `move` brings an array there, and its own library need not be asked to.

    With `like=`, the library of the result may take what has come to the CPU as it is.
    """
    conversion = route.conversion
    if route.importer is not None:
        return conversion is None and route.target is not CPU
    if cls is not Tensor:
        return conversion is None and cls in _TENSORS
    return conversion is None or (route.target is CPU and conversion.of_numpy is not None)


def _of_array(cls: type, importer: Function, conversion: Conversion | None) -> Function | None:
    """To the CPU, for arrays of a library with an importer, which are there already."""
    library = library_of(cls)
    if library is None:
        return None
    if conversion is not None:
        if conversion.name == "numpy":
            return None if library.as_numpy is None else library.as_numpy()
        return conversion.of_numpy if library.name == "numpy" else None
    if library.device_types == HOST_ONLY:
        return importer
    on_host = library.on_host
    return None if on_host is None else lambda x: importer(x) if on_host(x) else None


# Moves -------------------------------------------------------------------------


class Move:
    """One array on its way: what is chosen for it, and what runs and describes that."""

    __slots__ = (
        "by_library",
        "choice",
        "conversion",
        "copy",
        "operand",
        "target",
        "tensor",
        "wrapped",
        "x",
    )

    by_library: Operand | None
    """A tensor on a device that no backend serves: its library is asked to bring it."""
    wrapped: tuple[bool, str]
    """Whether the library of `like=` gets a copy, and why."""

    def __init__(
        self,
        x: Any,
        tensor: Tensor,
        target: Device,
        copy: bool | None,
        conversion: Conversion | None = None,
    ) -> None:
        self.x, self.target, self.copy = x, target, copy
        self.conversion = None if conversion is None else conversion.renewed()
        operand = operand_of(tensor)
        self.by_library = None
        if x is not tensor and not operand.device.is_host and needs_its_library(x, tensor, target):
            self.by_library = operand
            self._set(tensor, operand, ((), "", ""))
        else:
            self._set(tensor, operand, choose(operand, target, copy))

    def _set(self, tensor: Tensor, operand: Operand, choice: Choice) -> None:
        self.tensor, self.operand, self.choice = tensor, operand, choice
        if self.conversion is not None:
            fresh = copies(choice) if choice[0] else self.copy is not False
            self.wrapped = self.conversion.decide(tensor, self.copy, fresh)

    def plan(self) -> Plan:
        """What is chosen, in words, with what people want to know of it."""
        tensor, target = self.tensor, self.target
        plan = described(self.choice, self.operand, target, self.copy, tensor.origin)
        if self.by_library is not None:
            here, nbytes = self.by_library.device, self.by_library.nbytes if plan.may_copy else 0
            reason = f"no backend here serves {here}; the library of the array is asked"
            rest = [step for step in plan.steps if step.kind != "share"]
            plan.source = here
            plan.steps[:] = [Step("by library", here, target, nbytes, reason), *rest]
        if self.conversion is not None:
            copied, reason = self.wrapped
            plan.add("as library", target, target, tensor.nbytes if copied else 0, reason)
        self._add_import(plan)
        return plan

    def _add_import(self, plan: Plan) -> None:
        """Put the copy in front that made the tensor, if the object has no memory to share."""
        x, here = self.x, self.operand.device
        converted = self.tensor.is_copied and not is_in_our_order(x)
        if not converted:
            if not plan.may_copy or importer_of(type(x)) is not None or not here.is_host:
                return
            if not is_copied(x, self.tensor, plan.target):
                return
        plan.origin = origin_of(x)
        if self.operand.nbytes:
            arrays = arrays_in(x)
            why = (
                f"is of {arrays} arrays, which are stacked"
                if arrays
                else "has no memory that a tensor could share"
            )
            if converted or (self.tensor.is_copied and library_of(type(x)) is None):
                why = "has the other byte order, and is converted"
            step = Step("read", here, here, self.operand.nbytes, f"{plan.origin} {why}")
            plan.steps.insert(0, step)

    def run(self, stream: StreamLike | None = None, progress: ProgressLike = None) -> Any:
        """The result; a trace gets a plan of the steps that ran."""
        start = time.perf_counter()
        if self.by_library is not None:
            tensor = import_producer(self.x, self.target, self.copy, None)
            operand = operand_of(tensor)
            self._set(tensor, operand, choose(operand, self.target, self.copy))
        what = self.choice, self.tensor, self.operand, self.target, self.copy
        if stream is None and progress is None:
            moved, ran = run(*what)
        else:
            on = nullcontext() if stream is None else use_stream(self.target, stream)
            check_progress(progress)
            nbytes = self.operand.nbytes if cost_of(self.choice, self.operand) else 0
            with on, reporter(progress, nbytes) as report:
                moved, ran = run(*what, report)
        changed, self.choice = ran is not self.choice, ran
        result, conversion = moved, self.conversion
        try:
            if conversion is not None:
                if changed or (moved is not self.tensor and not copies(ran)):
                    # A driver may have refused memory in place, or tell its address only now.
                    self.wrapped = conversion.decide(moved, self.copy, copies(ran))
                with as_one():
                    result = conversion.run(moved, self.wrapped[0])
        finally:  # the tensor was moved, even if the library refuses it
            if is_recording():
                seconds = time.perf_counter() - start
                record_run(self.plan(), self.tensor, moved, seconds)
        return result


def check_progress(progress: ProgressLike) -> None:
    """TypeError for a function of Python that cannot be called with the bytes done and all."""
    if getattr(progress, "__code__", None) is None:  # True, or a callable that does not say
        return
    names, required, more, keywords = parameters_of(progress)
    given = 2 if getattr(progress, "__self__", None) is None else 3
    if required > given or keywords or not (more or len(names) >= given):
        raise TypeError(
            f"progress={progress!r} cannot be called with two numbers, the bytes done and all of "
            "them: progress=lambda done, total: ..."
        )
