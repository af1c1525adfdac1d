"""Other array libraries: how each treats our tensors, and how it makes its array of one."""
