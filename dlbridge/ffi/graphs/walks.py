"""Structural walks and rewrites of values, by callbacks of Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeVar

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.public import public_in
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType

from .._lib import C, ffi
from ..calls.callbacks import make_watched_function
from ..calls.frames import call
from ..calls.registry import builtin, get_global_func
from ..objects.classes import index_of_class
from ..objects.mappings import Map
from ..objects.sequences import Array
from ..objects.shapes import Shape
from ..values.wrappers import Object
from .bounds import Seen, bounded, checked
from .comparison import register_if_known

__all__ = [
    "DefRegionKind",
    "InplaceMode",
    "StructuralMutator",
    "StructuralVisitor",
    "VisitInterrupt",
    "WalkOrder",
    "WalkResult",
    "structural_map",
    "structural_mutate",
    "structural_visit",
    "structural_walk",
]


_Result = TypeVar("_Result")


class WalkOrder(IntEnum):
    """When a callback runs: before a value's children, or after them.

    Examples
    --------
    >>> seen = []
    >>> ffi.structural_walk([1, 2], (int, seen.append), order=ffi.WalkOrder.PREORDER)
    >>> seen
    [1, 2]
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    PREORDER = 0
    POSTORDER = 1


class WalkResult(IntEnum):
    """Results of a callback of `structural_walk`; SKIP leaves the children out.

    Examples
    --------
    >>> seen = []
    >>> def look(value):
    ...     seen.append(value)
    ...     return ffi.WalkResult.SKIP
    >>> ffi.structural_walk([[1]], look, order="pre")
    >>> len(seen)
    1
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    ADVANCE = 0
    SKIP = 1


class InplaceMode(IntEnum):
    """Whether a callback of `structural_mutate` may change its value in place.

    Examples
    --------
    >>> modes = []
    >>> look = lambda value, mutator, mode: modes.append(mode) or value
    >>> _ = ffi.structural_mutate([1], (int, look))
    >>> modes[0] in list(ffi.InplaceMode)
    True
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    DISALLOW = 0
    ALLOW = 1


class DefRegionKind(IntEnum):
    """Whether a value is seen where names are defined (TVMFFIDefRegionKind).

    Examples
    --------
    >>> kinds = []
    >>> ffi.structural_walk([1], with_def_region_kind=(int, lambda value, kind: kinds.append(kind)))
    >>> kinds == [ffi.DefRegionKind.NONE]
    True
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    NONE = C.kTVMFFIDefRegionKindNone
    DEF_PATTERN = C.kTVMFFIDefRegionKindPattern
    DEF_SIMPLE = C.kTVMFFIDefRegionKindSimple


@register_if_known("ffi.VisitInterrupt")
class VisitInterrupt(Object):
    """The result of a callback that stops a walk.

    Parameters
    ----------
    value : object
        Goes to the caller, as the attribute `value`.

    Examples
    --------
    >>> stop = lambda x: ffi.VisitInterrupt(x) if x > 1 else None
    >>> ffi.structural_walk([1, 2, 3], (int, stop)).value
    2
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()

    def __init__(self, value: Any = None) -> None:
        make = get_global_func("ffi.VisitInterrupt")
        self.__init_handle_by_constructor__(make, value)  # type: ignore[attr-defined]


@register_if_known("ffi.StructuralVisitor")
class StructuralVisitor(Object):
    """The second argument of a callback of `structural_visit`, which continues the visit.

    Examples
    --------
    >>> seen = []
    >>> def look(value, visitor):
    ...     seen.append(value)
    ...     return visitor.default_visit(value)
    >>> ffi.structural_visit([1], look)
    >>> seen
    [(1,), 1]
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()

    def visit(self, value: Any) -> VisitInterrupt | None:
        """Visit *value* as the running visit does: a callback that fits is called with it.

        Parameters
        ----------
        value : object
            Any value, usually a part of the callback's own.

        Returns
        -------
        VisitInterrupt or None
            What a callback has stopped the visit of *value* with. Return it from
            your callback, so that the whole visit stops.

        Examples
        --------
        >>> seen = []
        >>> first = lambda value, visitor: visitor.visit(value[0])
        >>> number = lambda value, visitor: seen.append(value)
        >>> ffi.structural_visit([1, 2], [(ffi.Array, first), (int, number)])
        >>> seen
        [1]
        """
        return _run("ffi.StructuralVisitorVisit", self, _bounded(value))  # type: ignore[no-any-return]

    def default_visit(self, value: Any) -> VisitInterrupt | None:
        """Visit the children of *value*, without a callback for *value* itself.

        Parameters
        ----------
        value : object
            Usually the callback's own.

        Returns
        -------
        VisitInterrupt or None
            What a callback has stopped the visit with. Return it from your callback,
            so that the whole visit stops.

        Examples
        --------
        >>> sizes = []
        >>> def look(value, visitor):
        ...     sizes.append(len(value))
        ...     return visitor.default_visit(value)
        >>> ffi.structural_visit([1, [2]], (ffi.Array, look))
        >>> sizes
        [2, 1]
        """
        return _run("ffi.StructuralVisitorDefaultVisit", self, _bounded(value))  # type: ignore[no-any-return]

    def def_region_kind(self) -> DefRegionKind:
        """Whether the visit is now where names are defined.

        Returns
        -------
        DefRegionKind
            The kind of the region.

        Examples
        --------
        >>> kinds = []
        >>> look = lambda value, visitor: kinds.append(visitor.def_region_kind())
        >>> ffi.structural_visit([1], look)
        >>> kinds
        [<DefRegionKind.NONE: 0>]
        """
        return DefRegionKind(_run("ffi.StructuralVisitorDefRegionKind", self))

    def with_def_region_kind(self, kind: int, callback: Callable[[], _Result]) -> _Result:
        """Call *callback* while the visit is as if in a region of *kind*.

        Parameters
        ----------
        kind : DefRegionKind
            Its number is taken, too. Afterwards the visit is where it was.
        callback : callable
            A function without parameters.

        Returns
        -------
        object
            The result of *callback*. It goes through C: a subclass of int comes back as int.

        Examples
        --------
        >>> kinds = []
        >>> def look(value, visitor):
        ...     simple = ffi.DefRegionKind.DEF_SIMPLE
        ...     kinds.append(visitor.with_def_region_kind(simple, visitor.def_region_kind))
        >>> ffi.structural_visit([1], look)
        >>> kinds == [ffi.DefRegionKind.DEF_SIMPLE]
        True
        """
        return _run("ffi.StructuralVisitorWithDefRegionKind", self, int(kind), callback)  # type: ignore[no-any-return]


@register_if_known("ffi.StructuralMutator")
class StructuralMutator(Object):
    """The second argument of a callback of `structural_mutate`, which continues the rewrite.

    Examples
    --------
    >>> ffi.structural_mutate([[1]], (int, lambda value, mutator: value + 1))
    ((2,),)
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()

    def mutate(self, value: Any) -> Any:  # anybody's: what the callbacks make
        """Rewrite *value* as the running rewrite does: a callback that fits is called with it.

        Parameters
        ----------
        value : object
            Any value, usually a part of the callback's own.

        Returns
        -------
        object
            The new value; *value* itself if nothing changes.

        Examples
        --------
        >>> last = lambda value, mutator: mutator.mutate(value[-1])
        >>> negate = lambda value, mutator: -value
        >>> ffi.structural_mutate([1, 2], [(ffi.Array, last), (int, negate)])
        -2
        """
        return _run("ffi.StructuralMutatorMutate", self, _bounded(value))

    def default_mutate(self, value: Any) -> Any:  # anybody's: likewise
        """Rewrite the children of *value*, without a callback for *value* itself.

        Parameters
        ----------
        value : object
            Usually the callback's own.

        Returns
        -------
        object
            The new value; *value* itself if nothing changes.

        Examples
        --------
        >>> inside = lambda value, mutator: mutator.default_mutate(value)
        >>> negate = lambda value, mutator: -value
        >>> ffi.structural_mutate([1, [2]], [(ffi.Array, inside), (int, negate)])
        (-1, (-2,))
        """
        return _run("ffi.StructuralMutatorDefaultMutate", self, _bounded(value))

    def var_remap_get(self, var: Object) -> Any:  # anybody's: what was noted
        """The replacement that is noted for a variable.

        Parameters
        ----------
        var : Object
            The variable.

        Returns
        -------
        object
            What `var_remap_set` has noted in this rewrite; None if there is nothing.

        Raises
        ------
        TypeError
            If *var* is a plain value and not an object.

        Examples
        --------
        >>> look = lambda value, mutator: mutator.var_remap_get(value) or "nothing"
        >>> ffi.structural_mutate([1], (ffi.Array, look))
        'nothing'
        """
        return _run("ffi.StructuralMutatorVarRemapGet", self, var)

    def var_remap_set(self, var: Object, mapped_value: Any) -> None:
        """Note a replacement for a variable, until the rewrite ends.

        Parameters
        ----------
        var : Object
            The variable.
        mapped_value : object
            What replaces it.

        Raises
        ------
        TypeError
            If *var* is a plain value and not an object.

        Examples
        --------
        >>> def look(value, mutator):
        ...     mutator.var_remap_set(value, "new")
        ...     return mutator.var_remap_get(value)
        >>> ffi.structural_mutate([1], (ffi.Array, look))
        'new'
        """
        _run("ffi.StructuralMutatorVarRemapSet", self, var, mapped_value)

    def def_region_kind(self) -> DefRegionKind:
        """Whether the rewrite is now where names are defined.

        Returns
        -------
        DefRegionKind
            The kind of the region.

        Examples
        --------
        >>> kind = lambda value, mutator: mutator.def_region_kind().name
        >>> ffi.structural_mutate([1], (int, kind))
        ("NONE",)
        """
        return DefRegionKind(_run("ffi.StructuralMutatorDefRegionKind", self))

    def with_def_region_kind(self, kind: int, callback: Callable[[], _Result]) -> _Result:
        """Call *callback* while the rewrite is as if in a region of *kind*.

        Parameters
        ----------
        kind : DefRegionKind
            Its number is taken, too. Afterwards the rewrite is where it was.
        callback : callable
            A function without parameters.

        Returns
        -------
        object
            The result of *callback*. It goes through C: a subclass of int comes back as int.

        Examples
        --------
        >>> def look(value, mutator):
        ...     simple = ffi.DefRegionKind.DEF_SIMPLE
        ...     return mutator.with_def_region_kind(simple, lambda: 10 * value)
        >>> ffi.structural_mutate([1], (int, look))
        (10,)
        """
        return _run("ffi.StructuralMutatorWithDefRegionKind", self, int(kind), callback)  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def structural_walk(
    root: Any,
    callbacks: Any = (),
    with_def_region_kind: Any = (),
    order: str | WalkOrder = "post",
) -> VisitInterrupt | None:
    """Call the first callback that fits, on *root* and everything in it.

    A callback returns None, a `WalkResult`, or a `VisitInterrupt` to stop.

    Parameters
    ----------
    root : object
        Any value.
    callbacks : callable, tuple or sequence of tuples
        A function of a value, ``(type, function)``, ``((type, ...), function)``, or
        a sequence of those. The first that fits a value is called.
    with_def_region_kind : as *callbacks*
        Functions of a value and its `DefRegionKind`.
    order : {"post", "pre"} or WalkOrder
        Whether a value comes after its children or before them.

    Returns
    -------
    VisitInterrupt or None
        What a callback has stopped the walk with.

    Raises
    ------
    ValueError
        If *root* contains itself, or *order* is another.
    RecursionError
        If it is nested more than 2000 levels deep.

    Examples
    --------
    >>> seen = []
    >>> ffi.structural_walk([1, ["x", 2]], (int, seen.append))
    >>> seen
    [1, 2]
    """
    entries = _entries(callbacks), _entries(with_def_region_kind, kinds=True)
    if not _order(order):
        entries = _watch(entries, _walked)
    return _run("ffi.StructuralWalk", checked(root), *entries, _order(order))  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def structural_visit(root: Any, callbacks: Any = ()) -> VisitInterrupt | None:
    """Like `structural_walk`, but each callback visits the children of its value itself.

    Parameters
    ----------
    root : object
        Any value.
    callbacks : callable, tuple or sequence of tuples
        A function of a value, ``(type, function)``, ``((type, ...), function)``, or
        a sequence of those. The first that fits a value is called.
        It gets a value and a `StructuralVisitor`.

    Returns
    -------
    VisitInterrupt or None
        What a callback has stopped the visit with.

    Examples
    --------
    >>> ffi.structural_visit([1, 2], (int, lambda value, visitor: ffi.VisitInterrupt(value))).value
    1
    """
    return _descend("ffi.StructuralVisit", root, _entries(callbacks))  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def structural_map(
    root: Any,
    callbacks: Any = (),
    with_def_region_kind: Any = (),
    order: str | WalkOrder = "post",
) -> Any:  # anybody's: what the callbacks make
    """*root* with everything replaced by what the first callback that fits returns for it.

    Parameters
    ----------
    root : object
        It is left as it is, unless it comes as ``root._move()``.
    callbacks : callable, tuple or sequence of tuples
        A function of a value, ``(type, function)``, ``((type, ...), function)``, or
        a sequence of those. The first that fits a value is called.
    with_def_region_kind : as *callbacks*
        Functions of a value and its `DefRegionKind`.
    order : {"post", "pre"} or WalkOrder
        Whether a value comes after its children or before them.

    Returns
    -------
    object
        *root* itself if nothing changes.

    Examples
    --------
    >>> ffi.structural_map([1, ["x", 2]], (int, lambda x: 10 * x))
    (10, ("x", 20))
    """
    entries = _entries(callbacks), _entries(with_def_region_kind, kinds=True)
    if not _order(order):
        entries = _watch(entries, _mapped)
    return _run("ffi.StructuralMap", checked(root), *entries, _order(order))


@public_in("dlbridge.ffi")
def structural_mutate(root: Any, callbacks: Any = ()) -> Any:  # anybody's: what the callbacks make
    """Like `structural_map`, but each callback rewrites the children of its value itself.

    Parameters
    ----------
    root : object
        It is left as it is, unless it comes as ``root._move()``.
    callbacks : callable, tuple or sequence of tuples
        A function of a value, ``(type, function)``, ``((type, ...), function)``, or
        a sequence of those. The first that fits a value is called.
        It gets a value, a `StructuralMutator`, and an `InplaceMode` if it has a
        third parameter.

    Returns
    -------
    object
        *root* itself if nothing changes.

    Examples
    --------
    >>> ffi.structural_mutate([1, "x"], (int, lambda value, mutator: -value))
    (-1, "x")
    """
    entries = [(*entry, _takes_mode(entry[1])) for entry in _entries(callbacks)]
    return _descend("ffi.StructuralMutate", root, entries)


def _run(name: str, *arguments: Any) -> Any:
    """Call a function of the library that calls Python back, without holding the GIL."""
    return call(ffi.cast("void *", builtin(name)), arguments)


class _Running(threading.local):
    """The visit or the mutation that runs in this thread, if one does."""

    seen: Seen | None = None


_running = _Running()


def _descend(name: str, root: Any, entries: Any) -> Any:
    """Run a visit or a mutation of *root*, whose callbacks may go on to other values."""
    before, _running.seen = _running.seen, Seen()
    try:
        return _run(name, _bounded(root), entries)
    finally:
        _running.seen = before


def _bounded(value: Any) -> Any:
    """*value*, which does not contain itself. Parts of what runs were looked at before."""
    return checked(value, _running.seen)


_STACK: Final = 3 << 20
"""Bytes of stack between callbacks of one walk: MAX_DEPTH levels take up to 2.9 MB on x86-64."""

_Entries = list[tuple[int, Any]]


def _watch(entries: tuple[_Entries, _Entries], look: Callable[[Any, Any], Any]) -> Any:
    """The *entries* of a walk in pre-order, where C++ descends into what a callback leaves.

    *look* gets the value and the result of each call, and returns what C++ gets. How deep
    C++ is, its stack says: it may descend into one result after the other.
    """
    first: list[int] = []

    def watched(function: Callable[..., Any]) -> Any:
        def enter(place: int, value: Any, *kind: int) -> Any:
            if not first:
                first.append(place)
            if first[0] - place > _STACK:
                raise RecursionError(
                    "what the callbacks return or change is nested too deep, perhaps without "
                    "end: the library calls them for the parts of it, too. Use order='post'"
                )
            return look(value, function(value, *kind))

        return make_watched_function(enter)

    return tuple([(index, watched(function)) for index, function in part] for part in entries)


def _walked(value: Any, result: Any) -> Any:
    """The result of a walk's callback, which may have changed a List, a Dict or an object."""
    if isinstance(value, Object) and not isinstance(value, (Array, Map)):
        bounded(value)
    return result


def _mapped(value: Any, result: Any) -> Any:
    """The result of a map's callback, to be looked at."""
    if result is value and isinstance(value, (Array, Map)):
        return result  # as it was
    return checked(result)


def _order(order: str | WalkOrder) -> int:
    if isinstance(order, WalkOrder):
        return int(order)
    if order not in ("pre", "post"):
        raise ValueError(f'order must be "pre", "post" or a WalkOrder, not {order!r}')
    return int(order == "post")


# --- Callbacks --------------------------------------------------------------------

_INDICES: Final[dict[Any, int]] = {
    Any: C.kTVMFFIAny,
    object: C.kTVMFFIAny,
    None: C.kTVMFFINone,
    type(None): C.kTVMFFINone,
    bool: C.kTVMFFIBool,
    int: C.kTVMFFIInt,
    float: C.kTVMFFIFloat,
    str: C.kTVMFFIStr,
    bytes: C.kTVMFFIBytes,
    list: C.kTVMFFIList,
    tuple: C.kTVMFFIArray,
    dict: C.kTVMFFIDict,
    Callable: C.kTVMFFIFunction,
    DType: C.kTVMFFIDataType,
    Device: C.kTVMFFIDevice,
    Shape: C.kTVMFFIShape,
    Tensor: C.kTVMFFITensor,
}


def _type_index(kind: Any) -> int:
    found = _INDICES.get(kind)
    if found is None and isinstance(kind, type) and issubclass(kind, Object):
        found = index_of_class(kind)
    if found is None:
        raise TypeError(
            f"a callback's type must be Any, a builtin, or a class of the library's objects, "
            f"not {kind!r}"
        )
    return found


def _entries(callbacks: Any, kinds: bool = False) -> list[tuple[int, Callable[..., Any]]]:
    """``(type index, function)`` of each callback in any of the forms that are allowed."""
    if callable(callbacks):
        callbacks = (Any, callbacks)
    if isinstance(callbacks, tuple) and len(callbacks) == 2 and callable(callbacks[1]):
        callbacks = [callbacks]
    entries: list[tuple[int, Callable[..., Any]]] = []
    for entry in callbacks:
        if not isinstance(entry, tuple) or len(entry) != 2 or not callable(entry[1]):
            raise TypeError(f"a callback must be a function or (type, function), not {entry!r}")
        types, function = entry
        function = _with_kind(function) if kinds else function
        all_types = types if isinstance(types, tuple) else (types,)
        entries += [(_type_index(kind), function) for kind in all_types]
    return entries


def _with_kind(function: Callable[[Any, DefRegionKind], Any]) -> Callable[[Any, int], Any]:
    return lambda value, kind: function(value, DefRegionKind(kind))


def _takes_mode(function: Callable[..., Any]) -> bool:
    """Whether a callback of `structural_mutate` has a third parameter."""
    import inspect

    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError) as exc:
        if is_from_handler(exc.__traceback__):
            raise
        return False
    return True
