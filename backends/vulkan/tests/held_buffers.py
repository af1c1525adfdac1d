"""What tests of a backend's calls need: memory by its ``data``, and a library with other answers."""

from dlbridge_vulkan.library import load

from dlbridge.protocol import Span

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


def write(backend, data, content, offset=0, device_id=0):
    """Copy *content*, bytes or an array, to the memory."""
    source = memoryview(content).cast("B")
    backend.copy_from_host(Span(device_id, data, offset, len(source)), source, 0)


def read(backend, data, nbytes, offset=0, device_id=0):
    """The bytes in the memory, once the work on it is done."""
    into = bytearray(nbytes)
    backend.copy_to_host(Span(device_id, data, offset, nbytes), memoryview(into), 0)
    backend.synchronize(device_id, 0)
    return bytes(into)


class Loader:
    """The library, with some answers changed."""

    def __init__(self, **changed):
        self.__dict__.update(changed)

    def __getattr__(self, name):
        return getattr(load(), name)
