"""Plugins: found without being imported, loaded once, each failure its own clear error.

The plugins are the ``*.dist-info`` folders and modules in ``tests/plugins``.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable
from dlbridge.extending import LOADED, provider_of
from tests.support.known_backends import forget_registered
from tests.support.scripts import run_script
from tests.support.threads import at_once

BROKEN = "dlbridge-broken 0.1 failed to"
PLUGINS = Path(__file__).parents[2] / "support" / "plugins"


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    """The fake installation; what a test loads or registers is forgotten after it."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.delenv("DLBRIDGE_BACKENDS", raising=False)
    forget_registered(monkeypatch)
    before = dict(LOADED)
    LOADED.clear()
    yield
    LOADED.clear()
    LOADED.update(before)
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


def test_listing_imports_no_backend():
    run_script(
        """
        import sys
        from dlbridge import backends
        assert {"cpu", "broken_import", "heavy"} <= set(backends())
        assert not {"dlbridge.core.plugins.cpu", "numpy"} & sys.modules.keys()
        assert not [name for name in sys.modules if name.startswith(("plugin_", "dlbridge_"))]
        """,
        env={"PYTHONPATH": os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")])},
    )


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("broken_import", BackendError, f"{BROKEN} load backend .* ModuleNotFoundError: No module"),
        ("broken_class", BackendError, f"{BROKEN} .* RuntimeError: boom"),
        ("broken_name", BackendError, f"{BROKEN} .* AttributeError: .*Nothing"),
        ("broken_module", BackendError, f"{BROKEN} .*'plugin_that_is_not_there'"),
        ("broken_exit", BackendError, f"{BROKEN} .* SystemExit: no licence"),
        (
            "broken_part",
            BackendError,
            "0.1: backend 'broken_part' lacks allocate, copy_.*; report it",
        ),
        ("absent", BackendUnavailable, "libabsent.so.1 not found; install"),
        (
            "outdated",
            BackendError,
            "dlbridge-outdated 0.0.3 speaks .* 1, .* 2; upgrade that backend",
        ),
        ("newer", BackendError, "dlbridge-newer 9.0 speaks .* 3, .* 2; upgrade dlbridge"),
        (
            "twice",
            BackendError,
            "other-twin 2.0 and dlbridge-twin 1.0 both .*; uninstall all but one",
        ),
        ("nobody", BackendUnavailable, "no backend for device 'nobody' .installed: .*cpu.*shared"),
        ("", BackendUnavailable, "no backend for device ''"),
    ],
)
def test_each_failure_is_its_own_error(name, error, match):
    with pytest.raises(error, match=match) as caught:
        bridge.backend(name)
    if "failed" in match:
        assert type(caught.value.__cause__).__name__ in str(caught.value)


def test_a_backend_that_is_not_installed_is_hinted_at(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(BackendUnavailable, match="try: pip install backends/vulkan"):
        bridge.backend("vulkan")


def test_failures_are_not_kept(monkeypatch):
    """A driver may be installed while the program runs."""
    with pytest.raises(BackendUnavailable):
        bridge.backend("absent")
    import plugin_absent
    import plugin_shared

    monkeypatch.setattr(plugin_absent, "Backend", plugin_shared.Shared)
    assert isinstance(bridge.backend("absent"), plugin_shared.Shared)


def test_two_names_may_share_a_device_type():
    """The name is the identity, the DLDeviceType is not."""
    bridge.register_backend("other", type(bridge.backend("shared")))
    assert bridge.backend("other") is not bridge.backend("shared")
    assert bridge.backend("other").device_type == bridge.backend("shared").device_type == 12


@pytest.mark.parametrize("chosen", ["cpu,shared", " shared , cpu ", "cpu,shared,nobody"])
def test_environment_restricts(monkeypatch, chosen):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", chosen)
    assert bridge.backends() == ["cpu", "shared"]
    assert bridge.backend("cpu").device_type == 1
    with pytest.raises(BackendUnavailable, match="'outdated' is switched off by DLBRIDGE_BACKENDS"):
        bridge.backend("outdated")


def test_environment_leaves_out(monkeypatch):
    every = bridge.backends()
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "-outdated, -shared")
    assert bridge.backends() == [name for name in every if name not in ("outdated", "shared")]
    with pytest.raises(BackendUnavailable, match="'outdated' is switched off by DLBRIDGE_BACKENDS"):
        bridge.backend("outdated")


def test_empty_environment_allows_none(monkeypatch):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "")
    assert bridge.backends() == []
    with pytest.raises(BackendUnavailable, match="switched off"):
        bridge.backend("cpu")


def test_register_by_hand():
    from plugin_shared import Shared

    bridge.register_backend("mine", Shared)
    bridge.register_backend("mine", Shared)  # the same again is the same
    assert "mine" in bridge.backends()
    assert isinstance(bridge.backend("mine"), Shared)
    assert provider_of("mine") == "plugin_shared.Shared (registered by hand)"


@pytest.mark.parametrize("chosen", [None, "shared"])
def test_a_registered_name_must_be_free(monkeypatch, chosen):
    """Whether or not the environment has switched the other one off."""
    from plugin_versions import Newer

    if chosen is not None:
        monkeypatch.setenv("DLBRIDGE_BACKENDS", chosen)
    bridge.register_backend("mine", type("Mine", (), {}))
    for name, provider in [("cpu", "dlbridge .built in."), ("mine", "Mine .registered by hand")]:
        with pytest.raises(BackendError, match=f"{name!r} is already provided by .*{provider}"):
            bridge.register_backend(name, Newer)


def test_a_registered_class_is_checked_too():
    bridge.register_backend("mine", type("Mine", (), {"device_type": 1}))
    message = r"Mine \(registered by hand\): backend 'mine' lacks allocate, api, copy_from_host"
    with pytest.raises(BackendError, match=message):
        bridge.backend("mine")


def test_sixteen_threads_load_a_backend_once():
    from plugin_shared import Shared

    made = []

    class Slow(Shared):
        def __init__(self):
            made.append(self)
            threading.Event().wait(0.05)  # others come in meanwhile

    bridge.register_backend("slow", Slow)
    got = at_once(16, lambda: bridge.backend("slow"))
    assert len(made) == 1
    assert got == made * 16


def test_a_use_during_the_load_makes_no_second_object():
    """A signal handler or a finalizer in the loading thread may need the device: all get one."""
    from plugin_shared import Shared

    got: list[object] = []

    class Entered(Shared):
        def __init__(self):
            if not got:
                got.append(None)  # the second call comes in
                got.append(bridge.backend("entered"))

    bridge.register_backend("entered", Entered)
    assert bridge.backend("entered") is bridge.backend("entered") is got[1]


def test_a_slow_driver_holds_up_nobody_else():
    inside, release = threading.Event(), threading.Event()

    class Stuck:
        def __init__(self):
            inside.set()
            release.wait()
            raise BackendUnavailable("stuck")

    bridge.register_backend("stuck", Stuck)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(bridge.backend, "stuck")
        inside.wait()
        assert bridge.backend("shared").device_type == 12
        release.set()
        with pytest.raises(BackendUnavailable, match="stuck"):
            loading.result()


def test_one_installation_seen_twice_is_one(tmp_path, monkeypatch):
    """An editable install and its source on the path, say."""
    import shutil

    copy = tmp_path / "again"
    shutil.copytree(PLUGINS, copy)
    monkeypatch.syspath_prepend(str(copy))
    assert bridge.backend("shared").device_type == 12
    assert provider_of("shared") == "dlbridge-shared 1.0"


def test_owner_names_distribution_and_version():
    assert provider_of("absent") == "dlbridge-absent 0.2"
    assert provider_of("twice") == "dlbridge-other-twin 2.0 and dlbridge-twin 1.0"
    assert provider_of("nobody") == ""


def test_a_class_with_an_error_of_another_thread_is_tried_again():
    """Waiting for a load that fails is no failure: the waiter tries for itself."""
    tries = []
    inside, release = threading.Event(), threading.Event()

    class SecondTime(type(bridge.backend("shared"))):
        def __init__(self):
            tries.append(self)
            if len(tries) == 1:
                inside.set()
                release.wait()
                raise BackendUnavailable("not yet")

    bridge.register_backend("second", SecondTime)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bridge.backend, "second")
        inside.wait()
        second = pool.submit(bridge.backend, "second")
        release.set()
        with pytest.raises(BackendUnavailable, match="not yet"):
            first.result()
        assert second.result() is tries[1]
    assert len(tries) == 2


def test_a_message_names_a_backend_that_was_registered_since():
    with pytest.raises(TypeError, match="not a tensor"):
        bridge.asarray(object())
    bridge.register_backend("of_a_message", object)
    with pytest.raises(TypeError, match="of_a_message"):
        bridge.asarray(object())


def test_a_distribution_that_claims_the_built_in_backend_is_named_at_the_next_device(monkeypatch):
    point = EntryPoint("cpu", "other:CPU", "dlbridge.backends")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [point])
    with pytest.raises(
        bridge.BackendError, match=r"dlbridge .built in. and other:CPU both provide"
    ):
        bridge.backend("absent_device")
