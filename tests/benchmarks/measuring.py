"""What the benchmarks share: the time of an empty call, bars, and the memory of a process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dlbridge.cli.bench import Row, best_of
from tests.benchmarks.compare import stamp


def floors() -> dict[str, float]:
    """Ns of an empty Python call and of an empty cffi call, as these loops see them."""
    # The declared C function that does least.
    from dlbridge.ffi import _lib

    out = _lib.ffi.new("TVMFFIVersion *")  # an earlier tree has no dlbridge.abi
    get_version = _lib.C.TVMFFIGetVersion
    return best_of({"empty Python call": lambda: None, "empty cffi call": lambda: get_version(out)})


def side(row: Row) -> tuple[float, str, str]:
    """The ratio to the best peer, the colour of its side of 1, and both times in words."""
    text = f"{_in_units(row.ns)}, {row.best_peer} {_in_units(row.peers[row.best_peer])}"
    return row.ratio, "#3f7f5f" if row.ratio <= 1 else "#c8743c", text


def _in_units(ns: float) -> str:
    """*ns* to three digits, in the unit that people use for it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def plot(rows: list[Row], title: str, path: str) -> None:
    """Bars from 1, to the left where dlbridge is faster than the best peer, with both times."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.peers]
    figure, axes = pyplot.subplots(figsize=(11, 0.36 * len(shown) + 1.4))
    ratios, colours, texts = zip(*map(side, shown), strict=True)
    axes.barh(
        [row.operation.replace("`", "") for row in shown],
        [ratio - 1 for ratio in ratios],
        left=1,
        color=colours,
    )
    for place, (ratio, text) in enumerate(zip(ratios, texts, strict=True)):
        axes.annotate(
            text,
            (max(ratio, 1.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(min(*ratios, 0.5) / 1.3, max(*ratios, 2.0) * 8)  # room for the words
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("time of dlbridge / time of the best peer (left, green: dlbridge is faster)")
    axes.set_title(title)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Description": stamp(rows)})
    pyplot.close(figure)


def memory(name: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its highest value) of this process in bytes; 0 if not on Linux."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> int:
    """Let ``VmHWM`` begin again at the memory in use now, which is returned."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")
