"""Packages that are installed for a test: their metadata in a folder on the path."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, points: str, *, version: str = "1.0") -> None:
    """Write the metadata of a distribution with these entry points: ``"[group]\\nname = place"``."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"{points}\n")
