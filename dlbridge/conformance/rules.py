"""The rules as data: number, words and source of each line that the suite checks."""
# ruff: noqa: E501 - a rule is one row

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RULES", "Rule"]


class Rule(NamedTuple):
    """One line of ``docs/conformance.md``."""

    line: str
    text: str
    source: str
    """The standard and its section, or ``no standard``: it must not crash or lose memory."""


_EXPORT = "array API, `__dlpack__`"
_DEVICE = "array API, `__dlpack_device__`"
_IMPORT = "array API, `from_dlpack`"
_PYTHON = "DLPack, Python Specification"
_TENSOR = "dlpack.h, `DLTensor`"
_TYPE = "dlpack.h, `DLDataType`"
_MANAGED = "dlpack.h, `DLManagedTensorVersioned`"
_TABLE = "dlpack.h, `DLPackExchangeAPI`"
_NONE = "no standard"

_LIST = (
    ("P1", "All four keywords of `__dlpack__` are keyword-only", _EXPORT),
    ("P2", "`__dlpack_device__` returns two ints, equal to those of the exported struct", _DEVICE),
    ("P3", "No `max_version`: a legacy capsule, `dltensor`", _EXPORT),
    ("P4", "`max_version=None`: the same", _EXPORT),
    ("P5", "`max_version` below (1, 0): the same", _EXPORT),
    ("P6", "`max_version` from (1, 0) on: `dltensor_versioned`, major version 1", _EXPORT),
    ("P7", "`max_version` of a later major version: still 1.x", _EXPORT),
    ("P8", "`max_version` that is not a pair of ints: TypeError", _EXPORT),
    ("P9", "A read-only tensor in a legacy capsule: BufferError", _EXPORT),
    ("P10", "A padded sub-byte tensor in a legacy capsule: BufferError", _MANAGED),
    ("P12", "An unknown keyword: TypeError", _PYTHON),
    ("P13", "`dl_device=None` is the tensor's own device", _EXPORT),
    ("P14", "Its own device, also with an IntEnum", _EXPORT),
    ("P15", "A device of another type: BufferError", _EXPORT),
    ("P16", "A device of its type that does not exist: BufferError", _EXPORT),
    ("P17", "`(1, 0)` from a device: a finished copy, IS_COPIED", _EXPORT),
    ("P18", "`(1, 0)` with `copy=False` where the host cannot read: BufferError", _EXPORT),
    ("P20", "`dl_device` that is not a pair of ints: TypeError", _EXPORT),
    ("P21", "`copy=True`: other memory, IS_COPIED", _EXPORT),
    ("P22", "`copy=False`: the same pointer, or BufferError", _EXPORT),
    ("P23", "`copy=None`: the same pointer where possible, no IS_COPIED", _EXPORT),
    ("P24", "`copy` that is not a bool: TypeError", _EXPORT),
    ("P25", "A copy of a read-only tensor is writable", _MANAGED),
    ("P26", "A copy keeps the values of every layout, and has no gaps", _EXPORT),
    ("P27", "No dimensions", _TENSOR),
    ("P28", "Shape and strides are readable, strides in elements", _TENSOR),
    ("P29", "No elements: NULL data, offset 0, the shape kept", _TENSOR),
    ("P30", "Strides of dimensions of one element may be anything", _TENSOR),
    ("P31", "Byte strides that are not a multiple of the item size: BufferError", _TENSOR),
    ("P32", "Foreign byte order: BufferError", _TYPE),
    ("P33", "Types that DLPack does not have: BufferError", _EXPORT),
    ("P34", "Code and bits of every type", _TYPE),
    ("P35", "Lanes, and float4 in pairs", _TYPE),
    ("P36", "Flags are 0 by default", _MANAGED),
    ("P38", "Versions are filled before the struct is handed over", _MANAGED),
    ("P39", "`data` + `byte_offset` is the first element", _TENSOR),
    ("P40", "Memory of its own is aligned to 256 bytes", _TENSOR),
    ("P41", "Negative strides: exported right, or BufferError", _NONE),
    ("P42", "A capsule that nobody consumes frees its tensor", _PYTHON),
    ("P43", "A consumed capsule leaves the tensor to its consumer", _PYTHON),
    ("P44", "A consumer that never renames the capsule: freed with it", _PYTHON),
    ("P45", "A consumer that takes the destructor away: freed by the deleter", _PYTHON),
    ("P46", "A capsule that was renamed to something else: no crash", _NONE),
    ("P47", "An export owns its memory", _MANAGED),
    ("P48", "Exports are independent of each other", _MANAGED),
    ("P49", "Deletion in a thread that Python does not know", _NONE),
    ("P50", "Deletion with the GIL held", _PYTHON),
    ("P51", "Deletion within a garbage collection", _PYTHON),
    ("P52", "Deletion while an exception is pending, which stays pending", _PYTHON),
    ("P53", "Deletion after the end of Python", _NONE),
    ("P55", "A failed export leaks nothing", _NONE),
    ("P56", "A real capsule, whose repr names it", _PYTHON),
    ("P57", "Exports survive a fork", _NONE),
    ("P58", "Exports and deletions in many threads", _NONE),
    ("C1", "`__dlpack_device__` first, then one `__dlpack__` with what is needed", _IMPORT),
    ("C2", "Producers that do not know the keywords are called once more without them", _IMPORT),
    ("C3", "A producer's TypeError passes through", _NONE),
    ("C4", "Other errors of a producer pass through", _NONE),
    ("C5", "A legacy capsule is accepted although a versioned one was requested", _PYTHON),
    ("C6", "An object that is not a capsule, or a capsule of another name: an error", _PYTHON),
    ("C7", "An object without both methods: an error", _IMPORT),
    ("C8", "`__dlpack_device__` that does not return two valid ints: an error", _DEVICE),
    ("C9", "Bare capsules are accepted", _NONE),
    ("C10", "Renamed once; deleted exactly once on every path", _PYTHON),
    ("C11", "A second import of one capsule: an error", _PYTHON),
    ("C12", "Another major version: an error, and the deleter is called", _MANAGED),
    ("C13", "Any minor version", _MANAGED),
    ("C14", "A NULL deleter is accepted", _MANAGED),
    ("C15", "The deleter is called once, when the last array is dropped", _MANAGED),
    ("C16", "Types that are not valid: an error", _TYPE),
    ("C17", "Lanes are kept, or refused", _TYPE),
    ("C18", "An unknown device: opaque, or an error", _NONE),
    ("C20", "A negative device index: an error", _NONE),
    ("C21", "NULL strides are compact", _TENSOR),
    ("C22", "Any strides: right values, or an error", _TENSOR),
    ("C23", "Corrupt ndim, shape and extents: an error", _NONE),
    ("C24", "More elements than memory can hold: an error", _NONE),
    ("C25", "`byte_offset` is honoured", _TENSOR),
    ("C26", "No elements, with data or without", _TENSOR),
    ("C27", "READ_ONLY is kept, or the memory copied, or the tensor refused", _MANAGED),
    ("C28", "A legacy capsule is writable", _PYTHON),
    ("C30", "Unknown flags are ignored", _MANAGED),
    ("C31", "Sub-byte elements: known, or an error", _MANAGED),
    ("C32", "`device=` of the memory: the same memory", _IMPORT),
    ("C34", "`copy=True` makes a copy, or asks for one", _IMPORT),
    ("C35", "`copy=False` never copies", _IMPORT),
    ("C36", "No stream, or -1, is passed to a producer of host memory; never 0", _EXPORT),
    ("C37", "The struct is kept alive, not the producer", _PYTHON),
    ("C38", "Later changes of the memory are seen", _PYTHON),
    ("C39", "Exported again, the memory is the same", _PYTHON),
    ("C40", "Imports and deletions in many threads", _NONE),
    ("X1", "The attribute: a capsule on the type; the name it had before, if there, has the same table", _TABLE),
    ("X2", "Version 1.x; older tables by `prev_api`, NULL at the end", "dlpack.h, `DLPackExchangeAPIHeader`"),
    ("X3", "Every function but the one that lends is set; the table stays", _TABLE),
    ("X4", "The allocator: which fields it reads, what it returns, how it reports errors", "dlpack.h, `DLPackManagedTensorAllocator`"),
    ("X5", "Exports: flags, ownership, failures", "dlpack.h, `DLPackManagedTensorFromPyObjectNoSync`"),
    ("X6", "Imports: a new reference; the struct is deleted once", "dlpack.h, `DLPackManagedTensorToPyObjectNoSync`"),
    ("X7", "Borrowed structs live as long as the tensor", "dlpack.h, `DLPackDLTensorFromPyObjectNoSync`"),
    ("X8", "The stream of its device; an unknown device is no crash", "dlpack.h, `DLPackCurrentWorkStream`"),
    ("X10", "Exports while a garbage collection deletes others", _NONE),
    ("X18", "A failure leaves a Python exception set, and a success none", _TABLE),
    ("X19", "Exports by the table in many threads", _NONE),
    ("X20", "A sub-interpreter works with the table, or refuses the library: no crash", _NONE),
    ("S1", "Host memory takes stream None and -1, and refuses others", _EXPORT),
    ("S2", "CUDA takes None", _EXPORT),
    ("S3", "CUDA and ROCm take -1: no ordering", _EXPORT),
    ("S4", "CUDA, 1: what the legacy default stream reads is finished", _EXPORT),
    ("S5", "CUDA, 2: what the per-thread default stream reads is finished", _EXPORT),
    ("S6", "CUDA, above 2: a handle; what that stream reads is finished", _EXPORT),
    ("S7", "CUDA, 0: an error", _EXPORT),
    ("S8", "Below -1: an error", _EXPORT),
    ("S9", "Not an int: an error", _EXPORT),
    ("S10", "A bool is not a stream", _NONE),
    ("S11", "ROCm takes None and 0, and refuses 1 and 2", _EXPORT),
    ("S12", "To the CPU: stream must be None, and the copy is finished", _EXPORT),
    ("S13", "A copy is finished for the consumer's stream", _EXPORT),
    ("S16", "Other devices take None and -1, and refuse what is no stream", _EXPORT),
)  # fmt: skip

RULES = {line: Rule(line, text, source) for line, text, source in _LIST}
"""Every line that has a case, in the order of the document."""
