"""What an entry point of a SPIR-V module needs: descriptor bindings, and push constants.

Only what the functions that it calls can use counts. What the module does not say is
not refused. Source: SPIR-V specification 1.6, "Instructions", "Decoration" and
"Storage Class"; Vulkan specification 1.3, "Shader Resource Interface".
"""

from __future__ import annotations

from collections.abc import Iterator

from .interface import COMPUTE, ENTRY_POINT, TYPE_FLOAT, TYPE_INT, TYPE_VECTOR, name_of
from .spirv import (
    BINDING,
    DECORATE,
    DESCRIPTOR_SET,
    MEMBER_DECORATE,
    TYPE_ARRAY,
    TYPE_POINTER,
    TYPE_RUNTIME_ARRAY,
    TYPE_STRUCT,
    VARIABLE,
    instructions,
)

__all__ = ["check_layout"]

TYPE_MATRIX, CONSTANT, SPEC_CONSTANT = 24, 43, 50
FORWARD_POINTER = 39
TYPES = (*range(TYPE_INT, TYPE_POINTER + 1), FORWARD_POINTER)
FUNCTION, FUNCTION_END, FUNCTION_CALL = 54, 56, 57
BLOCK, ROW_MAJOR, ARRAY_STRIDE, MATRIX_STRIDE, OFFSET = 2, 4, 6, 7, 35

UNIFORM_CONSTANT, UNIFORM, PUSH_CONSTANT, STORAGE_BUFFER = 0, 2, 9, 12

OPERANDS = {
    # The operands that may be pointers. The numbers of the others are not names of variables.
    **dict.fromkeys((60, 61, 65, 66, 67, 68, 70), slice(2, 3)),  # OpLoad, OpAccessChain, ...
    62: slice(0, 2),  # OpStore
    63: slice(0, 2),  # OpCopyMemory
    64: slice(0, 2),  # OpCopyMemorySized
    83: slice(2, 3),  # OpCopyObject
    169: slice(2, 5),  # OpSelect
    245: slice(2, None, 2),  # OpPhi
    254: slice(0, 1),  # OpReturnValue
    FUNCTION_CALL: slice(3, None),
    228: slice(0, 1),  # OpAtomicStore
    **dict.fromkeys((227, *range(229, 243), 6035), slice(2, 3)),  # the other atomic operations
    4457: slice(2, 3),  # OpCooperativeMatrixLoadKHR
    4458: slice(0, 1),  # OpCooperativeMatrixStoreKHR
}


class _Module:
    """The declarations of a module that tell what its entry points need."""

    def __init__(self, spirv: bytes) -> None:
        self.entries: dict[str, int] = {}  # compute entry point: its function
        self.types: dict[int, tuple[int, list[int]]] = {}  # code and operands after the result
        self.variables: dict[int, tuple[int, int]] = {}  # pointer type, storage class
        self.constants: dict[int, int] = {}
        self.decorated: dict[tuple[int, int], int] = {}  # (id, decoration): its first operand
        self.members: dict[tuple[int, int, int], int] = {}  # (struct, member, decoration)
        self.called: dict[int, set[int]] = {}  # function: the functions that it calls
        self.used: dict[int, set[int]] = {}  # function: what may be a variable that it uses
        function = None
        for code, words in instructions(spirv):
            if function is not None and code in OPERANDS:
                self.used[function].update(words[OPERANDS[code]])
                if code == FUNCTION_CALL and len(words) > 2:
                    self.called[function].add(words[2])
            elif code == FUNCTION and len(words) > 1:
                function = words[1]
                self.called[function], self.used[function] = set(), set()
            elif code == FUNCTION_END:
                function = None
            elif code == ENTRY_POINT and len(words) > 2 and words[0] == COMPUTE:
                self.entries[name_of(words)] = words[1]
            elif code in TYPES and words:
                self._declare(code, words)
            elif code == VARIABLE and len(words) > 2:
                self.variables[words[1]] = words[0], words[2]
            elif code in (CONSTANT, SPEC_CONSTANT) and len(words) == 3:
                # A kernel gives no other values to specialization constants.
                self.constants[words[1]] = words[2]
            elif code == DECORATE and len(words) > 1:
                self.decorated[words[0], words[1]] = words[2] if len(words) > 2 else 0
            elif code == MEMBER_DECORATE and len(words) > 2:
                self.members[words[0], words[1], words[2]] = words[3] if len(words) > 3 else 0

    def _declare(self, code: int, words: list[int]) -> None:
        """Note a type. Its parts are declared before it: so no type contains itself."""
        name, operands = words[0], words[1:]
        parts = {TYPE_STRUCT: len(operands), TYPE_INT: 0, TYPE_FLOAT: 0, TYPE_POINTER: 0}
        for place in range(min(parts.get(code, 1), len(operands))):
            if operands[place] not in self.types:
                operands[place] = -1  # no type
        if code == FORWARD_POINTER:
            code, operands = TYPE_POINTER, []
        if code == TYPE_POINTER:  # after its forward declaration
            self.types[name] = code, operands
        else:
            self.types.setdefault(name, (code, operands))

    def variables_of(self, entry: str) -> Iterator[tuple[int, int, int]]:
        """Each variable that *entry* can use: its id, the type of its value, its storage class."""
        reached: set[int] = set()
        left = [self.entries[entry]] if entry in self.entries else []
        while left:
            function = left.pop()
            if function not in reached:
                reached.add(function)
                left.extend(self.called.get(function, ()))
        used = set().union(*(self.used.get(function, ()) for function in reached))
        for variable, (pointer, storage) in self.variables.items():
            code, words = self.types.get(pointer, (0, []))
            if variable in used and code == TYPE_POINTER and len(words) > 1:
                yield variable, words[1], storage

    def extent(self, kind: int, lines: tuple[int, bool] | None = None) -> int | None:
        """The bytes from the beginning of a value to its end; None if the module does not say.

        *lines* is the stride of the matrices in it, and whether it is between rows: they stand
        at the member of the struct that holds the matrices.
        """
        code, words = self.types.get(kind, (0, []))
        if code in (TYPE_INT, TYPE_FLOAT) and words:
            return words[0] // 8
        if code == TYPE_POINTER:  # to a buffer, by its address
            return 8
        if code == TYPE_STRUCT:
            ends = [self._end(kind, place, of) for place, of in enumerate(words)]
            known = [end for end in ends if end is not None]
            return max(known) if known and len(known) == len(ends) else None
        if len(words) < 2:
            return None
        part = self.extent(words[0], lines)
        if code == TYPE_VECTOR:
            return part and part * words[1]
        if code == TYPE_MATRIX and lines is not None and part:
            stride, between_rows = lines
            column_code, column = self.types[words[0]]
            if column_code != TYPE_VECTOR:
                return None
            columns, rows = words[1], column[1]
            scalar = part // rows
            if between_rows:
                return (rows - 1) * stride + columns * scalar
            return (columns - 1) * stride + part
        if code == TYPE_ARRAY and part is not None:
            count, stride_of_array = self.constants.get(words[1]), (kind, ARRAY_STRIDE)
            if count and stride_of_array in self.decorated:
                return (count - 1) * self.decorated[stride_of_array] + part
        return None

    def _end(self, struct: int, place: int, kind: int) -> int | None:
        """Where a member of a struct ends."""
        offset = self.members.get((struct, place, OFFSET))
        stride = self.members.get((struct, place, MATRIX_STRIDE))
        lines = None if stride is None else (stride, (struct, place, ROW_MAJOR) in self.members)
        extent = self.extent(kind, lines)
        return None if offset is None or extent is None else offset + extent


def check_layout(spirv: bytes, entry: str, buffers: int, push_nbytes: int) -> None:
    """ValueError if the entry point needs other bindings or more push constants than these.

    A driver does not check it: it would read a descriptor or a block that is not there.
    """
    module = _Module(spirv)
    found: dict[int, int] = {}
    for variable, kind, storage in module.variables_of(entry):
        if storage == PUSH_CONSTANT:
            _check_push(module.extent(kind), push_nbytes)
        elif storage in (UNIFORM_CONSTANT, UNIFORM, STORAGE_BUFFER):
            binding = module.decorated.get((variable, BINDING))
            if binding is not None:
                found[binding] = variable
                _check_binding(module, variable, binding, kind, storage)
    if found and max(found) >= buffers:
        unused = [number for number in range(max(found)) if number not in found]
        raise ValueError(
            f"the shader uses {_listed(sorted(found))}, and buffers={buffers} was given, which "
            f"makes {_listed(range(buffers))} only; pass buffers={max(found) + 1}"
            + (
                f" (any tensor will do for {_listed(unused)}, which it does not use)"
                if unused
                else ""
            )
        )


def _check_push(needed: int | None, given: int) -> None:
    if needed is not None and needed > given:
        rounded = -(-needed // 4) * 4  # Vulkan takes whole words
        raise ValueError(
            f"the shader's push block has {needed} bytes, and push_nbytes={given} was given; "
            f"pass push_nbytes={rounded}"
        )


def _check_binding(module: _Module, variable: int, binding: int, kind: int, storage: int) -> None:
    """ValueError for what is not one storage buffer of set 0."""
    which = module.decorated.get((variable, DESCRIPTOR_SET), 0)
    if which:
        raise ValueError(
            f"the shader uses binding {binding} of set {which}; a kernel binds set 0 only: "
            "declare the buffer with `set = 0` and a number of its own"
        )
    code, words = module.types.get(kind, (0, []))
    if code == TYPE_ARRAY and len(words) > 1 and module.constants.get(words[1], 1) > 1:
        raise ValueError(
            f"the shader's binding {binding} is an array of {module.constants[words[1]]} "
            "descriptors; a kernel binds one buffer to each binding: declare buffers with "
            "bindings of their own"
        )
    while code in (TYPE_ARRAY, TYPE_RUNTIME_ARRAY) and words:
        kind = words[0]
        code, words = module.types.get(kind, (0, []))
    uniform = storage == UNIFORM and (kind, BLOCK) in module.decorated
    if uniform or storage == UNIFORM_CONSTANT:
        what = "a uniform buffer" if uniform else "an image or a sampler"
        raise ValueError(
            f"the shader's binding {binding} is {what}; a kernel binds storage buffers only: "
            "declare it as `buffer` in GLSL, or pass a few numbers as push constants"
        )


def _listed(numbers: range | list[int]) -> str:
    """Numbers as text: "bindings 0, 1 and 2"."""
    texts = [str(number) for number in numbers]
    if len(texts) == 1:
        return f"binding {texts[0]}"
    return f"bindings {', '.join(texts[:-1])} and {texts[-1]}"
