"""The objects of a library behind the integers that are ``data``, and the bytes inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span

from .fork import ForkGuard

__all__ = ["Handles"]


class Handles:
    """A table for devices whose ``data`` is a handle: what is not in it is never followed.

    Single operations on its dicts are one step for all threads and finalizers: no lock is needed.

    Parameters
    ----------
    name : str
        The backend's name, for messages.
    guard : ForkGuard
        Knows whether this is a forked child, where nothing is released.
    describe : Callable[[Any], tuple[int, int]]
        The device's number and the bytes of an object, asked at each use.
    """

    def __init__(
        self, name: str, guard: ForkGuard, describe: Callable[[Any], tuple[int, int]]
    ) -> None:
        self._name = name
        self._guard = guard
        self._describe = describe
        self.owned: dict[int, Any] = {}
        """What `allocate` has made, until `free`. Enter it by the last step before the return,
        ``handles.owned[data] = obj``: after a call a signal handler's exception may come, and
        nobody would free it."""
        self._borrowed: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self.owned)

    def borrow(self, data: int, obj: Any) -> int:
        """Enter an object of somebody else, for as long as it lives; return *data*.

        Of several objects for one *data* the last one entered is found, and none once it is gone:
        where a library wraps one handle in several objects, enter what they share.
        """
        self._borrowed[data] = obj
        return data

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Drop what is in `owned`: a backend's ``free``, if the library waits for its work.

        Assign the method itself, ``self.free = handles.free``. If a signal handler raises at its
        first instruction, dlbridge calls it again; in a wrapper it could not do that.
        """
        if not self._guard.in_child:  # there it is the parent's
            self.owned.pop(data, None)

    def find(self, data: int) -> tuple[int, Any]:
        """The device's number and the object.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If *data* is not in the table.
        """
        obj = self._object(data)
        return self._describe(obj)[0], obj

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """``SupportsForeignData``: what is in the table, on the device where it is.

        *device_id* is the exporter's count, which may be another; nothing else is followed.
        Take it as it is: ``self.import_data = handles.import_data``.
        """
        return self.find(data)[0], data

    def at(self, span: Span) -> Any:
        """The object, in which the whole span must lie.

        Raises
        ------
        dlbridge.errors.ExchangeError
            If it does not, or is on another device.
        """
        obj = self._object(span.data)
        device_id, nbytes = self._describe(obj)
        if device_id != span.device_id:
            raise ExchangeError(
                f"{span.data:#x} is memory of {self._name}:{device_id}, not of "
                f"{self._name}:{span.device_id}"
            )
        if not 0 <= span.offset <= nbytes - span.nbytes:
            raise ExchangeError(
                f"bytes {span.offset} to {span.offset + span.nbytes} are outside the {nbytes} of "
                f"the memory {span.data:#x}"
            )
        return obj

    def _object(self, data: int) -> Any:
        obj = self.owned.get(data)
        if obj is None:
            obj = self._borrowed.get(data)
        if obj is None:
            raise ExchangeError(
                f"{data:#x} is not memory that {self._name} knows: it was freed, or came from "
                "another library"
            )
        return obj
