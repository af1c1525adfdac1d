"""WebGPU devices for dlbridge, by the package wgpu. Importing this does not import wgpu."""

from dlbridge.libraries import Library

from .backend import WebGPU, WebGPUArray

__all__ = ["LIBRARY", "WebGPU", "WebGPUArray"]

LIBRARY = Library("wgpu", ("wgpu.GPUBuffer",), backend="webgpu", device_types=frozenset({15}))
"""The description of wgpu's buffers, so that they are recognised before the backend is loaded."""
