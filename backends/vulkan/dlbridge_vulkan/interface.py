"""The interface of a SPIR-V module: its entry points, and what its storage buffers hold.

Source: SPIR-V specification 1.6, "Instructions" and "Execution Model".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dlbridge.errors import ExchangeError

from .spirv import (
    BINDING,
    DECORATE,
    DESCRIPTOR_SET,
    TYPE_ARRAY,
    TYPE_POINTER,
    TYPE_RUNTIME_ARRAY,
    TYPE_STRUCT,
    VARIABLE,
    instructions,
)

__all__ = [
    "Element",
    "check_elements",
    "check_entry",
    "elements_of",
    "entry_points",
    "name_of",
]

ENTRY_POINT, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR = 15, 21, 22, 23
COMPUTE = 5  # GLCompute

INT, UINT, FLOAT, COMPLEX, BOOL = 0, 1, 2, 5, 6  # DLDataTypeCode


class Element(NamedTuple):
    """The scalar type of a storage buffer that is one array of it, or of vectors of it."""

    code: int
    bits: int

    def __str__(self) -> str:
        return f"{ {INT: 'int', UINT: 'uint', FLOAT: 'float'}[self.code] }{self.bits}"


def entry_points(spirv: bytes) -> list[str]:
    """The names of the module's compute entry points."""
    return [
        name_of(words)
        for code, words in instructions(spirv)
        if code == ENTRY_POINT and len(words) > 2 and words[0] == COMPUTE
    ]


def name_of(words: list[int]) -> str:
    """The name of an entry point, from the operands of its OpEntryPoint."""
    raw = b"".join(word.to_bytes(4, "little") for word in words[2:])
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def check_entry(spirv: bytes, entry: str) -> None:
    """ValueError if the module has compute entry points, and *entry* is none of them."""
    names = entry_points(spirv)
    if names and entry not in names:
        raise ValueError(
            f"entry={entry!r}: the module has no compute shader of that name; it has "
            f"{', '.join(map(repr, names))}"
        )


def elements_of(spirv: bytes) -> dict[int, Element]:
    """For each binding of set 0 that is one array of numbers, their type.

    A buffer with several members is left out, and one whose variables differ.
    """
    scalars: dict[int, Element] = {}
    inner: dict[int, int] = {}  # what a vector, array or pointer consists of
    members: dict[int, list[int]] = {}
    variables: dict[int, int] = {}
    decorated: dict[tuple[int, int], int] = {}
    for code, words in instructions(spirv):
        if code == TYPE_INT and len(words) > 2:
            scalars[words[0]] = Element(INT if words[2] else UINT, words[1])
        elif code == TYPE_FLOAT and len(words) == 2:  # a third word is another encoding
            scalars[words[0]] = Element(FLOAT, words[1])
        elif code in (TYPE_VECTOR, TYPE_ARRAY, TYPE_RUNTIME_ARRAY) and len(words) > 1:
            inner[words[0]] = words[1]
        elif code == TYPE_POINTER and len(words) > 2:
            inner[words[0]] = words[2]
        elif code == TYPE_STRUCT and words:
            members[words[0]] = words[1:]
        elif code == VARIABLE and len(words) > 1:
            variables[words[1]] = words[0]
        elif code == DECORATE and len(words) > 2:
            decorated[words[0], words[1]] = words[2]
    found: dict[int, set[Element | None]] = {}
    for variable, kind in variables.items():
        if (variable, BINDING) in decorated and not decorated.get((variable, DESCRIPTOR_SET), 0):
            element = _scalar(kind, scalars, inner, members)
            found.setdefault(decorated[variable, BINDING], set()).add(element)
    return {
        binding: one
        for binding, all_of_it in found.items()
        if len(all_of_it) == 1 and (one := next(iter(all_of_it))) is not None
    }


def _scalar(
    kind: int, scalars: dict[int, Element], inner: dict[int, int], members: dict[int, list[int]]
) -> Element | None:
    """The scalar that the type *kind* consists of; None if it has several members."""
    for _ in range(len(inner) + len(members) + 1):
        if kind in scalars:
            return scalars[kind]
        if kind in members:
            if len(members[kind]) != 1:
                return None
            kind = members[kind][0]
        elif kind in inner:
            kind = inner[kind]
        else:
            return None
    return None


def check_elements(tensors: tuple[Any, ...], elements: dict[int, Element]) -> None:
    """ExchangeError if the elements of a tensor are not those of its binding.

    Unsigned words may be anything, and bytes may become anything: so a shader reads types
    that it does not have.
    """
    for place, tensor in enumerate(tensors):
        wanted, dtype = elements.get(place), getattr(tensor, "dtype", None)
        if wanted is None or not hasattr(dtype, "code") or _fits(dtype, wanted):
            continue
        raise ExchangeError(
            f"tensor {place} holds {dtype}, and the shader's binding {place} {wanted}: convert "
            f"the tensor, or declare the buffer with its type; t.view('{wanted}') gives the same "
            "bytes another name, and a buffer of uint takes anything"
        )


def _fits(dtype: Any, wanted: Element) -> bool:
    """Whether a buffer of *wanted* may hold elements of *dtype*."""
    code, bits = int(dtype.code), int(dtype.bits)
    if wanted.code == UINT or (code, bits) == (UINT, 8):
        return True
    if wanted.code == FLOAT:
        return (code == FLOAT and bits == wanted.bits) or (
            code == COMPLEX and bits == 2 * wanted.bits
        )
    return code in (INT, UINT) and bits == wanted.bits
