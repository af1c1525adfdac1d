"""What a SPIR-V module says of its entry points, their bindings and their push constants.

Only what would end the process, or write to read-only memory, is looked for: the validation layer
says the rest. A module is read as far as it is well-formed, and what it does not say is not
refused. Source: SPIR-V specification 1.6, "Binary Form", "Instructions", "Decoration" and
"Storage Class"; Vulkan specification 1.3, "Shader Resource Interface".
"""

from __future__ import annotations

from array import array
from contextlib import suppress

MAGIC = 0x07230203
COMPUTE = 5  # GLCompute

ENTRY_POINT, FUNCTION, FUNCTION_END, VARIABLE, DECORATE, MEMBER_DECORATE = 15, 54, 56, 59, 71, 72
CONSTANTS = 43, 50  # OpConstant and OpSpecConstant: a kernel gives no other values to these
INT, FLOAT, VECTOR, MATRIX, ARRAY, RUNTIME_ARRAY, STRUCT, POINTER = 21, 22, 23, 24, 28, 29, 30, 32
BLOCK, ROW_MAJOR, ARRAY_STRIDE, MATRIX_STRIDE, NON_WRITABLE = 2, 4, 6, 7, 24
BINDING, DESCRIPTOR_SET, OFFSET = 33, 34, 35
UNIFORM_CONSTANT, UNIFORM, PUSH_CONSTANT, STORAGE_BUFFER = 0, 2, 9, 12


class Module:
    """The declarations of a module.

    Parameters
    ----------
    spirv : bytes
        The module, in little-endian words.
    """

    def __init__(self, spirv: bytes) -> None:
        self.entries: dict[str, int] = {}
        """The compute entry points: their functions."""
        self._types: dict[int, tuple[int, list[int]]] = {}  # code and operands after the result
        self._sizes: dict[int, int] = {}  # of types, in bytes
        self._variables: dict[int, tuple[int, int]] = {}  # pointer type, storage class
        self._constants: dict[int, int] = {}
        # (id, decoration) or (struct, member, decoration): the first operand
        self._decorated: dict[tuple[int, ...], int] = {}
        self._bodies: dict[int, set[int]] = {}  # function: all words in it, ids among them
        body: set[int] = set()
        for code, words in _instructions(spirv):
            body.update(words)
            if code == FUNCTION and len(words) > 1:
                body = self._bodies.setdefault(words[1], set())
            elif code == FUNCTION_END:
                body = set()
            elif code == ENTRY_POINT and len(words) > 2 and words[0] == COMPUTE:
                self.entries[_text(words[2:])] = words[1]
            elif code == VARIABLE and len(words) > 2:
                self._variables[words[1]] = words[0], words[2]
            elif code in CONSTANTS and len(words) == 3:
                self._constants[words[1]] = words[2]
            elif code == DECORATE and len(words) > 1:
                self._decorated[tuple(words[:2])] = words[2] if len(words) > 2 else 0
            elif code == MEMBER_DECORATE and len(words) > 2:
                self._decorated[tuple(words[:3])] = words[3] if len(words) > 3 else 0
            elif INT <= code <= POINTER and len(words) > 1 and words[0] not in self._types:
                with suppress(LookupError, ValueError):  # the module does not say it, or is broken
                    self._declare(code, words[0], words[1:])

    def _declare(self, code: int, number: int, operands: list[int]) -> None:
        """Note a type. What it consists of is declared before it: so no type contains itself."""
        if VECTOR <= code <= RUNTIME_ARRAY:
            self._types[operands[0]]  # LookupError if it is not declared
        self._types[number] = code, operands
        if code in (INT, FLOAT):
            self._sizes[number] = operands[0] // 8
        elif code == VECTOR:
            self._sizes[number] = self._sizes[operands[0]] * operands[1]
        elif code == POINTER:  # to a buffer, by its address
            self._sizes[number] = 8
        elif code == STRUCT:
            ends = [self._end(number, member, kind) for member, kind in enumerate(operands)]
            self._sizes[number] = max(ends)

    def _end(self, struct: int, member: int, kind: int) -> int:
        """Where a member of a struct ends."""
        end = self._decorated[struct, member, OFFSET]
        code, operands = self._types[kind]
        while code == ARRAY:
            end += (self._constants[operands[1]] - 1) * self._decorated[kind, ARRAY_STRIDE]
            kind = operands[0]
            code, operands = self._types[kind]
        if code != MATRIX:
            return end + self._sizes[kind]
        column, columns = operands
        scalar, rows = self._types[column][1]
        stride = self._decorated[struct, member, MATRIX_STRIDE]
        if (struct, member, ROW_MAJOR) in self._decorated:
            return end + (rows - 1) * stride + columns * self._sizes[scalar]
        return end + (columns - 1) * stride + self._sizes[column]

    def _value(self, variable: int) -> tuple[int, int]:
        """The type of a variable's value, inside arrays, and how many such values there are."""
        kind, count = self._variables[variable][0], 1
        code, operands = self._types.get(kind, (0, []))
        if code == POINTER and len(operands) > 1:
            kind = operands[1]
            code, operands = self._types.get(kind, (0, []))
        while code in (ARRAY, RUNTIME_ARRAY):
            count *= self._constants.get(operands[-1], 1) if code == ARRAY else 1
            kind = operands[0]
            code, operands = self._types.get(kind, (0, []))
        return kind, count

    def writable_bindings(self) -> frozenset[int]:
        """The bindings of set 0 that are not marked NonWritable, as variables or by all members.

        That is GLSL's ``readonly``, HLSL's ``ByteAddressBuffer`` and ``StructuredBuffer``.
        """
        bindings = set()
        for variable in self._variables:
            kind, _ = self._value(variable)
            code, members = self._types.get(kind, (0, []))
            marked = (variable, NON_WRITABLE) in self._decorated or (
                code == STRUCT
                and all((kind, i, NON_WRITABLE) in self._decorated for i in range(len(members)))
            )
            binding = self._decorated.get((variable, BINDING))
            if binding is not None and not self._set_of(variable) and not marked:
                bindings.add(binding)
        return frozenset(bindings)

    def check(self, entry: str, buffers: int, push_nbytes: int) -> None:
        """ValueError if *entry* is not there, or needs other bindings or more push constants.

        A driver does not check it: it would read a descriptor or a block that is not there. What
        the entry point uses is what it and the functions that it calls name.
        """
        if self.entries and entry not in self.entries:
            raise ValueError(
                f"entry={entry!r}: the module has no compute shader of that name; it has "
                f"{', '.join(map(repr, self.entries))}"
            )
        used: set[int] = set()
        bodies, left = dict(self._bodies), {self.entries.get(entry, 0)}
        while left:
            words = bodies.pop(left.pop(), set())
            used |= words
            left |= words & bodies.keys()
        needed = set()
        for variable in used & self._variables.keys():
            storage = self._variables[variable][1]
            binding = self._decorated.get((variable, BINDING))
            nbytes = self._sizes.get(self._value(variable)[0], 0)
            if storage == PUSH_CONSTANT and nbytes > push_nbytes:
                raise ValueError(
                    f"the shader's push block has {nbytes} bytes, and push_nbytes={push_nbytes} "
                    f"was given; pass push_nbytes={-(-nbytes // 4) * 4}"  # Vulkan takes whole words
                )
            if storage in (UNIFORM_CONSTANT, UNIFORM, STORAGE_BUFFER) and binding is not None:
                self._check_binding(variable, storage, binding)
                needed.add(binding)
        if needed and max(needed) >= buffers:
            raise ValueError(
                f"the shader uses the bindings {sorted(needed)}, and buffers={buffers} was given; "
                f"pass buffers={max(needed) + 1}, and any tensor for a binding that it does not use"
            )

    def _check_binding(self, variable: int, storage: int, binding: int) -> None:
        kind, count = self._value(variable)
        uniform = storage == UNIFORM and (kind, BLOCK) in self._decorated
        if self._set_of(variable):
            what = f"of set {self._set_of(variable)}"
        elif count > 1:
            what = f"an array of {count} descriptors"
        elif uniform or storage == UNIFORM_CONSTANT:
            what = "a uniform buffer" if uniform else "an image or a sampler"
        else:
            return
        raise ValueError(
            f"the shader's binding {binding} is {what}; a kernel binds one storage buffer to each "
            "binding of set 0: declare it as `buffer` in GLSL, with `set = 0` and a number of its "
            "own, or pass a few numbers as push constants"
        )

    def _set_of(self, variable: int) -> int:
        return self._decorated.get((variable, DESCRIPTOR_SET), 0)


def _text(words: list[int]) -> str:
    """A literal string: an entry point's name."""
    raw = b"".join(word.to_bytes(4, "little") for word in words)
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _instructions(spirv: bytes) -> list[tuple[int, list[int]]]:
    """Each instruction's code and operands, up to the first that is not well-formed."""
    words = array("I", spirv[: len(spirv) // 4 * 4])
    instructions, at = [], 5  # after the header
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            break
        instructions.append((code, words[at + 1 : at + length].tolist()))
        at += length
    return instructions
