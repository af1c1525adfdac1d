"""Tensors from files and to files: safetensors, numpy's two formats, and GGUF."""
