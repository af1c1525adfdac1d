"""The details of CPython and numpy that dlbridge relies on, and the tests that they hold.

They are outside the documented interfaces, or barely inside. Code that can be
separated from its callers is in this package; other code is named here with its
place. Run these tests first with a new version of CPython or numpy.

`DETAILS` is read by ``tests/core/test_implementation_details.py``, which fails
where a place or a test is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DETAILS", "Detail"]


class Detail(NamedTuple):
    """One detail of CPython or numpy that dlbridge relies on."""

    what: str
    why: str
    since: str
    where: str
    """The file below ``dlbridge/``, and the name in it."""
    test: str
    """The test that fails when the detail no longer holds."""


DETAILS: Final = (
    Detail(
        "numpy's capsules own the array that they were made of, and their destructor and deleter "
        "are C functions that take the GIL, keep a pending exception and return at once when "
        "Python has ended",
        "a consumer may delete a tensor in a thread that Python does not know, or after Python "
        "has ended",
        "numpy 2.1",
        "core/dlpack/exports.py: export_capsule",
        "tests/safety/test_exit_safety.py::test_released_after_python_has_gone",
    ),
    Detail(
        "the destructor of a capsule of numpy is one C function, which works for any capsule "
        "whose struct has a deleter",
        "capsules with a struct of our own get it: it runs no Python, so it can be called late",
        "numpy 2.1",
        "core/dlpack/exports.py: _get_destructor",
        "tests/core/test_implementation_details.py::"
        "test_a_capsules_destructor_and_a_structs_deleter_are_numpys_c_functions",
    ),
    Detail(
        "the struct in a new numpy capsule may be overwritten before a consumer has it",
        "numpy cannot describe bfloat16, other devices, offsets and flags",
        "numpy 2.1",
        "core/dlpack/exports.py: Image.write",
        "tests/core/test_implementation_details.py::"
        "test_the_struct_of_a_new_capsule_may_be_overwritten",
    ),
    Detail(
        "an attribute of the instance is found before a function of the class",
        "`ArrayTensor.__dlpack__` is numpy's bound C method: np.from_dlpack calls C only",
        "CPython 3.10",
        "core/tensor/tensor.py: ArrayTensor",
        "tests/core/test_implementation_details.py::"
        "test_the_method_of_the_instance_is_found_before_that_of_the_class",
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
        "which then cannot report it to C",
        "CPython 3.10, cffi 2.0",
        "core/implementation_details/callbacks.py: c_callback",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "`PyThreadState_SetAsyncExc` takes a class, and raises what calling the class returns",
        "the exception of a signal handler is raised after C has returned, as the same object",
        "CPython 3.10",
        "core/implementation_details/callbacks.py: _raise_when_dropped",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "the class of an instance may be replaced by one with the same slots",
        "each use of an expired tensor raises, through all references to it",
        "CPython 3.10",
        "core/tensor/expired.py: expirer",
        "tests/core/moves/test_edges.py::test_the_tensor_of_an_ended_view_says_so",
    ),
    Detail(
        "`sys.getrefcount` of a carrier counts the arrays and capsules made from it",
        "a host view refuses to end while something still uses its memory",
        "CPython 3.10",
        "core/moves/host_views.py: HostView",
        "tests/core/test_implementation_details.py::"
        "test_references_of_an_array_are_counted_at_once",
    ),
)
