"""Columns of pyarrow, and Arrow's structs: right ones are taken, wrong ones refused in words, and
all is released once. Structs go in within a process of its own, which must not die of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.support import arrow_structs
from tests.support.peers import peer
from tests.support.scripts import run_script


@pytest.fixture(scope="module")
def verdicts():
    return json.loads(run_script(Path(arrow_structs.__file__), env={"DLBRIDGE_BACKENDS": "cpu"}))


VALUES = {
    "plain": [0, 1, 2, 3],
    "offset": [2, 3, 4, 5],
    "no elements, no data": [],
    "bitmap of valid values, not counted": [2, 3],
    "bitmap NULL, not counted": [0, 1, 2, 3],
    "bools": [False, True, True],
    "lists": [[3, 4], [5, 6]],
    "lists of lists": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    "lists of nothing": [[], []],
    "null in a list that is not used": [[2, 3]],
    "stream": [0, 1, 2, 3, 3, 4, 5, 6],
    "stream of lists": [[0, 1], [2, 3], [4, 5], [6, 7]],
}


@pytest.mark.parametrize("name", arrow_structs.RIGHT)
def test_right_structs(verdicts, name):
    error, values, once, releases = verdicts[name]
    assert (error, values) == (None, VALUES[name])
    assert once
    assert releases == (4 if "stream" in name else 2)


@pytest.mark.parametrize(("name", "said"), arrow_structs.WRONG)
def test_wrong_structs(verdicts, name, said):
    error, text, once, _ = verdicts[name]
    assert error == "ExchangeError", text
    assert said in text
    assert once


def test_a_class_without_the_methods_of_its_parent():
    """None says that there is none, as in Python's data model."""
    members = {"__arrow_c_array__": None, "__arrow_c_stream__": None}
    assert bridge.asarray(type("Bytes", (bytearray,), members)(b"abc")).tolist() == [97, 98, 99]


def lists(pyarrow):
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(range(12), pyarrow.float32()), 3)


def pictures(pyarrow):
    kind = pyarrow.fixed_shape_tensor(pyarrow.int32(), (2, 3))
    storage = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(range(12), pyarrow.int32()), 6)
    return pyarrow.ExtensionArray.from_storage(kind, storage)


ARRAYS = {
    "int": lambda pyarrow: pyarrow.array([1, 2]),
    "bool": lambda pyarrow: pyarrow.array([True, False, True])[1:],
    "bool8": lambda pyarrow: pyarrow.ExtensionArray.from_storage(
        pyarrow.bool8(), pyarrow.array([1, 0], pyarrow.int8())
    ),
    "lists": lambda pyarrow: lists(pyarrow)[1:],
    "pictures": lambda pyarrow: pictures(pyarrow)[1:],
    "text": lambda pyarrow: pyarrow.array(["a"]),
    "time": lambda pyarrow: pyarrow.array([1], pyarrow.timestamp("s")),
    "dictionary": lambda pyarrow: pyarrow.array(["a"]).dictionary_encode(),
    "lists of many lengths": lambda pyarrow: pyarrow.array([[1], [2, 3]]),
    "null": lambda pyarrow: pyarrow.array([True, None]),
    "nulls": lambda pyarrow: pyarrow.nulls(3),
    "null list": lambda pyarrow: pyarrow.array([[1], None], pyarrow.list_(pyarrow.int8(), 1)),
    "null in a list": lambda pyarrow: pyarrow.array([[1, None]], pyarrow.list_(pyarrow.int8(), 2)),
}


def seen(x, copy):
    try:
        tensor = bridge.asarray(x, copy=copy)
    except BufferError as exc:
        said = str(exc).replace("pyarrow.lib." + type(x).__name__, "ARRAY")
        return said.replace("x.combine_chunks()", "x")  # what only an array has
    return str(tensor.dtype), tensor.shape, tensor.tolist(), tensor.readonly


@pytest.mark.parametrize("copy", [None, False])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_and_its_one_chunk_agree(name, copy):
    pyarrow = peer("pyarrow")
    array = ARRAYS[name](pyarrow)
    assert seen(array, copy) == seen(pyarrow.chunked_array([array]), copy)


def test_chunks_of_lists():
    pyarrow = peer("pyarrow")
    embeddings, images = lists(pyarrow), pictures(pyarrow)
    values = np.arange(12).reshape(4, 3).tolist()
    one = bridge.asarray(pyarrow.chunked_array([embeddings]), copy=False)
    assert one.data_ptr() == embeddings.values.buffers()[1].address
    assert (one.tolist(), one.readonly) == (values, True)
    assert bridge.asarray(pyarrow.chunked_array([embeddings, embeddings])).tolist() == values * 2
    chunks = pyarrow.chunked_array([images, images])
    assert bridge.asarray(chunks).shape == (4, 2, 3)
    with pytest.raises(BufferError, match=r"2 chunks.*copy=False"):
        bridge.asarray(chunks, copy=False)


def test_classes_of_others_in_a_module_below_pyarrow():
    class Below:
        __module__ = "pyarrow.below"
        columns = (1,)

        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    class Producer(Below):
        __module__ = "pyarrow.below"

        def __dlpack__(self, **keywords):
            return np.arange(3).__dlpack__(**keywords)

        def __dlpack_device__(self):
            return (1, 0)

    for x in (Below(), Producer()):
        assert bridge.asarray(x).tolist() == [0, 1, 2]


class Once:
    """A column whose elements come out once, as those of nanoarrow's streams."""

    def __init__(self, column):
        self.stream = column.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.stream


def once_of(*chunks):
    return Once(peer("pyarrow").chunked_array(chunks))


def reader():
    pyarrow = peer("pyarrow")
    batch = pyarrow.record_batch({"name": pyarrow.array([1, 2], "int32")})
    return pyarrow.RecordBatchReader.from_batches(batch.schema, [batch])


ASK = {
    "device_of": bridge.device_of,
    "plan": lambda x: bridge.plan(x, "cpu"),
    "explain": lambda x: bridge.explain(x, "cpu", like="numpy"),
}


@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
def test_a_question_does_not_use_a_stream_up(ask):
    column, batches = once_of([1, 2]), reader()
    for x in (column, batches):
        with pytest.raises(TypeError, match=r"consume the stream.*dlbridge\.asarray\(x\)"):
            ask(x)
    assert bridge.asarray(column).tolist() == [1, 2]
    t = peer("pyarrow").table(batches)["name"]  # the way out that is named for columns
    assert ask(t)
    assert bridge.asarray(t).tolist() == [1, 2]


def test_a_stream_of_columns_that_is_refused_is_not_used_up():
    pyarrow = peer("pyarrow")
    for take in (bridge.asarray, lambda x: bridge.to_device(x, "cpu", copy=True)):
        x = reader()
        with pytest.raises(BufferError, match=r"pass one of them: pyarrow\.table\(x\)\['name'\]"):
            take(x)
        assert bridge.asarray(pyarrow.table(x)["name"]).tolist() == [1, 2]


def test_an_impossible_target_does_not_use_a_stream_up():
    column, capsule = once_of([1, 2]), np.arange(3.0).__dlpack__()
    for x in (column, capsule):
        with pytest.raises(ValueError, match="nowhere"):
            bridge.to_device(x, "nowhere")
        with pytest.raises(ModuleNotFoundError, match="no_library"):
            bridge.to_device(x, "cpu", like="no_library")
    assert bridge.asarray(column).tolist() == [1, 2]
    assert bridge.asarray(capsule).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("chunks", "copied"), [([[1, 2]], 0), ([[1], [2]], 16), ([[True, False]], 2)]
)
def test_a_trace_knows_whether_a_stream_was_copied(chunks, copied):
    with bridge.trace() as trace:
        bridge.to_device(once_of(*chunks), "cpu")
    assert trace.nbytes == copied


def test_the_ways_out_of_other_libraries_arrow_objects_lead_out():
    pyarrow = peer("pyarrow")
    made = {
        "structs": pyarrow.array([{"name": 1}]),
        "texts": pyarrow.array(["a"]),
        "dates": pyarrow.array([1], pyarrow.timestamp("s")),
        "dictionaries": pyarrow.array(["a"]).dictionary_encode(),
        "nulls": pyarrow.array([1, None]),
        "lists that are null": pyarrow.array([[1], None], pyarrow.list_(pyarrow.int8(), 1)),
        "nulls in lists": pyarrow.array([[1, None]], pyarrow.list_(pyarrow.int8(), 2)),
    }
    for array in made.values():
        for x in (OfOthers(array), StreamsOfOthers(pyarrow.chunked_array([array]))):
            with pytest.raises(BufferError) as told:
                bridge.asarray(x)
            way = re.search(r"pass (?:one of them: )?(.+?)(?:, or|, reshaped|$)", str(told.value))[
                1
            ]
            names = {"pyarrow": pyarrow, "x": x, "value": 0}
            assert bridge.asarray(eval(way, names)).size, way


class Column:
    def __init__(self, column):
        self.column = column


class StreamsOfOthers(Column):
    def __len__(self):
        return len(self.column)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.column.__arrow_c_stream__(requested_schema)


class OfOthers(Column):
    def __arrow_c_array__(self, requested_schema=None):
        return self.column.__arrow_c_array__(requested_schema)
