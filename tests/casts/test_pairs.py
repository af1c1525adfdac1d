"""astype: every pair of dtypes, bit for bit as numpy and ml_dtypes convert.

What C does not define is left out: NaN, and floats beyond the range of an integer
type, if they do not saturate.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.astype_values import (
    NAMES,
    SMALL,
    WIDE,
    bits_of,
    codes_of,
    defined,
    edges,
    numpy_of,
    pairs,
    quiet,
    reference,
    result_bits,
    tensor_of,
)


def check(array, source, target):
    """Compare whole, with the tables; and a few elements, without."""
    expected, where = bits_of(reference(array, target)), defined(array, target)
    for part in (slice(None), slice(0, 64), slice(array.size - 40, None)):
        found = result_bits(quiet(tensor_of(array[part], source), target))
        wrong = (found != expected[part])[where[part]].any(axis=1)
        assert not wrong.any(), (
            f"{source} to {target}: {array[part][where[part]][wrong][:5]} "
            f"became {found[where[part]][wrong][:5]}, not {expected[part][where[part]][wrong][:5]}"
        )


@pytest.mark.parametrize("target", NAMES)
def test_all_values_of_the_types_up_to_16_bits(target):
    for source in SMALL:
        check(codes_of(source), source, target)


# Wide sources ---------------------------------------------------------------------


@pytest.mark.parametrize("source", [name for name in WIDE if name != "complex32"])
def test_a_sample_of_the_wider_types(source):
    array = edges(source)
    assert array.size > 1 << 16
    for target in NAMES:
        check(array, source, target)


@pytest.mark.skipif("complex32" not in NAMES, reason="new in ml_dtypes 0.6")
def test_complex32():
    """Few values: ml_dtypes converts it through Python objects, 1 us each.

    That changes the bits of NaN, and of bool it gives that of the real part as an
    integer (0.5 and 1j are false); astype goes through complex64.
    """
    array = pairs(codes_of("float16")[::97], numpy_of("complex32"))
    wide = array.astype("complex64")
    for target in NAMES:
        if target != "bool":
            check(array[~np.isnan(wide)], "complex32", target)
    with np.errstate(invalid="ignore"):
        assert bridge.astype(array, "bool").tolist() == wide.astype(bool).tolist()
    assert np.array_equal(np.isnan(quiet(array, "float16").numpy()), np.isnan(wide.real))


def test_imaginary_parts_are_dropped_with_one_warning():
    z = np.full(1 << 17, 3 + 4j)
    with pytest.warns(
        np.exceptions.ComplexWarning, match="imaginary parts: complex128 to int8"
    ) as found:
        t = bridge.astype(z, "int8")
    assert len(found) == 1
    assert found[0].filename == __file__
    assert set(t.numpy().tolist()) == {3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bridge.astype(np.array([0j, 1j]), "bool").tolist() == [False, True]
        assert bridge.astype(np.array([1.0]), "complex64").tolist() == [1 + 0j]


def test_no_warning_of_numpy_about_values_out_of_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bridge.astype(np.array([np.nan, 1e30], "float32"), "int8")
        bridge.astype(np.array([1e300]), "float16")
