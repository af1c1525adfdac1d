"""Structural equality and hash of values, and the first difference."""

from __future__ import annotations

from typing import Any, Final

from dlbridge.extending import public_in

from .classes import register_own
from .frames import ask
from .functions import get_global_func
from .objects import Object, bounded, checked
from .reflection import get_registered_type_keys

__all__ = [
    "StructuralKey",
    "get_first_structural_mismatch",
    "structural_equal",
    "structural_hash",
]

_UNSIGNED: Final = (1 << 64) - 1


@public_in("dlbridge.ffi")
def structural_equal(
    lhs: Any, rhs: Any, map_free_vars: bool = False, skip_tensor_content: bool = False
) -> bool:
    """Whether two values have the same structure and content.

    Parameters
    ----------
    lhs, rhs : object
        Any values.
    map_free_vars : bool
        Whether a free variable may stand for another.
    skip_tensor_content : bool
        Whether tensors are compared by shape and dtype only.

    Returns
    -------
    bool
        Whether they are equal.

    Raises
    ------
    ValueError
        If a value contains itself.
    RecursionError
        If it is nested more than 2000 levels deep.

    Examples
    --------
    >>> ffi.structural_equal([1, {"a": 2}], [1, {"a": 2}])
    True
    """
    return _compare("ffi.StructuralEqual", lhs, rhs, map_free_vars, skip_tensor_content)  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def structural_hash(
    value: Any, map_free_vars: bool = False, skip_tensor_content: bool = False
) -> int:
    """A hash that values have in common which are `structural_equal`.

    Parameters
    ----------
    value : object
        Any value.
    map_free_vars, skip_tensor_content : bool
        As in `structural_equal`.

    Returns
    -------
    int
        Unsigned, 64 bits.

    Examples
    --------
    >>> ffi.structural_hash([1, 2]) == ffi.structural_hash((1, 2))
    True
    """
    number = ask("ffi.StructuralHash", checked(value), map_free_vars, skip_tensor_content)
    return number & _UNSIGNED  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def get_first_structural_mismatch(
    lhs: Any, rhs: Any, map_free_vars: bool = False, skip_tensor_content: bool = False
) -> tuple[Any, Any] | None:
    """The paths to the first difference of two values.

    Parameters
    ----------
    lhs, rhs : object
        Any values.
    map_free_vars, skip_tensor_content : bool
        As in `structural_equal`.

    Returns
    -------
    tuple of two AccessPath objects, or None
        None if there is no difference.

    Examples
    --------
    >>> ffi.get_first_structural_mismatch([1, 2], [1, 2]) is None
    True
    """
    paths = _compare("ffi.GetFirstStructuralMismatch", lhs, rhs, map_free_vars, skip_tensor_content)
    return None if paths is None else tuple(paths)


def _compare(name: str, lhs: Any, rhs: Any, *options: bool) -> Any:
    return ask(name, checked(lhs), checked(rhs), *options)


@public_in("dlbridge.ffi")
class StructuralKey(Object):
    """A value as a key, equal to keys with a structurally equal value.

    Parameters
    ----------
    key : object
        Any value.

    Examples
    --------
    >>> table = {ffi.StructuralKey([1, 2]): "found"}
    >>> table[ffi.StructuralKey([1, 2])]
    'found'
    """

    __slots__ = ()

    def __init__(self, key: Any) -> None:
        make = get_global_func("ffi.StructuralKey")
        self.__init_handle_by_constructor__(make, checked(key))

    def __hash__(self) -> int:
        return self.hash_i64  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StructuralKey):
            return NotImplemented
        # Looked at again: a List in a key may have changed since the key was made.
        keys = bounded(self), bounded(other)
        return ask("ffi.StructuralKeyEqual", *keys)  # type: ignore[no-any-return]


if "ffi.StructuralKey" in get_registered_type_keys():  # older libraries do without
    register_own("ffi.StructuralKey", StructuralKey)
