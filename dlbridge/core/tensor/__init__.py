"""The tensor: metadata, the memory under it and its owner, views."""

# May import: `core.dlpack`, `core.implementation_details`, `core.plugins`, `core.values`,
# `errors`, `kit`, `protocol`.
