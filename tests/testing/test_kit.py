"""The conformance kit beside its tests: what is skipped, and what a failure shows."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from pathlib import Path
from typing import ClassVar

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from dlbridge_fake import Fake, Stream

import dlbridge.testing
from dlbridge.testing import BackendTests, TensorMachine
from dlbridge.testing.backend_base import DeviceUnderTest
from tests.support.scripts import finished, run_pytest

PLUGINS = Path(__file__).parents[1] / "support" / "plugins"


class Kit(BackendTests):
    """The tests, called one by one."""

    __test__ = False
    name = "ext_dev"


def test_no_precondition_of_the_random_operations_is_a_lambda():
    """hypothesis 6.100 parses the file of a lambda each time it asks it: they did not end."""
    source = Path(dlbridge.testing.__file__).with_name("stateful.py").read_text(encoding="utf-8")
    assert "@precondition(" in source
    assert "@precondition(lambda" not in source


def test_without_a_probe_the_kit_says_what_it_cannot_see(monkeypatch):
    """It passed for a `synchronize` that does nothing, without a word."""
    monkeypatch.delenv("DLBRIDGE_FAKE_DELAY_US", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"ext_dev: .* give slow_work and is_done"):
        Kit().test_synchronize_alone_waits(DeviceUnderTest(Fake(), 0))


def test_the_name_of_a_backend_may_have_capitals():
    """The error about a stream that is none was searched for it in small letters."""

    class Backend:
        def normalize_stream(self, device_id, stream):
            raise ValueError(f"MyGPU:{device_id}: {stream:#x} is no stream; pass None or -1")

    class KitOfMyGPU(Kit):
        __test__ = False
        name = "MyGPU"

    KitOfMyGPU().test_unknown_streams(Backend())


def test_failed_asserts_of_every_part_show_their_values():
    """pytest's loader rewrites them; without it an AssertionError has no text."""
    names = [each.name for each in pkgutil.iter_modules(dlbridge.testing.__path__)]
    assert "backend_order" in names
    for name in names:
        module = importlib.import_module(f"dlbridge.testing.{name}")
        assert isinstance(module.__spec__.loader, AssertionRewritingHook), name


DRAWS = """
from dlbridge.testing.backend_base import drawn, drawn_sizes

def test_sizes():
    sizes = drawn_sizes(1 << 16, (1 << 20) + 5)
    assert all(low <= size <= 2 * low for low, size in zip([1 << bit for bit in range(16, 20)], sizes))
    assert (1 << 20) * 15 // 16 <= sizes[-1] <= (1 << 20) + 5
    assert drawn(5, 5) == 0, sizes
"""


def test_a_failure_shows_what_was_drawn_and_how_to_draw_it_again(tmp_path):
    """A run with the seed has the same sizes, and one without it others."""
    (tmp_path / "test_draws.py").write_text(DRAWS)

    def sizes(**env):
        done = run_pytest("-q", "-p", "no:cacheprovider", cwd=tmp_path, env=env)
        assert done.returncode == 1
        lines = re.findall(r"^(\d+) was drawn from .*KIT_SEED=(\d+)\)", done.stdout, re.MULTILINE)
        assert len(lines) == 7
        return [size for size, _ in lines], lines[0][1]

    first, seed = sizes()
    assert sizes(DLBRIDGE_KIT_SEED=seed) == (first, seed)
    assert sizes(DLBRIDGE_KIT_SEED=f"{int(seed) ^ 1}")[0] != first


OVERLAPS = """
from dlbridge.testing import backend_overlaps

drawn = backend_overlaps.random_parts

def shown(chance, shape):
    parts = drawn(chance, shape)
    print("a pair of", shape, parts)
    return parts

backend_overlaps.random_parts = shown

class TestFake(backend_overlaps.OverlapTests):
    name = "ext_dev"
"""


def test_the_environment_asks_for_more_overlaps_and_for_others(tmp_path):
    """Without it they are always the same ones."""
    (tmp_path / "test_pairs.py").write_text(OVERLAPS)

    def pairs(**env):
        asked = ("-q", "-p", "no:cacheprovider", "-rP", "test_pairs.py::TestFake::test_overlaps")
        done = run_pytest(*asked, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stdout
        found = re.findall(r"^a pair of .*$", done.stdout, re.MULTILINE)
        assert f"{len(found)} overlaps on ext_dev:0" in done.stdout
        return found

    usual = pairs()
    assert len(usual) == 100
    assert pairs() == usual
    assert pairs(DLBRIDGE_OPERATIONS="130")[:100] == usual
    assert pairs(DLBRIDGE_KIT_SEED="7") != usual


def test_devices_of_the_machine_may_have_no_number():
    """``"cpu"``, as it is by default: a tensor there that can be shared was to be refused."""

    class Machine(TensorMachine):
        devices = ("cpu", "ext_dev")
        streams: ClassVar = {"ext_dev": [stream := Stream(0)]}

    machine = Machine()
    machine.share(machine.make("numpy", (3,), 0, 1, 0), None)
    machine.use_stream(0, 1)
    assert dlbridge.current_stream("ext_dev:0") == Machine.stream.handle
    machine.teardown()
    Machine.run(300)


def test_empty_variables_ask_for_the_usual_random_operations(monkeypatch):
    """As for sizes and overlaps: in CI a variable that is not set may be empty."""
    asked = []
    monkeypatch.setattr(TensorMachine, "run", lambda *given: asked.append(given))
    for name in ("DLBRIDGE_OPERATIONS", "DLBRIDGE_KIT_SEED"):
        monkeypatch.setenv(name, "")
    Kit().test_random_operations(Fake(), "ext_dev:0")
    assert asked == [(2000, 0), (1000, 0)]


def test_without_pytest_the_kit_says_what_to_install():
    code = "import sys; sys.modules['pytest'] = None; import dlbridge.testing"
    words = "ImportError: dlbridge.testing needs pytest: pip install dlbridge[testing]"
    assert words in finished(code).stderr


@pytest.fixture
def plugins(monkeypatch):
    """The fake installation of tests/support/plugins, in the processes that are started."""
    path = [str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


OUTER = """
from dlbridge.testing import BackendTests

class TestAbsent(BackendTests):
    name = "absent"
"""


@pytest.mark.parametrize(
    ("expected", "passes"), [("", True), ("cpu,other", True), ("cpu, absent", False)]
)
def test_a_missing_device_skips_unless_it_is_expected(tmp_path, plugins, expected, passes):
    path = tmp_path / "test_absent.py"
    path.write_text(OUTER)
    options = [
        "-rs",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-k",
        "round_trip or synchronize or host_view",
    ]
    env = {"DLBRIDGE_EXPECT": expected}
    done = run_pytest(*options, "--rootdir", tmp_path, path, env=env)
    assert "libabsent.so.1 not found; install the driver" in done.stdout
    assert (done.returncode == 0) is passes
    assert ("skipped" in done.stdout) is passes
