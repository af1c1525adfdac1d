"""new-backend: a working skeleton of a backend for a device of your own."""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.resources
import keyword
import re
from pathlib import Path
from string import Template

from dlbridge import DLDeviceType, __version__, backends, device

# Which distribution provides a backend has no public name: only this command and
# `info` ask for it.
from dlbridge.extending import provider_of

from ..protocol import ADDRESS_DEVICES

TEMPLATES = importlib.resources.files(__package__) / "templates"

FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "ci.yml",
    "{package}/__init__.py": "init.py",
    "{package}/backend.py": "backend.py",
    "{package}/py.typed": "",
    "tests/test_conformance.py": "test_conformance.py",
}
"""Files of a skeleton, and the templates that they are made from."""

OURS = frozenset(("cuda", "fake", "oneapi", "opencl", "rocm", "torch", "vulkan", "webgpu"))
"""Names whose distribution is one of dlbridge's own, installed or not."""

GUIDE = (
    "the page 'Writing a backend' of the documentation (writing-a-backend.html on the site,\n"
    "docs/writing-a-backend.md in the source distribution of dlbridge)"
)
"""Where the guide is; the wheel does not contain it."""

NEXT = """\
wrote {folder}: a backend for "{name}:0", a simulated device in host memory
next:
  cd {folder}
  pip install -e '.[test]'
  pytest                      the conformance kit, which it passes as it is
  python -m dlbridge info     which lists it
then put the calls to your driver into {package}/backend.py. The contract is
dlbridge/protocol.py. The guide is
{guide}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``new-backend``."""
    parser.add_argument("name", help="the device's name, as in 'name:0'")
    parser.add_argument("--into", type=Path, default=Path(), help="where to make its folder (here)")


def run(arguments: argparse.Namespace) -> int:
    """Write the skeleton and say what comes next."""
    folder = write_skeleton(arguments.name, arguments.into)
    print(NEXT.format(folder=folder, **_words(arguments.name)))
    return 0


def write_skeleton(name: str, into: Path) -> Path:
    """Write a backend for the device *name* into a new folder of *into*; the folder.

    ValueError for what cannot be a device's name or is one already,
    FileExistsError if the folder exists.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        raise ValueError(
            f"{name!r} is not a name for a device: it consists of the lower-case letters a to z, "
            "digits and _, begins with a letter and does not end with _"
        )
    if name in backends():
        raise ValueError(
            f"{name!r} is provided by {provider_of(name)} already; choose another name"
        )
    if _device_type(name) in ADDRESS_DEVICES:
        raise ValueError(
            f"a {name!r} tensor's data is an address (dlpack.h), and the skeleton hands out "
            "handles; begin under a name of your own and change name and device_type later"
        )
    words = _words(name)
    texts = {
        file.format(package=words["package"]): Template(_template(template)).substitute(words)
        for file, template in FILES.items()
    }
    code = texts[f"{words['package']}/backend.py"]
    _refuse_taken_words(name, words["class_name"], words["distribution"], code)
    folder = into / words["distribution"]
    try:
        folder.mkdir(parents=True)
    except FileExistsError as exc:
        raise FileExistsError(
            f"{folder} exists already: remove it, choose another name, or name another folder to "
            "write into by --into"
        ) from exc
    for file, text in texts.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.txt").read_text("utf-8") if name else ""


def _refuse_taken_words(name: str, class_name: str, distribution: str, code: str) -> None:
    """ValueError if the class in the skeleton's *code* or its distribution would be another's."""
    if keyword.iskeyword(class_name) or any(
        isinstance(node, ast.Name) and node.id == class_name for node in ast.walk(ast.parse(code))
    ):
        raise ValueError(
            f"{name!r} would make a class {class_name}, which means something else in Python or "
            "in the skeleton; choose another name"
        )
    if name in OURS:
        raise ValueError(f"{distribution} is a package of dlbridge's own; choose another name")
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return
    raise ValueError(f"{distribution} {version} is installed already; choose another name")


def _words(name: str) -> dict[str, str]:
    """The values of the templates: names of the device, its package and its class."""
    kind = _device_type(name)
    return {
        "name": name,
        "distribution": f"dlbridge-{name.replace('_', '-')}",
        "package": f"dlbridge_{name}",
        "class_name": "".join(word.capitalize() for word in name.split("_")),
        "device_type": str(int(kind)),
        "type_name": kind.name,
        "guide": GUIDE,
        "version": ".".join(__version__.split(".")[:2]),
    }


def _device_type(name: str) -> DLDeviceType:
    """The DLDeviceType that DLPack has for *name*; kDLExtDev, which many share, if none."""
    try:
        return device(name).type
    except ValueError:
        return DLDeviceType.kDLExtDev
