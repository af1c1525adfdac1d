"""What is put into messages beside a name."""

from __future__ import annotations

import pytest

import dlbridge as bridge
from dlbridge.extending import with_article


@pytest.mark.parametrize("name", ["object", "int8", "array", "Array", "xarray.Dataset", "opencl:0"])
def test_names_with_an(name):
    assert with_article(name) == f"an {name}"


@pytest.mark.parametrize("name", ["str", "uint8", "UserDict", "one", "numpy.ndarray", "float32"])
def test_names_with_a(name):
    assert with_article(name) == f"a {name}"


def test_messages_have_the_article():
    with pytest.raises(TypeError, match=r"^an object is not a valid device"):
        bridge.device(object())
    with pytest.raises(TypeError, match=r"^a list is not a valid device"):
        bridge.device([])
