"""What a prompt, a notebook and a debugger show of each public value."""

from __future__ import annotations

import inspect
import io
import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.moves import progress
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer

SMALL = np.arange(6, dtype="float32").reshape(2, 3)


def recorded():
    with bridge.trace() as trace:
        bridge.to_device(SMALL, "cpu", copy=True)
    return trace


def expired_view():
    view = bridge.from_dlpack(SMALL).host_view()
    with view:
        pass
    return view


VALUES = {
    "Tensor": (
        lambda: bridge.from_dlpack(SMALL),
        "dlbridge.Tensor([[0., 1., 2.], [3., 4., 5.]], float32, shape=(2, 3), device=cpu:0",
    ),
    "Plan": (
        lambda: bridge.plan(SMALL, "cpu", copy=True),
        "dlbridge.Plan(float32 (2, 3) from numpy.ndarray: cpu:0 -> cpu:0, 24 bytes copied)",
    ),
    "Trace": (recorded, "dlbridge.Trace(1 move, 24 bytes copied)"),
    "HostView": (
        lambda: bridge.from_dlpack(SMALL).host_view(),
        "dlbridge.HostView(float32, shape=(2, 3), on cpu:0)",
    ),
    "HostView, expired": (expired_view, "dlbridge.HostView(expired)"),
    "Operand": (lambda: bridge.from_dlpack(SMALL).operand(), "dlbridge.Operand(float32, shape"),
    "Step": (lambda: bridge.plan(SMALL, "cpu").steps[0], "Step(kind='share'"),
    "Device": (lambda: bridge.device("cpu"), "dlbridge.device('cpu:0')"),
    "DType": (lambda: bridge.dtype("int4"), "dlbridge.dtype('int4')"),
    "DLDeviceType": (lambda: bridge.DLDeviceType(1), "<DLDeviceType.kDLCPU: 1>"),
    "DLDataTypeCode": (lambda: bridge.DLDataTypeCode(2), "<DLDataTypeCode.kDLFloat: 2>"),
    "Info": (bridge.info, f"dlbridge {bridge.__version__}"),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_repr_says_what_it_is(name):
    make, text = VALUES[name]
    assert repr(make()).startswith(text)


def test_every_public_class_with_values_is_in_the_table():
    classes = {name for name in bridge.__all__ if inspect.isclass(getattr(bridge, name))}
    errors = {name for name in classes if issubclass(getattr(bridge, name), Exception)}
    shown = {name.partition(",")[0] for name in VALUES}
    elsewhere = {"TensorFile", "Exchanges", "ExchangeRow"}  # tests/files, tests/watching
    assert classes - errors - elsewhere - {"Exporter"} == shown  # a base class


# The others need the simulated driver of their own tests.
@pytest.mark.parametrize("name", ["cpu", "ext_dev", "opencl", "vulkan", "webgpu"])
def test_the_repr_of_a_backend(name):
    backend_or_skip(name)
    assert repr(bridge.backend(name)) == f"dlbridge.backend({name!r})"


# Tensors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.array(2.5), "2.5"),
        (np.zeros((0, 3)), "[]"),
        (np.arange(2000), "[0, 1, 2, ..., 1997, 1998, 1999]"),
        (np.array([True, False]), "[True, False]"),
        (np.zeros((40, 50)), None),
        (np.full(12, 1.23456789e-200), None),
    ],
)
def test_the_repr_shows_elements_where_they_fit_a_line(array, shown):
    text = repr(bridge.from_dlpack(array))
    assert text.startswith(f"dlbridge.Tensor({array.dtype if shown is None else shown}, ")
    assert "\n" not in text


def test_the_repr_of_a_devices_tensor_reads_nothing():
    backend_or_skip("ext_dev")
    tensor = bridge.ones(3, device="ext_dev:0")
    with bridge.trace() as moves:
        text = repr(tensor)
    assert text.startswith("dlbridge.Tensor(float32, shape=(3,), device=ext_dev:0, ")
    assert moves.plans == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: bridge.zeros((2, 4))[:, ::2],
        lambda: bridge.to_device(SMALL, "cpu", copy=True).transpose(),
        lambda: bridge.from_dlpack(SMALL)[1:],
        lambda: bridge.asarray([[1, 2], [3, 4]]),
    ],
)
def test_the_repr_shows_the_elements_of_memory_of_numpy_and_dlbridge(make):
    assert repr(make()).startswith("dlbridge.Tensor([[")


LENT = np.ones(4, "f4")


class Described:
    """What a producer has said of its memory, by numpy's interface."""

    __array_interface__ = LENT.__array_interface__


@pytest.mark.parametrize(
    "make",
    [
        lambda: bridge.from_blob(LENT.ctypes.data, 4, "float32"),
        lambda: bridge.from_blob(LENT.ctypes.data, 4, "float32")[1:],
        lambda: bridge.from_blob(LENT.ctypes.data, 4, "float32").view("int32"),
        lambda: bridge.from_dlpack(np.asarray(Described())),
        lambda: bridge.asarray(Described()),
        lambda: bridge.from_dlpack(peer("torch").ones(3)),  # which may have freed it
        lambda: bridge.share(np.ones(3, "f4")),  # another process may make the file shorter
    ],
)
def test_the_repr_reads_no_memory_of_others(make):
    """Of a struct with a wrong address it was a segmentation fault (test_malformed.py)."""
    assert re.match(r"dlbridge\.Tensor\((float|int)32, shape", repr(make()))


def test_the_repr_of_what_numpy_does_not_have():
    text = repr(bridge.full(4, 3, "uint4"))
    assert text.startswith("dlbridge.Tensor(uint4, shape=(4,), device=cpu:0")
    assert repr(bridge.empty(2, "float32x4")).startswith("dlbridge.Tensor(float32x4, ")


def test_print_says_the_dtype_and_the_device():
    assert str(bridge.asarray([1.0, 2.0])) == "[1. 2.]  float64 (2,) on cpu:0"
    assert str(bridge.asarray(3)) == "3  int64 () on cpu:0"
    assert str(bridge.from_dlpack(SMALL)) == f"{SMALL}\nfloat32 (2, 3) on cpu:0"


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4"])
def test_dir_of_a_tensor_lists_no_name_that_it_has_not(dtype, shape):
    tensor = bridge.zeros(shape, dtype)
    missing = [
        name for name in dir(tensor) if name not in ("T", "mT") and not hasattr(tensor, name)
    ]
    assert missing == []  # T and mT are there, and say for which shapes
    assert "numpy" in dir(tensor)


@pytest.mark.parametrize("cls", [bridge.Tensor, bridge.DType])
def test_dir_lists_no_name_that_raises(cls):
    assert [name for name in dir(cls) if not hasattr(cls, name)] == []
    assert {"__class__", "__init__"} <= set(dir(cls))
    with pytest.raises(AttributeError, match="has no attribute"):
        cls.sum if cls is bridge.Tensor else cls.kind


# Notebooks ----------------------------------------------------------------------------


class Cells(HTMLParser):
    """The texts of the cells of a page; AssertionError where an element is not closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.texts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[-1] += data


def test_the_page_of_a_plan():
    plan = bridge.plan(SMALL, "cpu", copy=True)
    plan.add("copy", plan.source, plan.target, 0, "a < b & c")
    texts = Cells(plan._repr_html_()).texts
    assert "float32 (2, 3) from numpy.ndarray: cpu:0 -> cpu:0, 24 bytes copied" in texts
    assert {"copy", "24 bytes", "copy=True was asked for", "a < b & c"} <= set(texts)


def test_the_page_of_a_trace():
    trace = recorded()
    assert "copy=True was asked for" in Cells(trace._repr_html_()).texts
    assert Cells(bridge.Trace()._repr_html_()).texts == ["0 moves, 0 bytes copied"]


def test_the_page_of_the_report():
    texts = Cells(bridge.info()._repr_html_()).texts
    assert "cpu:0" in texts
    assert any(text.startswith(f"dlbridge {bridge.__version__}") for text in texts)


def test_the_bar_is_shown_in_a_notebook_where_stderr_is_no_terminal(monkeypatch):
    """A kernel's stderr is none, and what is written to it is shown."""
    monkeypatch.setattr(progress, "SHOWN_FROM", 0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress.reporter(True, 100) as report:
        assert report is None
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", type(sys)("ipykernel.zmqshell"))
    with progress.reporter(True, 100) as report:
        report(50, 100)
        report(100, 100)
    assert "100" in stream.getvalue()


def test_a_notebook_has_one_bar_that_is_updated(monkeypatch):
    """nbconvert shows all that was written to stderr: one bar after the other."""
    outputs = []

    class Output:
        def update(self, data, raw):
            assert raw
            outputs[-1] = data["text/plain"]

    def display(data, raw, display_id):
        assert raw
        assert display_id
        outputs.append(data["text/plain"])
        return Output()

    monkeypatch.setattr(progress, "SHOWN_FROM", 0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", type(sys)("ipykernel.zmqshell"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with progress.reporter(True, 100) as report:
        for done in (25, 50, 75, 100):
            report(done, 100)
    assert len(outputs) == 1
    assert outputs[0].startswith("100% [")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("place", ["cpu", "ext_dev:0"])
def test_a_notebook_shows_a_table_of_the_elements(place):
    backend_or_skip(place.partition(":")[0])
    small = bridge.to_device(np.array([[1.5, 2], [3, 1 / 3]], "float32"), place)
    assert small._repr_html_() == (
        f"<p>float32 (2, 2) on {bridge.device(place)}</p><table>"
        "<tr><th></th><th>0</th><th>1</th></tr>"
        "<tr><td>0</td><td>1.5</td><td>2</td></tr>"
        "<tr><td>1</td><td>3</td><td>0.333333</td></tr></table>"
    )
    large = bridge.to_device(np.arange(400).reshape(20, 20), place)._repr_html_()
    cells = [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in large.split("<tr>")[1:]]
    assert cells[0] == ["", *"01234", "...", "15", "16", "17", "18", "19"]
    assert cells[2][:7] == ["1", "20", "21", "22", "23", "24", "..."]
    assert cells[6] == ["...", *["..."] * 11]
    assert cells[-1][-1] == "399"
    for tensor in (bridge.zeros((), device=place), bridge.zeros((2, 2, 2), device=place)):
        assert tensor._repr_html_() == f"<pre>{tensor}</pre>"


def test_a_notebook_shows_what_cannot_be_read():
    packed = bridge.zeros(8, "int4")
    assert packed._repr_html_() == f"<pre>{packed}</pre>"
