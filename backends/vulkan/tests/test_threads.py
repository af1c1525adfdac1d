"""Everything at once: threads, kernels, imports, copies, and frees by the cycle collector."""

import gc
import mmap
import random
import struct
import threading

import numpy as np
from held_buffers import allocate, free, import_host

from dlbridge.protocol import Span

THREADS, ROUNDS = 6, 40


class Owned:
    """Memory that its finalizer frees: imported from the host, or the device's own."""

    def __init__(self, backend, count, imported):
        self.backend = backend
        if imported:
            self.host = np.frombuffer(mmap.mmap(-1, count * 4), np.float32)
            address = self.host.__array_interface__["data"][0]
            self.data, _ = import_host(backend, 0, address, count * 4, False)
        else:
            self.data = allocate(backend, 0, count * 4, 256, 0)

    def __del__(self):
        free(self.backend, 0, self.data, 0)


def rounds(backend, spirv, seed):
    """Double values by a shader, copy them on the device, read them back; True if all were right."""
    pick = random.Random(seed)
    kernel = backend.kernel(spirv, buffers=1, push_nbytes=12)
    for _ in range(ROUNDS):
        count = pick.choice([1, 100, 4096, 100_000, 600_000])
        values = np.random.default_rng(seed).random(count, np.float32)
        source = Owned(backend, count, imported=count >= 4096 and pick.random() < 0.3)
        target = Owned(backend, count, imported=False)
        backend.copy_from_host(
            Span(0, source.data, 0, memoryview(values).nbytes), memoryview(values).cast("B"), 0
        )
        binding = (backend.devices.buffer(source.data), 0, 4 * count)
        kernel.run([binding], (-(-count // 64),), struct.pack("=IIf", count, 1, 2.0))
        backend.copy(Span(0, target.data, 0, 4 * count), Span(0, source.data, 0, 4 * count), 0)
        if pick.random() < 0.1:
            kernel = backend.kernel(spirv, buffers=1, push_nbytes=12)
        if pick.random() < 0.5:
            del source
        got = np.empty_like(values)
        backend.copy_to_host(
            Span(0, target.data, 0, memoryview(got).nbytes), memoryview(got).cast("B"), 0
        )
        if not (got == 2 * values).all():
            return False
        cycle = [target]
        cycle.append(cycle)
        del cycle, target  # freed wherever the collector comes
    return True


def test_everything_at_once(either, scale_spirv):
    """No wrong byte, no deadlock of a finalizer, nothing left, and the layer silent."""
    results = []
    before = either.live_allocations()

    def work(seed):
        try:
            results.append(rounds(either, scale_spirv, seed))
        except BaseException as exc:
            results.append(exc)

    threshold = gc.get_threshold()
    gc.set_threshold(50)
    try:
        threads = [
            threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    finally:
        gc.set_threshold(*threshold)
    assert results == [True] * THREADS
    gc.collect()
    assert either.live_allocations() <= before
