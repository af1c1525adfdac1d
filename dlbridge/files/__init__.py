"""Tensors from files and to files: safetensors, numpy's two formats, and GGUF."""

# A guest: it uses public names only. May import: `api`, `errors`, `extending`, `kit`.
