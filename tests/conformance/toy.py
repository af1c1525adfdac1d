"""A small array library over numpy, with one fault at a time: ``TOY_FAULT`` names it.

The conformance command must find each.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np

from dlbridge.conformance.producer import managed_in

FAULT = os.environ.get("TOY_FAULT", "")
_kept = []


class Array:
    def __init__(self, data):
        self._data = data

    @property
    def shape(self):
        return self._data.shape

    @property
    def dtype(self):
        return self._data.dtype

    def __getitem__(self, index):
        return Array(self._data[index])

    def numpy(self):
        return self._data

    def __del__(self):
        if FAULT == "an export does not own its memory":
            self._data[...] = 7

    def __dlpack_device__(self):
        if FAULT == "the device is not two ints":
            return [1, 0]
        if FAULT == "the device is another one than the struct's":
            return (2, 0)
        return (1, 0)

    def __dlpack__(self, *, stream=..., max_version=None, dl_device=None, copy=None):
        if stream is None and FAULT == "stream=None is refused":
            raise ValueError("no stream at all")
        stream = None if stream is ... else stream
        if stream not in (None, -1) and FAULT != "any stream is accepted":
            raise ValueError("no streams here")
        if FAULT == "always versioned":
            max_version = (1, 0)
        if FAULT == "copy=True copies nothing":
            copy = None
        data = self._data
        if FAULT == "bool is exported as uint8" and data.dtype == bool:
            data = data.view("uint8")
        if FAULT == "a new copy at each export" and data.size:
            data = data.copy()
        if FAULT == "exports are never freed":
            _kept.append(data)
        if dl_device not in (None, (1, 0)) and FAULT == "any device is accepted":
            dl_device = None
        capsule = data.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)
        if max_version is not None and FAULT in FLAGS:
            managed_in(capsule).flags |= FLAGS[FAULT]
        return capsule


FLAGS = {"each export is marked as a copy": 2, "each export is marked as read-only": 1}


def asarray(array):
    made = np.array(array)
    made.flags.writeable = array.flags.writeable
    return Array(made)


def _writable(data):
    """The same memory without the mark of numpy."""
    memory = (ctypes.c_char * data.nbytes).from_address(data.ctypes.data)
    _kept.append(data)
    return np.frombuffer(memory, data.dtype).reshape(data.shape)


def from_dlpack(producer):
    if FAULT == "a crash on negative strides":
        data = np.from_dlpack(producer)
        if any(step < 0 for step in data.strides):
            os.abort()
        return Array(data)
    if FAULT == "strides are ignored":
        data = np.from_dlpack(producer)
        steps = np.empty(data.shape, data.dtype).strides
        return Array(np.lib.stride_tricks.as_strided(data, data.shape, steps))
    if FAULT == "the mark of read-only memory is dropped":
        data = np.from_dlpack(producer)
        return Array(data if data.flags.writeable else _writable(data))
    if FAULT == "the producer is kept":
        _kept.append(producer)
    if FAULT == "the tensor is asked for twice":
        producer.__dlpack__()
    if FAULT == "errors of the producer are replaced":
        try:
            return Array(np.from_dlpack(producer))
        except Exception:
            raise RuntimeError("it did not work") from None
    return Array(np.from_dlpack(producer))
