"""Reading of SPIR-V modules: which of its storage buffers a module may write to.

Source: SPIR-V specification 1.6, "Binary Form" and "Instructions". The module
is only read as far as it is well-formed; Vulkan itself checks no more.
"""

from __future__ import annotations

from array import array

__all__ = ["MAGIC", "instructions", "writable_bindings"]

MAGIC = 0x07230203

TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER, VARIABLE = 28, 29, 30, 32, 59
DECORATE, MEMBER_DECORATE = 71, 72
NON_WRITABLE, BINDING, DESCRIPTOR_SET = 24, 33, 34


def writable_bindings(spirv: bytes) -> frozenset[int]:
    """The bindings of set 0 that are not marked NonWritable.

    Parameters
    ----------
    spirv : bytes
        A module in little-endian words.

    Returns
    -------
    frozenset of int
        Numbers of bindings. A binding is marked if each variable of it, or each
        member of its block, has the decoration ``NonWritable`` (GLSL's
        ``readonly``, HLSL's ``ByteAddressBuffer`` and ``StructuredBuffer``).
    """
    members: dict[int, int] = {}  # struct: number of its members
    inner: dict[int, int] = {}  # pointer or array type: what it points to, or holds
    variables: dict[int, int] = {}  # variable: its pointer type
    decorated: dict[tuple[int, int], int] = {}  # (variable, decoration): its first operand
    frozen: dict[int, set[int]] = {}  # struct: its members that are NonWritable
    for code, words in instructions(spirv):
        if code == TYPE_STRUCT and words:
            members[words[0]] = len(words) - 1
        elif code in (TYPE_ARRAY, TYPE_RUNTIME_ARRAY) and len(words) > 1:
            inner[words[0]] = words[1]
        elif code == TYPE_POINTER and len(words) > 2:
            inner[words[0]] = words[2]
        elif code == VARIABLE and len(words) > 1:
            variables[words[1]] = words[0]
        elif code == DECORATE and len(words) > 1:
            decorated[words[0], words[1]] = words[2] if len(words) > 2 else 0
        elif code == MEMBER_DECORATE and len(words) > 2 and words[2] == NON_WRITABLE:
            frozen.setdefault(words[0], set()).add(words[1])

    def marked(variable: int, kind: int) -> bool:
        for _ in range(len(inner)):  # through the pointer, and arrays of buffers
            kind = inner.get(kind, kind)
        count = members.get(kind, 0)
        whole = bool(count) and len(frozen.get(kind, ())) == count
        return (variable, NON_WRITABLE) in decorated or whole

    return frozenset(
        decorated[variable, BINDING]
        for variable, kind in variables.items()
        if (variable, BINDING) in decorated
        and decorated.get((variable, DESCRIPTOR_SET), 0) == 0
        and not marked(variable, kind)
    )


def instructions(spirv: bytes) -> list[tuple[int, list[int]]]:
    """Each instruction's code and operands, up to the first that is not well-formed."""
    words = array("I", spirv[: len(spirv) // 4 * 4])
    found, at = [], 5  # after the header
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            break
        found.append((code, words[at + 1 : at + length].tolist()))
        at += length
    return found
