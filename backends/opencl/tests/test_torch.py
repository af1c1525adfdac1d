"""torch refuses a tensor on OpenCL and deletes it twice: nothing of ours is lost or freed twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import gc, torch
import dlbridge as bridge
batch = torch.ones(64, 3, 8, 8)
for turn in range(30):
    t = bridge.to_device(batch, "opencl:0", copy=True)
    try:
        {use}
    except Exception as error:
        said = str(error)
    del t
    gc.collect()
print(bridge.to_device(batch, "opencl:0").tolist()[0][0][0][:2], bool(said))
"""


@pytest.mark.parametrize(
    "use",
    ["torch.from_dlpack(t)", "bridge.to_device(t, 'opencl:0', like='torch')"],
    ids=["from_dlpack", "like"],
)
def test_torch_has_no_opencl(opencl, use):
    """On the old code a segmentation fault, or memory of something else in the end."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPT.format(use=use)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "[1.0, 1.0] True\n"
