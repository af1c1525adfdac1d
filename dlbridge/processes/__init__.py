"""Tensors in other processes: shared memory, pickles."""
