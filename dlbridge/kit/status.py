"""Status codes of a driver, and the exceptions that they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dlbridge.errors import DeviceError, DeviceLost, Error, ExchangeError

__all__ = ["CaptureError", "NoPoolError", "StatusTable", "StreamGoneError"]


class CaptureError(ExchangeError):
    """The driver refused a call because of a graph capture; later it may be possible."""


class NoPoolError(ExchangeError):
    """The device has a pool by its description, and refuses to use it."""


class StreamGoneError(DeviceError):
    """The stream was destroyed, or its context was."""


class StatusTable:
    """Maps the status codes of one driver to exceptions with a way out.

    Parameters
    ----------
    meanings : Mapping[int, tuple[type[Error], str]]
        For each known code the exception's class, and what the user can do. Codes that are not
        listed become `dlbridge.errors.DeviceError`.
    describe : Callable[[int], str]
        The driver's own name and words for a code.
    fatal : frozenset[int]
        Codes after which every later call of the process fails too: DeviceError becomes
        `dlbridge.errors.DeviceLost`.

    Examples
    --------
    >>> table = StatusTable({2: (DeviceError, "free some tensors")}, lambda code: f"ERROR {code}")
    >>> table.check("allocate", 0)
    >>> table.check("allocate", 2)
    Traceback (most recent call last):
    ...
    dlbridge.errors.DeviceError: allocate: ERROR 2; free some tensors
    """

    def __init__(
        self,
        meanings: Mapping[int, tuple[type[Error], str]],
        describe: Callable[[int], str],
        fatal: frozenset[int] = frozenset(),
    ) -> None:
        self.meanings = dict(meanings)
        self._describe = describe
        self._fatal = fatal
        self.lost = ""
        """The first fatal error of this process; empty while there was none."""

    def check(self, function: str, code: int) -> None:
        """Raise the exception for *code*, which *function* returned; 0 is success.

        Parameters
        ----------
        function : str
            The driver's function, for the message.
        code : int
            Its status.

        Raises
        ------
        dlbridge.errors.Error
            The class that the table gives for *code*.
        """
        if code:
            kind, remedy = self.meanings.get(code, (DeviceError, ""))
            if code in self._fatal and kind is DeviceError:
                kind = DeviceLost
            text = self.text(function, code) + (f"; {remedy}" if remedy else "")
            if code in self._fatal and not self.lost:
                self.lost = text
            raise kind(text)

    def text(self, function: str, code: int) -> str:
        """The function, and the driver's name and words for *code*."""
        return f"{function}: {self._describe(code)}"
