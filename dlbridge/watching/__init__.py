"""Exchanges of arrays in a program, whoever makes them: `dlbridge.watch` and its plug-in."""
