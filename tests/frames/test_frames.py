"""Frames of PyAV as tensors, and loops over frames: what is shared, what is refused, what is allocated.

The pages of docs/gallery, which tests/docs runs, show whole programs: a video, a camera, a picture.
"""

from __future__ import annotations

import gc
import importlib

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer

av = peer("av")

HEIGHT, WIDTH = 48, 62  # rows have gaps, and a half of them is odd

PLANES = {
    "rgb24": {"rgb": ((48, 62, 3), "uint8")},
    "bgra": {"bgra": ((48, 62, 4), "uint8")},
    "rgb0": {"rgb0": ((48, 62, 4), "uint8")},
    "gray": {"gray": ((48, 62), "uint8")},
    "gray16le": {"gray": ((48, 62), "uint16")},
    "grayf32le": {"gray": ((48, 62), "float32")},
    "rgb48le": {"rgb": ((48, 62, 3), "uint16")},
    "rgbaf32le": {"rgba": ((48, 62, 4), "float32")},
    "ya8": {"ya": ((48, 62, 2), "uint8")},
    "yuyv422": {"yuyv": ((48, 62, 2), "uint8")},
    "y210le": {"y210le": ((48, 62, 2), "uint16")},
    "yuv420p": {"y": ((48, 62), "uint8"), "u": ((24, 31), "uint8"), "v": ((24, 31), "uint8")},
    "yuv444p10le": dict.fromkeys("yuv", ((48, 62), "uint16")),
    "yuva420p": {
        "y": ((48, 62), "uint8"),
        "u": ((24, 31), "uint8"),
        "v": ((24, 31), "uint8"),
        "a": ((48, 62), "uint8"),
    },
    "nv12": {"y": ((48, 62), "uint8"), "uv": ((24, 31, 2), "uint8")},
    "nv21": {"y": ((48, 62), "uint8"), "vu": ((24, 31, 2), "uint8")},
    "p010le": {"y": ((48, 62), "uint16"), "uv": ((24, 31, 2), "uint16")},
    "gbrp": dict.fromkeys("gbr", ((48, 62), "uint8")),
    "gbrpf32le": dict.fromkeys("gbr", ((48, 62), "float32")),
}


def picture(form):
    frame = av.VideoFrame(WIDTH, HEIGHT, form)
    for number, plane in enumerate(frame.planes):
        values = (np.arange(plane.buffer_size) * 7 + number) % 61
        plane.update(values.astype("u1").tobytes())
    return frame


@pytest.mark.parametrize("form", PLANES)
def test_the_planes_of_a_picture_are_its_own_memory(form):
    frame = picture(form)
    found = bridge.planes(frame)
    assert {name: (t.shape, str(t.dtype)) for name, t in found.items()} == PLANES[form]
    for t, plane in zip(found.values(), frame.planes, strict=True):
        assert t.data_ptr() == plane.buffer_ptr
        assert t.strides[0] * t.itemsize == plane.line_size
        rows = np.frombuffer(plane, "u1").reshape(plane.height, plane.line_size)
        wanted = rows[:, : plane.width * t.itemsize * (t.shape[2:] or (1,))[0]]
        assert t.tobytes() == wanted.tobytes()
        assert t.origin == "av.video.frame.VideoFrame"


@pytest.mark.parametrize("form", ["rgb24", "bgra", "gray", "gray16le", "rgb48le", "gbrp", "nv12"])
def test_the_elements_are_those_of_pyavs_array(form):
    frame = picture(form)
    array, found = frame.to_ndarray(), bridge.planes(frame)
    if form == "gbrp":  # PyAV's has the channels behind, as red, green and blue
        assert (np.stack([found[name].numpy() for name in "rgb"], -1) == array).all()
    elif form == "nv12":
        both = np.concatenate([found["y"].numpy(), found["uv"].numpy().reshape(24, 62)])
        assert (both == array).all()
    else:
        assert (next(iter(found.values())).numpy() == array).all()


def test_a_plane_keeps_its_frame():
    planes = bridge.planes(picture("yuv420p"))
    before = planes["u"].tolist()
    array = np.from_dlpack(planes["u"])
    del planes
    gc.collect()
    others = [picture("yuv420p") for _ in range(20)]  # they would take its memory
    assert array.tolist() == before
    assert len(others) == 20


@pytest.mark.parametrize("form", ["rgb24", "gray", "yuyv422"])
def test_a_packed_frame_is_an_array(form):
    frame = picture(form)
    t = bridge.asarray(frame)
    assert t.data_ptr() == frame.planes[0].buffer_ptr
    assert t.tolist() == next(iter(bridge.planes(frame).values())).tolist()
    assert bridge.asarray(frame, copy=False).data_ptr() == t.data_ptr()
    there = bridge.to_device(frame, "ext_dev:0")
    assert there.tolist() == t.tolist()
    assert "av.video.frame.VideoFrame" in bridge.explain(frame, "ext_dev:0")
    torch_s = bridge.to_device(frame, "cpu", like="torch")
    assert torch_s.data_ptr() == t.data_ptr()


@pytest.mark.parametrize("form", ["yuv420p", "rgb24"])
def test_opencl_reads_and_writes_the_planes_in_place(form):
    backend = backend_or_skip("opencl")
    frame = picture(form)
    for plane in bridge.planes(frame).values():
        low, nbytes = plane.operand().span()
        refusal = backend.host_import_refusal(0, plane.data_ptr() + low, nbytes, False)
        if refusal:
            pytest.skip(refusal)
        with bridge.trace() as trace:
            there = bridge.to_device(plane, "opencl:0")
        assert trace.nbytes == 0
        bridge.copy_(there, np.full(plane.shape, 9, "u1"))
        bridge.synchronize("opencl:0")
        assert (plane.numpy() == 9).all()


def test_the_other_byte_order_is_converted():
    t = bridge.asarray(picture("gray16be"))
    assert t.dtype is bridge.dtype("uint16")
    assert (t.numpy() == picture("gray16be").to_ndarray()).all()


SOUNDS = {
    "s16": ("samples", (100, 2), "int16"),
    "u8": ("samples", (100, 2), "uint8"),
    "dbl": ("samples", (100, 2), "float64"),
    "s32p": ("FL", (100,), "int32"),
    "fltp": ("FL", (100,), "float32"),
}


@pytest.mark.parametrize("form", SOUNDS)
def test_sound(form):
    name, shape, dtype = SOUNDS[form]
    frame = av.AudioFrame(form, "stereo", 100)
    for plane in frame.planes:
        plane.update(bytes(k % 61 for k in range(plane.buffer_size)))
    found = bridge.planes(frame)
    assert [*found] == ([name] if name == "samples" else ["FL", "FR"])
    assert found[name].shape == shape
    assert str(found[name].dtype) == dtype
    assert found[name].data_ptr() == frame.planes[0].buffer_ptr
    array = frame.to_ndarray()
    assert (found[name].numpy().reshape(-1) == array[0]).all()
    if len(found) == 1:
        assert bridge.asarray(frame).shape == shape
    else:
        with pytest.raises(BufferError, match=r"planes FL, FR: dlbridge\.planes.*to_ndarray"):
            bridge.asarray(frame)


@pytest.mark.parametrize("form", ["rgb565le", "pal8", "monow", "x2rgb10le", "xv30le", "rgb8"])
def test_pixels_that_are_no_elements_are_refused_with_a_way_out(form):
    frame = av.VideoFrame(WIDTH, HEIGHT, form)
    for take in (bridge.planes, bridge.asarray, lambda x: bridge.to_device(x, "ext_dev:0")):
        with pytest.raises(BufferError, match=rf"{form}.*frame\.reformat\(format='rgb24'\)"):
            take(frame)


@pytest.mark.parametrize("form", ["yuv420p", "nv12", "gbrp"])
def test_a_frame_of_several_planes_is_no_array(form):
    frame = picture(form)
    names = ", ".join(PLANES[form])
    words = rf"planes {names}: dlbridge\.planes\(frame\).*frame\.reformat\(format='rgb24'\)"
    for take in (bridge.asarray, lambda x: bridge.to_device(x, "cpu"), bridge.device_of):
        with pytest.raises(BufferError, match=words):
            take(frame)
    assert bridge.asarray(frame.reformat(format="rgb24")).shape == (48, 62, 3)


def test_what_is_no_frame():
    for wrong in (np.zeros(3), None, picture("gray").planes[0]):
        with pytest.raises(TypeError, match=r"takes an av\.VideoFrame or an av\.AudioFrame"):
            bridge.planes(wrong)
    with pytest.raises(BufferError, match="has no memory yet"):
        bridge.planes(av.VideoFrame())


# Loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["opencl:0", "vulkan:0"])
def test_a_loop_over_frames_allocates_nothing_after_the_tenth(device, monkeypatch):
    """The recipe of docs/frames.md: three buffers that are used in turn."""
    backend = backend_or_skip(device.partition(":")[0])
    made = []
    home = {"opencl:0": "dlbridge_opencl.memory", "vulkan:0": "dlbridge_vulkan.device"}[device]
    count_allocations(importlib.import_module(home), monkeypatch, made)
    ring = [bridge.empty((HEIGHT, WIDTH), "uint8", device) for _ in range(3)]
    result = bridge.empty((HEIGHT, WIDTH), "uint8", device)
    out = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    target = bridge.planes(out)["y"]
    assert made  # it counts
    for number in range(200):
        if number == 10:
            before, alive = len(made), backend.live_allocations()
        slot = ring[number % 3]
        bridge.copy_(slot, bridge.planes(picture("yuv420p"))["y"])
        bridge.copy_(result, slot)  # where the kernel would be
        bridge.copy_(target, result)
    assert len(made) == before
    assert backend.live_allocations() == alive
    assert target.tolist() == bridge.planes(picture("yuv420p"))["y"].tolist()


def count_allocations(module, monkeypatch, made):
    """Enter in *made* each allocation that the driver is asked for."""
    if module.__name__ == "dlbridge_opencl.memory":
        real = module.cl.Buffer

        class Counted(real):
            def __init__(self, *arguments, **keywords):
                made.append(arguments)
                super().__init__(*arguments, **keywords)

        monkeypatch.setattr(module.cl, "Buffer", Counted)
        return
    create = module.create_buffer

    def counted(*arguments):
        made.append(arguments)
        return create(*arguments)

    monkeypatch.setattr(module, "create_buffer", counted)


def test_a_pair_of_pixels_that_is_cut():
    frame = av.VideoFrame(17, 4, "yuyv422")
    with pytest.raises(bridge.ExchangeError, match="odd width"):
        bridge.planes(frame)
