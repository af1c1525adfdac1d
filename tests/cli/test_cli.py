"""python -m dlbridge: info, explain, demo and bench as a user runs them."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.metadata import entry_points

import pytest

from dlbridge.cli import COMMANDS, demo, main
from dlbridge.cli.explain import LIBRARIES
from dlbridge.diagnosis import checks
from tests.support.peers import peer
from tests.support.scripts import run_command


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """`info` and `doctor` would name these."""
    for name in (*checks.FOR_TESTS, "DLBRIDGE_TEST_HARNESS"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments, cwd=None, backends="cpu,ext_dev", torch=False):
    return run_command(*arguments, env={"DLBRIDGE_BACKENDS": backends}, cwd=cwd, torch=torch)


@pytest.fixture
def explain(monkeypatch, capsys):
    """The output of ``dlbridge explain`` in this process, or its error where *fails*."""

    def explain(*arguments, fails=False):
        assert main(["explain", *arguments]) == fails
        said = capsys.readouterr()
        assert not (said.out if fails else said.err)
        return said.err if fails else said.out

    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,ext_dev")
    return explain


def test_info_names_versions_backends_and_devices():
    done = run("info")
    assert done.returncode == 0, done.stderr
    for part in ("dlbridge 0.1.0", "cffi", "numpy", "cpu:0", "ext_dev:1", "GiB"):
        assert part in done.stdout
    assert "DLBRIDGE_BACKENDS=cpu,ext_dev" in done.stdout
    assert "\033" not in done.stdout  # no terminal, no colour
    assert max(map(len, done.stdout.splitlines())) <= 140


def test_info_with_everything():
    done = run("info", "-v", torch=True)
    assert done.returncode == 0, done.stderr
    for part in ("dlbridge-fake 0.1.0", "host_memory_shared", "cores", "libtvm_ffi"):
        assert part in done.stdout


def test_doctor_finds_no_problem_and_says_so():
    done = run("doctor", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("ok        Python", "backend ext_dev: 2 devices, memory went there and back"):
        assert part in done.stdout
    assert done.stdout.endswith("no problem was found\n")


def test_doctor_says_what_to_do_in_order():
    done = run("doctor", "--quick", backends="cpu,opnecl")
    assert done.returncode == 1
    assert "names 'opnecl', which is not installed" in done.stdout
    assert "did you mean" in done.stdout
    assert "1.        DLBRIDGE_BACKENDS=cpu,opnecl: take it out" in done.stdout


def test_explain_prints_the_steps():
    done = run("explain", "numpy", "ext_dev:1", "--shape", "2x3")
    assert done.returncode == 0, done.stderr
    assert "upload: cpu:0 -> ext_dev:1, 24 bytes copied" in done.stdout


@pytest.mark.parametrize(
    ("library", "shape", "dtype", "module"),
    [
        ("numpy", "2x3", "bfloat16", "ml_dtypes"),
        ("torch", "2x3", "bfloat16", "torch"),
        ("jax", "2x3", "float8_e4m3fn", "jax"),
        ("pandas", "6", "int64", "pandas"),
        ("pyarrow", "6", "float32", "pyarrow"),
    ],
)
def test_explain_takes_each_librarys_types(library, shape, dtype, module, explain):
    """From it and to it."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed here")
    options = "--shape", shape, "--dtype", dtype
    said = explain(library, "ext_dev:0", *options)
    assert f"{dtype} ({shape.replace('x', ', ')}" in said
    assert "upload: cpu:0 -> ext_dev:0" in said
    assert library in explain("ext_dev:0", library, *options)


def test_explain_takes_columns_without_a_shape(explain):
    peer("pyarrow")
    assert "float32 (1048576,) from pyarrow" in explain("pyarrow", "cpu")


def test_explain_json_from_a_device_to_a_library(explain):
    plan = json.loads(
        explain("ext_dev:0", "numpy", *["--shape", "8", "--dtype", "int16", "--json"])
    )
    assert plan["nbytes"] == 16
    assert [step["kind"] for step in plan["steps"]] == ["download", "as library"]


def test_bad_input_is_one_line():
    done = run("explain", "numpy", "opencl:0")  # in a process where no backend is loaded
    assert done.returncode == 1
    assert "DLBRIDGE_BACKENDS" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("numpy", "nothing:0"), "'nothing:0' is neither a library nor a device: "),
        (("numpi", "cpu"), "'numpi' is neither a library nor a device (did you mean 'numpy'?): "),
        (("numpy", "ext_dew:0"), "(did you mean 'ext_dev'?)"),
        (("ext_dev:9", "cpu"), "there is no ext_dev:9"),
        (("numpy", "cpu", "--dtype", "float33"), "float33"),
        (("numpy", "cpu", "--shape", "2by3"), "'2by3' is not a shape: write 3x4"),
    ],
)
def test_bad_arguments_of_explain(arguments, message, explain):
    assert message in explain(*arguments, fails=True)


WRONG_SHAPES = ["x", "3x", "x3", "3xx4", "3,,4", ",", "-1", "2x-1", "1.5", "9" * 20, "9" * 5000]


@pytest.mark.parametrize("shape", WRONG_SHAPES, ids=[shape[:20] for shape in WRONG_SHAPES])
def test_explain_says_which_shapes_there_are(shape, explain):
    said = explain("numpy", "cpu", f"--shape={shape}", fails=True)
    assert f"--shape {shape!r} is not a shape: write 3x4 or 3,4, with extents from 0" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("shape", "found"),
    [("", "()"), ("()", "()"), ("(3,)", "(3,)"), ("3 x 4", "(3, 4)"), ("2,3", "(2, 3)")],
)
def test_explain_takes_shapes_as_python_writes_them(shape, found, explain):
    assert explain("numpy", "cpu", "--shape", shape).startswith(f"float32 {found} from ")


PLACES = ["numpy", "torch", "jax", "tvm_ffi", "cpu", "ext_dev:0"]


@pytest.mark.parametrize(
    "shape", ["99999999999999", "4000000000x4000000000", "4000000000x4000000000x0"]
)
@pytest.mark.parametrize("place", PLACES)
def test_explain_says_that_a_shape_is_too_large(place, shape, capfd):
    if place in LIBRARIES:
        peer(place)
    assert main(["explain", place, "cpu", "--shape", shape]) == 1
    said = capfd.readouterr().err
    last = said.splitlines()[-1]
    assert last.startswith(f"dlbridge explain: --shape {shape}: ")
    assert f"{place} cannot make" in last
    assert last.endswith("choose fewer or smaller extents")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        ("numpy", "array"),
        ("numpy", "ndarray"),
        ("numpy", "object_"),
        ("numpy", "no_such"),
        ("torch", "nn"),
        ("torch", "zeros"),
        ("jax", "array"),
        ("tvm_ffi", "array"),
        ("cpu", "array"),
        ("ext_dev:0", "object_"),
    ],
)
def test_explain_names_the_dtype_that_is_none(place, dtype, capfd):
    if place in LIBRARIES:
        peer(place)
    assert main(["explain", place, "cpu", "--dtype", dtype]) == 1
    said = capfd.readouterr().err
    assert said.startswith(f"dlbridge explain: --dtype {dtype!r}: ")
    assert "such as float32" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("places", [("torch", "cpu"), ("cpu", "torch")])
def test_explain_says_that_a_library_is_not_installed(places, monkeypatch, explain):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not there
    said = explain(*places, fails=True)
    assert "torch is not installed here: install it, or name a library that is" in said
    assert "numpy" in said.partition("name a library")[2]


def test_demo_writes_the_picture(tmp_path):
    pillow = peer("PIL.Image")
    peer("matplotlib")
    done = run("demo", cwd=tmp_path, torch=True)
    assert done.returncode == 0, done.stderr
    assert "every result equals numpy's, byte by byte" in done.stdout
    assert "ext_dev:1" in done.stdout
    assert "bytes copied" in done.stdout or "KiB copied" in done.stdout
    with pillow.open(tmp_path / "demo.png") as picture:
        assert picture.width > 600
    # One line for each hop; numpy filters in between.
    section = done.stdout.partition("\next_dev:0\n")[2].partition("\n\n")[0].splitlines()
    hops = [line.split("  ")[1] for line in section if "->" in line]
    assert hops == [
        "photograph to the device: cpu:0 -> ext_dev:0",
        "photograph to numpy: ext_dev:0 -> cpu:0",
        "result to the device: cpu:0 -> ext_dev:0",
        "result to the host: ext_dev:0 -> cpu:0",
    ]
    assert section[len(hops) :] == ["  filtered by numpy, as this backend runs no kernels"]


def test_demo_takes_the_users_photo_and_copies_nothing_of_shared_memory(tmp_path, monkeypatch):
    pillow = peer("PIL.Image")
    pillow.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "mine.png")
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    done = run("demo", "mine.png", "--output", "out.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 x 30" in done.stdout
    assert (tmp_path / "out.png").exists()
    section = done.stdout.partition("\next_dev:0\n")[2].partition("\n\n")[0]
    assert section.count("no copy") == 4
    assert "copied" not in section


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (3, 3), (5, 5), (6, 3), (8, 4), (10, 5)])
def test_tiles_fill_the_page(count, columns):
    assert demo.columns_of(count) == columns


def test_demo_says_what_is_wrong_with_a_photo(tmp_path):
    peer("PIL.Image")
    done = run("demo", "missing.png", cwd=tmp_path)
    assert done.returncode == 1
    assert "missing.png" in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_copy_has_rows_for_each_device():
    """Backends that cannot run here are named, and do not stop the others."""
    done = run("bench", "copy", "--quick", "--json", backends="cpu,ext_dev,rocm")
    assert done.returncode == 0, done.stderr
    rows = {row["operation"]: row for row in json.loads(done.stdout)["rows"]}
    for device in ("ext_dev:0", "ext_dev:1"):
        for way in ("from the host", "to the host", "on the device"):
            assert rows[f"{device}: {way}, 64 bytes"]["peers"]["numpy (host)"] > 0
    if "rocm" in {point.name for point in entry_points(group="dlbridge.backends")}:
        assert "no rows for rocm: " in done.stderr or any("rocm" in name for name in rows)


def test_bench_looks_first_whether_it_can_write(tmp_path):
    done = run("bench", "copy", "--write", str(tmp_path / "gone" / "copy.md"), backends="cpu")
    assert done.returncode == 1
    assert f"there is no folder {tmp_path / 'gone'}: make it" in done.stderr
    assert done.stdout == ""


def test_help_lists_the_commands():
    done = run("--help")
    for command in ("info", "explain", "demo", "bench", "new-backend"):
        assert command in done.stdout


def test_without_a_command_it_is_the_help():
    bare, asked = run(), run("--help")
    assert bare.returncode == 0
    assert bare.stdout == asked.stdout
    assert bare.stderr == ""


def test_the_script_of_the_package_is_the_same_program():
    (script,) = entry_points(group="console_scripts", name="dlbridge")
    assert script.load() is main


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_ends_each_command_in_one_line(command, monkeypatch, capsys):
    def interrupt(_arguments):
        raise KeyboardInterrupt

    given = {"explain": ["numpy", "cpu"], "bench": ["copy"], "conformance": ["numpy"]}
    given |= {"new-backend": ["sundial"], "watch": ["script.py"]}
    monkeypatch.setattr(f"dlbridge.{COMMANDS[command][0]}.run", interrupt)
    assert main([command, *given.get(command, [])]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_doctor_for_programs():
    done = run("doctor", "--quick", "--json", backends="cpu,opnecl")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert {each["state"] for each in found} == {"ok", "problem"}
    assert all(each["remedy"] for each in found if each["state"] == "problem")


def test_info_in_a_narrow_terminal():
    done = run_command("info", env={"DLBRIDGE_BACKENDS": "cpu,ext_dev", "COLUMNS": "40"})
    lines = done.stdout.splitlines()[1:]
    assert [line for line in lines if len(line) > 40] == []
    assert "cpu:0     cpu, " in done.stdout


def test_doctor_of_a_backend_that_is_not_here():
    for name in ("ext_dve", "torch-npu"):
        done = run("doctor", name)
        assert done.returncode == 1, done.stdout
        assert name in done.stdout
