"""Choices for parametrized tests: a part of a product that has every combination of fewer axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product


def in_turn(*axes: Sequence[object]) -> list[tuple[object, ...]]:
    """Every combination of values of all *axes* but the last, each with one value of the last.

    The values of the last axis come in turn: for three axes, every pair of values of any two of
    them is there, if no other axis is shorter than the last one.
    """
    last = axes[-1]
    return [
        (*(value for _, value in chosen), last[sum(number for number, _ in chosen) % len(last)])
        for chosen in product(*(list(enumerate(axis)) for axis in axes[:-1]))
    ]
