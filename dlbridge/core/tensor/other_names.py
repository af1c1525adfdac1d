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


def _refusal(name: str, operator: str) -> Callable[..., object]:
    def refuse(_tensor: object, *other: object) -> object:
        """Raise TypeError, which names a library that computes."""
        # Arrays of other libraries have operators of their own, which may take a tensor.
        if not all(isinstance(x, OtherNames) or type(x) in _NUMBERS for x in other):
            return NotImplemented
        raise TypeError(
            f"a Tensor does not compute (operator {operator}): take an array of a library that "
            "does, such as dlbridge.to_device(t, 'cpu', like='numpy')"
        )

    refuse.__name__ = name
    refuse.__qualname__ = f"Tensor.{name}"
    return refuse


_NUMBERS = (bool, int, float, complex)

# Names of methods, each with its operator.
_REFLECTED = "add:+ sub:- mul:* truediv:/ floordiv:// mod:% pow:** matmul:@"
_OTHERS = "lt:< le:<= gt:> ge:>= neg:- pos:+ invert:~ abs:abs"

for _name, _instead in TENSOR_NAMES.items():
    setattr(OtherNames, _name, Absent(_name, _instead))
for _pair in f"{_REFLECTED} r{_REFLECTED.replace(' ', ' r')} {_OTHERS}".split():
    _name, _sign = _pair.split(":")
    setattr(OtherNames, f"__{_name}__", _refusal(f"__{_name}__", _sign))
