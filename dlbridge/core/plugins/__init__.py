"""Backends: how they are found, which one serves a device, its streams; the CPU backend."""
