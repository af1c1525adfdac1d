"""A backend as `new-backend` writes it, in a new environment with the wheel and its extra `testing`.

`make test-new-backend`: what somebody else has who begins a backend. The commands are those of the
workflow in the project itself, which no forge has run here. With a path it takes that wheel, and
else it builds one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

STEP = re.compile(r"^ +- run: (.+)$", re.MULTILINE)
"""A command of the workflow."""

VARIABLE = re.compile(r"^ {10}([A-Z_]+): (\S+)$", re.MULTILINE)
"""A variable of a command's environment."""


def main() -> int:
    """Install the wheel, write the project, and do what its workflow does."""
    with tempfile.TemporaryDirectory() as folder:
        dist, venv = Path(folder, "dist"), Path(folder, "venv")
        wheels = [Path(argument).resolve() for argument in sys.argv[1:]]
        if not wheels:
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
            call(build, ROOT)
            wheels = list(dist.glob("*.whl"))
        (wheel,) = wheels
        call([sys.executable, "-m", "venv", str(venv)], ROOT)
        programs = venv / ("Scripts" if sys.platform == "win32" else "bin")
        outside = {name: value for name, value in os.environ.items() if not is_ours(name)}
        variables = {**outside, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        python = str(programs / "python")
        call([python, "-m", "pip", "install", "-q", f"{wheel}[testing]"], folder, variables)
        call([python, "-m", "dlbridge", "new-backend", "my_npu"], folder, variables)
        project = Path(folder, "dlbridge-my-npu")
        workflow = (project / ".github/workflows/test.yml").read_text("utf-8")
        given = dict(VARIABLE.findall(workflow))
        steps = STEP.findall(workflow)
        if steps != ["pip install -e '.[test]'", "pytest"] or given != {
            "DLBRIDGE_EXPECT": "my_npu"
        }:
            sys.exit(f"the workflow has other commands than this script knows: {steps}, {given}")
        for step in steps:
            call(["sh", "-c", step], project, {**variables, **given})
    return 0


def is_ours(name: str) -> bool:
    """Whether the variable would change what a new environment shows."""
    return name.startswith(("DLBRIDGE_", "PYTHON", "PYTEST_"))


def call(command: list[str], folder: str | Path, variables: dict[str, str] | None = None) -> None:
    """Run *command*; end with its exit code if it fails."""
    print("$", *command, flush=True)
    code = subprocess.run(command, cwd=folder, env=variables, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
