"""pytest, and each test that failed three times more: `.ci/run` judges by it.

    python tests/again.py -q tests/core     # the arguments of pytest

Of 15,000 tests some race signals, threads and processes, on a machine that is shared with others.
A test that passes three times by itself after it failed is reported here, and does not fail the
run; one that fails again does, and so does a run with more than `MANY` failures. Developers run
pytest itself (`make test`): there each failure counts.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

__all__ = ["MANY", "TIMES", "main"]

TIMES = 3
"""How often a test that failed must pass."""
MANY = 10
"""With more failures than this, none of them is put down to chance."""


class Failures:
    """The plugin that keeps the names of the tests that failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name, once: a test can fail in its call and in its teardown."""
        if report.failed and report.nodeid not in self.names:
            self.names.append(report.nodeid)


def main(arguments: list[str]) -> int:
    """The exit status of pytest with *arguments*; 0 if its failures do not come again."""
    failures = Failures()
    status = int(pytest.main(arguments, plugins=[failures]))
    names = failures.names
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= MANY:
        return status
    for _ in range(TIMES):
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-n", "0", *names]
        if subprocess.run(command, check=False).returncode:
            return status
    print(f"FAILED ONCE in {TIMES + 1} runs:", *names, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.path[0] = ""  # as `python -m pytest` has it
    sys.exit(main(sys.argv[1:]))
