"""tree_to_device: every array in dicts, lists, tuples and dataclasses."""

from __future__ import annotations

import copy as copies
import dataclasses
import sys
from collections import UserDict, UserList, deque
from collections.abc import Iterator, Mapping, Set, ValuesView
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from dlbridge import device_of, to_device
from dlbridge.extending import check_device, public_in, with_article

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dlbridge import Device
    from dlbridge.typing import DeviceLike

_Tree = TypeVar("_Tree")

_PROTOCOLS = (
    "__dlpack__",
    "__cuda_array_interface__",
    "__array_interface__",
    "__arrow_c_array__",
    "__arrow_c_stream__",
    "__array__",
)

_NOTE = "(tree_to_device: at tree"

_VALUES = (str, bytes, bytearray, memoryview, bool, int, float, complex, type, type(None))
"""What stays as it is: values of Python itself."""


@public_in("dlbridge")
def tree_to_device(
    tree: _Tree, device: DeviceLike, *, like: Any = None, copy: bool | None = None
) -> _Tree:
    """Return *tree* with every array in it on *device*; the keys and everything else stay.

    Parameters
    ----------
    tree : object
        Dicts and other mappings, lists, deques, tuples, named tuples, dataclasses and namespaces
        (`types.SimpleNamespace`), in each other; and
        the containers that jax or optree know, where the program has imported them. A batch or a
        state dict, for example.
    device, like, copy
        As in `to_device`.

    Returns
    -------
    object
        New containers of the same classes where something in them has changed, and the same
        ones elsewhere; a mapping that is neither a dict nor a UserDict becomes a dict. An array
        that is in the tree twice is one array in the result, too.
        Numbers, texts, None and objects that are no arrays are the same objects.

    Raises
    ------
    ExchangeError, DeviceMemoryError, BackendUnavailable, ValueError
        As for `to_device`; a note of the exception says where in the tree.
    ValueError
        If a container contains itself.
    TypeError
        If there is a generator, another iterator of Python, or a set or view of a dict with
        arrays in the tree: they cannot be made anew. Also for a module of torch, and if *tree*
        itself is an object that makes its arrays when it is asked, such as a DataLoader.

    Notes
    -----
    A list of numbers is a container here, not an array: write ``asarray([1, 2])`` for one.

    Examples
    --------
    >>> batch = {"image": np.ones((2, 3)), "label": [np.zeros(2)], "name": "first"}
    >>> moved = bridge.tree_to_device(batch, "cpu", like="numpy", copy=True)
    >>> list(moved), moved["label"][0].tolist(), moved["name"]
    (['image', 'label', 'name'], [0.0, 0.0], 'first')
    """
    if isinstance(device, (dict, list)):
        raise TypeError(
            f"{with_article(type(device).__name__)} is not a valid device, and the device comes "
            "second: dlbridge.tree_to_device(tree, device)"
        )
    target = check_device(device)
    moved: Any = _Walk(target, like, copy).of(tree, "")
    result: _Tree = moved
    return result


class _Walk:
    """One walk over a tree: what has been moved already, and the containers that it is in."""

    def __init__(self, device: Device, like: Any, copy: bool | None) -> None:
        self.device, self.like, self.copy = device, like, copy
        self.moved: dict[int, tuple[Any, Any]] = {}
        self.inside: set[int] = set()
        self.fixed = ""  # the refusal of the set or view that the walk is in, if it is in one

    def of(self, node: Any, where: str) -> Any:
        """*node* with its arrays on the device; *where* is its place, as a program writes it."""
        if isinstance(node, _VALUES):
            return node
        if id(node) in self.moved and not self.fixed:
            return self.moved[id(node)][1]
        if id(node) in self.inside:
            raise ValueError(f"tree{where} contains itself: a tree ends everywhere")
        self.inside.add(id(node))
        try:
            result = self._rebuilt(node, where)
        except Exception as exc:
            if not any(note.startswith(_NOTE) for note in getattr(exc, "__notes__", ())):
                exc.add_note(f"{_NOTE}{where})")
            raise
        finally:
            self.inside.discard(id(node))
        self.moved[id(node)] = node, result  # the node, too: its number must stay its own
        return result

    def _rebuilt(self, node: Any, where: str) -> Any:
        if isinstance(node, Mapping):
            return self._mapping(node, where)
        if isinstance(node, list | tuple | UserList | deque):
            return self._sequence(node, where)
        if dataclasses.is_dataclass(node):
            names = [field.name for field in dataclasses.fields(node)]
            return self._record(node, where, names)
        if isinstance(node, SimpleNamespace):
            return self._record(node, where, vars(node))
        if isinstance(node, Set | ValuesView):
            return self._fixed(node, where)
        if _is_array(node):
            if self.fixed:
                raise TypeError(self.fixed)
            return to_device(node, self.device, like=self.like, copy=self.copy)
        if isinstance(node, Iterator) and type(node).__module__ in _ITERATORS:
            raise TypeError(_unmade(node, where))
        if (registered := self._registered(node, where)) is node:
            _check_opaque(node, where)
        return registered

    def _fixed(self, node: Iterable[Any], where: str) -> Any:
        """A set, or a view of a dict: it stays, and has no arrays."""
        outer, self.fixed = self.fixed, self.fixed or _unmade(node, where)
        try:
            for index, each in enumerate(node):
                self.of(each, f"{where}<{index}>")
        finally:
            self.fixed = outer
        return node

    def _mapping(self, node: Mapping[Any, Any], where: str) -> Any:
        items = {key: self.of(value, f"{where}[{key!r}]") for key, value in node.items()}
        if all(items[key] is value for key, value in node.items()):
            return node
        if type(node) is dict or not isinstance(node, dict | UserDict):
            return items
        twin = copies.copy(node)  # with what it has beside its items: a default, a tokenizer
        for key, value in items.items():
            twin[key] = value
        return twin

    def _sequence(self, node: Any, where: str) -> Any:
        items = [self.of(value, f"{where}[{index}]") for index, value in enumerate(node)]
        if all(map(_is_same, items, node)):
            return node
        if type(node) in (list, tuple):
            return type(node)(items)
        if isinstance(node, list | UserList | deque):
            twin = copies.copy(node)  # with what it has beside its items: the most of a deque
            for index, value in enumerate(items):
                twin[index] = value
            return twin
        return node._make(items) if hasattr(node, "_make") else type(node)(items)

    def _record(self, node: Any, where: str, names: Iterable[str]) -> Any:
        there = [name for name in names if hasattr(node, name)]
        values = {name: self.of(getattr(node, name), f"{where}.{name}") for name in there}
        if all(value is getattr(node, name) for name, value in values.items()):
            return node
        twin = copies.copy(node)  # no __init__: it may compute, or take other arguments
        for name, value in values.items():
            object.__setattr__(twin, name, value)  # a frozen one, too
        return twin

    def _registered(self, node: Any, where: str) -> Any:
        """A container that jax or optree know, one level of it; else *node* itself."""
        for name, module in _TREES.items():
            if (library := sys.modules.get(name)) is not None:
                count = iter(range(sys.maxsize))

                def child(part: Any, count: Any = count) -> Any:
                    index = next(count)
                    return part if part is node else self.of(part, f"{where}<{index}>")

                mapped = module(library)(child, node, is_leaf=lambda part: part is not node)
                if mapped is not node:
                    return mapped
        return node


_TREES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "jax": lambda jax: jax.tree_util.tree_map,
    "optree": lambda optree: optree.tree_map,
}


def _is_same(left: object, right: object) -> bool:
    return left is right


_ITERATORS = ("builtins", "itertools", "_collections")
"""The modules of iterators that may give arrays. (An open file is one, too, and has none.)"""


def _unmade(node: object, where: str) -> str:
    return (
        f"tree{where} is {with_article(type(node).__name__)}, which cannot be made anew with other "
        "arrays: they would stay where they are; write list(...) around it"
    )


def _check_opaque(node: object, where: str) -> None:
    """Raise TypeError for an object that has or makes arrays which nothing finds in it."""
    cls = type(node)
    what = f"tree{where} is {with_article(cls.__name__)}, "
    if hasattr(cls, "state_dict") and hasattr(cls, "parameters"):
        raise TypeError(
            f"{what}whose arrays would stay where they are; pass x.state_dict(), which has them by "
            "name"
        )
    if not where and hasattr(cls, "__iter__") and not isinstance(node, range | Iterator):
        raise TypeError(
            f"{what}which makes what it gives when it is asked; move that: "
            "[dlbridge.tree_to_device(each, device) for each in x]"
        )


def _is_array(x: Any) -> bool:
    """Whether *x* is an array of some library."""
    if type(x).__module__ == "numpy" and not hasattr(x, "__len__"):
        return False  # a number of numpy's, as one of Python's
    if any(hasattr(type(x), name) for name in _PROTOCOLS):
        return True
    try:
        device_of(x)
    except TypeError:
        return False
    return True
