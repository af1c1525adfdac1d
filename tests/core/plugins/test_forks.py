"""A child of ``fork()`` calls no driver that its parent has used."""

import os

import pytest
from scripts import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

CHILD = """
import os, sys
import numpy as np
import dlbridge as bridge

tensor, host = bridge.to_device(np.arange(3.0), "ext_dev:0"), bridge.zeros(3)
plugin = bridge.backend("ext_dev")
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.tolist() == [0, 1, 2]
    sys.exit()

USES = [
    lambda: bridge.empty(3, device="ext_dev:0"),
    lambda: tensor.tolist(),
    lambda: bridge.copy_(tensor, np.zeros(3)),
    lambda: tensor[1:].to_device("cpu"),
    lambda: bridge.devices("ext_dev"),
    lambda: bridge.synchronize("ext_dev:0"),
    lambda: bridge.trim("ext_dev:0"),
    lambda: bridge.backend("ext_dev").device_count(),
    lambda: plugin.device_count(),  # who has kept the object
]
for number, use in enumerate(USES):
    try:
        print(number, use())
    except bridge.DeviceError as exc:
        assert "fork()" in str(exc), exc
        assert "spawn" in str(exc), exc
    else:
        os._exit(1)
del tensor  # it is the parent's
assert host.tolist() == [0, 0, 0]
assert bridge.empty(3).device == bridge.device("cpu")
"""


def test_a_used_backend_is_a_stub_in_the_child() -> None:
    assert run_script(CHILD) == ""


def test_a_backend_that_was_not_used_works_in_the_child() -> None:
    begin = CHILD.index("tensor, host"), CHILD.index("child = os.fork()")
    before = CHILD[: begin[0]] + CHILD[begin[1] :].partition("    assert tensor")[0]
    run_script(
        before + "    sys.exit()\nassert bridge.zeros(3, device='ext_dev:0').tolist() == [0] * 3"
    )
