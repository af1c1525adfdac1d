"""What this machine has for dlbridge, and what is wrong with it: `info` and `doctor`."""

# A guest: it uses public names only. May import: `errors`, `extending`, `ffi`, `protocol`.
