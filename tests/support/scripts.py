"""Scripts in processes of their own: what may crash or hang must not take the tests with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["run_script"]

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]


def run_script(source: str, *, timeout: float = 600, env: dict[str, str] | None = None) -> str:
    """What the script prints; AssertionError if it ends by a signal, an error, or not in time."""
    paths = [str(ROOT), str(SUPPORT), os.environ.get("PYTHONPATH", "")]
    # A process in the background may be started with SIGINT ignored, and hands that on.
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", prelude + textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    code = done.returncode
    ended = signal.Signals(-code).name if code < 0 else code
    assert ended == 0, f"{ended}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
