"""The class of a library's description: what dlbridge must know of its arrays, in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dlbridge.core.public import for_guests, public
from dlbridge.core.values.devices import DLDeviceType

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device

    Look = tuple[Callable[[Any], tuple[object, object, tuple[int, ...], int]], Callable[[Any], int]]

HOST_ONLY: frozenset[int] = frozenset({DLDeviceType.kDLCPU})
ALL_HOST: frozenset[int] = HOST_ONLY | {
    DLDeviceType.kDLCUDAHost,
    DLDeviceType.kDLCUDAManaged,
    DLDeviceType.kDLROCMHost,
}

PACKED = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})
FLOAT8 = frozenset(
    f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
)


@for_guests
class Exchange(NamedTuple):
    """A function by which arrays come into a library or out of it, for `dlbridge.watch`.

    Attributes
    ----------
    name : str
        Where it is, below the module of the library, ``"from_numpy"`` or ``"Tensor.numpy"``, or in
        another module, ``"mylib.arrays:Array.numpy"``. It is looked up, never imported. What is
        not there, in another version for example, is left out.
    makes : str
        What it returns, in the words of the table: ``"torch.Tensor"``, ``"list"``.
    result : str
        What it does with one argument, if that does not depend on the array: ``"shared"`` or
        ``"copied"``. ``"moved"``: it returns an array of its own library, perhaps on another
        device. Empty: the addresses of the argument and of the result tell.
    argument : str
        The name of the parameter that is the array, of a Python function; empty: the first one.
        The function must not assign it: it may be read when the function returns.

    Examples
    --------
    >>> from dlbridge.libraries import Exchange
    >>> Exchange("Array.to_numpy", "numpy.ndarray", "shared").argument
    ''
    """

    name: str
    makes: str
    result: Literal["", "shared", "copied", "moved"] = ""
    argument: str = ""


@for_guests
def exchanges(
    makes: str, names: str, result: Literal["", "shared", "copied", "moved"] = ""
) -> tuple[Exchange, ...]:
    """Return an `Exchange` for each of several functions that make the same.

    Parameters
    ----------
    makes : str
        What they return.
    names : str
        Where they are, with spaces between them.
    result : str
        What they do with one argument.

    Returns
    -------
    tuple of Exchange
        In the order of *names*.

    Examples
    --------
    >>> from dlbridge.extending import exchanges
    >>> [each.name for each in exchanges("mylib.Array", "array asarray")]
    ['array', 'asarray']
    """
    return tuple(Exchange(name, makes, result) for name in names.split())


@public
class Library(NamedTuple):
    """The facts about a library's arrays that dlbridge must know. The defaults are the safest.

    dlbridge has the descriptions of the libraries that it knows. Others give
    theirs by the entry-point group ``dlbridge.libraries``, under the name of
    the package that has the arrays; nothing of the library is imported until it is used.

    Attributes
    ----------
    name : str
        What ``like=`` calls it: the name of the module.
    arrays : tuple of str
        The classes of its arrays, as package and class: ``"torch.Tensor"``, or
        ``"torch.*"`` for all classes. The class may be defined in any module of
        the package.
    special : tuple of Library
        Descriptions of those of its classes for which other facts hold.
    refuse : callable or None
        Gets an array; raises `ExchangeError` with the way out if the array has
        something that DLPack cannot say (gradients, masks, missing values), or
        no plain memory.
    expose : callable or None
        Gets an array and *copy*; returns the object to take instead: a `Tensor` on the array's
        memory (`dlbridge.extending.tensor_on`), or another array that it holds. *copy* False
        forbids a copy here; the one that True asks for is made behind it. `explain` and `trace`
        call it twice: a result at another address is a copy, which they show.
    by_arrow : callable or None
        Gets an array with ``__dlpack__``; whether it exports itself by Arrow's interface only.
    importer : callable or None
        Gets a class of *arrays*, once; returns a function that makes a `Tensor` of an
        array of exactly that class faster than dlbridge's own way, with the same result.
    check_memory : callable or None
        Gets an `Operand`, before its bytes are copied, and the array of which *importer* has made
        it; raises `ExchangeError` if not all of it is in memory of that array.
    on_host : callable or None
        Gets an array; whether it is in the CPU's memory. None: all are, or *importer* is not
        worth a question.
    as_numpy, of_numpy : callable or None
        Called once, when the library is loaded: returns a function that gives the numpy
        array on the memory of an array, or the array on the memory of a writable numpy
        array, or None where that is impossible.
    new_structs : bool
        Whether each capsule has a struct of its own, which nobody reads but who asked for it.
    immutable : bool
        Whether its arrays must never be written, although a legacy capsule of
        one cannot say so.
    lends : bool
        Whether its exports do not keep the memory alive, so that dlbridge must keep
        the array beside them.
    backend : str
        The backend whose native objects its arrays are; empty if there is none.
    make : callable, str or None
        Gets a `Tensor` and returns an array of the library on the same memory; or the path of
        such a function, ``"mylib.arrays:Array.of"``. None: the library's own ``from_dlpack``.
    takes : str
        What *make* gets: ``"tensor"``, its legacy ``"capsule"``, or its array of ``"numpy"``.
    check : callable or None
        Gets a `Tensor`, before it is moved or copied, and the `Device` that its array shall be
        on; raises `ExchangeError` if the library would change it, or has no such arrays there.
        What a compact copy would mend (strides that the facts below do not name) is no error:
        return the reason for the copy, a str.
    copies : bool
        Whether *make* always copies.
    copied_types : frozenset of str
        The names of those dtypes of *types* of which *make* always copies.
    keeps_readonly : bool
        Whether it never writes to memory that is marked READ_ONLY.
    takes_negative_strides : bool
        Whether it understands them.
    takes_padding : bool
        Whether it understands padded sub-byte elements (IS_SUBBYTE_TYPE_PADDED).
    keeps_types : bool
        Whether it refuses the types that it does not have, instead of changing
        them. Otherwise dlbridge compares the result with the tensor.
    types : frozenset of str or None
        The names of the dtypes that its arrays can have; None: not known.
    compact_only : bool
        Whether it takes compact memory only.
    any_order : bool
        Whether compact memory may have its axes in any order.
    alignment : int
        Bytes. The library copies, or refuses, memory of lower alignment.
    device_types : frozenset of int or None
        The DLDeviceTypes that its arrays can be on; None: not known.
    host_types : frozenset of int
        The DLDeviceTypes of host memory that it accepts; memory of the others is
        exported as kDLCPU.
    exchanges : tuple of Exchange
        The functions by which arrays come in and out, which `dlbridge.watch` looks for.
    look : two callables or None
        What `dlbridge.watch` asks at each exchange, which keeps, copies and waits for nothing. The
        first gets an array; returns its device (``"cpu"``, without a number) and its dtype, whose
        texts the table shows, its shape, a tuple, and its number of bytes. The second returns the
        address of its first element; 0 where it has none, or none of the host's. None, or one that
        raises: `dlbridge.asarray` of the array is asked, which takes longer.

    Examples
    --------
    In the package ``mylib``, whose metadata has the entry point
    ``mylib = "mylib.bridge:LIBRARY"`` in the group ``dlbridge.libraries``:

    >>> from dlbridge.libraries import Library
    >>> LIBRARY = Library("mylib", ("mylib.Array",), keeps_readonly=True, keeps_types=True)
    """

    name: str
    arrays: tuple[str, ...] = ()
    special: tuple[Library, ...] = ()
    refuse: Callable[[Any], None] | None = None
    expose: Callable[[Any, bool | None], Any] | None = None
    by_arrow: Callable[[Any], bool] | None = None
    importer: Callable[[type], Callable[[Any], Tensor]] | None = None
    check_memory: Callable[[Any, Any], object] | None = None
    on_host: Callable[[Any], bool] | None = None
    as_numpy: Callable[[], Callable[[Any], Any]] | None = None
    of_numpy: Callable[[], Callable[[Any], Any]] | None = None
    new_structs: bool = False
    immutable: bool = False
    lends: bool = False
    backend: str = ""
    make: Callable[[Any], Any] | str | None = None
    takes: Literal["tensor", "capsule", "numpy"] = "tensor"
    check: Callable[[Tensor, Device], object] | None = None
    copies: bool = False
    copied_types: frozenset[str] = frozenset()
    keeps_readonly: bool = False
    takes_negative_strides: bool = False
    takes_padding: bool = False
    keeps_types: bool = False
    types: frozenset[str] | None = None
    compact_only: bool = False
    any_order: bool = False
    alignment: int = 1
    device_types: frozenset[int] | None = None
    host_types: frozenset[int] = HOST_ONLY
    exchanges: tuple[Exchange, ...] = ()
    look: Look | None = None


@for_guests
def is_array_of(library: Library, cls: type, exactly: bool = False) -> bool:
    """Return whether a class is one of the array classes of a library.

    Parameters
    ----------
    library : Library
        Its description.
    cls : type
        Any class.
    exactly : bool
        Whether the class itself must be one; else a base of it may be.

    Returns
    -------
    bool
        By the names in `Library.arrays`; nothing is imported.

    Examples
    --------
    >>> from dlbridge.extending import is_array_of, library_of
    >>> is_array_of(library_of(np.ndarray), np.ma.MaskedArray)
    True
    """
    for entry in library.arrays:
        package, _, name = entry.rpartition(".")
        for base in (cls,) if exactly else cls.__mro__:
            # jax's class has a dotted name.
            own = base.__name__.rpartition(".")[2]
            if name in ("*", own) and f"{base.__module__}.".startswith(f"{package}."):
                return True
    return False


@for_guests
def origin_of(x: Any) -> str:
    """Return the type of an object in words, for messages and the ``origin`` of a `Memory`.

    Parameters
    ----------
    x : object
        Anything.

    Returns
    -------
    str
        The module and the name of its class.

    Examples
    --------
    >>> from dlbridge.extending import origin_of
    >>> origin_of(np.zeros(3))
    'numpy.ndarray'
    """
    return f"{type(x).__module__}.{type(x).__qualname__}"
