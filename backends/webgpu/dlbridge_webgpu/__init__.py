"""WebGPU devices for dlbridge, by the package wgpu. Importing this does not import wgpu."""

from .backend import WebGPU, WebGPUArray

__all__ = ["WebGPU", "WebGPUArray"]
