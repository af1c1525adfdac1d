"""A child of ``fork()`` calls no driver that its parent has used."""

import os

import pytest
from scripts import run_scene

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")


@pytest.mark.parametrize("scene", ["used_before_fork", "not_used_before_fork"])
def test_a_used_backend_is_a_stub_in_the_child_and_one_that_was_not_used_works(scene):
    assert run_scene(f"backends.{scene}") == ""
