"""What devices and dtypes have in common: one object for each value, and enums that are open."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from dlbridge import Device, DLDataTypeCode, DLDeviceType, DType, device, dtype
from tests.support.threads import at_once


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [(DLDeviceType, 99, "type99"), (DLDataTypeCode, 42, "type_code(42)")],
)
def test_the_enum_is_open(kind, number, name):  # C16, C18
    """What is refused must print."""
    found = kind(number)
    assert (found, found.name) == (number, name)
    assert repr(found) == f"<{kind.__name__}.{name}: {number}>"
    assert pickle.loads(pickle.dumps(found)) == number
    assert {number: "found"}[found] == "found"
    with pytest.raises(ValueError, match="nonsense"):
        kind("nonsense")


@pytest.mark.parametrize(
    ("found", "again", "attribute", "other"),
    [
        (device("cuda:1"), device((2, 1)), "index", device("cuda:2")),
        (dtype("float32"), dtype(np.float32), "bits", dtype("f8")),
    ],
    ids=["Device", "DType"],
)
def test_a_value_is_immutable_and_one_object(found, again, attribute, other):
    with pytest.raises(AttributeError, match=f"a {type(found).__name__} is a value"):
        setattr(found, attribute, 64)
    with pytest.raises(AttributeError, match=f"a {type(found).__name__} is a value"):
        delattr(found, attribute)
    with pytest.raises(AttributeError):
        found.anything = 1
    assert copy.copy(found) is copy.deepcopy(found) is again is found
    assert found != other
    assert {found: 1}[again] == 1


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (Device.of, [(77, index, name) for index in range(200) for name in (None, "own")]),
        (DType.of, [(200, bits, lanes) for bits in range(200, 256) for lanes in range(9)]),
    ],
    ids=["Device", "DType"],
)
def test_threads_that_make_one_value_at_once_get_one_object(make, numbers):  # C40
    made = at_once(8, lambda: [make(*each) for each in numbers])
    assert all(a is b for other in made for a, b in zip(made[0], other, strict=True))
