"""A process that has the CPU only; its module says so before dlbridge looks for backends."""

from __future__ import annotations

import os
import warnings
from typing import Any


def serve(connection: Any) -> None:
    os.environ["DLBRIDGE_BACKENDS"] = "cpu"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        t = connection.recv()
    t.numpy()[:] = [1, 2, 3, 4]
    connection.send([str(t.device), *(warning.category.__name__ for warning in caught)])


def serve_errors(connection: Any) -> None:
    """Receive one thing, and say which error came instead."""
    os.environ["DLBRIDGE_BACKENDS"] = "cpu"
    try:
        connection.send(str(connection.recv()))
    except Exception as error:
        connection.send(f"{type(error).__name__} {error}")
