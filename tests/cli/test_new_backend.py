"""S7: a backend published by somebody else, from an empty folder to a tensor on its device."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dlbridge import protocol
from dlbridge.cli import main, new_backend
from dlbridge.cli.new_backend import (
    GUIDE as GUIDE_PLACE,
    TEMPLATES,
    write_skeleton,
)
from tests.support.packages import install

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "writing-a-backend.md"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
ISOLATED = importlib.util.find_spec("hatchling") is None  # then pip fetches it
OPTIONS = ["--no-deps", "--quiet", *([] if ISOLATED else ["--no-build-isolation"])]
# Of two backends: to look for all devices takes a second.
INFO = ["env", "DLBRIDGE_BACKENDS=cpu,my_npu", sys.executable, "-m", "dlbridge", "info", "--json"]

MOVE = """
import numpy as np, dlbridge as bridge
x = np.arange(12, dtype="f4").reshape(3, 4)
t = bridge.to_device(x.T, "my_npu:0")
assert (t.device.name, int(t.device.type)) == ("my_npu", 12)
assert (bridge.to_device(t, "cpu", like="numpy") == x.T).all()
print(bridge.explain(x, "my_npu:0"))
"""


def run(*command, site=None, cwd=None):
    """The standard output of *command*, with the folder *site* on Python's path.

    Drivers of other backends may write to the other one: Mesa does without XDG_RUNTIME_DIR.
    """
    path = os.pathsep.join(filter(None, [site and str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def skeleton(tmp_path_factory):
    """The folder that new-backend writes, as a user calls it."""
    empty = tmp_path_factory.mktemp("empty")
    said = run(sys.executable, "-m", "dlbridge", "new-backend", "my_npu", cwd=empty)
    assert [path.name for path in empty.iterdir()] == ["dlbridge-my-npu"]
    assert "cd dlbridge-my-npu" in said
    assert f"guide is\n{GUIDE_PLACE}" in said
    return empty / "dlbridge-my-npu"


@pytest.fixture(scope="module")
def wheel(skeleton, tmp_path_factory):
    """The wheel of the skeleton."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *OPTIONS, "--wheel-dir", folder, skeleton)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with the skeleton installed in it: the files of its wheel."""
    target = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_files(skeleton):
    files = {str(path.relative_to(skeleton)) for path in skeleton.rglob("*") if path.is_file()}
    assert files == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "dlbridge_my_npu/__init__.py",
        "dlbridge_my_npu/backend.py",
        "dlbridge_my_npu/py.typed",
        "pyproject.toml",
        "tests/test_conformance.py",
    }
    assert not [path for path in skeleton.rglob("*") if path.is_file() and "$" in _plain(path)]


def _plain(path):
    return path.read_text().replace("${{ matrix.python }}", "")


# What an environment with dlbridge[testing] alone has not (`make test-new-backend` is in one), and
# hypothesis, without which one test of the kit is skipped.
ABSENT = ("ml_dtypes", "hypothesis", "torch", "tvm_ffi")


def test_the_kit_passes_at_once(skeleton, site, tmp_path):
    """As its CI runs it: with a missing device forbidden, and beside no other package."""
    for name in ABSENT:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name}', name='{name}')\n")
    said = run(
        "env", "DLBRIDGE_EXPECT=my_npu", f"PYTHONPATH={tmp_path}:{site}",
        sys.executable, "-m", "pytest", "-q",
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
        "-c", skeleton / "pyproject.toml", skeleton / "tests",
    )  # fmt: skip
    assert " passed" in said
    assert " failed" not in said


def test_it_is_found_and_used(skeleton, site, tmp_path):
    said = run(sys.executable, "-c", MOVE, site=site, cwd=tmp_path)
    assert "48 bytes copied" in said


def test_info_lists_it(site, tmp_path):
    said = run(*INFO, site=site, cwd=tmp_path)
    report = json.loads(said)["backends"]["my_npu"]
    assert report["state"] == "usable"
    assert report["owner"] == "dlbridge-my-npu 0.1.0"
    assert len(report["devices"]) == 1


def test_a_broken_one_harms_nobody(site, tmp_path):
    """An ImportError in it: dlbridge and the other devices go on, and `info` names it."""
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    backend = broken / "dlbridge_my_npu" / "backend.py"
    backend.write_text(f"import no_such_driver\n{backend.read_text()}")
    code = (
        "import dlbridge as bridge\n"
        "assert 'my_npu' in bridge.backends()\n"
        "assert bridge.zeros(3).tolist() == [0, 0, 0]\n"
        "try: bridge.zeros(3, 'float32', 'my_npu:0')\n"
        "except bridge.BackendError as exc: print(exc)\n"
    )
    said = run(sys.executable, "-c", code, site=broken, cwd=tmp_path)
    assert "dlbridge-my-npu 0.1.0 failed to load backend 'my_npu'" in said
    assert "no_such_driver" in said
    said = run(*INFO, site=broken, cwd=tmp_path)
    assert json.loads(said)["backends"]["my_npu"]["state"] == "broken"


def test_the_wheel_holds_only_its_own_package(wheel):
    assert wheel.name == "dlbridge_my_npu-0.1.0-py3-none-any.whl"
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"dlbridge_my_npu", "dlbridge_my_npu-0.1.0.dist-info"}


def test_it_is_clean(skeleton):
    """ruff has nothing to say of a fresh skeleton, by its own defaults."""
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("needs ruff (the lint extra)")
    run(sys.executable, "-m", "ruff", "check", "--isolated", skeleton)


# Names


RULE = "lower-case letters a to z, digits and _, begins with a letter and does not end with _"
REFUSED = {
    **dict.fromkeys(
        ["", "My", "1st", "a-b", "a b", "_", "_a", "a_", "../a", "é1"],
        f"{{!r}} is not a name for a device: .*{RULE}",
    ),
    "cpu": "{!r} is provided by dlbridge .* already",
    # `class None` is no Python, and `class Span` would hide the contract's.
    **dict.fromkeys(
        ["none", "true", "false", "span", "memory_error"],
        r"{!r} would make a class \w+, which means",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(name, tmp_path):
    """The error says the whole rule."""
    with pytest.raises(ValueError, match=REFUSED[name].format(name)):
        write_skeleton(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_one_letter(tmp_path):
    """A device of that name takes a tensor and gives it back."""
    folder = write_skeleton("x", tmp_path)
    assert folder.name == "dlbridge-x"
    code = (
        "import dlbridge as bridge\n"
        "from dlbridge_x import X\n"
        "bridge.register_backend('x', X)\n"
        "print(bridge.to_device([1, 2, 3], 'x:0').tolist())\n"
    )
    assert run(sys.executable, "-c", code, site=folder, cwd=tmp_path) == "[1, 2, 3]\n"


def test_a_name_whose_data_is_an_address(tmp_path, monkeypatch):
    monkeypatch.setattr("dlbridge.cli.new_backend.backends", list)  # as if ours were not here
    with pytest.raises(ValueError, match=r"'oneapi' tensor's data is an address"):
        write_skeleton("oneapi", tmp_path)


@pytest.mark.parametrize("name", ["none", "true", "false", "span", "memory_error"])
def test_a_name_whose_class_means_something_else(name, tmp_path):
    """`class None` is no Python, and `class Span` would hide the contract's."""
    with pytest.raises(ValueError, match=rf"'{name}' would make a class \w+, which means"):
        write_skeleton(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_class_that_the_skeleton_uses_can_be_its_name(skeleton, tmp_path):
    nodes = list(ast.walk(ast.parse((skeleton / "dlbridge_my_npu" / "backend.py").read_text())))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    for cls in {"Span", *(name for name in used if name[0].isupper())}:
        name = re.sub(r"\B(?=[A-Z])", "_", cls).lower()
        with pytest.raises(ValueError, match=f"would make a class {cls}, which means"):
            write_skeleton(name, tmp_path / "into")


@pytest.mark.parametrize("name", ["fake", "opencl", "rocm", "webgpu"])
def test_a_name_of_ours_is_refused_where_it_is_not_installed(name, tmp_path, monkeypatch):
    monkeypatch.setattr(new_backend, "backends", dict)
    monkeypatch.setattr(new_backend, "ADDRESS_DEVICES", ())
    with pytest.raises(ValueError, match=f"dlbridge-{name} is a package of dlbridge's own"):
        write_skeleton(name, tmp_path)


def test_a_distribution_that_is_installed(tmp_path, monkeypatch):
    """Its entry point may have another name than the distribution."""
    install(tmp_path, "dlbridge-some-npu", "", version="2.5")
    monkeypatch.syspath_prepend(tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(ValueError, match=r"dlbridge-some-npu 2\.5 is installed already"):
        write_skeleton("some_npu", into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [("metal", "device_type = 8  # kDLMetal"), ("my_npu", "device_type = 12  # kDLExtDev")],
)
def test_names_that_dlpack_knows_get_their_type(name, line, tmp_path):
    folder = write_skeleton(name, tmp_path)
    assert line in (folder / f"dlbridge_{name}" / "backend.py").read_text()


def test_the_templates_are_in_the_wheel():
    """They are data of the package, in the folder that hatchling packs."""
    settings = (ROOT / "pyproject.toml").read_text()
    assert '[tool.hatch.build.targets.wheel]\npackages = ["dlbridge"]\n' in settings
    assert TEMPLATES.is_relative_to(ROOT / "dlbridge")


def test_a_folder_that_exists_is_left_alone(skeleton, capsys):
    before = sorted(skeleton.rglob("*"))
    assert main(["new-backend", "my_npu", "--into", str(skeleton.parent)]) == 1
    said = capsys.readouterr().err
    assert f"{skeleton} exists already: remove it, choose another name, or" in said
    assert "--into" in said
    assert sorted(skeleton.rglob("*")) == before


# docs/writing-a-backend.md


def test_the_source_distribution_has_the_guide(tmp_path):
    """What dlbridge tells people who have installed its wheel is true."""
    assert GUIDE_PLACE == (
        "the page 'Writing a backend' of the documentation (writing-a-backend.html on the site,\n"
        "docs/writing-a-backend.md in the source distribution of dlbridge)"
    )
    assert GUIDE.read_text().startswith("# Writing a backend\n")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    wanted = {"docs/writing-a-backend.md", "docs/ffi.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert wanted <= names


def test_who_names_the_guide_says_where_it_is():
    """A path alone means nothing to who has installed a wheel."""
    wheel = ROOT / "dlbridge"
    files = [path for path in wheel.rglob("*") if path.suffix in (".py", ".txt")]
    words = {path: " ".join(path.read_text("utf-8").split()) for path in files}
    texts = {path.relative_to(wheel).as_posix(): text for path, text in words.items()}
    named = {name: text for name, text in texts.items() if "writing-a-backend.md" in text}
    assert sorted(named) == ["cli/new_backend.py", "protocol.py"]
    for text in named.values():
        parts = text.split("writing-a-backend.md")[1:]
        assert all(part.startswith((" in the source", "`` in the source")) for part in parts)
    assert "$guide" in texts["cli/templates/README.md.txt"]


def test_the_guide_names_every_capability():
    """A row for each, and none that is not there."""
    rows = re.findall(r"^\| `(Supports\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(n for n in protocol.__all__ if n.startswith("Supports"))


def test_the_guide_walks_through_the_fake_backend():
    """Every module once, and each name that it points at is in that module."""
    text = GUIDE.read_text().partition("**`backends/fake`**")[2].partition("\n\n")[0]
    parts = re.split(r"`(\w+\.py)`", text)[1:]
    rows = dict(zip(parts[::2], parts[1::2], strict=True))
    package = ROOT / "backends" / "fake" / "dlbridge_fake"
    assert len(parts) == 2 * len(rows)
    assert set(rows) == {path.name for path in package.glob("[!_]*.py")}
    for file, said in rows.items():
        code = (package / file).read_text()
        for name in re.findall(r"`([\w.]+)`", said):
            assert name.split(".")[-1] in code, f"{file}: {name}"


def test_the_guide_says_what_the_fake_backend_lacks():
    backends = pytest.importorskip("dlbridge_fake").Fake()
    names = [name for name in protocol.__all__ if name.startswith("Supports")]
    lacks = [name for name in names if not isinstance(backends, getattr(protocol, name))]
    assert lacks == ["SupportsMemoryExport", "SupportsMemoryImport", "SupportsTrim"]
    listed = "`, `".join(lacks[:-1])
    assert f"every capability but `{listed}` and `{lacks[-1]}`." in " ".join(
        GUIDE.read_text().split()
    )


def test_the_guides_class_is_the_skeletons(skeleton):
    """Its backend, test module, entry point and files are those that new-backend writes."""
    text = GUIDE.read_text()
    codes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    whole, kit = codes[:2]
    (backend,) = skeleton.glob("dlbridge_*/backend.py")
    assert whole == backend.read_text()
    assert len(whole.splitlines()) <= 60
    written = (skeleton / "tests" / "test_conformance.py").read_text()
    assert kit.split() == written.partition('"""\n\n')[2].partition("    #")[0].split()
    (point,) = re.findall(
        r'^my_npu = ".*"$', (skeleton / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert f"`{point}`" in text
    for file in re.findall(
        r"^\| `([\w./]+\.\w+)` \|", text.partition("## The contract")[0], re.MULTILINE
    ):
        assert (skeleton / file).exists(), file
