"""A child of ``fork()`` calls no driver that its parent has used."""

import os

import pytest
from scripts import run_scene, run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")


@pytest.mark.parametrize("scene", ["used_before_fork", "not_used_before_fork"])
def test_a_used_backend_is_a_stub_in_the_child_and_one_that_was_not_used_works(scene):
    assert run_scene(f"backends.{scene}") == ""


# What other libraries do in the child comes first, and the collector may come with it.
COLLECTED = """
import gc, os

def of_another_library():
    gc.set_threshold(1)
    [[] for _ in range(100)]

os.register_at_fork(after_in_child=of_another_library)

import dlbridge as bridge

class Finalized:
    def __init__(self):
        self.itself, self.tensor = self, bridge.zeros(3, device="ext_dev:0")

    def __del__(self):
        try:
            made.append(bridge.zeros(3, device="ext_dev:0"))
        except bridge.DeviceError as exc:
            assert "fork()" in str(exc)
            made.append(None)

made = []
gc.set_threshold(100_000)
{before}
Finalized()
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled() is {enabled}
else:
    assert gc.isenabled() is {enabled}
    {collect}
    assert made == [None], made
"""


def test_no_finalizer_reaches_a_driver_before_the_stub_is_there():
    code = COLLECTED.format(before="", enabled=True, collect="[[] for _ in range(10_000)]")
    assert run_script(code) == ""


def test_a_collector_that_is_off_stays_off():
    code = COLLECTED.format(before="gc.disable()", enabled=False, collect="gc.collect()")
    assert run_script(code) == ""
