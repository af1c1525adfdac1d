"""Routes: how the arrays of one class come to one device as one library's; found once, then kept.

`to_device`, `plan` and `explain` all take the route of their arguments, at the first call
and at each later one, with a trace and without. What depends on the array itself, such as
its layout and its address, is planned for each array. Planning takes longer than a move
that copies nothing, so a route may also have a function that does the same at once, made
of the parts that the steps run: the class's importer, the library's function for the memory
of a numpy array, the copy of compact memory to and from a device. It returns None where it
cannot.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dlbridge.api.anything import import_anything, is_copied, is_read_once
from dlbridge.api.like import Conversion
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.interfaces.dlpack import import_producer, needs_its_library
from dlbridge.core.libraries.library import HOST_ONLY, origin_of
from dlbridge.core.libraries.lookup import IMPORTERS, importer_of, is_known, library_of
from dlbridge.core.moves.plans import (
    Step,
    copy_of_plan,
    is_recording,
    plan_by_library,
    plan_move,
    record,
)
from dlbridge.core.moves.progress import reporter
from dlbridge.core.moves.transfer import STEPS, new_memory, run_steps, start_of
from dlbridge.core.plugins.lookup import check_device, plugin_of
from dlbridge.core.plugins.streams import use_stream
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor, tensor_on, wrap_array
from dlbridge.core.tensor.memory import NATIVE_DTYPES, native_dtypes
from dlbridge.core.tensor.metadata import carrier_of
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.traces import TRACES
from dlbridge.core.values.devices import CPU, Device
from dlbridge.errors import BackendUnavailable, Error
from dlbridge.interop.descriptions import to_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.moves.plans import Plan
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.typing import DeviceLike, ProgressLike, StreamLike

    Function = Callable[[Any], Any]


def ITSELF(x: Any) -> Any:
    """The function of a route that changes nothing; `to_device` need not call it."""
    return x


class Route:
    """The way to *device* and *like* for the arrays of a class."""

    __slots__ = ("conversion", "direct", "importer", "target")

    direct: Function | None
    """Gives the result for an array, or None if its steps must be planned."""

    def __init__(self, importer: Function | None, device: DeviceLike, like: object) -> None:
        self.importer = importer
        self.target = check_device(device)
        self.conversion = None if like is None else Conversion(like, self.target)
        self.direct = None


ROUTES: dict[tuple[type, object, object], Route] = {}
"""(class, device, like) -> the route.

The device is a text or a `Device`, and like is a text, a module or None: objects of other types
may be equal to these and mean something else. The class is one that lives as long as the process.
"""


def find_route(x: Any, device: DeviceLike, like: object) -> Route:
    """The route of *x*; what is wrong with *x* is said before what is wrong with the others."""
    cls = type(x)
    importer = None if isinstance(x, Tensor) else importer_of(cls)
    key = None
    if (cls in IMPORTERS or cls in _TENSORS) and type(device) in (str, Device):
        is_module = type(like) is ModuleType and sys.modules.get(like.__name__) is like
        if is_module or type(like) in (str, type(None)):
            key = cls, device, like
    try:
        route = Route(importer, device, like)
    except (Error, ImportError, TypeError, ValueError):
        if not is_read_once(x):
            at_its_place(x, importer, None, device)
        raise
    if key is not None and _is_kept(like, route.conversion):
        route.direct = _direct(cls, route)
        ROUTES[key] = route
    return route


def _is_kept(like: Any, conversion: Conversion | None) -> bool:
    """Whether the next *like* that is equal means the same *conversion*."""
    if conversion is None or conversion.convert is to_native:
        return True
    return is_known(like if isinstance(like, str) else like.__name__)


_TENSORS = (Tensor, NumpyTensor, ArrayTensor)


def at_its_place(
    x: Any, importer: Function | None, copy: bool | None, device: DeviceLike
) -> Tensor:
    """A Tensor of *x* where it is: the plan makes the copy that brings it to *device*."""
    if isinstance(x, Tensor):
        return x
    if importer is not None and copy is None:
        tensor: Tensor = importer(x)
        return tensor
    return import_anything(x, None, False if copy is False else None, device)


# What needs no plan ------------------------------------------------------------


def _direct(cls: type, route: Route) -> Function | None:
    target, conversion, importer = route.target, route.conversion, route.importer
    if importer is None and cls not in _TENSORS:
        return None
    if conversion is None and not target.is_host and cls is not Tensor:
        return _upload(cls, importer, target)
    if conversion is None and cls is Tensor and target is not CPU:
        return lambda tensor: tensor if tensor.device is target else None
    if target is not CPU:
        return None
    if importer is not None:
        return _of_array(cls, importer, conversion)
    if conversion is None:
        return _download if cls is Tensor else ITSELF
    of_numpy = ITSELF if conversion.name == "numpy" else conversion.of_numpy
    if of_numpy is None:
        return None
    if cls is Tensor:
        own = frozenset(native_dtypes().values())

        def download(x: Any) -> Any:
            # Elements that numpy does not have would come twice: by this way, and by the plan.
            if (x.dtype not in own and of_numpy is not ITSELF) or (there := _download(x)) is None:
                return None
            return of_numpy(there.numpy())

        return download
    return (lambda tensor: of_numpy(tensor.numpy())) if cls is ArrayTensor else None


def _of_array(cls: type, importer: Function, conversion: Conversion | None) -> Function | None:
    """To the CPU, for arrays of a library with an importer, which are there already."""
    library = library_of(cls)
    if library is None:
        return None
    if conversion is not None:
        if library.name == "numpy":
            return conversion.of_numpy
        to_numpy = conversion.name == "numpy" and library.as_numpy is not None
        return library.as_numpy() if to_numpy else None  # type: ignore[misc]  # it has one
    if library.device_types == HOST_ONLY:
        return importer
    on_host = library.on_host
    return None if on_host is None else lambda x: importer(x) if on_host(x) else None


def _upload(cls: type, importer: Function | None, target: Device) -> Function:
    """For compact host arrays."""
    plugin = plugin_of(target)
    is_numpy = (cls.__module__, cls.__name__) == ("numpy", "ndarray")
    library = None if importer is None else library_of(cls)
    on_host = None if library is None else library.on_host

    def upload(x: Any) -> Any:
        if on_host is not None and not on_host(x):
            return None
        tensor = x if importer is None or is_numpy else importer(x)
        if type(tensor) is Tensor:
            return None  # on a device, or empty
        array = x if is_numpy else carrier_of(tensor)
        dtype = NATIVE_DTYPES.get(x.dtype) if is_numpy else tensor.dtype
        nbytes = array.nbytes
        if dtype is None or not nbytes or not array.flags.c_contiguous:
            return None
        if plugin_of(target) is not plugin:
            return None  # another backend was registered by that name
        refusal = plugin.host_import_refusal
        copied = refusal is None or refusal(target.index, address_of(array), nbytes, False)
        if copied and nbytes <= plugin.content_limit:
            content = array.data.cast("B")
            memory = new_memory(target, nbytes, content=content, plugin=plugin)
            return tensor_on(memory, dtype, array.shape)
        if is_numpy:
            tensor = wrap_array(array[...])
        operand = operand_of(tensor)
        if copied:
            return STEPS["upload"](tensor, operand, target, None)[0]
        try:
            return STEPS["host import"](tensor, operand, target, None)[0]
        except Error:  # the plan has a way out
            return None

    return upload


def _download(tensor: Tensor) -> Tensor | None:
    """For compact memory of a device."""
    operand = operand_of(tensor)
    device = operand.device
    if device.is_host or not operand.contiguous or not operand.size:
        return None
    try:
        plugin = plugin_of(device)
    except BackendUnavailable:  # the plan says it better
        return None
    refusal = plugin.host_view_refusal
    copied = refusal is None or refusal(device.index, operand.data)
    step = STEPS["download" if copied else "host view"]
    return step(tensor, operand, CPU, None)[0]


# Plans -------------------------------------------------------------------------


class Move:
    """One array on its way: its plan, and what runs it."""

    __slots__ = ("asked", "conversion", "copy", "operand", "plan", "tensor", "x")

    asked: Plan | None
    """The plan before this one, of one step, by which the library gave the tensor."""

    def __init__(
        self,
        x: Any,
        tensor: Tensor,
        target: Device,
        copy: bool | None,
        conversion: Conversion | None = None,
    ) -> None:
        self.x, self.tensor, self.copy, self.conversion = x, tensor, copy, conversion
        self.asked = None
        operand = self.operand = operand_of(tensor)
        if x is not tensor and not operand.device.is_host and needs_its_library(x, tensor, target):
            self.plan = plan_by_library(operand, target, copy)
        else:
            self.plan = plan_move(operand, target, copy)
        if conversion is not None:
            self._add_conversion(conversion, tensor, self.plan)

    def _add_conversion(self, conversion: Conversion, tensor: Tensor, plan: Plan) -> None:
        copies, reason = conversion.decide(tensor, self.copy, plan.copies > 0)
        nbytes = tensor.nbytes if copies else 0
        plan.add("as library", plan.target, plan.target, nbytes, reason)

    def explained(self) -> Plan:
        """The plan, with what people want to know of it."""
        return self._add_import(copy_of_plan(self.plan, self.tensor.origin))

    def _add_import(self, plan: Plan) -> Plan:
        """Put the copy in front that made the tensor, if the object has no memory to share."""
        x, here = self.x, self.operand.device
        if not plan.may_copy or importer_of(type(x)) is not None or not here.is_host:
            return plan
        if is_copied(x, self.tensor, plan.target):
            plan.origin = origin_of(x)
            if self.operand.nbytes:
                reason = f"{plan.origin} has no memory that a tensor could share"
                plan.steps.insert(0, Step("read", here, here, self.operand.nbytes, reason))
        return plan

    def run(self, stream: StreamLike | None = None, progress: ProgressLike = None) -> Any:
        """The result; a trace gets a plan of the steps that ran."""
        plan = self.plan
        if plan.steps[0].kind == "by library":
            return self._from_its_library().run(stream, progress)
        start = time.perf_counter() if TRACES else 0.0
        if stream is None and progress is None:
            moved, there, ran = run_steps(plan, self.tensor, self.operand)
        else:
            on = nullcontext() if stream is None else use_stream(plan.target, stream)
            with on, reporter(progress, plan.nbytes) as report:
                moved, there, ran = run_steps(plan, self.tensor, self.operand, report)
        seconds = time.perf_counter() - start if TRACES else 0.0
        conversion, result = self.conversion, moved
        try:
            if conversion is not None:
                if ran is not plan or (moved is not self.tensor and not ran.copies):
                    ran = self._converted(conversion, moved, ran)
                result = conversion.run(moved, ran.steps[-1].nbytes > 0)
        finally:  # the tensor was moved, even if the library refuses it
            if TRACES and is_recording():
                self._record(ran, there, seconds)
        return result

    def _from_its_library(self) -> Move:
        """The move of what its library brought to the CPU."""
        target = self.plan.target
        tensor = import_producer(self.x, target, self.copy, None)
        rest = Move(tensor, tensor, target, self.copy, self.conversion)
        rest.asked = self.plan
        return rest

    def _converted(self, conversion: Conversion, moved: Tensor, ran: Plan) -> Plan:
        """*ran* with the last step for *moved*: a driver may tell its address only now."""
        plan = copy_of_plan(ran, "")
        if ran is self.plan:
            plan.steps.pop()
        self._add_conversion(conversion, moved, plan)
        return plan

    def _record(self, ran: Plan, there: Operand, seconds: float) -> None:
        done = self._add_import(copy_of_plan(ran, self.tensor.origin))
        if self.asked is not None:
            done.source, done.may_copy = self.asked.source, self.asked.may_copy
            rest = [step for step in done.steps if step.kind != "share"]
            done.steps[:] = [self.asked.steps[0], *rest]
        done.address, done.result_address = start_of(self.operand), start_of(there)
        done.seconds = seconds
        record(done)
