"""DLPack in and out in Python: producers, our exchange table; native objects of backends."""

# May import: `core.dlpack`, `core.implementation_details`, `core.libraries`, `core.moves`,
# `core.plugins`, `core.tensor`, `core.values`, `errors`, `kit`, `protocol`.
