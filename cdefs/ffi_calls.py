"""Write the calls of `dlbridge.ffi` in all their forms: the module `dlbridge/ffi/_calls.py`.

    python cdefs/ffi_calls.py           rewrite the module
    python cdefs/ffi_calls.py --check   exit 1 with a diff if it would change

A call packs its arguments, calls C, and takes the result. All forms have these steps, and would
lose 60 ns with each that were a function of its own (the figures are in the module's first lines).
So each step stands here once, as text with ``$names``, and `module` says which form has which.
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from string import Template
from textwrap import indent

MODULE = Path(__file__).resolve().parent.parent / "dlbridge" / "ffi" / "_calls.py"

FAST = 6
"""Arguments of a call that is unrolled; more of them take the loop."""

HEAD = '''\
"""The calls in all their forms, written by ``python cdefs/ffi_calls.py``: change them there.

It is the same call four times: `call` is `Function.__call__`, with up to six arguments, each packed
by lines of its own; `call_many` packs any number in a loop; `bound` makes the calls of
`Function.bind`, whose arguments are packed already, and `silent` those of functions that return
nothing. The steps are the same lines in each form, as to call a function takes 60 ns. What the
lines of its own for each argument save: a call with three integers takes 780 ns, and 890 by a loop,
with three Tensors 910 and 1280, with three tensors of torch 3470 and 4280 (CPython 3.11).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dlbridge.abi import DLPACK_VERSION, FLAG_READ_ONLY, ArrayTensor, memory
from dlbridge.extending import unless_handler
from dlbridge.interop.torch import is_without_memory

from .any import (
    LAST_INDEX,
    OBJECT_BEGIN,
    Handle,
    Unowned,
    numpy_classes,
    pack_int,
    pack_str,
    packer_of,
    packers,
    short_texts,
    torch_classes,
    unpack,
)
from .errors import drop_untaken, interrupted, raised, untaken
from .frames import CALL, FLOAT, INT, TENSOR, Memory, abandon, new_frame, ready_frames
from .lending import (
    ALONE,
    BITS_AT,
    CODE_AT,
    COMPLEX,
    CPU,
    DEVICE_WORD,
    FLAGS_WORD,
    HIGH_OF_DATA,
    OF_OBJECT,
    POINTER_WORD,
    TENSOR_END,
    TENSOR_WORD,
    UINT,
    on_torchs_stream,
    ready_tensor,
)
from .streams import on_streams
from .tensors import HostHandle, name_argument, pack_own

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING: Final = object()

# Taken here: for a method of what is imported CPython 3.11 makes an object at each call, 50 ns.
text_known: Final = short_texts.get
packer_known: Final = packers.get

# Claimed in one statement: see `frames.ready_frames`.
ready: Final = ready_frames(new_frame($count))
'''

BEGIN_CALL = '''\
def call(self: Any, $parameters, /, *rest: Any) -> Any:
    """Call the Function *self*."""
    if rest:
        return call_many(self, $names, *rest)
    frame, ready[0] = ready[0], None
    if frame is None:
        frame = new_frame($count)
'''

BEGIN_MANY = '''\
def call_many(self: Any, *arguments: Any) -> Any:
    """Call the Function *self* with any number of arguments."""
    frame = new_frame(len(arguments))
'''

BEGIN_BOUND = '''\
def bound(frame: Memory, packed: list[Any], slow: Callable[[], Any]) -> Callable[[], Any]:
    """A bound call, which *slow* makes while another one runs."""
    ready = ready_frames(frame)

    def step() -> Any:
        passed, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        frame, ready[0] = ready[0], None
        if frame is None:  # a call runs
            return slow()
        words = frame[0]
        try:
'''

# It reads no result, and so claims nothing.
BEGIN_SILENT = '''\
def silent(frame: Memory, packed: list[Any]) -> Callable[[], None]:
    """A bound call of a function that returns nothing."""
    words = frame[0]

    def step() -> None:
        passed, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        try:
'''

BEGIN_PACKING = """\
words, doubles, first, result, tensors, keep = frame
count = used = 0
try:
"""

# A handle lives during the call: in a variable of its own, or in the loop, by `keep`.
PACK = """\
kind = type($value)
if kind is int:
    try:
        words[$payload] = $value
        words[$tag] = INT
    except ValueError:
        words[$tag], words[$payload] = pack_int($value, keep)
elif kind is ArrayTensor:
    try:
        $handle = $value._native
    except AttributeError:  # not passed before
        $handle = None
    if type($handle) is HostHandle:
        $keep_handle
        words[$tag] = TENSOR
        words[$payload] = $handle
    else:
        words[$tag], words[$payload] = pack_own($value, keep)
elif kind is float:
    words[$tag] = FLOAT
    doubles[$payload] = $value
elif kind is str:
    packed = text_known($value) or pack_str($value, keep)
    words[$tag], words[$payload] = packed
elif $value is None:
    words[$tag] = words[$payload] = 0
else:
    address = 0
    if kind in torch_classes:
        is_neg, fill, whole = torch_classes[kind]
        argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
        argument.value = $value
        try:
            refused = fill(*targets)
            code = octets[CODE_AT]
            if code > UINT:  # complex numbers, and parts of them, may be lazy
                refused = refused or code == COMPLEX or is_neg($value)
            elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                refused = refused or $value.dtype not in whole
            if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                refused = is_without_memory($value)
            if own[DEVICE_WORD] != CPU and not refused:
                on_torchs_stream($value, own[DEVICE_WORD], keep)
        except unless_handler(Exception):
            refused = True
        if refused:
            argument.value = 0
        else:
            address = at
    elif kind in numpy_classes:
        try:
            capsule = $value.__dlpack__(max_version=DLPACK_VERSION)
        except unless_handler(Exception):
            capsule = None
        # As by `address_in`, whose call takes 40 ns.
        managed = capsule and memory[(id(capsule) >> 3) + POINTER_WORD] >> 3
        if managed and not memory[managed + FLAGS_WORD] & FLAG_READ_ONLY:
            argument, _, own, _, address, _ = tensors[used] or ready_tensor(tensors, used)
            own[OF_OBJECT] = memory[managed + TENSOR_WORD : managed + TENSOR_END]
            argument.value = capsule
    if address:
        used += 1
        words[$tag] = TENSOR
        words[$payload] = address
    else:  # the packer knows what to do, or says why nothing can be done
        packer = packer_known(kind) or packer_of(kind)
        words[$tag], words[$payload] = packer($value, keep)
"""

END_PACKING = """\
pointer, call_c = self._pointer, CALL
if keep and keep.streams:
    call_c = partial(on_streams, keep.streams)
"""

CALL_C = """\
try:
    failed = call_c($passed)
except SystemError as error:
    raise interrupted(error) from None
if failed:
    raise raised()
if untaken:
    drop_untaken()
"""

TAKE_BACK = """\
while used:
    used -= 1
    argument, _, own, _, _, _ = tensors[used]
    if own[0] == ALONE:
        argument.value = 0  # not None, which ctypes does not store
    else:  # the other references are the callee's
        tensors[used] = None
if keep:
    keep.clear()
    keep.streams = None
"""

TAKE_RESULT = """\
tag = words[0]
if not tag:
    $free
    return None
if tag == INT:
    payload = words[1]
    words[0] = words[1] = 0
    $free
    return payload
if OBJECT_BEGIN <= tag <= LAST_INDEX:
    payload = Unowned(words[1])
    # As in `owned`, whose call takes 50 ns.
    payload.__class__, words[0] = Handle, 0  # type: ignore[assignment]
else:
    payload = words[1]
    words[0] = words[1] = 0
"""

FAIL = """\
except BaseException$named:
    abandon(words)
    $after
    raise
"""

RETURN = """\
$free
return unpack(tag, payload)
"""

END_CALL = """\
# What CPython says of a keyword begins with this name.
call.__qualname__ = "a Function takes its arguments by position: Function.__call__"
"""

# The functions that make a bound call.
END_MAKER = "return step\n"


def part(text: str, depth: int = 0, **names: str) -> str:
    """A step at an indentation of *depth*; a line that is an empty name alone goes."""
    for name, value in names.items():
        if not value:
            text = re.sub(rf"^ *\${name}\n", "", text, flags=re.MULTILINE)
    return indent(Template(text).substitute(names), "    " * depth)


def unrolled() -> str:
    """The packing of each argument, inside the case that the one before is not missing."""
    text = ""
    for i in range(FAST):
        names = {"tag": str(2 * i + 2), "payload": str(2 * i + 3), "handle": f"handle{i}"}
        text += indent(f"if a{i} is MISSING:\n    count = {i}\nelse:\n", "    " * (2 + i))
        text += part(PACK, 3 + i, value=f"a{i}", keep_handle="", **names)
    return text + indent(f"count = {FAST}\n", "    " * (2 + FAST))


def loop() -> str:
    """The packing of the arguments one after the other."""
    names = {"tag": "2 * count + 2", "payload": "2 * count + 3", "handle": "handle"}
    text = part(PACK, 1, value="value", keep_handle="keep.append(handle)", **names)
    return indent("for value in arguments:\n" + text + "    count += 1\n", "    " * 2)


def packing_call(begin: str, packing: str, arguments: str, free: str) -> str:
    """A call that packs its arguments."""
    return "".join(
        [
            begin,
            part(BEGIN_PACKING, 1),
            packing,
            part(END_PACKING, 2),
            part(CALL_C, 2, passed="pointer, first, count, result"),
            part(TAKE_BACK, 2),
            part(TAKE_RESULT, 2, free=free),
            part(FAIL, 1, named=" as error", after=f"name_argument(error, {arguments})"),
            part(RETURN, 1, free=free),
        ]
    )


def module() -> str:
    """The text of the module."""
    numbers = range(FAST)
    names = ", ".join(f"a{i}" for i in numbers)
    parameters = ", ".join(f"a{i}: Any = MISSING" for i in numbers)
    free = "ready[0] = frame"
    begin = part(BEGIN_CALL, parameters=parameters, names=names, count=str(FAST))
    forms = [
        packing_call(begin, unrolled(), f"({names})", free) + "\n\n" + END_CALL,
        packing_call(BEGIN_MANY, loop(), "arguments", ""),
        "".join(
            [
                BEGIN_BOUND,
                part(CALL_C, 3, passed="*passed"),
                part(TAKE_RESULT, 3, free=free),
                part(FAIL, 2, named="", after=free),
                part(RETURN, 2, free=free),
                "\n",
                part(END_MAKER, 1),
            ]
        ),
        "".join(
            [
                BEGIN_SILENT,
                part(CALL_C, 3, passed="*passed"),
                part(FAIL, 2, named="", after=""),
                "\n",
                part(END_MAKER, 1),
            ]
        ),
    ]
    return "\n\n".join([part(HEAD, count=str(FAST)), *forms])


def main(check: bool) -> int:
    """Rewrite the module, or compare it; the process's exit code."""
    old, new = MODULE.read_text() if MODULE.exists() else "", module()
    if not check:
        MODULE.write_text(new)
    elif old != new:
        lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(*lines, MODULE.name, "from ffi_calls"))
    return int(check and old != new)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
