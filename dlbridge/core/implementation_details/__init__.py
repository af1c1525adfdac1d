"""The details of CPython, numpy and torch that dlbridge relies on, and what shows that they hold.

Everything here is outside the documented interfaces, or at their edge. Code that
can stand apart from its user is in this room; the rest is named here with its
place. A new CPython, numpy or torch is tried against these tests first.

`DETAILS` is read by ``tests/core/test_implementation_details.py``, which fails
where a place or a test is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DETAILS", "Detail"]


class Detail(NamedTuple):
    """One detail that is relied on."""

    what: str
    why: str
    since: str
    where: str
    """The module, and the name in it."""
    test: str
    """The test that fails when the detail no longer holds."""


DETAILS: Final = (
    Detail(
        "numpy's capsules own the array that they were made of, and their destructor and deleter "
        "are C functions that take the GIL, keep a pending exception and return at once when "
        "Python has ended",
        "a consumer may delete a tensor in a thread that Python does not know, or after Python",
        "numpy 2.1",
        "core/dlpack/capsules.py: export_capsule",
        "tests/safety/test_exit_safety.py::test_the_holder_outlives_python",
    ),
    Detail(
        "the struct in a new numpy capsule may be overwritten before anybody else sees it",
        "numpy has no words for bfloat16, other devices, offsets and flags",
        "numpy 2.1",
        "core/dlpack/capsules.py: Image.write",
        "tests/core/outgoing/test_producer.py::test_the_struct_says_what_the_tensor_is",
    ),
    Detail(
        "an attribute of the instance is found before a function of the class",
        "`ArrayTensor.__dlpack__` is numpy's bound C method: np.from_dlpack calls C only",
        "CPython 3.10",
        "core/tensor/tensor.py: ArrayTensor",
        "tests/core/tensor/test_tensor.py::test_an_array_tensor_exports_by_c",
    ),
    Detail(
        "`_ctypes.PyObj_FromPtr` gives the object at an address",
        "the exchange table gets PyObject pointers; `py_object.from_address` takes ten times as "
        "long",
        "CPython 3.10",
        "core/implementation_details/python_api.py: object_at",
        "tests/core/test_implementation_details.py::test_object_at",
    ),
    Detail(
        "a callback's exception handler sees the frame that the signal interrupted, with its "
        "arguments",
        "a Ctrl-C that arrives while C runs is raised at the first instruction of the callback, "
        "and C cannot be told",
        "CPython 3.10, cffi 2.0",
        "core/implementation_details/callbacks.py: c_callback",
        "tests/core/outgoing/test_exchange_api.py::test_ctrl_c_in_a_callback_is_raised_later",
    ),
    Detail(
        "the class of an instance may be replaced by one with the same slots",
        "a tensor whose loan has ended raises at every use, whatever names it still has",
        "CPython 3.10",
        "core/tensor/expired.py: expirer",
        "tests/core/moves/test_edges.py::test_an_ended_view_says_so",
    ),
    Detail(
        "`sys.getrefcount` of a carrier counts the arrays and capsules made from it",
        "a host view refuses to end while something still uses its memory",
        "CPython 3.10",
        "core/moves/host_views.py: HostView",
        "tests/core/moves/test_edges.py::test_a_view_in_use_cannot_end",
    ),
    Detail(
        "an int subclass without slots for references is not tracked by the garbage collector",
        "a handle of libtvm_ffi is released exactly once, and never before its last user",
        "CPython 3.10",
        "ffi: Handle",
        "tests/ffi/test_alive_at_exit.py::test_handles_are_not_tracked",
    ),
)
