"""Does a library do what DLPack asks of a producer and of a consumer? One case for each rule."""

from __future__ import annotations

from .expectations import read_expected, unexpected
from .rules import RULES, Rule
from .runner import Check, Result, check

__all__ = ["RULES", "Check", "Result", "Rule", "check", "read_expected", "unexpected"]
