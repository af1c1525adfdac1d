"""Arrow columns written by hand, with whatever is wrong in them, and what dlbridge says to each:
``python arrow_structs.py`` prints a dictionary of name -> [error class or None, text, releases].
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json

import dlbridge
from dlbridge.interop import arrow

RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
GET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAST_ERROR = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

NAMES = {
    arrow._Schema: b"arrow_schema",
    arrow._Array: b"arrow_array",
    arrow._Stream: b"arrow_array_stream",
}
VALUES = (ctypes.c_int64 * 16)(*range(16))
kept = []


class Node:
    """One level of a column: its fields as Arrow wants them, changed by *wrong*.

    ``buffers`` holds addresses or None; ``children`` holds nodes, or None for a NULL in it.
    """

    def __init__(self, *, schema=None, children=(), **wrong):
        at_values = ctypes.addressof(VALUES)
        fields = {
            "length": 4,
            "null_count": 0,
            "offset": 0,
            "buffers": [None] if children else [None, at_values],
            **wrong,
        }
        buffers = fields.pop("buffers")
        fields.setdefault("n_buffers", len(buffers or ()))
        fields.setdefault("n_children", len(children))
        self.released = []
        release = RELEASE(self.released.append)
        self.array = arrow._Array(**fields, release=ctypes.cast(release, ctypes.c_void_p).value)
        if buffers is not None:
            self.array.buffers = (ctypes.c_void_p * len(buffers))(*buffers)
        self.schema = arrow._Schema(
            **{
                "format": b"+w:2" if children else b"l",
                "n_children": len(children),
                "release": ctypes.cast(release, ctypes.c_void_p).value,
                **(schema or {}),
            }
        )
        for mine, kind in ((self.array, "array"), (self.schema, "schema")):
            if children:
                below = [c and ctypes.addressof(getattr(c, kind)) for c in children]
                table = (ctypes.c_void_p * len(below))(*below)
                mine.children = ctypes.addressof(table)
                kept.append(table)
        kept.extend([self, release, buffers, children])

    def capsules(self):
        return tuple(
            new_capsule(ctypes.addressof(mine), NAMES[type(mine)], None)
            for mine in (self.schema, self.array)
        )

    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules()


class Gives:
    """A producer whose method returns *pair*."""

    def __init__(self, pair):
        self.pair = pair

    def __arrow_c_array__(self, requested_schema=None):
        return self.pair


class Stream:
    """A stream of *nodes*; *fields* replace functions of its struct."""

    def __init__(self, nodes, **fields):
        self.nodes = list(nodes)
        self.schema = self.nodes[0].schema
        self.released = []
        functions = {
            "get_schema": GET(self._schema),
            "get_next": GET(self._next),
            "release": RELEASE(self.released.append),
        }
        as_pointers = {
            name: ctypes.cast(function, ctypes.c_void_p).value
            for name, function in functions.items()
        }
        self.stream = arrow._Stream(**{**as_pointers, **fields})
        kept.extend([self, functions])

    def _schema(self, _stream, out):
        ctypes.memmove(out, ctypes.addressof(self.schema), ctypes.sizeof(self.schema))
        return 0

    def _next(self, _stream, out):
        if self.nodes:
            array = self.nodes.pop(0).array
            ctypes.memmove(out, ctypes.addressof(array), ctypes.sizeof(array))
        return 0

    def __arrow_c_stream__(self, requested_schema=None):
        return new_capsule(ctypes.addressof(self.stream), NAMES[arrow._Stream], None)


class FailsWithGarbage(Stream):
    """Writes into the struct that it does not give."""

    def _next(self, _stream, out):
        arrow._Array.from_address(out).release = 8
        return 5


class FailsWithWords(Stream):
    """Gives one chunk, and then a reason why there are no more."""

    def __init__(self):
        words = ctypes.create_string_buffer(b"the disk is full")
        get = LAST_ERROR(lambda _stream: ctypes.addressof(words))
        kept.extend([words, get])
        last_error = ctypes.cast(get, ctypes.c_void_p).value
        super().__init__([Node()], get_last_error=last_error)

    def _next(self, stream, out):
        return super()._next(stream, out) if self.nodes else 5


AT = ctypes.addressof(VALUES)
BITS = (ctypes.c_uint8 * 8)(0b1101)
BITMAP = ctypes.addressof(BITS)


def of_lists(child, **fields):
    return Node(**{"length": 2, "children": [child], **fields})


def deep(levels):
    node = Node(length=1)
    for _ in range(levels):
        node = of_lists(node, length=1, schema={"format": b"+w:1"})
    return node


def circle():
    node = of_lists(Node())
    at = (ctypes.c_void_p * 1)(ctypes.addressof(node.schema))
    node.schema.children = ctypes.addressof(at)
    kept.append(at)
    return node


def empty_capsule():
    node = Node()
    node.array.release = None
    return node


RIGHT = {
    "plain": Node,
    "offset": lambda: Node(offset=2),
    "no elements, no data": lambda: Node(length=0, buffers=[None, None]),
    "bitmap of valid values, not counted": lambda: Node(
        length=2, null_count=-1, offset=2, buffers=[BITMAP, AT]
    ),
    "bitmap NULL, not counted": lambda: Node(null_count=-1),
    "bools": lambda: Node(schema={"format": b"b"}, length=3, offset=1, buffers=[None, BITMAP]),
    "lists": lambda: of_lists(Node(offset=1, length=8), offset=1),
    "lists of lists": lambda: of_lists(of_lists(Node(length=8), length=4)),
    "lists of nothing": lambda: of_lists(Node(length=0), schema={"format": b"+w:0"}),
    "null in a list that is not used": lambda: of_lists(
        Node(length=4, null_count=1, buffers=[BITMAP, AT]), length=1, offset=1
    ),
    "stream": lambda: Stream([Node(), Node(offset=3)]),
    "stream of lists": lambda: Stream([of_lists(Node()), of_lists(Node(offset=4))]),
}

# Name of what is wrong, and what the refusal says.
WRONG = {
    ("offset before the buffer", "offset -3"): lambda: Node(offset=-3),
    ("offset far before the buffer", "offset -1152921504606846976"): lambda: Node(
        offset=-(1 << 60)
    ),
    ("offset past all memory", "offset 1152921504606846976"): lambda: Node(offset=1 << 60),
    ("offset and length overflow", "offset 9223372036854775807"): lambda: Node(
        offset=(1 << 63) - 1
    ),
    ("length below 0", "length is -1"): lambda: Node(length=-1),
    ("length past all memory", "length 9223372036854775807"): lambda: Node(length=(1 << 63) - 1),
    ("length of bools past all memory", "length 9223372036854775807"): lambda: Node(
        length=(1 << 63) - 1, schema={"format": b"b"}, offset=1 << 62
    ),
    ("length of nulls past all memory", "length 9223372036854775807"): lambda: Node(
        length=(1 << 63) - 1, null_count=-1, buffers=[BITMAP, AT]
    ),
    ("null_count below -1", "null_count is -2"): lambda: Node(null_count=-2),
    ("null_count beyond length", "null_count is 5"): lambda: Node(
        null_count=5, buffers=[BITMAP, AT]
    ),
    ("null_count without a bitmap", "null_count is 2 and its validity bitmap NULL"): lambda: Node(
        null_count=2
    ),
    ("validity past all memory", "validity bitmap has elements at"): lambda: Node(
        length=100, null_count=-1, buffers=[(1 << 64) - 8, AT]
    ),
    ("a null, not counted", "1 null value,"): lambda: Node(null_count=-1, buffers=[BITMAP, AT]),
    ("n_buffers 1", "has 1 and 0"): lambda: Node(n_buffers=1),
    ("n_buffers 0", "has 0 and 0"): lambda: Node(n_buffers=0, buffers=None),
    ("n_buffers below 0", "has -1 and 0"): lambda: Node(n_buffers=-1),
    ("n_buffers 3", "has 3 and 0"): lambda: Node(n_buffers=3, buffers=[None, AT, AT]),
    ("buffers NULL", "buffers are NULL"): lambda: Node(n_buffers=2, buffers=None),
    ("data NULL", "data is NULL"): lambda: Node(buffers=[None, None]),
    ("bools NULL", "data is NULL"): lambda: Node(schema={"format": b"b"}, buffers=[None, None]),
    ("data at the end of memory", "wraps around"): lambda: Node(buffers=[None, (1 << 64) - 8]),
    ("format NULL", "format is NULL"): lambda: Node(schema={"format": None}),
    ("format not text", "not a plain number"): lambda: Node(schema={"format": b"\xff\xfe"}),
    ("format empty", "type ''"): lambda: Node(schema={"format": b""}),
    ("format of strings", "type 'u'"): lambda: Node(schema={"format": b"u"}),
    ("dictionary in the schema", "decode a dictionary"): lambda: Node(schema={"dictionary": 8}),
    ("dictionary in the array", "and a dictionary"): lambda: Node(dictionary=8),
    ("children of numbers", "has 1 and 1"): lambda: Node(
        n_children=1, children=[Node()], schema={"format": b"l"}
    ),
    ("schema of lists, array of numbers", "has 2 and 0"): lambda: Gives(
        (of_lists(Node()).capsules()[0], Node().capsules()[1])
    ),
    ("schema of numbers, array of lists", "has 1 and 1"): lambda: Gives(
        (Node().capsules()[0], of_lists(Node()).capsules()[1])
    ),
    ("width below 0", "'+w:-2'"): lambda: of_lists(Node(), schema={"format": b"+w:-2"}),
    ("width of 5,000 digits", "'+w:1111"): lambda: of_lists(
        Node(), schema={"format": b"+w:" + b"1" * 5000}
    ),
    ("width is no number", "'+w:x'"): lambda: of_lists(Node(), schema={"format": b"+w:x"}),
    ("width past all memory", "no memory can have"): lambda: of_lists(
        Node(), schema={"format": b"+w:%d" % (1 << 62)}
    ),
    ("lists beyond their child", "use 4"): lambda: of_lists(Node(length=3)),
    ("lists beyond their child by offset", "use 6"): lambda: of_lists(Node(length=4), offset=1),
    ("lists before their child", "offset -1"): lambda: of_lists(Node(length=4), offset=-1),
    ("child before its buffer", "offset -3"): lambda: of_lists(Node(offset=-3)),
    ("child NULL", "child that is NULL"): lambda: of_lists(None),
    ("children NULL", "child that is NULL"): lambda: Node(
        schema={"format": b"+w:2", "n_children": 1}, n_children=1, buffers=[None]
    ),
    ("n_children 0", "n_children 0"): lambda: of_lists(
        Node(), n_children=0, schema={"n_children": 0}
    ),
    ("child released", "child of its lists is released"): lambda: of_lists(empty_capsule()),
    ("a null list", "1 null value,"): lambda: of_lists(
        Node(length=8), null_count=-1, length=4, buffers=[BITMAP]
    ),
    ("a null in a list", "1 null value,"): lambda: of_lists(
        Node(null_count=-1, buffers=[BITMAP, AT])
    ),
    ("lists with metadata", "metadata"): lambda: of_lists(Node(), schema={"metadata": AT}),
    ("lists in each other for ever", "released"): circle,
    ("65 lists in each other", "depth 63"): lambda: deep(65),
    ("released", "used already"): empty_capsule,
    ("not a pair", "NoneType"): lambda: Gives(None),
    ("three", "not two capsules"): lambda: Gives((*Node().capsules(), 1)),
    ("no capsules", "'arrow_schema' was expected"): lambda: Gives((1, None)),
    ("the other way round", "'arrow_schema' was expected"): lambda: Gives(Node().capsules()[::-1]),
    ("stream without get_schema", "get_schema"): lambda: Stream([Node()], get_schema=None),
    ("stream without get_next", "get_next"): lambda: Stream([Node()], get_next=None),
    ("stream that fails with garbage", "failed"): lambda: FailsWithGarbage([Node()]),
    (
        "stream that fails after a chunk",
        "the Arrow stream of the __main__.FailsWithWords failed: the disk is full",
    ): FailsWithWords,
    ("stream whose second chunk is wrong", "offset -3"): lambda: Stream([Node(), Node(offset=-3)]),
    ("stream whose schema is released", "schema that is released"): lambda: Stream(
        [Node(schema={"release": None})]
    ),
    ("stream released", "used already"): lambda: Stream([Node()], release=None),
}


def verdict(make):
    """What dlbridge makes of it: the class of its error, and the text or the values."""
    try:
        found = None, dlbridge.asarray(make()).tolist()
    except Exception as exc:
        found = type(exc).__name__, str(exc)
    gc.collect()
    return found


def main():
    faulthandler.enable()
    found = {}
    for name, make in {**RIGHT, **{name: make for (name, _), make in WRONG.items()}}.items():
        start = len(kept)
        outcome = verdict(make)
        nodes = [x for x in kept[start:] if isinstance(x, (Node, Stream))]
        releases = [sorted(set(n.released)) == sorted(n.released) for n in nodes]
        found[name] = [*outcome, all(releases), sum(len(n.released) for n in nodes)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
