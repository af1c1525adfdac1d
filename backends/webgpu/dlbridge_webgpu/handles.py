"""The objects of a library behind the integers that are ``data``, and the bytes inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import AllocationOwner, Resources
from dlbridge.protocol import Span

__all__ = ["Handles"]


class _Object:
    """An object of the library, which is dropped with its owner."""

    __slots__ = ("object", "stream")

    def __init__(self, stream: int) -> None:
        self.object: Any = None
        self.stream = stream


def _drop(held: _Object) -> bool:
    held.object = None
    return True


class Handles:
    """A table for devices whose ``data`` is a handle: what is not in it is never followed.

    It owns nothing: an object is in it as long as it lives.

    Parameters
    ----------
    name : str
        The backend's name, for messages.
    describe : Callable[[Any], tuple[int, int]]
        The device's number and the bytes of an object, asked at each use.
    """

    def __init__(self, name: str, describe: Callable[[Any], tuple[int, int]]) -> None:
        self._name = name
        self._describe = describe
        self._objects: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._owned: Resources[_Object] = Resources(_drop)

    def __len__(self) -> int:
        """How many objects are owned by what `own` has returned."""
        return len(self._owned)

    def own(self, data: int, nbytes: int, stream: int, obj: Any) -> AllocationOwner[_Object]:
        """Enter a new object; what is returned is for the library that waits for its work itself.

        It drops *obj* when it is dropped, except in a forked child.
        """
        owner = AllocationOwner(self._owned, _Object(stream))
        owner.resource.object = obj
        owner.data, owner.nbytes = self.enter(data, obj), nbytes
        return owner

    def enter(self, data: int, obj: Any) -> int:
        """Enter an object of somebody else, for as long as it lives; return *data*.

        Of several objects for one *data* the last one entered is found, and none once it is gone:
        where a library wraps one handle in several objects, enter what they share.
        """
        self._objects[data] = obj
        return data

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
        obj = self._objects.get(data)
        if obj is None:
            raise ExchangeError(
                f"{data:#x} is not memory that {self._name} knows: it was freed, or came from "
                "another library"
            )
        return obj
