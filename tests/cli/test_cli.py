"""python -m dlbridge: info, explain, demo and bench as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from peers import peer


def run(*arguments, cwd=None, backends="cpu,ext_dev"):
    environment = {**os.environ, "DLBRIDGE_BACKENDS": backends}
    return subprocess.run(
        [sys.executable, "-m", "dlbridge", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
    )


def test_info_names_versions_backends_and_devices():
    done = run("info")
    assert done.returncode == 0, done.stderr
    for part in ("dlbridge 0.1.0", "cffi", "numpy", "cpu:0", "ext_dev:1", "dlbridge-fake 0.1.0"):
        assert part in done.stdout


def test_info_json():
    found = json.loads(run("info", "--json").stdout)
    assert found["backends"]["cpu"]["state"] == "usable"
    assert [device["name"] for device in found["backends"]["ext_dev"]["devices"]]


def test_info_survives_broken_backends(tmp_path):
    """A plugin that fails is a line of the report, and the rest is there."""
    (tmp_path / "broken_plugin.py").write_text("raise ImportError('libbroken.so')")
    metadata = tmp_path / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dlbridge.backends]\nbad = broken_plugin:Backend\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dlbridge.cli import main; raise SystemExit(main(['info']))"
    )
    environment = {**os.environ, "DLBRIDGE_BACKENDS": "cpu,bad"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "broken-plugin 1.0" in done.stdout
    assert "libbroken.so" in done.stdout
    assert "cpu:0" in done.stdout


def test_explain_prints_the_steps():
    done = run("explain", "numpy", "ext_dev:1", "--shape", "2x3")
    assert done.returncode == 0, done.stderr
    assert "upload: cpu:0 -> ext_dev:1, 24 bytes copied" in done.stdout


def test_explain_json_from_a_device_to_a_library():
    done = run("explain", "ext_dev:0", "numpy", "--shape", "8", "--dtype", "int16", "--json")
    plan = json.loads(done.stdout)
    assert plan["nbytes"] == 16
    assert [step["kind"] for step in plan["steps"]] == ["download", "as library"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "numpy", "opencl:0"), "DLBRIDGE_BACKENDS"),
        (("explain", "numpy", "nothing:0"), "nothing"),
        (("explain", "ext_dev:9", "cpu"), "there is no ext_dev:9"),
        (("explain", "numpy", "cpu", "--dtype", "float33"), "float33"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_writes_the_picture(tmp_path):
    pillow = peer("PIL.Image")
    peer("matplotlib")
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "every result equals numpy's, byte by byte" in done.stdout
    assert "ext_dev:1" in done.stdout
    assert "bytes copied" in done.stdout or "KiB copied" in done.stdout
    with pillow.open(tmp_path / "demo.png") as picture:
        assert picture.width > 600


def test_demo_takes_the_users_photo(tmp_path):
    pillow = peer("PIL.Image")
    pillow.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "mine.png")
    done = run("demo", "mine.png", "--output", "out.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 x 30" in done.stdout
    assert (tmp_path / "out.png").exists()


def test_demo_says_what_is_wrong_with_a_photo(tmp_path):
    peer("PIL.Image")
    done = run("demo", "missing.png", cwd=tmp_path)
    assert done.returncode == 1
    assert "missing.png" in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_reports_json_table_and_plot(tmp_path):
    peer("matplotlib")
    peer("torch")
    files = ("--json", "--plot", "plot.png", "--write", "table.md")
    done = run("bench", "exchange", *files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["operation"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["from_dlpack(numpy)"]["peers"]["numpy"] > 0
    assert "| from_dlpack(torch) |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_help_lists_the_commands():
    done = run("--help")
    for command in ("info", "explain", "demo", "bench", "new-backend"):
        assert command in done.stdout
