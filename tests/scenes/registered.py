"""A process in which numpy exchanges the types of ml_dtypes itself, as a release of it may do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import dlbridge as bridge


def both_ways() -> None:
    """The same memory, bits and type: with numpy alone, and with us at either end."""
    register: Any = vars(np.dtypes)["register_dlpack_dtype"]  # since 2.5, and types are of 2.4
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        array = np.arange(6).astype(getattr(ml_dtypes, name))
        before = bridge.from_dlpack(array)
        there = bridge.dtype(name)
        register((there.code, there.bits), array.dtype)
        exports: list[Any] = [array, Asked(array)]
        for export in exports:
            alone = np.from_dlpack(export)
            ours = bridge.from_dlpack(export)
            back = np.from_dlpack(ours)
            assert ours.dtype == before.dtype == there, ours.dtype
            for each in (alone, back, ours.numpy(), np.asarray(ours)):
                assert each.dtype == array.dtype, each.dtype
                assert each.tobytes() == array.tobytes()
                assert np.shares_memory(each, array)
        array.flags.writeable = False
        assert bridge.from_dlpack(array).readonly
        assert not np.from_dlpack(bridge.from_dlpack(array)).flags.writeable
    print("the same")


class Asked:
    """An object that has nothing but numpy's own export."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> object:
        return self.array.__dlpack__(**asked)
