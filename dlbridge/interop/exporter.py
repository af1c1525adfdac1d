"""`Exporter`: the interfaces of a Tensor for other classes of arrays."""

from __future__ import annotations

from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge import Tensor
from dlbridge.abi import (
    TABLE_NAMES,
    ArrayTensor,
    ExchangeTable,
    MethodProperty,
    as_tensor,
    is_given_back,
    no_tensor,
    produce,
)
from dlbridge.extending import origin_of, public_in, with_article

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


class _FirstExport(MethodProperty):
    """A `MethodProperty` that becomes a plain one by the first export of its class.

    That the attribute holds no Tensor is the first mistake that is made: it has its words here.
    """

    def __init__(self, cls: type, name: str, getter: Callable[[Any], Any]) -> None:
        super().__init__(getter)
        self._cls, self._name = cls, name

    def __get__(self, instance: Any, cls: type | None = None) -> Any:
        if instance is not None:
            as_tensor(instance)
            setattr(self._cls, self._name, MethodProperty(self._getter))
        return super().__get__(instance, cls)


def _method_of(cls: type, tensor: str) -> Any:
    """The ``__as_tensor__`` of a class that names the attribute with its tensor."""
    held = attrgetter(tensor)

    def method(self: Any) -> Any:  # a function: `held` is no method
        try:
            return held(self)
        except AttributeError as exc:
            exc.add_note(
                f"({cls.__qualname__} names {tensor!r} as its tensor: set self.{tensor} in "
                "__init__)"
            )
            raise

    method.attribute = tensor  # type: ignore[attr-defined]  # for messages
    return method


@public_in("dlbridge")
class Exporter:
    """A base class that gives your class of arrays all interfaces of a `Tensor`.

    Your class has a method ``__as_tensor__()`` that returns the `Tensor` of an instance, on
    memory that lives as long as the instance; or it names the attribute that holds that Tensor:
    ``class MyArray(Exporter, tensor="_tensor")``, whose exports take the least time.

    It then has ``__dlpack__`` and ``__dlpack_device__`` (array API 2025.12), the exchange table
    of ``dlpack.h`` 1.3 under both names, ``__array__``, Arrow's interface, the buffer
    protocol from CPython 3.12 on, and ``__array_interface__`` or ``__cuda_array_interface__``
    where the memory is one that the interface is for; else `hasattr` says False. So numpy,
    torch, jax, tvm_ffi and others take instances as they are, and so do `from_dlpack`,
    `to_device` and all other functions here.

    A class method ``__from_tensor__(tensor)`` that returns an instance is the way back:
    ``like=MyArray`` uses it, and libraries that ask the exchange table for an object. The
    instance has the tensor's strides, and is read-only if the tensor is.

    Parameters
    ----------
    tensor : str, optional
        For a subclass: the name of the attribute that holds the Tensor.

    Notes
    -----
    It adds no attributes and no slots to instances, and has no metaclass: a class may have
    ``__slots__``, be a dataclass, and have other base classes. What it defines itself, or
    inherits from a class before this one, stays. The table of a class is made when a
    library first asks for it; it, and with it the class, then exists until the process ends.
    The table asks ``__as_tensor__``, also where the class has a ``__dlpack__`` of its own.
    A class may get its methods later; which of its interfaces is used is decided once.

    With the name of an attribute, no Python runs at an export of plain, writable CPU memory but
    at the first of the class: numpy makes the capsule, as of a Tensor, and takes no stream but
    None. A method of yours runs each time.

    Where instances go to other processes by cloudpickle (Dask, joblib), put the class into a
    module. Classes of ``__main__`` are sent whole, and a table of C functions cannot be sent.

    Examples
    --------
    >>> class MyArray(bridge.Exporter):
    ...     def __init__(self, tensor):
    ...         self.tensor = tensor
    ...
    ...     def __as_tensor__(self):
    ...         return self.tensor
    ...
    ...     @classmethod
    ...     def __from_tensor__(cls, tensor):
    ...         return cls(tensor)
    >>> x = MyArray(bridge.asarray([[1.0, 2.0], [3.0, 4.0]]))
    >>> np.from_dlpack(x)
    array([[1., 2.],
           [3., 4.]])
    >>> type(bridge.to_device(np.arange(3), "cpu", like=MyArray)).__name__
    'MyArray'
    """

    __slots__ = ()

    def __init_subclass__(cls, *, tensor: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if tensor is not None and "__as_tensor__" in vars(cls):
            raise TypeError(
                f'{cls.__qualname__} has an __as_tensor__ and tensor="{tensor}", and each says '
                "where the Tensor is; remove one of them"
            )
        if tensor is not None and not all(map(str.isidentifier, tensor.split("."))):
            raise ValueError(
                f"tensor={tensor!r} is no name of an attribute; {cls.__qualname__} must name the "
                "one that holds its Tensor"
            )
        # Of its own: that of a base class makes objects of the base class.
        for name in TABLE_NAMES:
            owner, found = _first(cls, name)
            ours = isinstance(found, ExchangeTable) or id(found) in ExchangeTable.made
            if owner is None or ours:
                setattr(cls, name, ExchangeTable())
        if isinstance(vars(cls).get("__from_tensor__"), FunctionType):
            raise TypeError(
                f"{cls.__qualname__}.__from_tensor__ must be a class method: it makes an instance; "
                "write @classmethod over it"
            )
        if tensor is not None:
            method = _method_of(cls, tensor)
            cls.__as_tensor__ = method  # type: ignore[method-assign]
            for name, of_tensor in _OF_THE_TENSOR.items():
                _, found = _first(cls, name)
                ours = isinstance(found, MethodProperty) or found is vars(Exporter)[name]
                if name not in vars(cls) and ours:
                    getter = attrgetter(f"{tensor}.{of_tensor}")
                    setattr(cls, name, _FirstExport(cls, name, getter))
        giver, _ = _first(cls, "__as_tensor__")
        for name in _OF_THE_TENSOR:  # a base class may name an attribute that is not asked
            owner, found = _first(cls, name)
            if isinstance(found, MethodProperty) and owner is not giver:
                setattr(cls, name, vars(Exporter)[name])

    @property
    def __tensor_export__(self) -> NoReturn:
        # Asked where another Exporter, or the same one, is held in place of a Tensor.
        raise AttributeError(
            f"the attribute that an Exporter names holds {with_article(origin_of(self))}, not a "
            "dlbridge.Tensor; dlbridge.asarray(x) makes one of any array"
        )

    __tensor_device__ = __tensor_export__

    def __as_tensor__(self) -> Tensor:
        raise NotImplementedError(
            f"the class {origin_of(self)} is an Exporter without __as_tensor__; define the method, "
            'or name the attribute with the Tensor: class MyArray(Exporter, tensor="_tensor")'
        )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # a PyCapsule, a type without a name before Python 3.13
        """Return a capsule for one consumer (array API 2025.12), as `Tensor.__dlpack__` does."""
        tensor: Any = self.__as_tensor__()
        if stream is None and type(tensor) is ArrayTensor:
            return tensor.__tensor_export__(max_version=max_version, dl_device=dl_device, copy=copy)
        if not isinstance(tensor, Tensor):
            raise no_tensor(self, tensor)
        return produce(tensor, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(device_type, device_id)`` as plain ints (array API 2025.12)."""
        tensor: Any = self.__as_tensor__()
        if type(tensor) is ArrayTensor:
            return (1, 0)
        if not isinstance(tensor, Tensor):
            raise no_tensor(self, tensor)
        return tensor.__dlpack_device__()

    @property
    def __arrow_c_array__(self) -> Callable[..., tuple[object, object]]:
        """Arrow's PyCapsule interface, a method; AttributeError for what Arrow cannot hold."""
        return as_tensor(self).__arrow_c_array__

    __dlpack_c_exchange_api__: ExchangeTable
    __c_dlpack_exchange_api__: ExchangeTable

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Numpy's array interface, version 3; AttributeError off the CPU (`hasattr` is False)."""
        return _stable(self).__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3; AttributeError off CUDA (`hasattr` is False)."""
        return _stable(self).__cuda_array_interface__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the elements for ``np.asarray(x)`` (numpy's ``__array__`` protocol)."""
        return as_tensor(self).__array__(dtype, copy)

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory for ``memoryview(x)`` on Python 3.12 and later (PEP 688)."""
        return as_tensor(self).__buffer__(flags)


# Methods, and the names by which only a Tensor has them. An attribute that led back to an Exporter
# would be a recursion of C, which nobody ends.
_OF_THE_TENSOR = {"__dlpack__": "__tensor_export__", "__dlpack_device__": "__tensor_device__"}


def _first(cls: type, name: str) -> tuple[type | None, object]:
    """The class that gives *cls* the attribute *name*, and what stands there; None if none does."""
    found = ((each, vars(each)[name]) for each in cls.__mro__ if name in vars(each))
    return next(found, (None, None))


def _stable(x: Exporter) -> Tensor:
    """The Tensor of *x*, whose address others may keep as long as they keep *x*.

    AttributeError where each call of ``__as_tensor__`` gives other memory, or lends it anew.
    """
    tensor, again = as_tensor(x), as_tensor(x)
    if tensor is not again and (tensor.data_ptr() != again.data_ptr() or is_given_back(tensor)):
        raise AttributeError(
            f"{origin_of(x)} has new memory for each consumer, and an interface by address does "
            "not keep it"
        )
    return tensor
