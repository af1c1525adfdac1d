"""The C side of DLPack: structs, capsules, other libraries' exchange tables."""

# May import: `core.implementation_details`, `core.values`, `errors`, `protocol`.
