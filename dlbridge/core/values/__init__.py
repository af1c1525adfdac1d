"""Immutable values: layouts, dtypes, devices. No memory, no C."""

# May import: `errors`, `protocol`.
