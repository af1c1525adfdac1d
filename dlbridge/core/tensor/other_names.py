"""What users of other libraries try on a tensor, and what to write instead.

The names are not there: ``hasattr`` is False for a tensor and for its class, and only the
message of the AttributeError differs. (A ``__getattr__`` would say the same, and double
the time of every attribute: 13 ns became 28.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dlbridge.core.values.suggestions import TENSOR_NAMES, Absent, WithAbsentNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class OtherNames(metaclass=WithAbsentNames):
    """The base of tensors that explains names and operators which they do not have."""

    __slots__ = ()

    def __dir__(self) -> Iterable[str]:
        """Return the names that are there."""
        return [name for name in super().__dir__() if name not in TENSOR_NAMES]

    if not TYPE_CHECKING:  # to a type checker it would say that it can be done

        def __setitem__(self, _index: object, _value: object) -> NoReturn:
            """Raise TypeError, which names the copy."""
            raise TypeError(
                "a Tensor takes no assignment: dlbridge.copy_(t[index], array) copies an array "
                "into it, and dlbridge.copy_(t[index], dlbridge.full_like(t[index], 1)) a number"
            )


def _refusal(name: str, operator: str, mirror: str) -> Callable[..., object]:
    """The method *name*; *mirror* is the one by which the other operand does the same."""

    def refuse(tensor: object, *other: object) -> object:
        """Raise TypeError, which names a library that computes."""
        # Arrays of other libraries may take a tensor. Python would ask them next, and if they
        # refuse, too, would say "unsupported operand", with the names of two types.
        if other and mirror and not isinstance(other[0], OtherNames):
            theirs = getattr(type(other[0]), mirror, None)
            result = NotImplemented if theirs is None else theirs(other[0], tensor)
            if result is not NotImplemented:
                return result
        home = type(other[0]).__module__.partition(".")[0] if other else ""
        like = home if home in _COMPUTING else "numpy"
        raise TypeError(
            f"a Tensor does not compute (operator {operator}): take an array of a library that "
            f"does, such as dlbridge.to_device(t, 'cpu', like='{like}')"
        )

    refuse.__name__ = name
    refuse.__qualname__ = f"Tensor.{name}"
    return refuse


_COMPUTING = ("cupy", "jax", "paddle", "tensorflow", "torch")

# Names of methods, each with its operator and its mirror. A reflected operator has none: it is
# asked for when the other operand has refused.
_COMPARISONS = "lt:<:gt gt:>:lt le:<=:ge ge:>=:le"
_ARITHMETIC = "add:+ sub:- mul:* truediv:/ floordiv:// mod:% pow:** matmul:@"
_UNARY = "neg:-: pos:+: invert:~: abs:abs:"
_METHODS = [triple.split(":") for triple in f"{_COMPARISONS} {_UNARY}".split()]
for _name, _sign in (pair.split(":") for pair in _ARITHMETIC.split()):
    _METHODS += [[_name, _sign, f"r{_name}"], [f"r{_name}", _sign, ""]]

for _name, _instead in TENSOR_NAMES.items():
    setattr(OtherNames, _name, Absent(_name, _instead))
for _name, _sign, _mirror in _METHODS:
    _method = _refusal(f"__{_name}__", _sign, _mirror and f"__{_mirror}__")
    setattr(OtherNames, f"__{_name}__", _method)
