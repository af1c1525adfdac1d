"""The site: Sphinx reads the Markdown of this folder, and the docstrings of the public names.

`make docs` builds it into build/docs, and fails at any warning. The pages load nothing from
elsewhere: docs/check_site.py looks.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlbridge_vulkan
import dlbridge_webgpu
from sphinx.domains.python import PythonDomain

import dlbridge

project = "dlbridge"
author = "The dlbridge developers"
project_copyright = author
version = release = dlbridge.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["changes/*"]  # the next release's part of the changelog
templates_path = ["_templates"]
suppress_warnings = [
    "ref.python",  # `Error` and `type` are names in several modules; any of them is a fine link
]

# Markdown: headings are link targets by GitHub's names.
myst_heading_anchors = 4

# Docstrings are in numpydoc's sections, which name the types; a word in single backticks is a link
# where such a name exists.
default_role = "py:obj"
highlight_language = "none"  # of blocks that name no language, such as commands
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_ignore_module_all = False
autosummary_imported_members = True
napoleon_google_docstring = False
napoleon_use_ivar = True

smartquotes = False  # quotes in messages and values are to be copied

html_theme = "furo"
html_title = f"dlbridge {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


WITH_CONTENTS = "index", "backends", "developers"
"""The pages whose tables of contents name other pages of this folder."""

BELOW = re.compile("(api|reference|benchmarks|upstream)/|hardware$").match
"""The pages that other pages list or link to."""

UNSEARCHED = re.compile(
    r"(benchmarks|upstream)/|api/dlbridge\.(kit|testing)\b"
    "|(hardware|conformance|compatibility|contributing|releasing|changelog)$"
).match
"""Figures, outputs and developers' notes: a search does not find their words and their names."""


OF_BACKENDS = {
    *("adopt_device", "close_device", "kernel", "wrap_buffer", "device_info"),
    *("queue", "__call__", "close"),
    *(each.name for each in dataclasses.fields(dlbridge_vulkan.VulkanArray)),
    *(each.name for each in dataclasses.fields(dlbridge_webgpu.WebGPUArray)),
}
"""The members of backends' classes that users call. The others are dlbridge's contract."""


def skip(app: Any, what: str, name: str, *_others: Any) -> bool | None:
    """Leave out the members that are not for users.

    Of backends, what dlbridge calls; of TVM-FFI's Module, a field whose text, which comes from
    C++, is not valid here.
    """
    if app.env.docname.startswith("api/dlbridge_") and what == "class":
        return name not in OF_BACKENDS
    return True if name == "imports_" else None


def sign(_app: Any, what: str, *described: Any) -> tuple[str, None] | None:
    """Show no arguments of classes that are not made by calling them."""
    signature = described[-2] or ""
    hidden = "(*_arguments", "(device, live"  # of Kernel, which `Vulkan.kernel` makes
    return ("", None) if what == "class" and signature.startswith(hidden) else None


def list_new_pages(app: Any, docname: str, source: list[str]) -> None:
    """Put pages of this folder that no table of contents names among the how-to pages."""
    if docname != root_doc:
        return
    folder = Path(app.srcdir)
    texts = [(folder / f"{page}.md").read_text(encoding="utf-8") for page in WITH_CONTENTS]
    entries = set(re.findall(r"^(?:.* <)?([\w/-]+)>?$", "\n".join(texts), re.MULTILINE))
    new = [name for name in sorted(app.env.found_docs - entries - {root_doc}) if not BELOW(name)]
    source[0] = source[0].replace(" <processes>\n", "\n".join([" <processes>", *new, ""]))


class Reference(PythonDomain):
    """The names of the reference, each found once: by its page, where it has one."""

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Sphinx searches no name of priority -1; links to it work."""
        for name, shown, kind, page, place, priority in super().get_objects():
            hidden = UNSEARCHED(page) or page == f"api/{name}"
            yield name, shown, kind, page, place, -1 if hidden else priority


def hide_from_search(app: Any, _doctree: Any) -> None:
    """Mark the pages that the index of the search leaves out."""
    if UNSEARCHED(app.env.docname):
        app.env.metadata[app.env.docname]["nosearch"] = "true"


def list_values(_app: Any, docname: str, source: list[str]) -> None:
    """Put the public values of dlbridge.ffi, which have no docstrings, on its page."""
    if docname != "api/dlbridge.ffi":
        return
    for name in dlbridge.ffi.__all__:
        value = getattr(dlbridge.ffi, name)
        if not (callable(value) or inspect.ismodule(value)) or isinstance(value, dlbridge.DType):
            shown = "..." if isinstance(value, str) else repr(value)
            source[0] += f"\n\n.. py:data:: {name}\n   :module: dlbridge.ffi\n   :value: {shown}\n"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_domain(Reference, override=True)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", sign)
    app.connect("source-read", list_new_pages)
    app.connect("source-read", list_values)
    app.connect("doctree-read", hide_from_search)
