"""Fetch SwiftShader, a second software Vulkan driver, out of an npm package.

    python backends/vulkan/tests/swiftshader.py [FOLDER]

Writes FOLDER/libvk_swiftshader.so (default: build/swiftshader at the top of the
repository, where the tests look). Needs npm and node, which also unpacks it: the
archive inside is Brotli-compressed, which Python cannot read by itself. 68 MB
are fetched. SwiftShader is Apache-2.0 software of Google's; the package
(@sparticuz/chromium) is MIT-licensed. Nothing of it is kept in this repository.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@sparticuz/chromium@147.0.0"
MEMBER = "package/bin/swiftshader.tar.br"
LIBRARY = "libvk_swiftshader.so"
SHA256 = "5b9e8591c7c2d1c9618c3ad485d0cdffb81f5f1ffd6a982fdb6578c2d8d3213e"
UNPACK = "process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync(0)))"


def fetch(folder: Path) -> Path:
    """The library in *folder*, fetched if it is not there yet."""
    target = folder / LIBRARY
    if target.exists():
        return target
    for tool in ("npm", "node"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is needed to fetch SwiftShader; install npm, or go without")
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=temporary, check=True)
        (package,) = Path(temporary).glob("*.tgz")
        with tarfile.open(package) as archive:
            packed = archive.extractfile(MEMBER).read()
        done = subprocess.run(["node", "-e", UNPACK], input=packed, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        library = archive.extractfile(LIBRARY).read()
    digest = hashlib.sha256(library).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{LIBRARY} of {PACKAGE} has SHA-256 {digest}, not {SHA256}")
    folder.mkdir(parents=True, exist_ok=True)
    target.write_bytes(library)
    return target


if __name__ == "__main__":
    top = Path(__file__).resolve().parents[3]
    print(fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else top / "build" / "swiftshader"))
