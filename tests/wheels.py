"""Build every distribution into dist/, check it, and use the core's wheel in a new environment.

This is all of a release but the upload (docs/releasing.md): `make wheels`. It fails if a wheel is
not pure Python, holds files of another package, or has another version than its tag
(`--tag v0.1.0`, `--tag opencl-v0.1.0`), and if the README's second example does not run with
the wheel of the core alone (the first one needs torch and OpenCL).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Build and check all of it, or what ``--tag`` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="v1.2.3 for dlbridge, NAME-v1.2.3 for a backend")
    tag = parser.parse_args().tag
    wanted = folders()
    if tag:
        name, version = of_tag(tag)
        if name not in wanted:
            sys.exit(f"tag {tag}: there is no {name}; there are {', '.join(wanted)}")
        wanted = {name: wanted[name]}
    if DIST.exists() and any(DIST.iterdir()):
        sys.exit(f"{DIST} is not empty: what is in it would be uploaded, too; delete it first")
    for name, folder in wanted.items():
        print(f"building {name}", flush=True)
        call(sys.executable, "-m", "build", "--outdir", str(DIST), str(folder))
    call(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    faults = [fault for wheel in sorted(DIST.glob("*.whl")) for fault in check(wheel)]
    if tag and not list(DIST.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
        faults.append(f"tag {tag}: the version in pyproject.toml is another one")
    if faults:
        sys.exit("\n".join(faults))
    if "dlbridge" in wanted:
        use(next(DIST.glob("dlbridge-*.whl")))
    return 0


def folders() -> dict[str, Path]:
    """Each distribution and the folder of its pyproject.toml, dlbridge first."""
    backends = sorted(ROOT.glob("backends/*/pyproject.toml"))
    return {"dlbridge": ROOT} | {f"dlbridge-{path.parent.name}": path.parent for path in backends}


def of_tag(tag: str) -> tuple[str, str]:
    """The distribution and the version that *tag* names."""
    match = re.fullmatch(r"(?:([a-z]+)-)?v(\d+\.\d+\.\d+\w*)", tag)
    if match is None:
        sys.exit(f"tag {tag} is neither v1.2.3 nor NAME-v1.2.3")
    return f"dlbridge-{match[1]}" if match[1] else "dlbridge", match[2]


def check(wheel: Path) -> list[str]:
    """What is wrong with *wheel*, one sentence each."""
    package, version = wheel.name.split("-")[:2]
    found = []
    if not wheel.name.endswith("-py3-none-any.whl"):
        found.append(f"{wheel.name} is not pure Python")
    names = zipfile.ZipFile(wheel).namelist()
    allowed = (f"{package}/", f"{package}-{version}.dist-info/")
    found += [f"{wheel.name} holds {name}" for name in names if not name.startswith(allowed)]
    wanted = (f"{package}/py.typed", f"{package}-{version}.dist-info/licenses/LICENSE")
    found += [f"{wheel.name} has no {name}" for name in wanted if name not in names]
    return found


def use(wheel: Path) -> None:
    """Install *wheel* alone into a new environment; run the core's example and the command line."""
    example = EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))[1]
    with tempfile.TemporaryDirectory() as folder:
        call(sys.executable, "-m", "venv", folder)
        python = Path(folder) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        call(str(python), "-m", "pip", "install", "-q", str(wheel))
        for arguments in (["-c", example], ["-m", "dlbridge", "info"]):
            call(str(python), "-I", *arguments)


def call(*command: str) -> None:
    """Run *command*; end with its exit code if it fails."""
    code = subprocess.run(command, cwd=DIST.parent, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
