"""``==`` and ``!=`` compare elements on the host, and ``np.asarray`` reads any device's memory."""

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip

A = np.arange(6.0).reshape(2, 3)


@pytest.fixture(params=["cpu", "ext_dev:0", "opencl:0"])
def tensor(request):
    backend_or_skip(request.param.partition(":")[0])
    return bridge.to_device(A.copy(), request.param)


def test_elements_are_compared(tensor):
    other = np.where(A == 4, 5, A)
    for right in (
        other,
        bridge.asarray(other),
        bridge.to_device(other, "ext_dev:1"),
        other.tolist(),
    ):
        np.testing.assert_array_equal(tensor == right, other == A)
        np.testing.assert_array_equal(tensor != right, other != A)
    np.testing.assert_array_equal(other == tensor, other == A)
    np.testing.assert_array_equal(other.tolist() == tensor, other == A)
    np.testing.assert_array_equal(tensor == 4, A == 4)
    assert (tensor == tensor).all()
    with pytest.raises(ValueError, match="broadcast"):
        _ = tensor == np.zeros(4)


def test_a_scalar_is_compared_by_value(tensor):
    one = tensor[0, 1]
    assert one == 1.0
    assert one == 1
    assert 1 == one  # noqa: SIM300 - the mirror
    assert one == tensor[0, 1]
    assert one != 0
    assert not one == tensor[1, 1]  # noqa: SIM201 - the operator
    assert not one == None  # noqa: E711, SIM201 - the operator
    assert one != "1"


def test_a_tensor_is_a_key_by_identity(tensor):
    twin = tensor[...]
    assert {tensor: 1, twin: 2}[tensor] == 1
    assert {tensor: 1, twin: 2}[twin] == 2


def test_arrays_of_libraries_compare_by_themselves(tensor):
    torch = pytest.importorskip("torch")
    result = bridge.to_device(tensor, "cpu") == torch.from_numpy(A.copy())
    assert isinstance(result, torch.Tensor)
    assert result.all()


def test_numpy_reads_every_device(tensor):
    assert np.array_equal(tensor, A)
    np.testing.assert_array_equal(np.asarray(tensor), A)
    np.testing.assert_array_equal(np.asarray(tensor, dtype="int32"), A)
    np.testing.assert_array_equal(tensor.numpy(), A)


def test_numpy_knows_torchs_keyword(tensor):
    """``t.numpy(force=True)``, which rerun calls, brings the elements to the host."""
    array = tensor.numpy(force=True)
    np.testing.assert_array_equal(array, A)
    assert array.flags.writeable == tensor.device.is_host
    copied = tensor.numpy(copy=True, force=True)
    copied[0, 0] = 7
    np.testing.assert_array_equal(tensor, A)
    if tensor.device.is_host:
        assert np.shares_memory(array, tensor.numpy(force=False))
    else:
        with pytest.raises(bridge.ExchangeError):
            tensor.numpy(copy=False)


def test_a_copy_that_was_not_asked_for_is_read_only(tensor):
    if tensor.device.name == "cpu":
        np.asarray(tensor)[0, 0] = 7
        assert tensor[0, 0] == 7
        return
    for array in (np.asarray(tensor), tensor.numpy()):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 7
    assert tensor[0, 0] == 0


def test_an_array_of_a_devices_tensor_is_a_snapshot(tensor):
    if tensor.device.name == "cpu":
        return  # a view
    for take in (np.asarray, lambda t: t.numpy()):
        before = take(tensor)
        bridge.copy_(tensor, np.full_like(A, 9))
        np.testing.assert_array_equal(before, A)
        bridge.copy_(tensor, A)


def test_a_copy_that_was_asked_for_is_the_callers(tensor):
    for array in (tensor.numpy(copy=True), np.array(tensor)):
        array[0, 0] = 7
    assert tensor[0, 0] == 0


def test_no_copy_means_no_copy():
    x = bridge.to_device(A, "ext_dev")
    for view in (lambda: np.asarray(x, copy=False), lambda: x.numpy(copy=False)):
        with pytest.raises(bridge.ExchangeError, match=r"ext_dev:0.*t\.numpy\(\)"):
            view()


def test_formats_are_for_one_number(tensor):
    assert f"{tensor[0, 1]:.2f}" == "1.00"
    assert f"{tensor}" == str(tensor)
    with pytest.raises(TypeError, match=r"'\.2f' is for one number.*f'\{t\[0, 0\]:\.2f\}'"):
        f"{tensor:.2f}"


def test_packed_elements_have_no_value_to_compare():
    packed = bridge.zeros(4, dtype="int4")
    with pytest.raises(bridge.ExchangeError, match="unpack_bits"):
        _ = packed == 0
