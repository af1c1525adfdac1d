"""Exchanges of arrays in a program, whoever makes them: `dlbridge.watch` and its plug-in."""

# A guest: it uses public names only. May import: `errors`, `extending`, `kit`.
