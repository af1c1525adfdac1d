"""Backends: how they are looked up, which one serves a device, its streams; the CPU backend."""

# May import: `core.dlpack`, `core.implementation_details`, `core.values`, `errors`, `kit`,
# `protocol`.
