"""Every rule that the suite checks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cases import Rule


@cache
def rules() -> dict[str, Rule]:
    """The rules by line, in the order of ``docs/conformance.md``.

    Their modules import numpy and cffi. They are imported here, because pytest loads the plug-in
    in runs that check no library, and X20 imports `Subject` in a sub-interpreter.
    """
    from .consumer_cases import CONSUMER
    from .producer_cases import PRODUCER
    from .stream_cases import STREAMS
    from .table_cases import TABLES

    return {**PRODUCER, **CONSUMER, **TABLES, **STREAMS}
