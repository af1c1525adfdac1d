"""What tests of a backend's calls need: memory by its ``data``, and a library with other answers."""

from dlbridge_vulkan.library import load

HELD = {}


def hold(made):
    """Keep *made*; its ``data``."""
    HELD[made.data] = made
    return made.data


def allocate(backend, device_id, nbytes, alignment=256, stream=0, content=None):
    """New memory."""
    return hold(backend.allocate(device_id, nbytes, alignment, stream, content))


def allocate_exportable(backend, device_id, nbytes, stream=0):
    """New memory for other processes."""
    return hold(backend.allocate_exportable(device_id, nbytes, stream))


def import_host(backend, device_id, address, nbytes, readonly):
    """Host memory in place, and where it begins in it."""
    made = backend.import_host(device_id, address, nbytes, readonly, 0)
    return hold(made), made.offset


def import_memory(backend, device_id, memory):
    """Memory of another driver, and where it begins in it."""
    made = backend.import_memory(device_id, memory, 0)
    return hold(made), made.offset


def free(backend, device_id, data, stream=0):
    """Drop what is held."""
    HELD.pop(data, None)


class Loader:
    """The library, with some answers changed."""

    def __init__(self, **changed):
        self.__dict__.update(changed)

    def __getattr__(self, name):
        return getattr(load(), name)
