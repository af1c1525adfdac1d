"""astype(saturate=True): values out of range become the nearest finite value."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.astype_values import (
    INTEGERS,
    NAMES,
    SMALL,
    bits_of,
    codes_of,
    edges,
    finite_range,
    numpy_of,
    quiet,
    reference,
    result_bits,
    tensor_of,
)


def saturated(array, name):
    """What saturate=True must give for real numbers, in Python's exact arithmetic."""
    low, high = finite_range(name)
    without_nan = name in INTEGERS or bridge.dtype(name).bits < 8
    kept = []
    for value in array.tolist():
        if value != value:
            kept.append(0 if without_nan else value)
        else:
            kept.append(min(max(value, low), high))
    if name not in INTEGERS:
        exact = np.array(kept, "float64")
        plain = reference(array, name)
        clipped = np.array([a != b and a == a for a, b in zip(array.tolist(), kept, strict=True)])
        replaced = reference(exact, name)
        nan = np.array([value != value for value in array.tolist()])
        changed = clipped | (nan & without_nan)
        plain[changed] = replaced[changed]
        return plain
    return np.array(
        [int(value) for value in kept], "uint64" if high >= 1 << 63 else "int64"
    ).astype(numpy_of(name))


REAL = [name for name in NAMES if "complex" not in name]


@pytest.mark.parametrize("target", [name for name in REAL if name != "bool"])
def test_saturation_of_all_values_of_8_bits_and_of_many_others(target):
    for source in REAL:
        if bridge.dtype(source).bits <= 8:
            array = codes_of(source)
        elif bridge.dtype(source).bits == 16:
            array = codes_of(source)[::61]
        else:
            array = edges(source)[::257]
        expected = bits_of(saturated(array, target))
        found = result_bits(bridge.astype(tensor_of(array, source), target, saturate=True))
        wrong = (found != expected).any(axis=1)
        assert not wrong.any(), (source, array[wrong][:5], found[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("target", [name for name in REAL if name != "bool"])
def test_saturation_is_the_same_with_tables(target):
    for source in ("float16", "bfloat16", "float32", "float64", "int32"):
        array = codes_of(source) if source in SMALL else edges(source)
        whole = result_bits(bridge.astype(array, target, saturate=True))
        pieces = [
            result_bits(bridge.astype(array[k : k + 9000], target, saturate=True))
            for k in range(0, array.size, 9000)
        ]
        assert np.array_equal(whole, np.concatenate(pieces)), source


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("source", "values", "target", "expected"),
    [
        ("float32", [2.0**31, -(2.0**31), -INF, INF, NAN, 1.9], "int32", [2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 0, 1]),
        ("float64", [2.0**63, 1e300, -1.0, NAN, -0.5], "uint64", [2**63, 2**64 - 1, 0, 0, 0]),
        ("float32", [2.0**63, -(2.0**63), 2.0**64], "int64", [2**63 - 1, -(2**63), 2**63 - 1]),
        ("uint64", [2**64 - 1, 2**63, 5], "int64", [2**63 - 1, 2**63 - 1, 5]),
        ("int64", [-(2**63), 2**63 - 1, 200], "uint8", [0, 255, 200]),
        ("float64", [1e300, -1e300, INF, 1e-60], "float32", [3.4028234663852886e38, -3.4028234663852886e38, 3.4028234663852886e38, 0.0]),
        ("float32", [INF, -INF, 1.0], "float32", [3.4028234663852886e38, -3.4028234663852886e38, 1.0]),
        ("float32", [1e6, -INF, 65519.0, 65520.0], "float16", [65504.0, -65504.0, 65504.0, 65504.0]),
        ("complex128", [complex(1e300, -INF), 1 + 2j], "complex64", [complex(3.4028234663852886e38, -3.4028234663852886e38), 1 + 2j]),
        ("bool", [True, False], "int8", [1, 0]),
        ("float32", [0.5, NAN, 0.0], "bool", [True, True, False]),
    ],
)  # fmt: skip
def test_saturation_at_the_edges(source, values, target, expected):
    t = bridge.astype(np.array(values, source), target, saturate=True)
    assert t.tolist() == expected


def test_saturation_of_types_without_zero_infinity_or_nan():
    numbers = np.array([0.0, -3.0, INF, NAN, 1.0, 1e-45], "float32")
    to_scale = bridge.astype(numbers, "float8_e8m0fnu", saturate=True)
    assert result_bits(to_scale).reshape(-1).tolist() == [0, 0, 254, 255, 127, 0]
    four = bridge.astype(numbers, "float4_e2m1fn", saturate=True)
    assert bridge.astype(four, "float32").tolist() == [0.0, -3.0, 6.0, 0.0, 1.0, 0.0]
    # Without saturation ml_dtypes gives its zero of the other sign for NaN.
    assert result_bits(bridge.astype(numbers, "float4_e2m1fn"))[3, 0] == 8


def test_complex_to_real_saturates_the_real_parts():
    z = np.array([1e9 + 5j, -1e9 + 1e300j, 3 + 1e300j])
    assert quiet(z, "int8", saturate=True).tolist() == [127, -128, 3]
    assert bridge.astype(np.array([300, -5]), "complex64", saturate=True).tolist() == [300, -5]
