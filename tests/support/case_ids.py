"""Names of test cases that are the same in every process."""

from __future__ import annotations

import re


def stable(value: object) -> str:
    """The repr of *value* without addresses, for ``pytest.mark.parametrize(ids=)``."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
