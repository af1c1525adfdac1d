"""Backends: how they are looked up, which one serves a device, its streams; the CPU backend."""
