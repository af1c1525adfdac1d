"""Random programs with elements below a byte, and a model of them in lists of Python."""

from __future__ import annotations

import math
import pickle
import random
import re

import ml_dtypes
import numpy as np
import pytest

import dlbridge as bridge

TYPES = [
    *("int1", "uint1", "int2", "uint2", "int4", "uint4"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
]
assert all(hasattr(ml_dtypes, name) for name in TYPES)
SHAPES = [(1,), (2,), (3,), (5,), (8,), (17,), (40,), (3, 3), (2, 5), (4, 8), (1, 7), (2, 3, 2)]
_EXPONENTS = {"float4_e2m1fn": (2, 1), "float6_e2m3fn": (2, 3), "float6_e3m2fn": (3, 2)}


def number(code, name):
    """The number of a code, by the definition of its type."""
    bits = bridge.dtype(name).bits
    if name not in _EXPONENTS:
        return code - (1 << bits) if name[0] == "i" and code >> bits - 1 else code
    exponent_bits, mantissa_bits = _EXPONENTS[name]
    mantissa = code & (1 << mantissa_bits) - 1
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    if exponent:
        mantissa += 1 << mantissa_bits
    value = mantissa * 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
    return -value if code >> bits - 1 else value


class Model:
    """A tensor, and where its elements are in a list of codes that its views have, too."""

    def __init__(self, tensor, codes, places):
        self.tensor, self.codes, self.places = tensor, codes, places

    @property
    def expected(self):
        return [self.codes[place] for place in self.places]

    @property
    def packed(self):
        return not self.tensor.is_padded

    @property
    def has_gaps(self):
        """Whether it is packed and dlbridge refuses to copy it."""
        return self.packed and not self.tensor.is_contiguous()

    def found(self):
        """The codes in the bytes of the tensor."""
        raw, bits = self.tensor.tobytes(), self.tensor.dtype.bits
        mask = (1 << bits) - 1
        if not self.packed:
            return [byte & mask for byte in raw]
        word = int.from_bytes(raw, "little")
        return [word >> bits * i & mask for i in range(self.tensor.size)]


class Program:
    """Operations in a random order, each of which is done in the model, too."""

    def __init__(self, seed, devices):
        self.random = random.Random(seed)
        self.devices = devices
        self.name = self.random.choice(TYPES)
        self.bits = bridge.dtype(self.name).bits
        self.roots = []
        self.views = []

    def run(self, steps):
        for _ in range(3):
            self.make(self.random.choice(SHAPES))
        operations = [
            *[self.copy] * 4,
            *[self.view] * 3,
            *(self.copy_list, self.make_any, self.move, self.astype, self.like, self.text),
            *(self.pickled, self.share, self.host_view),
        ]
        for _ in range(steps):
            self.random.choice(operations)()
            for root in self.roots:  # no other element has changed
                assert root.found() == root.expected

    def any_codes(self, count):
        return [self.random.randrange(1 << self.bits) for _ in range(count)]

    def any_view(self):
        return self.random.choice(self.views)

    def add(self, tensor, codes):
        made = Model(tensor, codes, list(range(len(codes))))
        assert made.found() == made.expected
        self.roots.append(made)
        self.views.append(made)
        return made

    def make_any(self):
        self.make(self.random.choice(SHAPES))

    def make(self, shape):
        """A new tensor: packed or padded, uploaded or filled."""
        size, device = math.prod(shape), self.random.choice(self.devices)
        codes = self.any_codes(size)
        way = self.random.randrange(4)
        if way == 0:
            codes = [codes[0]] * size
            tensor = bridge.full(shape, number(codes[0], self.name), self.name, device)
        elif way == 1:
            tensor = bridge.empty(shape, self.name, device)
            bridge.copy_(tensor, self.padded(codes, shape))
        elif way == 2:
            tensor = bridge.to_device(self.padded(codes, shape), device, copy=True)
        else:
            raw = np.frombuffer(bridge.pack_bits(self.whole(codes), self.name), "u1")
            tensor = bridge.asarray(raw).view(self.name)[:size].reshape(shape)
            tensor = bridge.to_device(tensor, device, copy=True)
        self.add(tensor, codes)

    def padded(self, codes, shape):
        """Elements of numpy; to the integers of ml_dtypes the high bits mean nothing."""
        high = 255 & ~((1 << self.bits) - 1) if "int" in self.name else 0
        raw = np.array([code | self.random.randrange(256) & high for code in codes], "u1")
        return raw.view(getattr(ml_dtypes, self.name)).reshape(shape)

    @staticmethod
    def whole(codes):
        return np.array(codes + [0] * (-len(codes) % 8), "u1")

    def view(self):
        """A view of a view; of packed elements it begins at a whole byte."""
        of = self.any_view()
        shape = of.tensor.shape
        if self.random.randrange(4) == 0:
            shape = self.random.choice([(-1,), (1, -1), (-1, 1)])
            if not of.tensor.is_contiguous():
                return
            self.views.append(Model(of.tensor.reshape(shape), of.codes, of.places))
            return
        index = tuple(self.part(extent) for extent in shape)
        places = np.array(of.places).reshape(shape)[index]
        if not places.size:
            return
        moved = of.tensor.dtype.bits * abs(int(places.flat[0]) - of.places[0])
        if of.packed and moved % 8:
            with pytest.raises(bridge.ExchangeError, match="must start at a whole byte"):
                of.tensor[index]
            return
        self.views.append(Model(of.tensor[index], of.codes, [int(p) for p in places.flat]))

    def part(self, extent):
        start, stop = self.random.randrange(extent + 1), self.random.randrange(extent + 2)
        start = self.random.choice([0, 0, start])
        return slice(start, stop, self.random.choice([1, 1, 1, 1, 2]))

    def copy(self):
        """A copy into a view: from another tensor, or from the same memory."""
        into = self.any_view()
        fitting = [view for view in self.views if view.tensor.shape == into.tensor.shape]
        self.copy_from(into, self.random.choice(fitting))

    def copy_from(self, into, source):
        if into.has_gaps or source.has_gaps:
            with pytest.raises(bridge.ExchangeError, match="compact"):
                bridge.copy_(into.tensor, source.tensor)
            return
        bridge.copy_(into.tensor, source.tensor)
        self.assign(into, source.expected)

    @staticmethod
    def assign(into, codes):
        for place, code in zip(into.places, codes, strict=True):
            into.codes[place] = code

    def copy_list(self):
        """A copy of numbers, which become padded elements."""
        into = self.any_view()
        codes = self.any_codes(into.tensor.size)
        numbers = np.empty(into.tensor.shape, object)
        numbers.reshape(-1)[:] = [number(code, self.name) for code in codes]
        if into.has_gaps:
            with pytest.raises(bridge.ExchangeError, match="compact"):
                bridge.copy_(into.tensor, numbers.tolist())
            return
        bridge.copy_(into.tensor, numbers.tolist())
        self.assign(into, codes)

    def move(self):
        of, device = self.any_view(), self.random.choice(self.devices)
        if of.has_gaps:
            for move in (bridge.to_device, bridge.plan):
                with pytest.raises(bridge.ExchangeError, match="compact"):
                    move(of.tensor, device, copy=True)
            return
        moved = bridge.to_device(of.tensor, device, copy=True)
        assert moved.is_padded is of.tensor.is_padded
        self.add(moved, of.expected)

    def astype(self):
        of = self.any_view()
        if of.has_gaps:
            return
        host = bridge.to_device(of.tensor, "cpu")
        numbers = [number(code, self.name) for code in of.expected]
        assert bridge.astype(host, "float32").reshape(-1).tolist() == numbers
        same = bridge.astype(host, self.name)
        assert not same.is_padded
        self.add(same, of.expected)

    def like(self):
        of = self.any_view()
        made = bridge.empty_like(of.tensor)
        if of.has_gaps:
            return
        bridge.copy_(made, of.tensor)
        self.add(made, of.expected)

    def text(self):
        of = self.any_view()
        numbers = np.array([number(code, self.name) for code in of.expected])
        if of.has_gaps:
            assert "cannot be shown" in str(of.tensor)
            return
        if "int" in self.name:
            elements = str(of.tensor).rpartition(self.name)[0]
            assert list(map(int, re.findall("-?[0-9]+", elements))) == numbers.tolist()
        if of.packed:
            with pytest.raises(bridge.ExchangeError, match="astype"):
                of.tensor.tolist()
            return
        assert np.array(of.tensor.tolist()).reshape(-1).tolist() == numbers.tolist()

    def pickled(self):
        of = self.any_view()
        if not of.has_gaps:
            protocol = self.random.choice([4, 5])
            self.add(pickle.loads(pickle.dumps(of.tensor, protocol)), of.expected)

    def share(self):
        of = self.any_view()
        if not of.has_gaps:
            copied = bridge.to_device(of.tensor, "cpu", copy=True)
            self.add(bridge.share(copied), of.expected)

    def host_view(self):
        """A copy into a part of a host view."""
        of = self.any_view()
        if of.has_gaps:
            return
        try:
            viewed = of.tensor.host_view()
        except bridge.ExchangeError:
            return
        count = self.random.randrange(1, of.tensor.size + 1)
        codes = self.any_codes(count)
        with viewed as host:
            if host.is_contiguous():
                bridge.copy_(host.reshape(-1)[:count], self.padded(codes, (count,)))
                for place, code in zip(of.places, codes, strict=False):
                    of.codes[place] = code


def run_programs(seeds, devices, steps=25):
    """Run a program for each of the *seeds*; the message of a failure names it."""
    for seed in seeds:
        try:
            Program(seed, devices).run(steps)
        except BaseException as exc:
            exc.add_note(f"the program of seed {seed}, on {', '.join(devices)}")
            raise
