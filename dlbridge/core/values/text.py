"""Text for people: articles, numbers of bytes, tables, and what to write for a name.

The name is one that is spelled wrongly, or one that other libraries have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from dlbridge.core.public import for_guests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@for_guests
def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a question for the end of a message about a name that is not known.

    Parameters
    ----------
    word : object
        What somebody wrote.
    known : iterable of str
        The names that there are.

    Returns
    -------
    str
        With a space at its beginning; empty where no known name is like *word*.

    Examples
    --------
    >>> from dlbridge.extending import did_you_mean
    >>> did_you_mean("opnecl", ["cpu", "opencl"])
    " (did you mean 'opencl'?)"
    """
    if not isinstance(word, str):
        return ""
    from difflib import get_close_matches  # for messages only

    names = {name.lower(): name for name in known}
    lower = word.lower()
    close = [each for each in (lower, _ALIASES.get(lower)) if each in names]
    close = close or get_close_matches(lower, list(names), n=1, cutoff=0.7)
    # What is known and cannot be had here was not spelled wrongly.
    return f" (did you mean {names[close[0]]!r}?)" if close and names[close[0]] != word else ""


@for_guests
def with_article(name: str) -> str:
    """Return a name behind "a" or "an", for messages.

    Parameters
    ----------
    name : str
        Of a type, for example. The sound at its beginning counts.

    Returns
    -------
    str
        The article and the name.

    Examples
    --------
    >>> from dlbridge.extending import with_article
    >>> with_article("int"), with_article("uint8"), with_article("xarray.Dataset")
    ('an int', 'a uint8', 'an xarray.Dataset')
    """
    vowel = re.match(_VOWEL_SOUND, name, re.IGNORECASE)
    return f"{'an' if vowel else 'a'} {name}"


_VOWEL_SOUND = r"a|e|i|o(?!ne)|x|ml|un(?!i)|up"


@for_guests
def bytes_text(count: int) -> str:
    """Return a number of bytes with its unit.

    Parameters
    ----------
    count : int
        The bytes, 0 or more.

    Returns
    -------
    str
        From 10,000 bytes on in powers of 1024.

    Examples
    --------
    >>> from dlbridge.extending import bytes_text
    >>> bytes_text(512), bytes_text(3 << 19)
    ('512 bytes', '1.5 MiB')
    """
    if count < 10_000:
        return f"{count} bytes"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@for_guests
def html_table(
    title: str, head: tuple[str, ...] = (), rows: Iterable[tuple[object, ...]] = ()
) -> str:
    """Return a title and a table as HTML, for ``_repr_html_``.

    Parameters
    ----------
    title : str
        The text above it.
    head : tuple of str
        The names of the columns. Without them there is no table.
    rows : iterable of tuples
        Their cells, as texts or what `str` makes texts of.

    Returns
    -------
    str
        What notebooks show. Nothing in it is taken for HTML.

    Examples
    --------
    >>> from dlbridge.extending import html_table
    >>> html_table("sizes", ("name",), [("a<b",)])
    '<p>sizes</p><table><tr><th>name</th></tr><tr><td>a&lt;b</td></tr></table>'
    """
    from html import escape  # for notebooks only

    def line(tag: str, cells: tuple[object, ...]) -> str:
        return "".join([f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells])

    lines = [line("th", head), *(line("td", row) for row in rows)] if head else []
    body = "".join([f"<tr>{cells}</tr>" for cells in lines])
    return f"<p>{escape(title)}</p>" + (f"<table>{body}</table>" if body else "")


# Names that others have ---------------------------------------------------------------

# Of libraries, devices and dtypes.
_SHORT = """
np:numpy jnp:jax cp:cupy tf:tensorflow pd:pandas pytorch:torch mx:mlx
nvidia:cuda amd:rocm hip:rocm intel:oneapi sycl:oneapi xpu:oneapi host:cpu cl:opencl vk:vulkan
wgpu:webgpu
bf16:bfloat16 fp16:float16 f32:float32 fp32:float32 f64:float64 fp64:float64 i16:int16 i32:int32
i64:int64 u16:uint16 u32:uint32 u64:uint64 i4:int4 u4:uint4 fp4:float4_e2m1fn fp8:float8_e4m3fn
"""
_ALIASES = dict(pair.split(":") for pair in _SHORT.split())
"""Short names that are in use -> ours, for messages only."""


class Absent:
    """An attribute that is not there, whose AttributeError says what is."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead

    def __get__(self, _tensor: object, cls: type) -> NoReturn:
        raise AttributeError(
            f"{cls.__name__!r} object has no attribute {self._name!r}; {self._instead}"
        )


class WithAbsentNames(type):
    """The class of classes that have `Absent` names: ``dir()`` does not list those."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if hasattr(cls, name)]


class AbsentNames(metaclass=WithAbsentNames):
    """The base of classes that explain names which they do not have: a table, ``absent=``.

    The names are not there: ``hasattr`` is False for an object and for its class, and only the
    message of the AttributeError differs. (A ``__getattr__`` would say the same, and double
    the time of every attribute: 13 ns became 28.)
    """

    __slots__ = ()

    def __init_subclass__(cls, absent: Mapping[str, str] | None = None) -> None:
        for name, instead in (absent or {}).items():
            setattr(cls, name, Absent(name, instead))

    def __dir__(self) -> Iterable[str]:
        """Return the names that are there."""
        return dir(type(self))
