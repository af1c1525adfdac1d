"""The class of a library's description, and which library an array is of."""

# May import: `core.plugins`, `core.tensor`, `core.values`, `errors`.
