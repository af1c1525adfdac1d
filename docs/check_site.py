"""Checks the site that was built: `python docs/check_site.py build/docs`.

It loads nothing from elsewhere, it has a page for every public name, every link inside it leads
to a page and a place that are there, a search finds a name once, and no summary of a property is
torn apart.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODULES = {
    "dlbridge": "dlbridge",
    "dlbridge.errors": "dlbridge",  # the same classes
    "dlbridge.ffi": "dlbridge.ffi",
    "dlbridge.ffi.dataclasses": "dlbridge.ffi.dataclasses",
    "dlbridge.ffi.serialization": "dlbridge.ffi.serialization",
    "dlbridge.ffi.structural": "dlbridge.ffi",  # the same functions
    "dlbridge.typing": "dlbridge.typing",
    "dlbridge.dask": "dlbridge.dask",
    "dlbridge.libraries": "dlbridge.libraries",
    "dlbridge.conformance": "dlbridge.conformance",
    "dlbridge.protocol": "dlbridge.protocol",
    "dlbridge.testing": "dlbridge.testing",
    **{
        f"dlbridge_{name}": f"dlbridge_{name}"
        for name in ("opencl", "vulkan", "webgpu", "cuda", "rocm", "oneapi", "torch")
    },
}
"""Each public module, and the module under whose name its names are documented."""
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""The elements that make a browser load something, and the attribute that says what."""
FETCH = re.compile(r"url\(\s*['\"]?(https?:|//)|@import\s+(url\()?['\"]?(https?:|//)")


TYPE = re.compile(
    r'<dt[^>]*>Type<span class="colon">:</span></dt>\s*<dd[^>]*>(.*?)</dd>', re.DOTALL
)
"""What Sphinx shows as the type of a property. The signature has the type; this is made of the
first line of a docstring, where that has a colon."""


class Page(HTMLParser):
    """What one page loads, what it links to, and the places in it."""

    def __init__(self, path: Path) -> None:
        """Read the page."""
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take notes of one element."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.places.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given:
            self.loads.append(given[LOADS[tag]])


def faults(site: Path) -> list[str]:
    """What is wrong with the pages, one sentence each."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc or not (url.path or url.fragment):
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.exists():
                found.append(f"{name} links to {link}, which is not there")
            elif (
                target in pages
                and url.fragment
                and unquote(url.fragment) not in pages[target].places
            ):
                found.append(f"{name} links to {link}, a place that is not there")
    for path in site.rglob("*.css"):
        if FETCH.search(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)} loads something from elsewhere")
    return found


def torn(site: Path) -> list[str]:
    """The summaries of properties and attributes whose words before a colon became a type."""
    found = []
    for path in sorted(site.rglob("*.html")):
        for shown in TYPE.findall(path.read_text(encoding="utf-8")):
            text = re.sub(r"<[^>]*>", "", shown).strip()
            if not re.fullmatch(r"[a-z_][\w.]*", text):  # a name alone comes from libtvm_ffi
                found.append(
                    f"{path.relative_to(site).as_posix()} has the type {text!r}: write the first "
                    "line of that docstring without a colon"
                )
    return found


def nameless(site: Path) -> list[str]:
    """The public names that the reference does not have."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    listed = {
        item for kind, items in inventory.data.items() if kind.startswith("py:") for item in items
    }
    found = []
    for module, shown in MODULES.items():
        for name in importlib.import_module(module).__all__:
            known = {f"{shown}.{name}", f"{module}.{name}"} & listed
            if not known and not name.startswith("__"):
                found.append(f"the reference has no {module}.{name}")
    return found


def found_twice(site: Path) -> list[str]:
    """The names that a search finds as a page, and as the object that the page is about."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {
        (index["docnames"][page], f"{prefix}.{name}" if prefix else name)
        for prefix, objects in index["objects"].items()
        for page, _kind, priority, _place, name in objects
        if priority >= 0
    }
    return [f"a search finds {name} twice" for page, name in sorted(names) if page == f"api/{name}"]


def main(site: Path) -> int:
    """Print the faults; 1 if there are any."""
    found = faults(site.resolve()) + torn(site) + nameless(site) + found_twice(site)
    print("\n".join(found) or f"{site}: loads nothing from elsewhere, has every public name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
