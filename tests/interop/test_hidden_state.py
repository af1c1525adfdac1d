"""What DLPack cannot say about a tensor is refused or resolved, never passed on wrong."""

from __future__ import annotations

import array
import gc
import mmap

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.foreign_arrays import ByInterface, ByMethod
from tests.support.peers import peer
from tests.support.scripts import SCENES, run_script

WAYS = [bridge.from_dlpack, bridge.asarray, lambda x: bridge.to_device(x, "ext_dev:0")]


def refused(x, match, error=BufferError):
    """By every way in, not only by the quick one."""
    for take in WAYS:
        with pytest.raises(error, match=match):
            take(x)


# torch


def test_torch_gradients():  # X16
    torch = peer("torch")
    refused(torch.ones(3, requires_grad=True), "x.detach")
    refused(torch.nn.Parameter(torch.ones(3)), "x.detach")
    refused(torch.ones(3, requires_grad=True).bfloat16(), "x.detach")
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert bridge.from_dlpack(frozen).data_ptr() == frozen.data_ptr()
    assert bridge.from_dlpack(torch.ones(3, requires_grad=True).detach()).tolist() == [1, 1, 1]


def test_torch_lazy_signs():  # X16
    torch = peer("torch")
    x = torch.tensor([1 + 2j, 3 - 4j])
    refused(x.conj(), "resolve_conj")
    refused(x.conj().imag, "resolve_neg")
    refused(torch.ones(3).bfloat16()._neg_view(), "resolve_neg")
    assert bridge.from_dlpack(x.conj().resolve_conj()).tolist() == [1 - 2j, 3 + 4j]
    assert bridge.from_dlpack(x.conj().imag.resolve_neg()).tolist() == [-2, 4]


@pytest.mark.parametrize("scene", ["refuse_all", "accept_all"])
def test_what_torch_hides_by_every_way_in(scene):
    """In a process of its own: NULL with an offset, and NULL in a compiled function, ended it."""
    peer("torch")
    peer("tvm_ffi")
    imported = ("numpy", "torch", "tests.support.whole_core")
    run_script(SCENES / "run.py", "torch_states", scene, imported=imported)


COPIES = {
    "copy": lambda x: bridge.from_dlpack(x, copy=True),
    "to a device": lambda x: bridge.to_device(x, "ext_dev:0"),
    "from": lambda x: bridge.copy_(bridge.zeros(x.shape), x),
    "to": lambda x: bridge.copy_(x, bridge.zeros(x.shape)),
    "explained": lambda x: bridge.explain(x, "ext_dev:0"),
    "bytes of a tensor": lambda x: bridge.asarray(x).tobytes(),
    "operand": lambda x: bridge.asarray(x).operand(),
    "part": lambda x: bridge.asarray(x)[1:].to_device("ext_dev:0"),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_no_copy_goes_past_the_end_of_a_torch_storage(copied):
    """Made smaller under its tensor, or left behind by a `resize_` that failed.

    Sharing does not ask: docs/hazards.md.
    """
    torch = peer("torch")
    for offset, left in ((0, 8), (4, 16), (4, 20)):
        x = torch.ones(16)[offset:8]
        x.untyped_storage().resize_(left)
        with pytest.raises(BufferError, match=rf"was freed: it has {left} bytes.*to byte 32 of it"):
            copied(x)
    x = torch.ones(16)[:12].reshape(3, 4).T
    x.untyped_storage().resize_(40)
    with pytest.raises(BufferError, match=r"it has 40 bytes.*to byte 48"):
        copied(x)
    x = torch.ones(4)
    bridge.from_dlpack(x)  # its storage can no longer be resized
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(8)
    with pytest.raises(BufferError, match=r"it has 16 bytes.*to byte 32"):
        copied(x)
    x = torch.ones(16)[4:8]
    x.untyped_storage().resize_(32)
    copied(x)


def test_no_copy_reads_memory_that_torch_has_moved():
    """Also of a part, and of strides both ways: what lies in the storage is copied."""
    torch = peer("torch")
    x = torch.arange(100_000.0)
    tensor = bridge.asarray(x)
    views = tensor, tensor[1:], tensor[3::2], tensor[::-1]
    whole = [view.tolist() for view in views]
    assert whole == [view.numpy(copy=True).tolist() for view in views]
    assert whole[1:] == [x[1:].tolist(), x[3::2].tolist(), x.flip(0).tolist()]
    x.share_memory_()
    for view in views:
        with pytest.raises(BufferError, match=r"other memory now.*share_memory_ moved it"):
            bridge.copy_(bridge.zeros(view.shape), view)
        with pytest.raises(BufferError, match="other memory now"):
            bridge.copy_(view, bridge.zeros(view.shape))
    assert bridge.from_dlpack(x, copy=True).tolist() == whole[0]


def test_a_part_of_a_small_storage_is_copied_if_it_lies_in_it():
    torch = peer("torch")
    x = torch.arange(16.0)
    x.untyped_storage().resize_(16)
    tensor = bridge.asarray(x)
    assert tensor[:4].tobytes() == np.arange(4, dtype="f4").tobytes()
    for outside in (tensor[:5], tensor[:6:5], tensor[4::-1], tensor[9:]):
        with pytest.raises(BufferError, match="it has 16 bytes"):
            outside.tobytes()


def test_torch_says_itself_why_it_gives_no_address():
    torch = peer("torch")
    x = torch.ones(4)
    torch._C._set_throw_on_mutable_data_ptr(x)
    refused(x, "does not give the address of the tensor's memory: Cannot access data pointer")


def test_torch_subclasses():
    torch = peer("torch")

    class Labelled(torch.Tensor):
        pass

    x = torch.arange(4.0).as_subclass(Labelled)
    assert bridge.from_dlpack(x).data_ptr() == x.data_ptr()
    refused(x.clone().requires_grad_(), "x.detach")


# numpy


def test_numpy_subclasses_that_are_plain_memory(tmp_path):
    plain = np.arange(6, dtype="float32")
    np.save(tmp_path / "a.npy", plain)
    kinds = [
        np.asmatrix(plain.reshape(2, 3)),
        np.load(tmp_path / "a.npy", mmap_mode="r+"),
        plain.view(np.recarray),
    ]
    for x in kinds:
        tensor = bridge.from_dlpack(x)
        assert (tensor.shape, tensor.data_ptr()) == (x.shape, x.ctypes.data)
        assert tensor.tolist() == np.asarray(x).tolist()
    readonly = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert bridge.from_dlpack(readonly).readonly


def test_numpy_structured_arrays():  # P31, P33
    records = np.zeros(4, [("a", "f4"), ("b", "i4")])
    records["a"] = range(4)
    refused(records, "dtype|struct|field", (BufferError, TypeError))
    field = records["a"]
    assert bridge.from_dlpack(field).strides == (2,)
    assert bridge.to_device(field, "ext_dev:0").tolist() == [0, 1, 2, 3]
    odd = np.zeros(4, np.dtype([("a", "u1"), ("b", "f4")]))["b"]
    refused(odd, "multiples")


# Other ways to hold numbers


@pytest.mark.parametrize("kind", [ByInterface, ByMethod])
def test_array_interfaces(kind):
    x = np.arange(6.0).reshape(2, 3)[:, ::2]
    tensor = bridge.asarray(kind(x))
    assert (tensor.strides, tensor.data_ptr()) == ((3, 2), x.ctypes.data)
    assert bridge.to_device(kind(x), "ext_dev:1").tolist() == x.tolist()
    assert bridge.asarray(kind(x), copy=False).data_ptr() == x.ctypes.data
    with pytest.raises(TypeError, match="asarray"):
        bridge.from_dlpack(kind(x))


def test_an_array_method_that_can_only_copy():  # C35
    assert bridge.asarray(ByMethod(lambda: np.zeros(3))).shape == (3,)
    with pytest.raises(BufferError, match="copy=False"):
        bridge.asarray(ByMethod(lambda: np.zeros(3)), copy=False)


@pytest.mark.parametrize(
    ("buffer", "dtype", "readonly"),
    [
        (b"\x01\x02\x03", "uint8", True),
        (bytearray(b"\x01\x02\x03"), "uint8", False),
        (array.array("h", [1, 2, 3]), "int16", False),
        (array.array("d", [1, 2, 3]), "float64", False),
        (memoryview(bytearray(b"\x01\x09\x02\x09\x03"))[::2], "uint8", False),
        (memoryview(b"\x03\x02\x01")[::-1], "uint8", True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_buffers(buffer, dtype, readonly):
    tensor = bridge.asarray(buffer)
    assert (tensor.dtype, tensor.readonly) == (bridge.dtype(dtype), readonly)
    assert tensor.tolist() == [1, 2, 3]
    assert bridge.to_device(buffer, "ext_dev:0").tolist() == [1, 2, 3]


def test_mmap(tmp_path):
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(16)))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        tensor = bridge.asarray(mapped)
        assert tensor.tolist() == list(range(16))
        with pytest.raises(BufferError):
            mapped.close()  # somebody looks at it still
        del tensor
        gc.collect()


def test_shared_memory_under_a_torch_view():
    """By way of numpy alone the memory is unmapped under torch, which crashes."""
    peer("torch")
    out = run_script(
        """
        from multiprocessing import shared_memory
        import numpy as np, torch
        import dlbridge as bridge
        shared = shared_memory.SharedMemory(create=True, size=64)
        view = bridge.to_device(shared.buf, "cpu", like="torch")
        try:
            shared.close()
        except BufferError:
            print("still open")
        print(int(view.sum()))
        del view
        shared.close()
        shared.unlink()
        """
    )
    assert out == "still open\n0\n"


def test_a_base_of_another_library_is_not_asked_for_its_own():
    """A torch tensor's base is looked at where there is one, and nothing else is."""
    bridge.from_dlpack(peer("torch").ones(3))  # from here on bases are looked at

    class Based:
        def __init__(self):
            self.array = np.arange(3.0)
            self.__array_interface__ = self.array.__array_interface__

        @property
        def base(self):
            return self

    assert bridge.to_device(Based(), "ext_dev:0").tolist() == [0, 1, 2]
