"""The examples of the pages: read, run, compared with what the pages show; `--write` shows it anew.

    python tests/support/pages.py --write docs/tutorial.md docs/command-line.md

A page's ```python blocks are one program. What it prints stands in ```text output blocks, each
under the block that prints it. A ```console block holds commands, after "$ ", and what each
prints. In both, "..." stands for what differs from machine to machine; ```console sample says
that all of it does, and that only the command's success is tested; ```console slow that no test
runs it, and only --write does. A picture that the program saves, and that the page shows by that
name, is the page's: --write puts it beside the page, with few colours.
"""

from __future__ import annotations

import doctest
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.scripts import run_script

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```text output\n(?P<shown>.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console(?P<kind> sample| slow)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<shown>(?:(?!\$ |```).*\n)*)", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^]]*\]\((?P<name>[\w-]+\.png)\)", re.MULTILINE)
MARK = "--- the output block of this page with the number {} ends here ---\n"


def programs(text: str) -> list[str]:
    """The blocks of Python in *text*, the parts of one program."""
    return PYTHON.findall(text)


def with_reference(page: Path) -> str:
    """The text of *page*, and behind it that of its reference, if it has one."""
    reference = page.parent / "reference" / page.name
    more = reference.read_text(encoding="utf-8") if reference.exists() else ""
    return page.read_text(encoding="utf-8") + more


def run_examples(page: Path, count: int) -> dict[str, object]:
    """Run the *count* blocks of Python in *page* and its reference as one program; its names."""
    blocks = programs(with_reference(page))
    assert len(blocks) == count, page
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names


def pictures(text: str) -> list[str]:
    """The names of the pictures that *text* shows, and that its program saves."""
    saved = "\n".join(programs(text))
    return [name for name in PICTURE.findall(text) if f'"{name}"' in saved]


def has_examples(text: str) -> bool:
    """Whether *text* has anything that can be run."""
    return bool(programs(text) or CONSOLE.search(text))


PLAIN = {"COLUMNS": "80", "NO_COLOR": "1"}


def run(arguments: list[str], folder: Path) -> str:
    """What a command prints to stdout; CalledProcessError if it fails."""
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **PLAIN},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    ).stdout


def printed(text: str, folder: Path, imported: tuple[str, ...] = ()) -> list[str]:
    """What the program of *text* prints before the end of each of its output blocks."""
    parts, position = [], 0
    for number, block in enumerate(SHOWN.finditer(text)):
        parts += programs(text[position : block.start()])
        parts.append(f"print({MARK.format(number)!r}, end='')\n")
        position = block.end()
    parts += programs(text[position:])
    script = folder / "examples.py"
    script.write_text("\n".join(parts), encoding="utf-8")
    output = run_script(script, cwd=folder, env=PLAIN, imported=imported)
    found = []
    for number in range(len(SHOWN.findall(text))):
        one, _, output = output.partition(MARK.format(number))
        found.append(one)
    return found


def answer(command: str, folder: Path) -> str:
    """What *command*, which begins with "python", prints here."""
    words = shlex.split(command)
    assert words[0] == "python", command
    return run([sys.executable, *words[1:]], folder)


def outputs(
    text: str, folder: Path, *, slow: bool = True, imported: tuple[str, ...] = ()
) -> list[tuple[re.Match[str], str, bool]]:
    """Each output that *text* shows, what it is here, and whether the page shows a sample only."""
    found = []
    if programs(text):
        found += [
            (block, output, False)
            for block, output in zip(
                SHOWN.finditer(text), printed(text, folder, imported), strict=True
            )
        ]
    for block in CONSOLE.finditer(text):
        if block["kind"] == " slow" and not slow:
            continue
        for command in COMMAND.finditer(text, *block.span()):
            found.append((command, answer(command["command"], folder), bool(block["kind"])))
    return found


def same(shown: str, found: str) -> bool:
    """Whether *found* is what *shown* says, where "..." is anything."""
    return doctest.OutputChecker().check_output(shown, found, doctest.ELLIPSIS)


def differences(text: str, folder: Path, imported: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Each output that *text* shows and that is another one here, with what it is here.

    The program runs in a fork of a process with the modules *imported*, if any are named.
    """
    return [
        (match["shown"], output)
        for match, output, sample in outputs(text, folder, slow=False, imported=imported)
        if not sample and not same(match["shown"], output)
    ]


def tidy(output: str) -> str:
    """*output* without the folders and the kernel of the machine that wrote the page."""
    return output.replace(sys.prefix, ".venv").replace(f"-{platform.release()}-", "-")


def put_picture(made: Path, folder: Path) -> None:
    """Put the picture *made* into *folder*, with as many colours as 100,000 bytes take."""
    from PIL import Image  # not where outputs are only compared

    target = folder / made.name
    with Image.open(made) as opened:
        picture = opened.convert("RGB")
    picture.save(target, optimize=True)
    for colors in (256, 128, 64, 32):
        if target.stat().st_size < 100_000:
            return
        picture.quantize(colors, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


def write(path: Path) -> None:
    """Put the outputs and the pictures of today into the page *path*, and beside it."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for match, output, sample in reversed(outputs(text, Path(folder))):
            if sample or not same(match["shown"], output):
                text = text[: match.start("shown")] + tidy(output) + text[match.end("shown") :]
        for name in pictures(text):
            put_picture(Path(folder, name), path.parent)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        write(Path(name))
