"""The names of the functions that a library's file exports, for messages and ``dir``."""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SYMBOL_PREFIX", "names_in"]

SYMBOL_PREFIX: Final = "__tvm_ffi_"
"""The beginning of the symbol of each function."""

# Symbols stand in the file as text that ends with NUL. Those that go on with an
# underscore are not functions of users, such as __tvm_ffi__metadata_NAME.
_SYMBOL: Final = re.compile(SYMBOL_PREFIX.encode() + rb"([A-Za-z0-9][!-~]*)\0")
_LARGEST: Final = 256 << 20  # bytes of a file that is searched


def names_in(file: Path) -> set[str]:
    """What stands in *file* as the symbol of a function; it need not be exported.

    Empty for a file that cannot be read, or is so large that the search takes long.
    The C API does not list the functions of a module.
    """
    try:
        with file.open("rb") as opened:
            if not 0 < file.stat().st_size <= _LARGEST:
                return set()
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return {found[1].decode("ascii") for found in _SYMBOL.finditer(content)}
    except OSError:
        return set()
