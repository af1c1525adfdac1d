"""A device counts if it works: a driver that lists one and can build no program is found out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlbridge
from dlbridge.diagnosis import files, trials
from tests.support import not_run
from tests.support.expected_parts import backend_or_skip, compiler_or_skip
from tests.support.packages import install
from tests.support.peers import peer
from tests.support.scripts import ROOT, run_command, run_pytest


@pytest.fixture(scope="module")
def false_driver(tmp_path_factory):
    """The ICD file of false_driver/driver.c, in a folder of its own."""
    gcc = compiler_or_skip()
    peer("dlbridge_opencl")
    folder = tmp_path_factory.mktemp("vendors")
    source = Path(__file__).parent / "false_driver" / "driver.c"
    library = folder / "libfalse.so"
    flags = ["-std=gnu17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run([gcc, *flags, "-o", library, source], check=True)
    (folder / "a_false.icd").write_text(str(library))
    return folder / "a_false.icd"


@pytest.fixture(autouse=True)
def nothing_is_kept():
    trials.try_devices.cache_clear()
    yield
    trials.try_devices.cache_clear()


@pytest.fixture
def alone(false_driver, monkeypatch):
    """The false driver is the only one."""
    monkeypatch.setenv("OCL_ICD_VENDORS", str(false_driver))
    monkeypatch.setattr(trials, "driver_files", lambda _: ("OCL_ICD_VENDORS", [false_driver]))


@pytest.fixture
def beside(false_driver, monkeypatch, tmp_path):
    """The false driver, and one that works."""
    backend_or_skip("opencl")
    folder = tmp_path / "vendors"
    folder.mkdir()
    shutil.copy(false_driver, folder)
    variable, found = files.driver_files("opencl")
    good = next(f for f in found if trials.try_devices("opencl", f"{variable}={f}")[0].said == "")
    (folder / "b_good.icd").write_text(good.read_text())
    monkeypatch.setenv("OCL_ICD_VENDORS", str(folder))
    return false_driver


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            "",
            ["clBuildProgram failed: BUILD_PROGRAM_FAILURE", "error: unknown target CPU 'generic'"],
        ),
        ("abort", ["ended by SIGABRT: Final linking of the kernel failed."]),
    ],
)
def test_a_driver_that_builds_nothing(alone, mode, said, monkeypatch):
    monkeypatch.setenv("FALSE_DRIVER", mode)
    (trial,) = trials.try_devices("opencl")
    assert (trial.what, trial.state) == ("opencl:0 (False Device, False Driver)", "fails")
    assert all(part in trial.said for part in said)
    assert trials.way_out("opencl") == "DLBRIDGE_BACKENDS=-opencl"
    found = trials.try_backend("opencl")
    assert found.state == "problem"
    assert all(part in found.said for part in said)
    assert "DLBRIDGE_BACKENDS=-opencl" in found.remedy


def test_it_hides_no_other_device(beside, monkeypatch):
    """Even if it ends the process: the trial goes on with the next device in another one."""
    monkeypatch.setenv("FALSE_DRIVER", "abort")
    found = trials.try_devices("opencl")
    assert [trial.what.partition(" ")[0] for trial in found] == [
        f"opencl:{number}" for number in range(len(found))
    ]
    states = {"False Device" in trial.what: trial.state for trial in found}
    assert states == {True: "fails", False: "works"}
    variable, _, value = trials.way_out("opencl").partition("=")
    assert variable == "OCL_ICD_VENDORS"
    assert Path(value).read_text() != beside.read_text()


def test_a_real_driver_is_proposed_before_a_simulator(monkeypatch, tmp_path):
    """Of those that come with pyopencl as wheels."""
    drivers = tmp_path / "pyopencl" / ".libs"
    drivers.mkdir(parents=True)
    (tmp_path / "pyopencl" / "__init__.py").touch()
    for name in ("oclgrind", "pocl"):
        (drivers / f"{name}.icd").touch()
    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    _, found = files.driver_files("opencl")
    assert [file.name for file in found] == ["pocl.icd", "oclgrind.icd"]


def test_the_demo_goes_on(beside, tmp_path):
    pillow = peer("PIL.Image")
    pillow.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "mine.png")
    demo = ["demo", str(tmp_path / "mine.png"), "--output", str(tmp_path / "out.png")]
    for mode in ("", "abort"):
        chosen = {"FALSE_DRIVER": mode, "DLBRIDGE_BACKENDS": "cpu,opencl"}
        done = run_command(*demo, env=chosen)
        assert done.returncode == 0, done.stderr
        assert "(False Device, False Driver): listed, but its driver fails: " in done.stdout
        assert "filtered by opencl:" in done.stdout
        variable, _, value = done.stdout.partition("leave it out: ")[2].split()[0].partition("=")
    # The way out is one.
    left = run_command(*demo, "--expect", "cpu,opencl", env={**chosen, variable: value})
    assert left.returncode == 0, left.stderr
    assert "fails" not in left.stdout
    assert "filtered by opencl:" in left.stdout


def test_info_goes_on(beside):
    """After a driver that ends the process as it is asked for its devices."""
    names = ["cpu", "opencl", *dlbridge.backends()[-1:]]  # and the last one, which comes after it
    chosen = {"FALSE_DRIVER": "list", "DLBRIDGE_BACKENDS": ",".join(names)}
    done = run_command("info", "--json", env=chosen)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["backends"]
    assert [*found] == names
    assert (found["cpu"]["state"], found["opencl"]["state"]) == ("usable", "broken")
    assert "SIGABRT: No devices today." in found["opencl"]["reason"]
    # The way out is one.
    variable, _, value = found["opencl"]["reason"].rpartition(" ")[2].partition("=")
    left = run_command("info", "--json", env={**chosen, variable: value})
    assert json.loads(left.stdout)["backends"]["opencl"]["state"] == "usable"


@pytest.mark.parametrize(
    ("expect", "code", "said"),
    [
        ("cpu, cpu", 0, ""),
        ("cpu,opencl", 1, "opencl is expected, and is absent or fails"),
        ("vulkan", 1, "vulkan is expected, and is absent or fails"),
    ],
)
def test_what_the_demo_expects(alone, tmp_path, expect, code, said):
    pillow = peer("PIL.Image")
    pillow.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "mine.png")
    files = str(tmp_path / "mine.png"), "--output", str(tmp_path / "out.png")
    chosen = {"DLBRIDGE_BACKENDS": "cpu,opencl"}
    done = run_command("demo", *files, "--expect", expect, env=chosen)
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def test_wrong_values_are_no_refusal(monkeypatch, tmp_path):
    """A device that gives other bytes back is broken, and fails the demo."""
    (tmp_path / "liar.py").write_text(
        "from dlbridge_fake import Fake\n"
        "class Liar(Fake):\n"
        "    def copy_to_host(self, source, into, stream):\n"
        "        into[:] = bytes(len(into))\n"
    )
    peer("dlbridge_fake")
    install(tmp_path, "liar", "[dlbridge.backends]\nliar = liar:Liar")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,liar")
    found = trials.try_devices("liar")
    assert {trial.state for trial in found} == {"broken"}, found
    assert "other bytes back" in found[0].said


# The tests themselves -------------------------------------------------------------


@pytest.mark.parametrize("expect", ["", "opencl"])
def test_the_tests_of_such_a_driver_are_left_out(false_driver, tmp_path, expect):
    """With the reason, which the end of the run counts; or they fail, where it is expected."""
    (tmp_path / "only.icd").write_text(false_driver.read_text())
    env = {
        # No wheel's driver: the false one alone would be left out otherwise.
        "OCL_ICD_VENDORS": str(tmp_path / "only.icd"),
        "DLBRIDGE_EXPECT": expect,
        "TESTS_LEAVE_OUT": '{"opencl": "opencl: opencl:0 (False Device) fails: no program"}',
        "DLBRIDGE_BACKENDS": "-opencl",
    }
    tests = f"backends/opencl/tests{'/test_identity.py' if expect else ''}"
    done = run_pytest("-q", "-p", "no:cacheprovider", tests, env=env, cwd=ROOT)
    assert done.returncode == (1 if expect else 0), done.stdout
    if expect:
        assert "BackendUnavailable: opencl: opencl:0 (False Device) fails" in done.stdout
    else:
        assert "not run here: opencl (its driver fails): " in done.stdout
        assert "not run here: OpenCL" not in done.stdout  # those that were left out, by any way


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("opencl: opencl:0 (pthread, PoCL) fails: ended by SIGABRT", "opencl (its driver fails)"),
        ("backend 'opencl' is switched off by DLBRIDGE_BACKENDS='-opencl'", "OpenCL"),
        ("opencl: opencl:0 (x, Oclgrind) is a simulator", "OpenCL (a simulator only)"),
        ("webgpu: webgpu:0 (llvmpipe) fails: no device", "webgpu (its driver fails)"),
        ("oneapi: oneapi:0 fails: ended by SIGSEGV", "oneapi (its driver fails)"),
        ("no Vulkan loader: tried libvulkan.so.1", "Vulkan"),
        ("the shim needs gcc", "a C compiler"),
        ("no program runs under mpiexec here: no mpiexec", "MPI"),
        ("mpi4py.MPI says: cannot load MPI library", "MPI"),
        ("jax is not installed here", "jax"),
        ("could not import 'cuda.core': No module named 'cuda'", "cuda.core"),
        ("cv2 is not installed here", "OpenCV"),
        ("could not import 'PIL.Image': No module named 'PIL'", "Pillow"),
        ("one device", ""),
    ],
)
def test_what_a_skipped_test_lacked(reason, what):
    assert not_run.needed(reason)[0] == what


def test_the_table_has_the_most_first():
    lines = not_run.table({"needs gcc": 2, "the shim needs gcc": 3, "ray is not installed": 1})
    assert lines == [
        "not run here: a C compiler: 5 tests (apt install gcc libc6-dev)",
        "not run here: ray: 1 test (pip install ray)",
    ]
    assert "pip install cv2" not in not_run.table({"cv2 is not installed here": 1})[0]
    assert not_run.table({"one device": 4}) == [
        "not run here: 4 for other reasons, which pytest -rs lists"
    ]
