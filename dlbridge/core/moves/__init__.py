"""From one memory to another: the plan, its steps, the copies."""

# May import: `core.dlpack`, `core.implementation_details`, `core.plugins`, `core.tensor`,
# `core.values`, `errors`, `kit`, `protocol`.
