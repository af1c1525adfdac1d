"""Settings of the environment: numbers, as the user's limit of kept memory, and switches."""

from __future__ import annotations

import math
import os

from dlbridge.errors import BackendUnavailable

__all__ = ["pool_limit", "switch", "whole_number"]

VARIABLE = "DLBRIDGE_POOL_LIMIT"


def pool_limit(default: int) -> int:
    """The most bytes of freed memory that a backend keeps for a device.

    Call it when the backend or the device is opened, so that a mistake is heard of there.

    Parameters
    ----------
    default : int
        The limit where the user has set none.

    Returns
    -------
    int
        What the environment variable ``DLBRIDGE_POOL_LIMIT`` says, else *default*.

    Raises
    ------
    dlbridge.errors.BackendUnavailable
        If the variable is not a number of bytes.
    """
    return whole_number(
        VARIABLE,
        default,
        "a number of bytes, such as 268435456 (256 MiB), or to 0 to keep no freed memory",
    )


def whole_number(variable: str, default: int, choice: str, most: float = math.inf) -> int:
    """The number from 0 on that a variable of the environment says.

    Parameters
    ----------
    variable : str
        Its name.
    default : int
        The number where it is not set, or empty.
    choice : str
        What it can be set to, for the message: "a number of bytes", for example.
    most : float
        The largest number that is accepted.

    Returns
    -------
    int
        The number.

    Raises
    ------
    dlbridge.errors.BackendUnavailable
        If the variable is no such number.
    """
    text = os.environ.get(variable, "")
    if not text:
        return default
    cause = None
    if text.isascii() and text.isdigit():
        try:
            number = int(text)
        except ValueError as exc:  # Python reads at most 4300 digits
            cause = exc
        else:
            if number <= most:
                return number
    raise BackendUnavailable(f"{variable} is {text!r}; set it to {choice}") from cause


def switch(variable: str, *, default: bool = False) -> bool:
    """Whether a variable of the environment says 1; BackendUnavailable if it says nothing known.

    Parameters
    ----------
    variable : str
        Its name. 0 is no.
    default : bool
        What holds if it is not set, or empty.
    """
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise BackendUnavailable(f"{variable} is {text!r}; set it to 1 for yes, or to 0 for no")
    return text == "1" if text else default
