"""Each program of `scenes.py`, in a process of its own."""

from pathlib import Path

import pytest

from backends.opencl.tests.scenes import SCENES

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", SCENES)
def test_scene(script, request, name):
    if SCENES[name].shared:
        request.getfixturevalue("shared")
    script(
        f"from backends.opencl.tests.scenes import SCENES; SCENES[{name!r}].play()",
        **SCENES[name].switches,
    )
