"""The public functions that move and make tensors: they put the rooms together."""

# May import: `core.dlpack`, `core.implementation_details`, `core.interfaces`, `core.libraries`,
# `core.moves`, `core.plugins`, `core.tensor`, `core.values`, `errors`, `extending`, `interop`,
# `protocol`.
