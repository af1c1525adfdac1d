"""Tensor: some memory on one device, seen as an n-dimensional array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, NoReturn, TypeVar, overload

from dlbridge import _methods as methods
from dlbridge._absent_names import refuse_shape
from dlbridge.core.dlpack.foreign_tables import TABLE_NAMES
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.plugins.lookup import FOUND
from dlbridge.core.public import public
from dlbridge.core.traces import TRACES
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import check_dtype, dtype as as_dtype
from dlbridge.errors import ExchangeError

from .memory import basic_index, carrier_dtype, counts_elements, host_access
from .metadata import TensorMetadata, numpy_type

if TYPE_CHECKING:
    from types import ModuleType

    import jax
    import numpy as np
    import torch
    from typing_extensions import Unpack

    from dlbridge.core.moves.host_views import HostView
    from dlbridge.core.values.dtypes import DType
    from dlbridge.typing import (
        DeviceLike,
        DTypeLike,
        MoveOptions,
        Number,
        StreamLike,
        SupportsDLPack,
    )

    from .operand import Operand

    _Array = TypeVar("_Array", bound=SupportsDLPack)
    Array = np.ndarray[Any, Any]


def _sizes(shape: Any, error: TypeError) -> tuple[int, ...]:
    """The extents in *shape*, which is no tuple of integers, as the *error* says."""
    if isinstance(shape, Iterable) and not isinstance(shape, (str, bytes, Set, Mapping)):
        try:
            return tuple(map(operator.index, shape))
        except TypeError as exc:
            error = exc
    raise TypeError(
        f"shape {shape!r:.80} is not an integer, or integers: {error}; pass the extents, as in "
        "t.reshape(2, -1)"
    ) from error


def refuse_call(cls: type) -> NoReturn:
    """TypeError, which says how a tensor is made."""
    raise TypeError(
        f"a {cls.__name__} is not made by calling its class: dlbridge.from_dlpack and "
        "asarray make one from another library's array, empty and zeros a new one"
    )


class ExchangeTable:
    """The capsule of a class's exchange table (dlpack.h 1.3).

    The first use puts the capsule in its place: consumers look it up for each
    call, and this function would cost them 2 us.
    """

    made: ClassVar[dict[int, Any]] = {}
    """The capsules, by their addresses: a class may have one of its own instead."""

    def __get__(self, _instance: object, cls: type) -> Any:
        owner: type = Tensor if issubclass(cls, Tensor) else cls
        capsule = methods.table_capsule(owner)
        self.made[id(capsule)] = capsule
        for name in TABLE_NAMES:
            if isinstance(vars(owner).get(name), ExchangeTable):  # else it is the class's own
                setattr(owner, name, capsule)
        return capsule


@public
class Tensor(TensorMetadata):
    """An n-dimensional array in memory that some library or device owns.

    Made by `dlbridge.from_dlpack`, `asarray`, `empty`, `zeros` and `to_device`,
    not by calling the class. A Tensor never copies its memory unless you ask for
    a copy. Views share memory and keep it alive. Metadata never changes, so a
    tensor may be used from any thread. ``==`` compares the elements on the host, as numpy
    does; a tensor is a key of dictionaries all the same, by its identity.

    Examples
    --------
    >>> t = bridge.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))
    >>> print(t)
    [[0. 1. 2.]
     [3. 4. 5.]]
    float32 (2, 3) on cpu:0
    >>> t[:, 1].tolist()
    [1.0, 4.0]
    """

    __slots__ = ()

    # Under both names that dlpack.h has given it: `foreign_tables.TABLE_NAMES`.
    __dlpack_c_exchange_api__: ExchangeTable = ExchangeTable()
    __c_dlpack_exchange_api__: ExchangeTable = ExchangeTable()

    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        refuse_call(type(self))

    def __jax_array__(self) -> jax.Array:
        """Return it as a jax array: jax.numpy looks for this method (``jnp.asarray(t)``)."""
        return methods.to_device(self, self.device, like="jax")

    # Views ---------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        """Return a view; *index* is made of int, slice, None and Ellipsis."""
        return self._view(self._array[basic_index(index)])

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """Return a view of the same elements in another shape.

        Parameters
        ----------
        *shape : int or tuple of int
            The new extents, in elements; one may be -1 and is inferred. Any sequence of
            integers is taken, too.

        Returns
        -------
        Tensor
            On the same memory.

        Raises
        ------
        TypeError
            If *shape* is not of integers.
        ValueError
            Where the numbers of elements differ.
        ExchangeError
            Where the strides do not allow it without a copy.

        Examples
        --------
        >>> bridge.zeros((2, 3)).reshape(3, -1).shape
        (3, 2)
        """
        sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        try:
            sizes = tuple(map(operator.index, sizes))
        except TypeError as exc:
            sizes = _sizes(shape[0] if len(shape) == 1 else shape, exc)
        if any(size < -1 for size in sizes):
            raise ValueError(f"cannot reshape {self.shape} to {sizes}: only -1 is inferred")
        try:
            array = self._array.reshape(sizes, copy=False)
        except ValueError as exc:
            if self.is_contiguous() or (prod(sizes) != self.size and -1 not in sizes):
                raise ValueError(f"cannot reshape {self.shape} to {sizes}: {exc}") from exc
            raise ExchangeError(
                f"{self.shape} with strides {self.strides} cannot be reshaped to {sizes} "
                "as a view; make a compact copy first: dlbridge.to_device(t, t.device, copy=True)"
            ) from exc
        return self._view(array)

    def transpose(self, *axes: int) -> Tensor:
        """Return a view with the dimensions in another order.

        Parameters
        ----------
        *axes : int
            The old dimension at each new place; reversed if none are given.

        Returns
        -------
        Tensor
            On the same memory.

        Raises
        ------
        ValueError
            If *axes* are not all dimensions, each once.

        Examples
        --------
        >>> bridge.zeros((2, 3, 4)).transpose(2, 0, 1).shape
        (4, 2, 3)
        """
        try:
            return self._view(self._array.transpose(*axes))
        except ValueError as exc:
            way = f"name each axis once, as in t.transpose{tuple(range(self.ndim))[::-1]}"
            raise ValueError(f"{exc}: {way}") from exc

    @property
    def mT(self) -> Tensor:
        """The transpose of the last two dimensions, of a stack of matrices (array API 2025.12)."""
        if self.ndim < 2:
            raise ValueError(f"mT is for 2 dimensions and more, this tensor has {self.ndim}")
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix (array API 2025.12)."""
        if self.ndim != 2:
            raise ValueError(f"T is for 2 dimensions, this one has {self.ndim}; use t.transpose()")
        return self.transpose()

    def view(self, dtype: DTypeLike, *lengths: Never) -> Tensor:
        """Return the same memory as elements of another dtype; on every device, nothing is read.

        Types of another size change the last dimension: four bytes become one
        float32, and a float32 becomes four bytes.

        Parameters
        ----------
        dtype : DTypeLike
            The new type; `dlbridge.dtype` says what is accepted. Elements below a byte
            are packed (``dlpack.h`` 1.3): one uint8 becomes two int4, the low bits
            first.
        *lengths : Never
            None: another shape is what `reshape` gives.

        Returns
        -------
        Tensor
            On the same memory.

        Raises
        ------
        ExchangeError
            For a type of another size: if the tensor has no dimension, if the last
            one has gaps or holds no whole number of new elements, or if an element
            would begin at an address that is not a multiple of its size.

        See Also
        --------
        dlbridge.astype : The same numbers in another dtype.

        Examples
        --------
        >>> t = bridge.from_dlpack(np.array([1.0, 2.0], "float32"))
        >>> t.view("int32").tolist()
        [1065353216, 1073741824]
        >>> t.view("uint8").shape, t.view("uint8")[4:].view("float32").tolist()
        ((8,), [2.0])
        """
        try:
            new = as_dtype(dtype, *lengths)
        except TypeError as exc:
            refuse_shape(exc, dtype, *lengths)
            raise
        check_dtype(new)
        old = self.dtype
        if new.bits * new.lanes == old.bits * old.lanes:
            if new.lanes != old.lanes and self.is_padded:
                raise ExchangeError(
                    f"view({new}) of padded {old} elements: dlpack.h does not say whether each "
                    "lane is padded; view('uint8') shows the bytes"
                )
            return self._view(self._array.view(carrier_dtype(new)), new)
        return methods.view_resized(self, new)

    def _view(self, array: Array, dtype: DType | None = None) -> Tensor:
        """The same memory through *array*, a view of its carrier."""
        moved = address_of(array) - address_of(self._array) if array.size else 0
        if counts_elements(self._dtype) and not self.is_padded:
            moved, rest = divmod(moved * self._dtype.bits * self._dtype.lanes, 8)
            if rest:
                raise ExchangeError(
                    f"a view of packed {self._dtype} must start at a whole byte, not {rest} bits "
                    "into one; whole bytes for each element: dlbridge.astype(t, "
                    f"{_whole_of(self._dtype)!r})"
                )
        return methods.build(
            array, self._memory, dtype or self._dtype, self._byte_offset + moved, self._flags
        )

    # Out: numpy, Python, pickle -------------------------------------------

    def numpy(self, copy: bool | None = None, force: bool = False) -> Array:
        """Return a numpy array of the elements: a view of the same memory where the host has it.

        Parameters
        ----------
        copy : bool, optional
            None: a view of host memory, and a copy of a device's, which is read-only, as a write
            to it would not reach the tensor. False: a view, or an error for memory of a device.
            True: always a copy.
        force : bool
            For those who call it as torch's: it changes nothing, as None copies where it must.

        Returns
        -------
        numpy.ndarray
            Of the type `DType.numpy`.

        Raises
        ------
        ExchangeError
            With ``copy=False`` on devices that the host does not read, naming the copy; for
            packed sub-byte elements, which numpy does not have.

        Examples
        --------
        >>> bridge.zeros(3).numpy()
        array([0., 0., 0.], dtype=float32)
        """
        wanted = numpy_type(self)
        if not self.device.is_host:
            if copy is False:
                raise ExchangeError(
                    f"the tensor is on {self.device}, and numpy has no views of that; "
                    f"t.numpy() copies it, and {methods.way_to_host(self)}"
                )
            why = "numpy(copy=True) was asked for" if copy else "numpy has no views of that memory"
            with methods.recorded(why, self, CPU):
                on_host = self.to_device("cpu", copy=True).numpy()
            on_host.flags.writeable = copy is True
            return on_host
        host_access(self._memory)
        array = self._array[...]
        if wanted != array.dtype:
            array = array.view(wanted)
        return methods.array_copy(self, array) if copy else array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the elements for ``np.asarray(t)`` (numpy's ``__array__`` protocol)."""
        array = self.numpy(copy=copy)
        if dtype is not None and dtype != array.dtype:
            if copy is False:
                raise ValueError(f"{array.dtype} cannot become {dtype} without a copy")
            return array.astype(dtype)
        return array

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory for ``memoryview(t)`` on Python 3.12 and later (PEP 688)."""
        return self.numpy(copy=False).data

    def tolist(self) -> Any:  # a number, or as many levels of lists as the tensor has dimensions
        """Return the elements as nested Python lists; copied from the device if need be.

        Returns
        -------
        list or scalar
            One level of lists for each dimension, and one for the lanes of vector types.

        Raises
        ------
        ExchangeError
            For elements that numpy and ml_dtypes do not have, with the way to their bytes.

        Examples
        --------
        >>> bridge.asarray([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        >>> bridge.astype([1, -2, 3], "int4").tolist()
        [1, -2, 3]
        """
        if self.dtype.is_subbyte or self.dtype.lanes > 1:
            return methods.host_elements(self).tolist()
        return (self if self.device.is_host else self.to_device("cpu")).numpy().tolist()

    def tobytes(self) -> bytes:
        r"""Return the elements as bytes, row-major and packed; copied from the device if needed.

        Returns
        -------
        bytes
            ``t.dtype.nbytes(t.size)`` bytes, or one byte per element if
            `Tensor.is_padded`.

        Notes
        -----
        ``bytes(t)`` is the same. Write ``bytearray(t.tobytes())`` and not ``bytearray(t)``,
        which reads an integer without dimensions as a length, and before Python 3.12 makes
        one byte of each integer.

        Examples
        --------
        >>> bridge.asarray([1, 2], dtype="uint8").tobytes()
        b'\x01\x02'
        """
        return methods.tobytes(self)

    def __bytes__(self) -> bytes:
        """Return the elements as bytes for ``bytes(t)``, as `tobytes` does."""
        return self.tobytes()

    def item(self) -> Number:
        """Return the only element as a Python object.

        Returns
        -------
        scalar
            As `tolist` gives it.

        Raises
        ------
        ValueError
            If the tensor does not have exactly one element.

        Examples
        --------
        >>> bridge.asarray([1.5, 2.5])[1].item()
        2.5
        """
        if self.size != 1:
            first = ", ".join("0" * self.ndim)
            hint = f"; t[{first}].item() is one, and t.tolist() has all" if self.size else ""
            raise ValueError(f"item() needs exactly one element, this tensor has {self.size}{hint}")
        number: Any = self.reshape(()).tolist()  # a list for vector types only
        return number  # type: ignore[no-any-return]

    def __str__(self) -> str:
        """Return the elements as numpy prints them, the dtype, the shape and the device.

        Of a large tensor on a device few elements are copied.

        For what cannot be read it is the metadata and the reason: it does not fail.
        """
        return methods.text_of(self)

    def __format__(self, spec: str) -> str:
        """Return the text of one element in the format *spec* (``f"{t[0]:.2f}"``), or `str`."""
        if not spec:
            return str(self)
        if self.ndim:
            first = ", ".join("0" * self.ndim)
            raise TypeError(
                f"the format {spec!r} is for one number, and this tensor has the shape "
                f"{self.shape}: take an element, as in f'{{t[{first}]:{spec}}}'"
            )
        return format(self.item(), spec)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: type, shape and device, and a table of the elements."""
        return methods.html_of(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the elements (protocol 5: out of band) and the name of the device."""
        return methods.unpickle, methods.pickled(self, operator.index(protocol))

    def __dask_tokenize__(self) -> Hashable:
        """Return what Dask names equal tensors by."""
        return methods.token_of(self)

    def __eq__(self, other: object) -> Any:  # a bool, or an array of numpy or of *other*'s library
        """Compare the elements on the host, as numpy does; other libraries' arrays by theirs."""
        return self._compared(other, "__eq__", operator.eq)

    def __ne__(self, other: object) -> Any:  # as `__eq__`
        """Compare the elements on the host, as ``==`` does."""
        return self._compared(other, "__ne__", operator.ne)

    def _compared(self, other: object, name: str, compare: Callable[[Any, Any], Any]) -> Any:
        if not isinstance(other, Tensor):
            theirs = getattr(type(other), name)(other, self)
            if theirs is not NotImplemented:
                return theirs
        elements = self.to_device("cpu").numpy() if self.ndim else self.item()
        return compare(elements, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Return the truth of the only element."""
        if (count := self.size * self.dtype.lanes) != 1:
            raise ValueError(
                f"a tensor of {count} numbers is neither true nor false; ask an array, as in "
                "dlbridge.to_device(t, 'cpu', like='numpy').any(), or t.size"
            )
        return bool(self.item())

    def __float__(self) -> float:
        """Return the only element as a float, for ``float(t)`` (array API 2025.12)."""
        number: Any = self.item()
        return float(number)

    def __int__(self) -> int:
        """Return the only element as an int, for ``int(t)`` (array API 2025.12)."""
        number: Any = self.item()
        return int(number)

    def __complex__(self) -> complex:
        """Return the only element as a complex, for ``complex(t)`` (array API 2025.12)."""
        return complex(self.item())

    def __index__(self) -> int:
        """Return the only element of integers without dimensions, as an index (array API)."""
        if self.ndim or self._dtype.code not in (0, 1):  # kDLInt, kDLUInt
            raise TypeError(
                f"{self._dtype} {self.shape} is not an index, which is one integer without "
                "dimensions; take an element (t[0]), or its number: int(t)"
            )
        number: Any = self.item()
        return operator.index(number)

    def __contains__(self, value: object) -> bool:
        """Return whether an element equals *value*, as numpy does."""
        return value in self.to_device("cpu").numpy()

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over the views along the first dimension."""
        return (self[index] for index in range(len(self)))

    # Out: DLPack ------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # a PyCapsule, a type without a name before Python 3.13
        """Return a capsule for one consumer (array API 2025.12).

        Parameters
        ----------
        stream : int or None
            The consumer's stream, by the rules of the device (its backend
            knows them); -1: do not order.
        max_version : tuple of two ints or None
            The newest DLPack version that the consumer takes.
        dl_device : tuple of two ints or None
            ``(device_type, device_id)`` of the capsule: this device's or the CPU's.
        copy : bool or None
            True for a copy, False for none, None for one where needed.

        Raises
        ------
        BufferError
            For what the standard lets a producer refuse.
        """
        return methods.produce(self, stream, max_version, dl_device, copy)

    # For an Exporter: by this name each Tensor has its method, and plain CPU tensors numpy's own.
    __tensor_export__: Any = __dlpack__

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(device_type, device_id)`` as plain ints (array API 2025.12)."""
        return self._memory.device.dlpack

    # As above: a name that an Exporter does not have. One that held itself would be asked for ever.
    __tensor_device__: Any = __dlpack_device__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3; AttributeError off CUDA (`hasattr` is False)."""
        return methods.cuda_array_interface(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Numpy's array interface, version 3; AttributeError off the CPU (`hasattr` is False)."""
        return methods.array_interface(self)

    @property
    def __arrow_c_array__(self) -> Callable[..., tuple[object, object]]:
        """Arrow's PyCapsule interface, a method; AttributeError for what Arrow cannot hold.

        It takes one dimension of integers or floats, in compact memory that the
        host can read, and needs pyarrow.
        """
        return methods.arrow_exporter(self)

    # Out: other devices, native objects ------------------------------------------

    @overload
    def to_device(
        self,
        device: DeviceLike,
        /,
        like: Literal["dlbridge"] | None = ...,
        **options: Unpack[MoveOptions],
    ) -> Tensor: ...
    @overload
    def to_device(
        self, device: DeviceLike, /, like: Literal["numpy"], **options: Unpack[MoveOptions]
    ) -> Array: ...
    @overload
    def to_device(
        self, device: DeviceLike, /, like: Literal["torch"], **options: Unpack[MoveOptions]
    ) -> torch.Tensor: ...
    @overload
    def to_device(
        self, device: DeviceLike, /, like: type[_Array] | _Array, **options: Unpack[MoveOptions]
    ) -> _Array: ...
    @overload
    def to_device(
        self, device: DeviceLike, /, like: str | ModuleType, **options: Unpack[MoveOptions]
    ) -> Any: ...  # the overloads of `dlbridge.to_device` know more libraries
    def to_device(
        self,
        device: DeviceLike,
        /,
        like: Any = None,
        # By keyword only for type checkers: CPython 3.11 takes 35 ns more for such defaults.
        stream: StreamLike | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return the tensor on *device* (array API 2025.12); see `dlbridge.to_device`.

        Parameters
        ----------
        device : DeviceLike
            Where to; `dlbridge.device` says what is accepted.
        like : str, module, array or array type, optional
            As in `dlbridge.to_device`; the array API has neither it nor *copy*.
        stream : StreamLike, optional
            The stream of *device* that a copy is queued on.
        copy : bool, optional
            As in `dlbridge.to_device`.

        Returns
        -------
        Tensor
            This tensor if it is already there. Otherwise a new one, on shared
            memory if possible, else on a copy. Or an array of *like*.

        Raises
        ------
        ExchangeError, TypeError, ValueError, BackendUnavailable, DeviceMemoryError
            As for `dlbridge.to_device`.

        Examples
        --------
        >>> t = bridge.zeros(3)
        >>> t.to_device("cpu") is t
        True
        """
        if stream is None and copy is None and like is None and not TRACES:
            here = self.device
            if device is here or (
                type(device) is str and device in FOUND and FOUND[device] is here
            ):
                return self
        return methods.to_device(self, device, stream=stream, copy=copy, like=like)

    def operand(self) -> Operand:
        """Return what a kernel needs to work on the memory, and put the kernel's work in order.

        Work that is queued on `Operand.stream` comes after the earlier work on
        this memory, and later work of dlbridge on it comes after that.

        Returns
        -------
        Operand
            It keeps the memory alive: hold it until your work has been queued.

        Examples
        --------
        >>> o = bridge.zeros((2, 3)).operand()
        >>> o.device, o.shape, o.nbytes, o.readonly
        (dlbridge.device('cpu:0'), (2, 3), 24, False)
        """
        operand = methods.operand_of(self)
        if operand.size:
            operand.access()
        return operand

    def host_view(self) -> HostView:
        """Return the memory as a CPU tensor without a copy: ``with t.host_view() as h``.

        Until the block ends, work of dlbridge on the device's memory raises
        BufferError, in this thread and in others; see `HostView`.

        Returns
        -------
        HostView
            A context manager that gives the CPU tensor, and a DLPack producer.

        Raises
        ------
        ExchangeError
            With the reason, where the host cannot address the memory.

        Examples
        --------
        >>> t = bridge.zeros(3)
        >>> with t.host_view() as h:
        ...     h.numpy()[:] = 7
        >>> t.tolist()
        [7.0, 7.0, 7.0]
        """
        return methods.host_view(self)

    def to_fd(self) -> tuple[int, dict[str, Any]]:
        """Return a file descriptor of the memory, and where in it the tensor is.

        For memory of `share`, `empty` with ``shared=True``, and `from_fd`: another process or
        program has the same memory by the descriptor, without a copy.

        Returns
        -------
        int
            A new descriptor: close it with ``os.close`` once it was sent. That of a read-only
            tensor cannot be used to write.
        dict
            The arguments of `from_fd` beside the descriptor: ``shape``, ``dtype``, ``offset``, and
            ``strides`` where there are gaps. All of it can be written as JSON.

        Raises
        ------
        ExchangeError
            If no descriptor names the memory. It is also a BufferError.
        DeviceError
            If work of a device on the memory has failed, for which this waits.

        Examples
        --------
        >>> import os
        >>> t = bridge.empty((2, 3), "float32", shared=True)
        >>> fd, layout = t.to_fd()
        >>> layout
        {'shape': [2, 3], 'dtype': 'float32', 'offset': 0}
        >>> same = bridge.from_fd(fd, **layout)
        >>> os.close(fd)
        """
        return methods.to_fd(self)

    def to_native(self) -> Any:  # the class is that of the device's ecosystem
        """Return the device ecosystem's own object over the same memory.

        Returns
        -------
        object
            A pyopencl array on OpenCL, for example; a numpy array on the CPU. With
            ``to_device(t, t.device, like="opencl")`` type checkers know the class, too.

        Raises
        ------
        ExchangeError
            Where the device's backend has no such objects.

        Examples
        --------
        >>> bridge.zeros(3).to_native()
        array([0., 0., 0.], dtype=float32)
        """
        return methods.to_native(self)

    def _forget_memory(self) -> None:
        """Drop the memory, so that every later use finds none: the tensor has expired."""
        del self._array, self._memory


def _whole_of(dtype: DType) -> str:
    """A type of whole bytes that has every value of the packed *dtype*."""
    return {0: "int8", 1: "uint8"}.get(dtype.code, "float32")  # kDLInt, kDLUInt
