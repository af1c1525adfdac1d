"""The generated C declarations: fresh, complete, and laid out as the compiler does."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from dlbridge.abi import ffi
from tests.support.expected_parts import compiler_or_skip
from tests.support.peers import peer
from tests.support.scripts import finished, run_script

ROOT = Path(__file__).resolve().parents[3]
# The headers that the committed declarations were made from.
WHEEL = "0.1.15.post2"
CONSTANT = re.compile(r"#define (\w+) (\w+)")


def declared_functions():
    text = (ROOT / "cdefs/tvm_ffi.h").read_text()
    return set(re.findall(r"\b(TVMFFI\w+)\(", text)) - set(re.findall(r"\(\*(TVMFFI\w+)\)", text))


@pytest.fixture
def library():
    tvm_ffi = peer("tvm_ffi")
    return Path(tvm_ffi.__file__).parent / "lib" / "libtvm_ffi.so"


@pytest.fixture
def compiler():
    return compiler_or_skip()


def test_declarations_are_fresh():
    peer("pcpp")
    try:
        installed = version("apache-tvm-ffi")
    except PackageNotFoundError:
        pytest.skip("apache-tvm-ffi is not installed")
    assert installed == WHEEL, "make setup installs the headers that the declarations are made from"
    done = finished(Path("cdefs"), "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_an_edit_by_hand_is_seen(tmp_path):
    peer("pcpp")
    peer("tvm_ffi")
    module = "dlbridge/core/_cdefs.py"
    for folder in ("cdefs", Path(module).parent):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("cdefs/__main__.py", "cdefs/dlpack.h", "cdefs/tvm_ffi.h", module):
        shutil.copy(ROOT / name, tmp_path / name)
    edited = (tmp_path / "cdefs/dlpack.h").read_text().replace("kDLTrn = 18", "kDLTrn = 19")
    (tmp_path / "cdefs/dlpack.h").write_text(edited)
    done = finished(Path("cdefs"), "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert "+  kDLTrn = 18" in done.stdout


def test_the_library_exports_what_is_declared_and_no_more(library):
    if shutil.which("nm") is None:
        pytest.skip("no nm here")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1].partition("@")[0] for line in listing.splitlines()}
    exported = {name for name in exported if re.fullmatch(r"TVMFFI[A-Z]\w+", name)}
    assert declared_functions() == exported


def structs():
    """Name -> fields of every struct that the declarations name."""
    found = {}
    for group in ffi.list_types():
        for name in group:
            kind = ffi.typeof(name) if re.fullmatch(r"[A-Z]\w+", name) else None
            if kind is not None and kind.kind in {"struct", "union"} and kind.fields:
                found[name] = [field for field, _ in kind.fields if field]
    return found


def test_layouts_equal_the_compilers(compiler, tmp_path):
    peer("tvm_ffi")
    from importlib.metadata import distribution

    include = distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")
    wanted = structs()
    assert {"DLTensor", "DLManagedTensorVersioned", "DLPackExchangeAPI", "TVMFFIAny"} <= set(wanted)
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        "#include <tvm/ffi/c_api.h>",
        "#include <tvm/ffi/extra/c_env_api.h>",
        "int main(void) {",
    ]
    expected = {}
    for name, fields in wanted.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected[name] = ffi.sizeof(name)
        for field in fields:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected[f"{name}.{field}"] = ffi.offsetof(name, field)
    lines.append("return 0; }")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join(lines))
    subprocess.run([compiler, f"-I{include}", source, "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    measured = {key: int(value) for key, value in map(str.split, printed.splitlines())}
    assert measured == expected


def test_constants_are_the_headers():
    for header in ("dlpack.h", "tvm_ffi.h"):
        for name, value in CONSTANT.findall((ROOT / "cdefs" / header).read_text()):
            assert ffi.integer_const(name) == int(value)


def test_loading_needs_no_parser():
    code = (
        "import dlbridge.core._cdefs, sys; print('pycparser' in sys.modules, 'cffi' in sys.modules)"
    )
    assert run_script(code) == "False False\n"
