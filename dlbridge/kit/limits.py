"""The user's limit of the freed memory that a backend keeps."""

from __future__ import annotations

import os

from dlbridge.errors import BackendUnavailable

__all__ = ["pool_limit"]

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
    text = os.environ.get(VARIABLE, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise BackendUnavailable(
            f"{VARIABLE} is {text!r}; set it to a number of bytes, such as 268435456 (256 MiB), "
            "or to 0 to keep no freed memory"
        )
    return int(text)
