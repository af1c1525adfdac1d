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
ready: Final = ready_frames(new_frame(6))


def call(self: Any, a0: Any = MISSING, a1: Any = MISSING, a2: Any = MISSING, a3: Any = MISSING, a4: Any = MISSING, a5: Any = MISSING, /, *rest: Any) -> Any:
    """Call the Function *self*."""
    if rest:
        return call_many(self, a0, a1, a2, a3, a4, a5, *rest)
    frame, ready[0] = ready[0], None
    if frame is None:
        frame = new_frame(6)
    words, doubles, first, result, tensors, keep = frame
    count = used = 0
    try:
        if a0 is MISSING:
            count = 0
        else:
            kind = type(a0)
            if kind is int:
                try:
                    words[3] = a0
                    words[2] = INT
                except ValueError:
                    words[2], words[3] = pack_int(a0, keep)
            elif kind is ArrayTensor:
                try:
                    handle0 = a0._native
                except AttributeError:  # not passed before
                    handle0 = None
                if type(handle0) is HostHandle:
                    words[2] = TENSOR
                    words[3] = handle0
                else:
                    words[2], words[3] = pack_own(a0, keep)
            elif kind is float:
                words[2] = FLOAT
                doubles[3] = a0
            elif kind is str:
                packed = text_known(a0) or pack_str(a0, keep)
                words[2], words[3] = packed
            elif a0 is None:
                words[2] = words[3] = 0
            else:
                address = 0
                if kind in torch_classes:
                    is_neg, fill, whole = torch_classes[kind]
                    argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                    argument.value = a0
                    try:
                        refused = fill(*targets)
                        code = octets[CODE_AT]
                        if code > UINT:  # complex numbers, and parts of them, may be lazy
                            refused = refused or code == COMPLEX or is_neg(a0)
                        elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                            refused = refused or a0.dtype not in whole
                        if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                            refused = is_without_memory(a0)
                        if own[DEVICE_WORD] != CPU and not refused:
                            on_torchs_stream(a0, own[DEVICE_WORD], keep)
                    except unless_handler(Exception):
                        refused = True
                    if refused:
                        argument.value = 0
                    else:
                        address = at
                elif kind in numpy_classes:
                    try:
                        capsule = a0.__dlpack__(max_version=DLPACK_VERSION)
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
                    words[2] = TENSOR
                    words[3] = address
                else:  # the packer knows what to do, or says why nothing can be done
                    packer = packer_known(kind) or packer_of(kind)
                    words[2], words[3] = packer(a0, keep)
            if a1 is MISSING:
                count = 1
            else:
                kind = type(a1)
                if kind is int:
                    try:
                        words[5] = a1
                        words[4] = INT
                    except ValueError:
                        words[4], words[5] = pack_int(a1, keep)
                elif kind is ArrayTensor:
                    try:
                        handle1 = a1._native
                    except AttributeError:  # not passed before
                        handle1 = None
                    if type(handle1) is HostHandle:
                        words[4] = TENSOR
                        words[5] = handle1
                    else:
                        words[4], words[5] = pack_own(a1, keep)
                elif kind is float:
                    words[4] = FLOAT
                    doubles[5] = a1
                elif kind is str:
                    packed = text_known(a1) or pack_str(a1, keep)
                    words[4], words[5] = packed
                elif a1 is None:
                    words[4] = words[5] = 0
                else:
                    address = 0
                    if kind in torch_classes:
                        is_neg, fill, whole = torch_classes[kind]
                        argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                        argument.value = a1
                        try:
                            refused = fill(*targets)
                            code = octets[CODE_AT]
                            if code > UINT:  # complex numbers, and parts of them, may be lazy
                                refused = refused or code == COMPLEX or is_neg(a1)
                            elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                                refused = refused or a1.dtype not in whole
                            if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                                refused = is_without_memory(a1)
                            if own[DEVICE_WORD] != CPU and not refused:
                                on_torchs_stream(a1, own[DEVICE_WORD], keep)
                        except unless_handler(Exception):
                            refused = True
                        if refused:
                            argument.value = 0
                        else:
                            address = at
                    elif kind in numpy_classes:
                        try:
                            capsule = a1.__dlpack__(max_version=DLPACK_VERSION)
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
                        words[4] = TENSOR
                        words[5] = address
                    else:  # the packer knows what to do, or says why nothing can be done
                        packer = packer_known(kind) or packer_of(kind)
                        words[4], words[5] = packer(a1, keep)
                if a2 is MISSING:
                    count = 2
                else:
                    kind = type(a2)
                    if kind is int:
                        try:
                            words[7] = a2
                            words[6] = INT
                        except ValueError:
                            words[6], words[7] = pack_int(a2, keep)
                    elif kind is ArrayTensor:
                        try:
                            handle2 = a2._native
                        except AttributeError:  # not passed before
                            handle2 = None
                        if type(handle2) is HostHandle:
                            words[6] = TENSOR
                            words[7] = handle2
                        else:
                            words[6], words[7] = pack_own(a2, keep)
                    elif kind is float:
                        words[6] = FLOAT
                        doubles[7] = a2
                    elif kind is str:
                        packed = text_known(a2) or pack_str(a2, keep)
                        words[6], words[7] = packed
                    elif a2 is None:
                        words[6] = words[7] = 0
                    else:
                        address = 0
                        if kind in torch_classes:
                            is_neg, fill, whole = torch_classes[kind]
                            argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                            argument.value = a2
                            try:
                                refused = fill(*targets)
                                code = octets[CODE_AT]
                                if code > UINT:  # complex numbers, and parts of them, may be lazy
                                    refused = refused or code == COMPLEX or is_neg(a2)
                                elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                                    refused = refused or a2.dtype not in whole
                                if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                                    refused = is_without_memory(a2)
                                if own[DEVICE_WORD] != CPU and not refused:
                                    on_torchs_stream(a2, own[DEVICE_WORD], keep)
                            except unless_handler(Exception):
                                refused = True
                            if refused:
                                argument.value = 0
                            else:
                                address = at
                        elif kind in numpy_classes:
                            try:
                                capsule = a2.__dlpack__(max_version=DLPACK_VERSION)
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
                            words[6] = TENSOR
                            words[7] = address
                        else:  # the packer knows what to do, or says why nothing can be done
                            packer = packer_known(kind) or packer_of(kind)
                            words[6], words[7] = packer(a2, keep)
                    if a3 is MISSING:
                        count = 3
                    else:
                        kind = type(a3)
                        if kind is int:
                            try:
                                words[9] = a3
                                words[8] = INT
                            except ValueError:
                                words[8], words[9] = pack_int(a3, keep)
                        elif kind is ArrayTensor:
                            try:
                                handle3 = a3._native
                            except AttributeError:  # not passed before
                                handle3 = None
                            if type(handle3) is HostHandle:
                                words[8] = TENSOR
                                words[9] = handle3
                            else:
                                words[8], words[9] = pack_own(a3, keep)
                        elif kind is float:
                            words[8] = FLOAT
                            doubles[9] = a3
                        elif kind is str:
                            packed = text_known(a3) or pack_str(a3, keep)
                            words[8], words[9] = packed
                        elif a3 is None:
                            words[8] = words[9] = 0
                        else:
                            address = 0
                            if kind in torch_classes:
                                is_neg, fill, whole = torch_classes[kind]
                                argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                                argument.value = a3
                                try:
                                    refused = fill(*targets)
                                    code = octets[CODE_AT]
                                    if code > UINT:  # complex numbers, and parts of them, may be lazy
                                        refused = refused or code == COMPLEX or is_neg(a3)
                                    elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                                        refused = refused or a3.dtype not in whole
                                    if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                                        refused = is_without_memory(a3)
                                    if own[DEVICE_WORD] != CPU and not refused:
                                        on_torchs_stream(a3, own[DEVICE_WORD], keep)
                                except unless_handler(Exception):
                                    refused = True
                                if refused:
                                    argument.value = 0
                                else:
                                    address = at
                            elif kind in numpy_classes:
                                try:
                                    capsule = a3.__dlpack__(max_version=DLPACK_VERSION)
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
                                words[8] = TENSOR
                                words[9] = address
                            else:  # the packer knows what to do, or says why nothing can be done
                                packer = packer_known(kind) or packer_of(kind)
                                words[8], words[9] = packer(a3, keep)
                        if a4 is MISSING:
                            count = 4
                        else:
                            kind = type(a4)
                            if kind is int:
                                try:
                                    words[11] = a4
                                    words[10] = INT
                                except ValueError:
                                    words[10], words[11] = pack_int(a4, keep)
                            elif kind is ArrayTensor:
                                try:
                                    handle4 = a4._native
                                except AttributeError:  # not passed before
                                    handle4 = None
                                if type(handle4) is HostHandle:
                                    words[10] = TENSOR
                                    words[11] = handle4
                                else:
                                    words[10], words[11] = pack_own(a4, keep)
                            elif kind is float:
                                words[10] = FLOAT
                                doubles[11] = a4
                            elif kind is str:
                                packed = text_known(a4) or pack_str(a4, keep)
                                words[10], words[11] = packed
                            elif a4 is None:
                                words[10] = words[11] = 0
                            else:
                                address = 0
                                if kind in torch_classes:
                                    is_neg, fill, whole = torch_classes[kind]
                                    argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                                    argument.value = a4
                                    try:
                                        refused = fill(*targets)
                                        code = octets[CODE_AT]
                                        if code > UINT:  # complex numbers, and parts of them, may be lazy
                                            refused = refused or code == COMPLEX or is_neg(a4)
                                        elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                                            refused = refused or a4.dtype not in whole
                                        if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                                            refused = is_without_memory(a4)
                                        if own[DEVICE_WORD] != CPU and not refused:
                                            on_torchs_stream(a4, own[DEVICE_WORD], keep)
                                    except unless_handler(Exception):
                                        refused = True
                                    if refused:
                                        argument.value = 0
                                    else:
                                        address = at
                                elif kind in numpy_classes:
                                    try:
                                        capsule = a4.__dlpack__(max_version=DLPACK_VERSION)
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
                                    words[10] = TENSOR
                                    words[11] = address
                                else:  # the packer knows what to do, or says why nothing can be done
                                    packer = packer_known(kind) or packer_of(kind)
                                    words[10], words[11] = packer(a4, keep)
                            if a5 is MISSING:
                                count = 5
                            else:
                                kind = type(a5)
                                if kind is int:
                                    try:
                                        words[13] = a5
                                        words[12] = INT
                                    except ValueError:
                                        words[12], words[13] = pack_int(a5, keep)
                                elif kind is ArrayTensor:
                                    try:
                                        handle5 = a5._native
                                    except AttributeError:  # not passed before
                                        handle5 = None
                                    if type(handle5) is HostHandle:
                                        words[12] = TENSOR
                                        words[13] = handle5
                                    else:
                                        words[12], words[13] = pack_own(a5, keep)
                                elif kind is float:
                                    words[12] = FLOAT
                                    doubles[13] = a5
                                elif kind is str:
                                    packed = text_known(a5) or pack_str(a5, keep)
                                    words[12], words[13] = packed
                                elif a5 is None:
                                    words[12] = words[13] = 0
                                else:
                                    address = 0
                                    if kind in torch_classes:
                                        is_neg, fill, whole = torch_classes[kind]
                                        argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                                        argument.value = a5
                                        try:
                                            refused = fill(*targets)
                                            code = octets[CODE_AT]
                                            if code > UINT:  # complex numbers, and parts of them, may be lazy
                                                refused = refused or code == COMPLEX or is_neg(a5)
                                            elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                                                refused = refused or a5.dtype not in whole
                                            if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                                                refused = is_without_memory(a5)
                                            if own[DEVICE_WORD] != CPU and not refused:
                                                on_torchs_stream(a5, own[DEVICE_WORD], keep)
                                        except unless_handler(Exception):
                                            refused = True
                                        if refused:
                                            argument.value = 0
                                        else:
                                            address = at
                                    elif kind in numpy_classes:
                                        try:
                                            capsule = a5.__dlpack__(max_version=DLPACK_VERSION)
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
                                        words[12] = TENSOR
                                        words[13] = address
                                    else:  # the packer knows what to do, or says why nothing can be done
                                        packer = packer_known(kind) or packer_of(kind)
                                        words[12], words[13] = packer(a5, keep)
                                count = 6
        pointer, call_c = self._pointer, CALL
        if keep and keep.streams:
            call_c = partial(on_streams, keep.streams)
        try:
            failed = call_c(pointer, first, count, result)
        except SystemError as error:
            raise interrupted(error) from None
        if failed:
            raise raised()
        if untaken:
            drop_untaken()
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
        tag = words[0]
        if not tag:
            ready[0] = frame
            return None
        if tag == INT:
            payload = words[1]
            words[0] = words[1] = 0
            ready[0] = frame
            return payload
        if OBJECT_BEGIN <= tag <= LAST_INDEX:
            payload = Unowned(words[1])
            # As in `owned`, whose call takes 50 ns.
            payload.__class__, words[0] = Handle, 0  # type: ignore[assignment]
        else:
            payload = words[1]
            words[0] = words[1] = 0
    except BaseException as error:
        abandon(words)
        name_argument(error, (a0, a1, a2, a3, a4, a5))
        raise
    ready[0] = frame
    return unpack(tag, payload)


# What CPython says of a keyword begins with this name.
call.__qualname__ = "a Function takes its arguments by position: Function.__call__"


def call_many(self: Any, *arguments: Any) -> Any:
    """Call the Function *self* with any number of arguments."""
    frame = new_frame(len(arguments))
    words, doubles, first, result, tensors, keep = frame
    count = used = 0
    try:
        for value in arguments:
            kind = type(value)
            if kind is int:
                try:
                    words[2 * count + 3] = value
                    words[2 * count + 2] = INT
                except ValueError:
                    words[2 * count + 2], words[2 * count + 3] = pack_int(value, keep)
            elif kind is ArrayTensor:
                try:
                    handle = value._native
                except AttributeError:  # not passed before
                    handle = None
                if type(handle) is HostHandle:
                    keep.append(handle)
                    words[2 * count + 2] = TENSOR
                    words[2 * count + 3] = handle
                else:
                    words[2 * count + 2], words[2 * count + 3] = pack_own(value, keep)
            elif kind is float:
                words[2 * count + 2] = FLOAT
                doubles[2 * count + 3] = value
            elif kind is str:
                packed = text_known(value) or pack_str(value, keep)
                words[2 * count + 2], words[2 * count + 3] = packed
            elif value is None:
                words[2 * count + 2] = words[2 * count + 3] = 0
            else:
                address = 0
                if kind in torch_classes:
                    is_neg, fill, whole = torch_classes[kind]
                    argument, targets, own, octets, at, _ = tensors[used] or ready_tensor(tensors, used)
                    argument.value = value
                    try:
                        refused = fill(*targets)
                        code = octets[CODE_AT]
                        if code > UINT:  # complex numbers, and parts of them, may be lazy
                            refused = refused or code == COMPLEX or is_neg(value)
                        elif octets[BITS_AT] == 8:  # as which torch writes those of fewer bits, too
                            refused = refused or value.dtype not in whole
                        if not octets[HIGH_OF_DATA] and not refused:  # NULL, and an offset
                            refused = is_without_memory(value)
                        if own[DEVICE_WORD] != CPU and not refused:
                            on_torchs_stream(value, own[DEVICE_WORD], keep)
                    except unless_handler(Exception):
                        refused = True
                    if refused:
                        argument.value = 0
                    else:
                        address = at
                elif kind in numpy_classes:
                    try:
                        capsule = value.__dlpack__(max_version=DLPACK_VERSION)
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
                    words[2 * count + 2] = TENSOR
                    words[2 * count + 3] = address
                else:  # the packer knows what to do, or says why nothing can be done
                    packer = packer_known(kind) or packer_of(kind)
                    words[2 * count + 2], words[2 * count + 3] = packer(value, keep)
            count += 1
        pointer, call_c = self._pointer, CALL
        if keep and keep.streams:
            call_c = partial(on_streams, keep.streams)
        try:
            failed = call_c(pointer, first, count, result)
        except SystemError as error:
            raise interrupted(error) from None
        if failed:
            raise raised()
        if untaken:
            drop_untaken()
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
        tag = words[0]
        if not tag:
            return None
        if tag == INT:
            payload = words[1]
            words[0] = words[1] = 0
            return payload
        if OBJECT_BEGIN <= tag <= LAST_INDEX:
            payload = Unowned(words[1])
            # As in `owned`, whose call takes 50 ns.
            payload.__class__, words[0] = Handle, 0  # type: ignore[assignment]
        else:
            payload = words[1]
            words[0] = words[1] = 0
    except BaseException as error:
        abandon(words)
        name_argument(error, arguments)
        raise
    return unpack(tag, payload)


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
            try:
                failed = call_c(*passed)
            except SystemError as error:
                raise interrupted(error) from None
            if failed:
                raise raised()
            if untaken:
                drop_untaken()
            tag = words[0]
            if not tag:
                ready[0] = frame
                return None
            if tag == INT:
                payload = words[1]
                words[0] = words[1] = 0
                ready[0] = frame
                return payload
            if OBJECT_BEGIN <= tag <= LAST_INDEX:
                payload = Unowned(words[1])
                # As in `owned`, whose call takes 50 ns.
                payload.__class__, words[0] = Handle, 0  # type: ignore[assignment]
            else:
                payload = words[1]
                words[0] = words[1] = 0
        except BaseException:
            abandon(words)
            ready[0] = frame
            raise
        ready[0] = frame
        return unpack(tag, payload)

    return step


def silent(frame: Memory, packed: list[Any]) -> Callable[[], None]:
    """A bound call of a function that returns nothing."""
    words = frame[0]

    def step() -> None:
        passed, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        try:
            try:
                failed = call_c(*passed)
            except SystemError as error:
                raise interrupted(error) from None
            if failed:
                raise raised()
            if untaken:
                drop_untaken()
        except BaseException:
            abandon(words)
            raise

    return step
