"""The description of wgpu's buffers, so that they are recognised before the backend is loaded."""

from dlbridge.libraries import Library

LIBRARY = Library("wgpu", ("wgpu.GPUBuffer",), backend="webgpu", device_types=frozenset({15}))
