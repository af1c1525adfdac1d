"""A pytest plug-in: how many copies a test may make, ``pytest -p dlbridge.watching.plugin``.

It has no entry point for pytest, which would load dlbridge, and watch tests that have a fixture
`exchanges` of their own, wherever dlbridge is installed. A module ``dlbridge.watch`` would hide the
function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlbridge import watch

if TYPE_CHECKING:
    from collections.abc import Generator

    from dlbridge import Exchanges

_KEY = pytest.StashKey["Exchanges"]()
_MARKER = (
    "exchanges(max_copies=None, max_moves=None, max_bytes=None): what the test may copy and move "
    "between array libraries and devices, and how many bytes of it (dlbridge)"
)
_LIMITS = {"max_copies": "copies", "max_moves": "moves", "max_bytes": "nbytes"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def _limits(item: pytest.Item) -> dict[str, int | None]:
    """What the markers of *item* allow; the nearest one decides."""
    found: dict[str, int | None] = {}
    for marker in item.iter_markers("exchanges"):
        for name, value in marker.kwargs.items():
            if name not in _LIMITS or not isinstance(value, int | None):
                raise pytest.UsageError(
                    f"{item.nodeid}: exchanges({name}={value!r}) is no limit; the limits are "
                    f"{', '.join(_LIMITS)}, each a number"
                )
            found.setdefault(name, value)
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: exchanges{marker.args!r} names no limit; write max_copies=0"
            )
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test that has the marker or the fixture, and fail it where it goes over a limit."""
    limits = _limits(item)
    if not limits and "exchanges" not in getattr(item, "fixturenames", ()):
        return (yield)
    exchanges = item.stash.setdefault(_KEY, watch())
    with exchanges:
        result = yield
    over = [
        f"{name}={limit}, and there were {found}"
        for name, limit in limits.items()
        if limit is not None and (found := getattr(exchanges, _LIMITS[name])) > limit
    ]
    if over:
        pytest.fail(f"exchanges: {'; '.join(over)}:\n{exchanges}", pytrace=False)
    return result


@pytest.fixture
def exchanges(request: pytest.FixtureRequest) -> Exchanges:
    """The table of exchanges of this test; it fills while the test runs."""
    table: Exchanges = request.node.stash.setdefault(_KEY, watch())
    return table
