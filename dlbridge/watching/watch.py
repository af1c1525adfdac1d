"""`dlbridge.watch`, and the one watcher that fills all tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from dlbridge.extending import public_in
from dlbridge.kit.resources import shared_lock

from .arrays import forget
from .table import Exchanges, Ledger

if TYPE_CHECKING:
    from .monitoring import Monitor
    from .profiling import Profiler

_FORBIDDEN = ("copy", "host copy", "move")


@public_in("dlbridge")
def watch(
    *, threads: Literal["all", "this"] = "all", fail_on: str | tuple[str, ...] = ()
) -> Exchanges:
    """Return a table that is filled with every exchange of arrays inside its ``with`` block.

    Whoever makes it: ``torch.from_numpy(a)``, ``np.asarray(jax_array)``, ``loss.item()``. The
    libraries need not know of dlbridge, and nothing of them is patched.

    Parameters
    ----------
    threads : {"all", "this"}
        Whose exchanges count: those of all threads, or of the calling one.
    fail_on : str or tuple of str
        What raises an `ExchangeError` at the line that does it: ``"host copy"`` (elements are
        copied within the memory of the host), ``"move"`` (to another device), ``"copy"`` (both).
        Where the result must be read behind the call, and a ``with`` or ``try`` of the program has
        ended there, the end of the watch raises it.

    Returns
    -------
    Exchanges
        The table. It is a context manager, and can be read while the block runs and behind it.

    Raises
    ------
    TypeError, ValueError
        If an argument has none of these values.
    Error
        If CPython can watch for no further tool; the error says which tools there are.

    Notes
    -----
    CPython 3.12 and later tell of calls by ``sys.monitoring``. On 3.11 ``sys.setprofile`` is used,
    which is slower and sees less: functions that Cython has compiled make no events there.

    Examples
    --------
    >>> with bridge.watch() as exchanges:
    ...     t = bridge.asarray(np.zeros(1000, "float32"))
    >>> exchanges.rows[0].source, exchanges.rows[0].target, exchanges.rows[0].result
    ('numpy.ndarray', 'dlbridge.Tensor', 'shared')
    """
    if threads not in ("all", "this"):
        raise ValueError(f"threads={threads!r} is neither 'all' nor 'this'")
    forbidden = (fail_on,) if isinstance(fail_on, str) else tuple(fail_on)
    for word in forbidden:
        if word not in _FORBIDDEN:
            raise ValueError(
                f"fail_on={word!r} is no kind of exchange; the kinds are {', '.join(_FORBIDDEN)}"
            )
    return Exchanges(Ledger(threads, forbidden), _begin, _end)


_lock = shared_lock()
_watcher: Monitor | Profiler | None = None


def _begin(table: Ledger) -> None:
    """Fill *table* from now on."""
    global _watcher
    new = _new_watcher()
    new.callables.refresh()  # imports, so that nothing is imported while the lock is held
    with _lock:
        if _watcher is None:
            new.start(table)
            _watcher = new
        else:
            _watcher.fill(*_watcher.tables, table)


def _end(table: Ledger) -> None:
    """Fill *table* no more; without tables nothing is watched."""
    global _watcher
    with _lock:
        if _watcher is None:
            return
        left = [each for each in _watcher.tables if each is not table]
        if left:
            _watcher.fill(*left)
        else:
            ended, _watcher = _watcher, None
            note = ended.stop()
            ended.tables = ()
            if note:
                table.remark(note)
    forget()


def _new_watcher() -> Monitor | Profiler:
    if sys.version_info >= (3, 12):
        from .monitoring import Monitor

        return Monitor()
    from .profiling import Profiler

    return Profiler()
