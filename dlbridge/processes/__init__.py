"""Tensors in other processes: shared memory, memory by file descriptors, pickles."""

# A guest: it uses public names only. May import: `abi`, `errors`, `extending`, `kit`, `protocol`.
