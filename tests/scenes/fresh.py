"""A process whose first import of dlbridge is one module, one function, or a pickle.

So nothing of dlbridge or numpy is imported here before a scene begins.
"""

from __future__ import annotations

from typing import Any


def by_module(name: str) -> None:
    import importlib

    import numpy as np

    importlib.import_module(name)
    import dlbridge

    home = dlbridge.ffi if name == "dlbridge.ffi" else dlbridge
    use(home.from_dlpack(np.arange(6, dtype="f4").reshape(2, 3)))


def by_function(name: str) -> None:
    import numpy as np

    a = np.arange(6, dtype="f4").reshape(2, 3)
    space: dict[str, Any] = {}
    exec(f"from dlbridge import {name} as function", space)
    given = {"asarray": (a,), "to_device": (a, "cpu")}.get(name, ((2, 3),))
    t = space["function"](*given)
    t.numpy()[...] = a
    use(t)


def by_pickle(path: str) -> None:
    """The process never imports dlbridge by itself."""
    import pickle

    with open(path, "rb") as file:  # noqa: PTH123 - pathlib would do, too
        use(pickle.load(file))


def by_ffi() -> None:
    """What tvm_ffi's containers and functions give back is a whole Tensor too."""
    import numpy as np

    import dlbridge.ffi as f

    assert f.convert(np.ones(3)).tobytes() == np.ones(3).tobytes()
    use(f.convert(np.arange(6, dtype="f4").reshape(2, 3)))


def use(t: Any) -> None:
    """Everything that a Tensor has; of the floats 0 to 5, (2, 3), on the CPU."""
    import copy
    import pickle

    cls = type(t)
    assert ("dlbridge", "Tensor") in [(c.__module__, c.__name__) for c in cls.__mro__]
    assert (t.shape, t.ndim, t.size, t.nbytes, str(t.dtype)) == ((2, 3), 2, 6, 24, "float32")
    expected = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert t.tolist() == expected
    assert t[1, 1].item() == 4.0
    assert len(t.tobytes()) == 24
    assert t.T.tobytes() != t.tobytes()
    assert t.to_device("cpu").tolist() == expected
    with t.host_view() as h:
        assert h.tolist() == expected
    assert t.to_native().tolist() == expected
    operand = t.operand()
    assert (operand.nbytes, operand.data + operand.byte_offset) == (24, t.data_ptr())
    assert t.numpy().tolist() == t.__array__().tolist() == expected
    assert t.reshape(3, 2).view("int32").transpose().shape == (2, 3)
    exchanged(t, expected)
    assert not hasattr(t, "__cuda_array_interface__")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(t, protocol))
        assert type(again) is cls
        assert again.tolist() == expected
    buffers: list[Any] = []
    raw = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert pickle.loads(raw, buffers=buffers).tolist() == expected
    assert len(buffers) == 1
    assert copy.copy(t).tolist() == copy.deepcopy(t).tolist() == expected
    print("used", t.device)


def exchanged(t: Any, expected: list[list[float]]) -> None:
    """DLPack: by capsule, and by the exchange table."""
    import ctypes

    assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 1)))
    assert '"dltensor"' in repr(t.__dlpack__())
    assert t.__dlpack_device__() == (1, 0)
    import numpy as np

    assert np.from_dlpack(t).tolist() == expected
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = pointer(type(t).__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    table = ctypes.cast(at, ctypes.POINTER(ctypes.c_void_p))
    # DLPackExchangeAPI of dlpack.h 1.3: version, prev_api, then
    # managed_tensor_allocator, managed_tensor_from_py_object_no_sync, ...
    take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
    taken = ctypes.c_void_p()
    assert take(table[3])(t, ctypes.byref(taken)) == 0
    assert taken.value
    # DLManagedTensorVersioned: version, manager_ctx, deleter, flags, dl_tensor.
    fields = ctypes.cast(taken, ctypes.POINTER(ctypes.c_void_p))
    assert fields[4] == t.data_ptr()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(fields[2])(taken)
