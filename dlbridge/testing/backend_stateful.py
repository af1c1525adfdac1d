"""Random operations on the device and the host, beside a model in numpy."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .backend_moves import PublicCase


class StatefulTests(PublicCase):
    """`dlbridge.testing.TensorMachine` on the device under test."""

    def test_random_operations(self, backend: Any, where: str) -> None:
        """After each one, every tensor is as its model.

        The operations are always the same ones. The environment may ask for more of them,
        ``DLBRIDGE_OPERATIONS=20000``, and for others, ``DLBRIDGE_KIT_SEED=7``. A test that takes
        more than three times `patience` is ended.
        """
        try:
            from .stateful import PACKED, TensorMachine
        except ImportError as exc:  # hypothesis is missing
            pytest.skip(str(exc))

        made = [self.make_stream(backend, self.device_id) for _ in range(2)]
        self.made = tuple(stream for stream in made if stream is not None)

        class Machine(TensorMachine):
            devices = tuple(dict.fromkeys(("cpu:0", where)))
            streams = {where: self.made}  # noqa: RUF012 - the annotation is the base's

        class BelowAByte(Machine):
            dtypes = PACKED

        seed = int(os.environ.get("DLBRIDGE_KIT_SEED") or 0)
        operations = int(os.environ.get("DLBRIDGE_OPERATIONS") or 2000)
        Machine.run(operations, seed)
        BelowAByte.run(operations // 2, seed)
