"""Ray: put and get, read-only memory, devices, on a real cluster of this machine.

The scenes of `ray_scenes` run on one cluster, in a process of their own. Ray is not in the test
packages, as it is large: ``python tests/peers/run.py ray`` installs it and runs this.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.expected_parts import backend_or_skip, expected
from tests.support.process_groups import run_scenes, scene_names

if not expected("ray"):
    pytest.importorskip("ray")

SCENES = Path(__file__).with_name("ray_scenes.py")


@pytest.fixture(scope="module")
def cluster():
    """The scenes that failed, with their tracebacks; empty for the others."""
    backend_or_skip("opencl")
    backend_or_skip("vulkan")
    own = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on the loopback interface
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),  # else Ray writes one into the home folder
    }
    # The paths of Ray's sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    try:
        return run_scenes(SCENES, folder, env=own)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", scene_names(SCENES))
def test_on_a_cluster(cluster, name):
    assert cluster[name] == "", cluster[name]
