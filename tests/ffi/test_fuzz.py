"""Random values and programs on containers, beside tvm_ffi's compiled binding: no difference.

`make stress` takes as many as the figures in the names of the tests say.
"""

from __future__ import annotations

import random

import pytest

from dlbridge import ffi
from tests.support.peers import peer

SEED = 20261125
SIZES = [pytest.param(1, marks=pytest.mark.stress), 20]  # of so many values or programs one
LEAVES = [
    *(None, True, False, 0, -1, 2**62, -(2**63), 2**64, -(10**25), 1.5, -0.0, float("inf")),
    *("", "a", "longer than seven bytes", "\0x", "é" * 4, b"", b"abc", b"longer than seven"),
]
FEW = [None, 1, 2, "a", "b", "some longer text", 2.5]


def random_value(chance, depth=0):
    kind = chance.random() if depth < 3 else 1
    if kind < 0.3:
        values = [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        return values if kind < 0.2 else tuple(values)
    if kind < 0.4:
        keys = chance.sample(["a", "b", "longer key than seven", 1, 2, 3.5, True], 3)
        return {key: random_value(chance, depth + 1) for key in keys}
    return chance.choice(LEAVES)


def plain(x):
    """What *x* is, for whichever binding: type and content, all the way down."""
    name = type(x).__name__
    if name in ("Array", "List", "list"):
        return name.replace("Array", "list"), [plain(item) for item in x]
    if name in ("Map", "Dict"):
        return name, [(plain(key), plain(item)) for key, item in x.items()]
    for cls in (str, bytes):  # of which tvm_ffi has subclasses
        if isinstance(x, cls):
            return cls.__name__, cls(x)
    return name, repr(x)


def done(step, *arguments):
    try:
        return plain(step(*arguments))
    except (LookupError, ValueError) as exc:
        return type(exc)


@pytest.mark.parametrize("each", SIZES)
def test_26_000_values(testing, each):
    chance = random.Random(SEED)
    ours, theirs = testing("echo"), peer("tvm_ffi").get_global_func("testing.echo")
    for _ in range(26_000 // each):
        value = random_value(chance)
        assert plain(ours(value)) == plain(theirs(value)), value


LIST_STEPS = {
    "append": lambda c, x, i, j, s: c.append(x),
    "insert": lambda c, x, i, j, s: c.insert(i, x),
    "pop": lambda c, x, i, j, s: c.pop(i),
    "remove": lambda c, x, i, j, s: c.remove(x),
    "extend": lambda c, x, i, j, s: c.extend([x] * abs(i)),
    "clear": lambda c, x, i, j, s: c.clear(),
    "reverse": lambda c, x, i, j, s: c.reverse(),
    "delete": lambda c, x, i, j, s: c.__delitem__(i),
    "delete a slice": lambda c, x, i, j, s: c.__delitem__(slice(i, j, s)),
    "set": lambda c, x, i, j, s: c.__setitem__(i, x),
    "set a slice": lambda c, x, i, j, s: c.__setitem__(slice(i, j, s), [x] * abs(i)),
    "get": lambda c, x, i, j, s: c[i],
    "slice": lambda c, x, i, j, s: list(c[i:j:s]),
    "index": lambda c, x, i, j, s: c.index(x, i),
    "count": lambda c, x, i, j, s: c.count(x),
    "in": lambda c, x, i, j, s: x in c,
    "reversed": lambda c, x, i, j, s: list(reversed(c)),
    "add": lambda c, x, i, j, s: list(c + [x]),  # noqa: RUF005
}
DICT_STEPS = {
    "set": lambda d, k, x: d.__setitem__(k, x),
    "get": lambda d, k, x: d.get(k, x),
    "item": lambda d, k, x: d[k],
    "delete": lambda d, k, x: d.__delitem__(k),
    "pop": lambda d, k, x: d.pop(k),
    "pop or": lambda d, k, x: d.pop(k, x),
    "setdefault": lambda d, k, x: d.setdefault(k, x),
    "update": lambda d, k, x: d.update({k: x, "z": x}),
    "clear": lambda d, k, x: d.clear(),
    "in": lambda d, k, x: k in d,
    "keys": lambda d, k, x: list(d.keys()),
    "values": lambda d, k, x: list(d.values()),
}


@pytest.mark.parametrize("each", SIZES)
@pytest.mark.parametrize("kind", ["List", "Dict"])
def test_11_000_programs(kind, each):
    chance = random.Random(SEED)
    peers = [getattr(peer("tvm_ffi"), kind)] + ([list] if kind == "List" else [])
    for number in range(11_000 // each):
        start = chance.choices(FEW, k=chance.randrange(5))
        steps, content = LIST_STEPS, start
        if kind == "Dict":  # not beside Python's: after a removal the order is the library's own
            steps, content = DICT_STEPS, dict(zip("abcd", start, strict=False))
        mine, others = getattr(ffi, kind)(content), [cls(content) for cls in peers]
        for _ in range(chance.randrange(1, 12)):
            name = chance.choice(list(steps))
            if kind == "List":
                arguments = [chance.choice(FEW), *chance.choices(range(-5, 6), k=2)]
                arguments.append(chance.choice([1, 1, 2, -1, -2, 3]))
            else:
                arguments = [chance.choice("abcdef"), chance.choice(FEW)]
            result = done(steps[name], mine, *arguments)
            for other in others:
                assert result == done(steps[name], other, *arguments), (number, name, arguments)
                assert plain(mine)[1] == plain(other)[1], (number, name, arguments)
