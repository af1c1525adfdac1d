"""A fresh process that imports one public module, or unpickles, has the whole of dlbridge.

No method may depend on which module was imported before.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import zipapp
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer
from tests.support.scripts import run_scene

PACKAGE = Path(bridge.__file__).parent


MODULES = [
    "dlbridge",
    *(f"dlbridge.{name}" for name in ["ffi", "errors", "protocol", "typing", "testing", "cli"]),
]


def run(code, *flags, **keywords):
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **keywords,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_one_public_module_is_enough(module):
    """It is imported first, and dlbridge itself is asked for the tensor."""
    assert run_scene("fresh.by_module", module) == "used cpu:0\n"


@pytest.mark.parametrize("name", ["asarray", "zeros", "empty", "to_device"])
def test_one_function_is_enough(name):
    assert run_scene("fresh.by_function", name) == "used cpu:0\n"


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_unpickling_is_enough(protocol, tmp_path):
    """All protocols name the same modules: tests/core/test_public_names.py."""
    tensor = bridge.asarray(np.arange(6, dtype="f4").reshape(2, 3))
    file = tmp_path / "tensor.pickle"
    file.write_bytes(pickle.dumps(tensor, protocol))
    assert run_scene("fresh.by_pickle", file) == "used cpu:0\n"


def test_ffi_first():
    peer("tvm_ffi")
    assert run_scene("fresh.by_ffi") == "used cpu:0\n"


FIRST_CALL = """
import sys
import numpy
import dlbridge
before = set(sys.modules)
dlbridge.to_device(numpy.zeros(3), "cpu")
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_call_loads_what_it_needs():
    """Nothing for errors only, for objects without DLPack, for `like=`, or for large copies."""
    loaded = set(run(FIRST_CALL).split())
    assert "dlbridge.api.routes" in loaded
    needless = {"difflib", "pkgutil", "importlib.metadata", "importlib.util", "inspect"}
    needless |= {"dataclasses", "queue", "signal"}
    others = {"api.like", "api.lists", "api.no_tensor", "core.interfaces.own_table"}
    others |= {f"interop.{name}" for name in ("arrow", "array_interfaces", "descriptions")}
    assert not loaded & (needless | {f"dlbridge.{name}" for name in others})


FIRST_CALL_OF_THE_FFI = """
import sys
import numpy
import dlbridge
from dlbridge import ffi
before = set(sys.modules)
ffi.convert([numpy.zeros(3), "text"])
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_call_of_the_ffi_loads_what_it_needs():
    peer("tvm_ffi")
    loaded = set(run(FIRST_CALL_OF_THE_FFI).split())
    assert "dlbridge.ffi.containers" in loaded
    assert not loaded & {"difflib", "importlib.metadata", "inspect"}


# Without installed metadata ---------------------------------------------------

WITHOUT_METADATA = """
import importlib.metadata as metadata
try:
    metadata.distribution("dlbridge")
except metadata.PackageNotFoundError:
    pass
else:
    raise SystemExit("dlbridge is installed here: this test would show nothing")
import dlbridge as bridge
assert {where!r} in bridge.__file__, bridge.__file__
assert bridge.backends() == ["cpu"], bridge.backends()
assert bridge.empty(3).shape == (3,)
assert bridge.zeros(3, "bfloat16").to_device("cpu").nbytes == 6
assert bridge.backend("cpu").device_count() == 1
print(bridge.to_device([1.0, 2.0], "cpu", like="numpy").tolist())
"""


@pytest.fixture
def packages(tmp_path):
    """A folder with numpy and cffi, and without the metadata of dlbridge and its backends."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("numpy", "numpy.libs", "cffi", "_cffi_backend", "pycparser"):
        for root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for found in Path(root).glob(f"{name}*"):
                wanted = found.name == name or found.name.startswith("_cffi_backend.")
                if wanted and not (folder / found.name).exists():
                    (folder / found.name).symlink_to(found)
    if not (folder / "numpy").exists():
        pytest.fail("numpy is not where sysconfig says that packages are")
    return folder


def environment(*folders):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, folders))}


@pytest.fixture
def source(tmp_path):
    """A copy of the package alone."""
    folder = tmp_path / "source"
    shutil.copytree(PACKAGE, folder / "dlbridge", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_source_tree_without_metadata_works(source, packages, tmp_path):
    code = WITHOUT_METADATA.format(where=str(source))
    assert run(code, "-S", env=environment(source, packages), cwd=tmp_path) == "[1.0, 2.0]\n"


def test_a_zipapp_works(source, packages, tmp_path):
    archive = tmp_path / "program.pyz"
    (source / "__main__.py").write_text(WITHOUT_METADATA.format(where=archive.name))
    zipapp.create_archive(source, archive)
    done = subprocess.run(
        [sys.executable, "-S", archive],
        env=environment(packages),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "[1.0, 2.0]\n"), done.stderr


def test_new_backend_from_a_zipapp(source, packages, tmp_path):
    """The templates were looked for in the file system, after the folder had been made."""
    (source / "__main__.py").write_text(
        "import sys; from dlbridge.cli import main; sys.exit(main())"
    )
    archive = tmp_path / "program.pyz"
    zipapp.create_archive(source, archive)
    command = [sys.executable, "-S", archive, "new-backend", "my_npu", "--into", tmp_path]
    subprocess.run(command, env=environment(packages), check=True, timeout=120)
    written = tmp_path / "dlbridge-my-npu" / "dlbridge_my_npu" / "backend.py"
    assert "class MyNpu" in written.read_text()


@pytest.mark.parametrize(
    ("key", "home"),
    [("ffi.Module", "system_lib"), ("ffi.StructuralKey", "structural")],
)
def test_a_class_of_the_user_stays_whoever_imports_ours_later(key, home):
    """The class depended on which came first, the user's or the import of our module."""
    code = f"""
import dlbridge.ffi as ffi
@ffi.register_object({key!r})
class Mine(ffi.Object): pass
assert ffi.object_class({key!r}) is Mine
ffi.{home}
import dlbridge.ffi.structural
print(ffi.object_class({key!r}) is Mine)
"""
    assert run(code) == "True\n"
