"""The types that a user's program gets: read by mypy --strict and by pyright.

``DLBRIDGE_EXPECT=typing`` says that both are installed here: a missing one is a
failure then, and a skip otherwise.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

import dlbridge as bridge
from dlbridge import errors, protocol
from tests.support import check_pages
from tests.support.expected_parts import expected

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = str(Path(bridge.__file__).parent.parent)
LINE = re.compile(r"reveal_type\((.*)\)  # (\S.*)$")


SCRIPTS = ["script.py", "ffi_script.py", "torch_script.py"]
# Each call of these lines is a mistake.
WRONG = """\
import dlbridge as bridge, numpy as np
bridge.to_device([1.0], 'cpu', copy='yes')
bridge.to_devce([1.0], 'cpu')
bridge.ffi.load_modul('kernels.so')
bridge.accepts(3)
@bridge.accepts('numpy')
def scaled(array: np.ndarray, by: float = 2.0) -> np.ndarray:
    return array * by
scaled()
scaled('text')
scaled(array=3)
@bridge.accepts('numpy')
def largest(array: np.ndarray) -> float:
    return float(array.max())
largest()
largest(by=np.ones(3))
t = bridge.zeros(3)
scaled(t, wrong=3.0)
scaled(t, 'text')
scaled(t, 1.0, 2.0)
largest(t, by=3)
class Model:
    @bridge.accepts('numpy')
    def run(self, array: np.ndarray, by: float = 2.0) -> np.ndarray:
        return array * by
Model().run(t, wrong=3.0)
Model().run(t, 'text')
Model().run('text')
Model().run()
bridge.load(3)
bridge.load('a.npz', names=True).tolist()
"""


# silent: errors inside of dlbridge and the libraries are not the scripts'. Of torch and jax only the
# modules of their arrays are read: all of them take three times as long.
FOR_MYPY = """\
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,jax.*]
follow_imports = skip
[mypy-torch,torch._tensor,torch._C.*,torch.types,jax,jax.numpy,jax._src.basearray,jax._src.typing]
follow_imports = silent
"""


def absent(tool):
    if expected("typing"):
        pytest.fail(f"DLBRIDGE_EXPECT=typing, but {tool} is not installed")
    pytest.skip(f"{tool} is not installed here")


def run(command, folder, **environment):
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@dataclass
class Said:
    """What a type checker says of a script: line -> the revealed type, and its problems."""

    types: dict[int, str] = field(default_factory=dict)
    problems: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Line, kind, rule and words of each."""

    def take(self, line, kind, rule, words):
        match = re.fullmatch(r'(?:Revealed type|Type of ".*") is "(.*)"', words, re.DOTALL)
        if match:
            self.types[line] = match[1]
        elif kind != "note":
            self.problems.append((line, kind, rule, words))


def by_mypy(folder, names):
    """Script -> what mypy says of it."""
    if find_spec("mypy") is None:
        absent("mypy")
    (folder / "mypy.ini").write_text(FOR_MYPY)
    kept = ROOT / ".mypy_cache" / "scripts"
    command = [sys.executable, "-m", "mypy", *names]
    done = run(command, folder, MYPYPATH=PACKAGES, MYPY_CACHE_DIR=str(kept))
    found = defaultdict(Said)
    for name, line, kind, words in re.findall(
        r"^(\w+\.py):(\d+): (error|note): (.*)$", done.stdout, re.MULTILINE
    ):
        found[name].take(int(line), kind, "", words)
    assert found, done.stdout + done.stderr
    return found


def by_pyright(folder, names):
    """Script -> what pyright says of it."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    tool = shutil.which("pyright", path=path) or shutil.which("basedpyright", path=path)
    if tool is None:
        absent("pyright (or basedpyright)")
    settings = {
        "include": names,
        "extraPaths": [PACKAGES],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run([tool, "--outputjson", "--pythonpath", sys.executable], folder)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:  # its wheel brings a downloader, which wants Node.js
        absent(f"pyright does not run here ({done.stderr.strip()[-300:]}); Node.js")
    found = defaultdict(Said)
    for entry in report["generalDiagnostics"]:
        line = entry["range"]["start"]["line"] + 1
        said = found[Path(entry["file"]).name]
        said.take(line, entry["severity"], entry.get("rule", ""), entry["message"])
    assert found
    return found


@pytest.fixture(scope="module")
def mypy_says(tmp_path_factory):
    """Of all scripts in one run: each reads the libraries' types, which takes most of it."""
    folder = tmp_path_factory.mktemp("mypy")
    return by_mypy(folder, write_scripts(folder))


@pytest.fixture(scope="module")
def pyright_says(tmp_path_factory):
    """Of all scripts and of the documents' programs in one run."""
    folder = tmp_path_factory.mktemp("pyright")
    return by_pyright(folder, [*write_scripts(folder), *sorted(check_pages.write(folder))])


def write_scripts(folder):
    """Put the scripts into *folder*; their names."""
    names = [name for name in SCRIPTS if find_spec("torch") or not name.startswith("torch")]
    for name in names:
        shutil.copy(HERE / name, folder)
    (folder / "wrong.py").write_text(WRONG)
    return [*names, "wrong.py"]


def wanted_types(script):
    """Line -> the type that its comment names."""
    lines = script.read_text().splitlines()
    return {
        number: match[2] for number, line in enumerate(lines, 1) if (match := LINE.search(line))
    }


def agrees(revealed, wanted):
    """Whether *revealed* is the class *wanted*, by its public name.

    The inner modules of dlbridge and of libraries are of no interest, nor what
    is known at run time only (the type of the elements of a numpy array).
    """
    if wanted == "Any":  # pyright does not name every one
        return revealed in ("Any", "Unknown")
    if wanted in _ALIASES:  # mypy counts bool as int, and one writes the alias out again
        return re.fullmatch(_ALIASES[wanted], revealed) is not None
    if "[" in wanted or "|" in wanted:  # these are compared whole, without the modules
        return re.sub(r"[\w.]+\.(?=\w)", "", revealed) == wanted
    package, _, name = wanted.rpartition(".")
    head = revealed.partition("[")[0]
    module, _, last = head.rpartition(".")
    return last == name and (not module or module.split(".")[0] == package.split(".")[0])


_NUMBER = r"(bool \| )?int \| float \| complex"
_ALIASES = {"Number": _NUMBER, "NestedLists": rf"{_NUMBER} \| list\[.*\]"}

CHECKERS = ["mypy_says", "pyright_says"]


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_types_of_typical_calls(checker, name, request):
    if name.startswith("torch") and find_spec("torch") is None:
        if expected("peers"):
            pytest.fail("DLBRIDGE_EXPECT=peers, but torch is not installed")
        pytest.skip("torch is not installed here")
    wanted = wanted_types(HERE / name)
    assert len(wanted) >= 10
    said = request.getfixturevalue(checker)[name]
    assert said.problems == []
    assert said.types.keys() == wanted.keys()
    wrong = {
        number: f"{said.types[number]}, not {wanted[number]}"
        for number in wanted
        if not agrees(said.types[number], wanted[number])
    }
    assert wrong == {}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_run(name):
    if name.startswith("torch") and find_spec("torch") is None:
        pytest.skip("torch is not installed here")
    if name.startswith("ffi"):
        try:
            assert bridge.ffi.version
        except errors.LibraryUnavailable as exc:
            if expected("peers"):
                raise
            pytest.skip(str(exc))
    done = run([sys.executable, str(HERE / name)], HERE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("revealed", "wanted"),
    [
        ("torch._tensor.Tensor", "dlbridge.Tensor"),
        ("Any", "dlbridge.Tensor"),
        ("Unknown", "numpy.ndarray"),
        ("list[Any]", "list[str]"),
        ("Any", "int"),
        ("object", "Any"),
        ("int | Any", "Number"),
    ],
)
def test_another_type_is_found(revealed, wanted):
    """That the right ones agree, the scripts show."""
    assert not agrees(revealed, wanted)


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_call_is_an_error(checker, request):
    """The annotations refuse what the functions refuse, and names that are not there.

    So no ``__getattr__`` of a module tells a type checker that there is every name.
    """
    said = request.getfixturevalue(checker)["wrong.py"]
    lines = {line for line, *_ in said.problems}
    assert lines == {*(2, 3, 4, 5, 9, 10, 11, 15, 16), *range(18, 22), *range(26, 32)}, said


# The documents ---------------------------------------------------------------------------


# The types of dask (of `chunks`) and of ml_dtypes (as those of numpy) are not what they take.
# cffi's functions have no types.
OF_OTHERS = ['parameter "chunks" of type "str"', "generic[Any]", 'for class "Lib"']


# What pyright asks for beyond mypy, and no program of a page is about.
NOT_ASKED = {"reportPossiblyUnbound", "reportMissingImports"}


def test_pyright_reads_the_programs_of_the_documents(pyright_says, tmp_path):
    """As mypy does in `make lint`: `check_pages.py`."""
    wrong = [
        f"{page}:{line}: {words}"
        for name, page in check_pages.write(tmp_path).items()
        for line, kind, rule, words in pyright_says[name].problems
        if kind == "error"
        and rule not in NOT_ASKED
        and not any(known in words for known in OF_OTHERS)
    ]
    assert wrong == []


def test_an_error_is_found_in_the_line_of_its_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    (tmp_path / "README.md").write_text("No program.\n")
    page = "# Title\n\n```python\nimport json\n```\n\n```python\njson.gone()\n```\n"
    (tmp_path / "docs" / "howto" / "a-page.md").write_text(page)
    monkeypatch.setattr(check_pages, "ROOT", tmp_path)
    assert check_pages.main() == 1
    assert "docs/howto/a-page.md:8: error: Module has no attribute" in capsys.readouterr().out


# No public function returns Any -------------------------------------------------

# Function -> the reason, which stands on the line of its source too.
ANYBODYS = {
    "from_dlpack": "an array of the library that `like` names; the overloads say which",
    "to_device": "an array of the library that `like` names; the overloads say which",
    "Tensor.to_native": "an object of the device's ecosystem",
    **dict.fromkeys(("Tensor.__eq__", "Tensor.__ne__"), "a bool, or an array of the other library"),
    "Tensor.tolist": "as many levels of lists as the tensor has dimensions",
    "Tensor.__tensor_export__": "Tensor.__dlpack__ by the name that an Exporter reads",
    "Tensor.__dlpack__": "PyCapsule has no name before Python 3.13",
    "Exporter.__dlpack__": "PyCapsule has no name before Python 3.13",
    "HostView.__dlpack__": "PyCapsule has no name before Python 3.13",
    # Called by pickle, whose protocol it is.
    "Tensor.__reduce_ex__": "what pickle takes",
}


def public_callables():
    """``"Tensor.reshape"`` -> the function, for all that the public names offer."""
    found = {}
    places = {"": bridge, "errors.": errors, "protocol.": protocol}
    for prefix, module in places.items():
        for name in sorted(set(module.__all__) - {"ffi"}):
            thing = getattr(module, name)
            found[prefix + name] = inspect.unwrap(thing) if callable(thing) else thing
            for cls in getattr(thing, "__mro__", ()):
                for member, value in vars(cls).items():
                    function = getattr(value, "fget", getattr(value, "__func__", value))
                    if not member.startswith("_") or member.endswith("__"):
                        found.setdefault(f"{prefix}{name}.{member}", function)
    # Not what dataclass, enum and Protocol have made.
    ours = str(Path(bridge.__file__).parent)
    return {
        name: function
        for name, function in found.items()
        if inspect.isfunction(function) and function.__code__.co_filename.startswith(ours)
    }


CALLABLES = public_callables()


def test_the_walk_finds_functions_of_every_kind():
    assert {"to_device", "use_stream", "Tensor.mT", "Tensor.ndim", "Device.of"} <= set(CALLABLES)
    assert {"protocol.Backend.allocate", "Plan.as_dict", "HostView.__enter__"} <= set(CALLABLES)


@pytest.mark.parametrize("name", CALLABLES)
def test_public_functions_say_what_they_take_and_return(name):
    function = CALLABLES[name]
    hints = function.__annotations__
    assert set(inspect.signature(function).parameters) <= {*hints, "self", "cls", "_cls"}
    assert "return" in hints or name.endswith("__init__")
    if hints.get("return") == "Any":
        assert name in ANYBODYS, f"{name} returns Any: give its type, or a reason in ANYBODYS"
    else:
        assert name not in ANYBODYS, f"{name} no longer returns Any"


def test_the_reasons_stand_in_the_source():
    """Where a line says ``-> Any``, it also says why (overloads say it for from_dlpack)."""
    for name in set(ANYBODYS) - {"from_dlpack", "to_device", "Tensor.__reduce_ex__"}:
        head = inspect.getsource(CALLABLES[name]).partition('"""')[0]
        assert re.search(r"-> Any:  # [`\w]+", head), name
