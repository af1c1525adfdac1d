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
        "torch.from_dlpack is a Python function of the module torch.utils.dlpack, and calls "
        "__dlpack__ itself",
        "a tensor on a device that torch does not have is refused with the way out; torch would "
        "answer it with an internal error",
        "torch 2.0",
        "core/implementation_details/callers.py: is_called_by_torch",
        "tests/core/interfaces/test_producer.py::"
        "test_torch_is_told_that_it_has_no_tensors_on_the_device",
    ),
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
        "core/dlpack/capsules.py: get_destructor",
        "tests/core/test_implementation_details.py::"
        "test_a_capsules_destructor_and_a_structs_deleter_are_numpys_c_functions",
    ),
    Detail(
        "the struct in a new numpy capsule may be overwritten before a consumer has it",
        "numpy cannot describe bfloat16, other devices, offsets and flags",
        "numpy 2.1",
        "core/dlpack/exports.py: Image.describe",
        "tests/core/test_implementation_details.py::"
        "test_the_struct_of_a_new_capsule_may_be_overwritten",
    ),
    Detail(
        "a property over `operator.attrgetter` runs no Python; a subclass of property with "
        "`__call__` is what C finds on the class, and can be called there",
        "`ArrayTensor.__dlpack__` is numpy's bound C method, so np.from_dlpack calls C only; "
        "MLX takes only what can be called on the class",
        "CPython 3.11",
        "core/tensor/array_tensor.py: ArrayTensor",
        "tests/core/test_implementation_details.py::"
        "test_the_method_of_the_instance_is_found_before_that_of_the_class",
    ),
    Detail(
        "`_ctypes.PyObj_FromPtr` gives the object at an address",
        "the exchange table gets PyObject pointers; `py_object.from_address` takes ten times as "
        "long",
        "CPython 3.11",
        "core/implementation_details/python_api.py: object_at",
        "tests/core/test_implementation_details.py::test_object_at",
    ),
    Detail(
        "a callback of cffi drops what its function returned after it has read the number, and "
        "keeps an exception that C raises meanwhile; the attributes of an object are dropped in "
        "their order; the value of a float lies 16 bytes behind its address",
        "a failing function of an exchange table leaves its exception pending (dlpack.h), which "
        "cffi and ctypes would clear",
        "CPython 3.11, cffi 2.0, numpy 2.1",
        "core/dlpack/failures.py: failed",
        "tests/core/test_implementation_details.py::test_a_callback_leaves_an_exception_pending",
    ),
    Detail(
        "the first member of numpy's PyArrayObject is the address of the first element",
        "`__array_interface__` builds a dictionary and a list to say it: 1 us for each operand",
        "numpy 1.0",
        "core/implementation_details/numpy_arrays.py: address_of",
        "tests/core/test_implementation_details.py::test_the_address_of_an_array",
    ),
    Detail(
        "the first member of a capsule is its pointer",
        "a numpy array is lent to a call with the struct in its capsule; to ask "
        "`PyCapsule_GetPointer` takes three times as long",
        "CPython 3.11",
        "core/implementation_details/capsules.py: address_in",
        "tests/core/test_implementation_details.py::test_the_address_in_a_capsule",
    ),
    Detail(
        "a callback's exception handler sees the frame that the signal interrupted, with its "
        "arguments",
        "a Ctrl-C that arrives while C runs is raised at the first instruction of the callback, "
        "which then cannot report it to C",
        "CPython 3.11, cffi 2.0",
        "core/implementation_details/callbacks.py: c_callback",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "a signal that came before a call is noticed at RESUME",
        "a deleter of `from_blob` that has not begun is called again, and no other",
        "CPython 3.11",
        "core/blobs.py: _release",
        "tests/core/test_implementation_details.py::test_a_function_that_was_cut_at_its_entry",
    ),
    Detail(
        "a function without a call and without a loop runs to its end, whatever signals come; "
        "one that a signal meets at its first instruction has not begun",
        "deleters that C calls late change their tables in one step, once",
        "CPython 3.11, cffi 2.0",
        "ffi/_lib.py: destructor",
        "tests/ffi/calls/test_interrupts.py::test_an_interruption_leaves_nothing_behind",
    ),
    Detail(
        "the frame of a generator that never ran has no caller, and a code object may be given "
        "another file and name",
        "backtraces of C++ are shown as lines of a Python traceback",
        "CPython 3.11",
        "ffi/errors.py: traceback_of",
        "tests/ffi/values/test_errors.py::test_backtrace_of_cpp_is_in_the_traceback",
    ),
    Detail(
        "the class of a function object may be replaced by one with the same slots",
        "a function takes keywords if its metadata names them",
        "CPython 3.11",
        "ffi/functions.py: described",
        "tests/ffi/calls/test_functions.py::test_keywords_where_the_metadata_names_them",
    ),
    Detail(
        "`PyThreadState_SetAsyncExc` takes a class, and raises what calling the class returns",
        "the exception of a signal handler is raised after C has returned, as the same object",
        "CPython 3.11",
        "core/implementation_details/handlers.py: raise_when_dropped",
        "tests/core/test_implementation_details.py::"
        "test_an_interrupted_callback_is_run_again_with_its_arguments",
    ),
    Detail(
        "the class of an instance may be replaced by one with the same slots",
        "each use of an expired tensor raises, through all references to it",
        "CPython 3.11",
        "core/tensor/expired.py: expirer",
        "tests/core/moves/test_edges.py::test_the_tensor_of_an_ended_view_says_so",
    ),
    Detail(
        "`sys.getrefcount` of a carrier counts the arrays and capsules made from it",
        "a host view refuses to end while something still uses its memory",
        "CPython 3.11",
        "core/moves/host_views.py: HostView",
        "tests/core/test_implementation_details.py::"
        "test_references_of_an_array_are_counted_at_once",
    ),
    Detail(
        "the base of an array that numpy has imported is a capsule, whose destructor calls the "
        "deleter of the struct with the GIL held and with a pending exception set aside",
        "capsules with this destructor own the structs that we import: C++ may drop them in a "
        "destructor, where cffi must not release the GIL",
        "numpy 2.1",
        "core/dlpack/capsules.py: _owner_of",
        "tests/core/test_implementation_details.py::"
        "test_the_owner_of_an_imported_struct_keeps_the_pending_exception",
    ),
    Detail(
        "`sys._current_frames` shows each ``__del__`` that runs in another thread, and "
        "``__del__`` may be replaced by a method of C",
        "no thread may be in a ``__del__`` of ours when Python ends: CPython before 3.14 ends "
        "the thread there, which aborts the process if a destructor of C++ is below",
        "CPython 3.11",
        "core/implementation_details/finalizers.py: end_finalizers",
        "tests/core/test_implementation_details.py::test_finalizers_end_before_the_process_does",
    ),
)
