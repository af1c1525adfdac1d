"""Arrays of other libraries and interfaces, in and out: one file for each.

`accepting` and `blobs` stand above `api`, all other modules below it: they do not import it.
"""

# A guest: it uses public names only. May import: `abi`, `api`, `errors`, `extending`, `kit`.
