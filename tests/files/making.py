"""Files made by hand, so that their headers can lie."""

from __future__ import annotations

import io
import json
import struct

import numpy as np

GGUF_F32, GGUF_Q4_0 = 0, 2


def safetensors_bytes(header, data=b"", *, length=None):
    """A safetensors file; *header* is a dictionary, or the text itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_bytes(tensors, data, *, pairs=b"", count=0, version=3, alignment=32):
    """A GGUF file; *tensors* are ``(name, dims, type, offset)`` with GGUF's order of dims."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), count) + pairs
    for name, dims, kind, offset in tensors:
        head += _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return head + b"\0" * (-len(head) % alignment) + data


def npy_bytes(array):
    """The bytes that numpy writes of an array."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()
