"""Two processes that write what the other reads, in memory of CUDA's: METHOD, and 1 if simulated."""

import multiprocessing
import sys

import numpy as np

from tests.drivers import build

if sys.argv[2:] == ["1"]:
    build.load("cuda")  # before anybody looks for a libcuda

import dlbridge as bridge

VALUES = np.arange(3000, dtype="i4").reshape(30, 100)


def host(t):
    return bridge.to_device(t, "cpu", copy=True).numpy()


def serve(connection):
    t = connection.recv()
    connection.send((str(t.device), (host(t) == VALUES).all()))
    bridge.copy_(t, VALUES * 2)
    bridge.synchronize("cuda:0")
    own = bridge.share(VALUES * 3, "cuda:0")
    connection.send((t[1:], own))
    assert connection.recv() == "it has come"


def main(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,))
    process.start()
    t = bridge.share(VALUES, "cuda:0")
    ours.send(t)
    print(*ours.recv())
    back, own = ours.recv()
    print(back.data_ptr() == t.data_ptr() + 400, (host(t) == VALUES * 2).all())
    ours.send("it has come")
    process.join()
    print(process.exitcode, (host(own) == VALUES * 3).all())


if __name__ == "__main__":
    main(sys.argv[1])
