"""Random operations on the device and the host, beside a model in numpy."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .backend_moves import PublicCase


class StatefulTests(PublicCase):
    """`dlbridge.testing.TensorMachine` on the device under test."""

    def test_random_operations(self, backend: Any, where: str) -> None:
        """After each operation every tensor is as its model.

        The environment may ask for more: ``DLBRIDGE_OPERATIONS=100000``, and for others than
        always the same ones: ``DLBRIDGE_SEED=7``.
        """
        pytest.importorskip("hypothesis", reason="hypothesis is not installed")
        from .stateful import TensorMachine

        made = [self.make_stream(backend, self.device_id) for _ in range(2)]
        self.made = tuple(made)
        usable = [stream for stream in made if stream is not None]

        class Machine(TensorMachine):
            devices = ("cpu:0",) if where == "cpu:0" else ("cpu:0", where)
            streams = {where: usable}  # noqa: RUF012 - the annotation is the base's

        seed = os.environ.get("DLBRIDGE_SEED")
        operations = int(os.environ.get("DLBRIDGE_OPERATIONS", "300"))
        Machine.run(operations, None if seed is None else int(seed))
