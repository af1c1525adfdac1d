"""What users of other libraries try on a tensor, and what to write instead.

The names are not there: ``hasattr`` is False for a tensor and for its class, and only the
message of the AttributeError differs. (A ``__getattr__`` would say the same, and double
the time of every attribute: 13 ns became 28.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dlbridge.core.values.suggestions import TENSOR_NAMES, Absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["OtherNames"]


class OtherNames:
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


def _refusal(name: str, operator: str) -> Callable[[object, object], object]:
    def refuse(_tensor: object, other: object) -> object:
        """Raise TypeError for a number or a tensor; other libraries' arrays may compute."""
        # Arrays of other libraries have operators of their own, which may take a tensor.
        if not isinstance(other, OtherNames) and type(other) not in _NUMBERS:
            return NotImplemented
        raise TypeError(_NO_OPERATOR.format(operator))

    refuse.__name__ = name
    refuse.__qualname__ = f"Tensor.{name}"
    return refuse


def _unary_refusal(name: str, operator: str) -> Callable[[object], NoReturn]:
    def refuse(_tensor: object) -> NoReturn:
        """Raise TypeError, which names a library that computes."""
        raise TypeError(_NO_OPERATOR.format(operator))

    refuse.__name__ = name
    refuse.__qualname__ = f"Tensor.{name}"
    return refuse


_NO_OPERATOR = (
    "a Tensor does not compute (operator {}): take an array of a library that does, such as "
    "dlbridge.to_device(t, 'cpu', like='numpy')"
)
_NUMBERS = (bool, int, float, complex)
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {"neg": "-", "pos": "+", "invert": "~", "abs": "abs"}

for _name, _instead in TENSOR_NAMES.items():
    setattr(OtherNames, _name, Absent(_name, _instead))
for _name, _sign in _OPERATORS.items():
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(OtherNames, _method, _refusal(_method, _sign))
for _name, _sign in _COMPARISONS.items():
    setattr(OtherNames, f"__{_name}__", _refusal(f"__{_name}__", _sign))
for _name, _sign in _UNARY.items():
    setattr(OtherNames, f"__{_name}__", _unary_refusal(f"__{_name}__", _sign))
