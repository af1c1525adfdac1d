"""tree_to_device: arrays move, containers and everything else stay what they are."""

import dataclasses
import itertools
import operator
import re
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer

Pair = namedtuple("Pair", "left right")
A = np.arange(4.0)


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: object
    name: str
    area: object = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        if not isinstance(self.image, np.ndarray):
            raise TypeError("only numpy's")


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object


class Batch(UserDict):
    def __init__(self, data, tokenizer):
        super().__init__(data)
        self.tokenizer = tokenizer


class Names(list):
    pass


def is_moved(x, device):
    return (
        isinstance(x, bridge.Tensor)
        and x.device == bridge.device(device)
        and x.tolist() == A.tolist()
    )


GET = {
    "dict": ({"a": A, "b": 1}, operator.itemgetter("a")),
    "ordered": (OrderedDict(b=1, a=A), operator.itemgetter("a")),
    "defaultdict": (defaultdict(list, a=A), operator.itemgetter("a")),
    "user's dict": (Batch({"a": A}, "words"), operator.itemgetter("a")),
    "list": ([1, A], operator.itemgetter(1)),
    "list of a class": (Names([1, A]), operator.itemgetter(1)),
    "tuple": ((A, None), operator.itemgetter(0)),
    "named tuple": (Pair(1, A), operator.itemgetter(1)),
    "frozen dataclass": (Frozen(A, "n"), operator.attrgetter("image")),
    "user's list": (UserList([1, A]), operator.itemgetter(1)),
    "deque": (deque([1, A], maxlen=3), operator.itemgetter(1)),
    "namespace": (SimpleNamespace(x=A, name="n"), operator.attrgetter("x")),
    "dataclass with slots": (Slotted(A), operator.attrgetter("x")),
    "deep": ({"a": [(Pair(0, {"x": A}),)]}, lambda t: t["a"][0][0].right["x"]),
}


@pytest.mark.parametrize("kind", GET)
def test_each_container_keeps_its_class(kind, device):
    tree, get = GET[kind]
    moved = bridge.tree_to_device(tree, device, copy=True)
    assert type(moved) is type(tree)
    assert is_moved(get(moved), device)
    assert get(tree) is A  # the tree itself has not changed
    if kind != "frozen dataclass":
        twice = bridge.tree_to_device(moved, device)
        assert twice is moved  # nothing has changed, so it is the same one


def test_what_containers_have_beside_their_items():
    moved = bridge.tree_to_device(GET["defaultdict"][0], "cpu")
    assert moved["new"] == []
    assert bridge.tree_to_device(GET["user's dict"][0], "cpu").tokenizer == "words"
    assert bridge.tree_to_device(GET["frozen dataclass"][0], "ext_dev").name == "n"
    assert type(bridge.tree_to_device(MappingProxyType({"a": A}), "cpu")) is dict
    assert list(bridge.tree_to_device(GET["ordered"][0], "cpu")) == ["b", "a"]


def test_values_stay():
    thing = object()
    values = [1, 2.5, 1j, True, None, "text", b"bytes", np.float32(2), int, thing, len, {1, 2}]
    moved = bridge.tree_to_device([*values, A], "ext_dev")
    assert all(map(operator.is_, moved, values))
    assert bridge.tree_to_device(values, "ext_dev") is values
    assert bridge.tree_to_device(3, "cpu") == 3
    assert is_moved(bridge.tree_to_device(A, "ext_dev"), "ext_dev")


def test_a_state_dict_of_torch_there_and_back(device):
    torch = peer("torch")
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        there = bridge.tree_to_device(model.state_dict(), device)
        back = bridge.tree_to_device(there, "cpu", like="torch")
    assert list(back) == ["weight", "bias"]
    assert all(torch.equal(back[name], value) for name, value in model.state_dict().items())
    model.load_state_dict(back)


def test_tied_arrays_stay_tied():
    moved = bridge.tree_to_device({"in": A, "out": [A]}, "ext_dev")
    assert moved["in"] is moved["out"][0]


def test_containers_that_jax_knows():
    jax = peer("jax")

    @jax.tree_util.register_pytree_node_class
    class Point:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def tree_flatten(self):
            return (self.x, self.y), None

        @classmethod
        def tree_unflatten(cls, _data, children):
            return cls(*children)

    moved = bridge.tree_to_device({"p": Point(A, [A, 3])}, "ext_dev")["p"]
    assert type(moved) is Point
    assert is_moved(moved.x, "ext_dev")
    assert is_moved(moved.y[0], "ext_dev")
    assert moved.y[1] == 3


def test_errors_say_where():
    tree = {"a": [1, Pair(0, np.array([object()]))]}
    with pytest.raises(bridge.ExchangeError, match="Python objects") as caught:
        bridge.tree_to_device(tree, "cpu")
    assert caught.value.__notes__ == ["(tree_to_device: at tree['a'][1][1])"]
    with pytest.raises(ValueError, match="nowhere"):
        bridge.tree_to_device([], "nowhere")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda a: (each for each in a), "a generator"),
        (lambda a: map(np.negative, a), "a map"),
        (lambda a: zip(a, a, strict=True), "a zip"),
        (iter, "a list_iterator"),
        (lambda a: dict(enumerate(a)).values(), "a dict_values"),
        (lambda a: {bridge.asarray(each) for each in a}, "a set"),
        (lambda a: dict(enumerate(a)).items(), "a dict_items"),
        (lambda a: {1: {"deep": a}}.values(), "a dict_values"),
        (lambda a: ChainMap({1: [a]}).values(), "a ValuesView"),
        (lambda a: {1: SimpleNamespace(a=a)}.items(), "a dict_items"),
        (lambda a: {(bridge.asarray(a[0]), "n")}, "a set"),
        (itertools.chain, "a chain"),
        (lambda a: itertools.islice(a, 1), "an islice"),
        (lambda a: iter(deque(a)), "a _deque_iterator"),
    ],
)
def test_what_cannot_be_made_anew_is_not_left_in_silence(make, name):
    arrays = [np.ones(2), np.zeros(3)]
    with pytest.raises(
        TypeError, match=rf"^tree\['x'\] is {name}, .*write list\(\.\.\.\) around it"
    ):
        bridge.tree_to_device({"x": make(arrays)}, "ext_dev:0")
    moved = bridge.tree_to_device({"x": list(make(arrays))}, "ext_dev:0")["x"]
    assert "cpu" not in str([bridge.device_of(each) for each in moved if hasattr(each, "device")])


def test_iterables_without_arrays_stay(tmp_path):
    with (tmp_path / "log").open("w") as file:
        views = ({1: 2}.keys(), {1: [2]}.values(), {1: 2}.items(), frozenset([(np.float32(1),)]))
        for node in (file, {1, 2}, frozenset("ab"), range(3), *views):
            assert bridge.tree_to_device([node], "ext_dev:0")[0] is node


def test_an_array_that_a_list_and_a_view_have():
    """What has been moved for the list stays in the view where it was: that is refused, too."""
    with pytest.raises(TypeError, match=r"^tree\[1\] is a dict_values, .* list\(\.\.\.\)"):
        bridge.tree_to_device([A, {1: A}.values()], "ext_dev:0")
    moved = bridge.tree_to_device([A, list({1: A}.values())], "ext_dev:0")
    assert moved[0] is moved[1][0]


class Loader:
    """As torch's DataLoader: it makes arrays when it is asked."""

    def __iter__(self):
        return iter([A, A])


def test_what_makes_arrays_is_not_taken_for_a_tree_without_any():
    loader = Loader()
    with pytest.raises(TypeError, match=r"tree is a Loader, .* for each in x") as told:
        bridge.tree_to_device(loader, "ext_dev:0")
    (way,) = re.findall(r"\[dlbridge.*\]", str(told.value))
    names = {"dlbridge": bridge, "x": loader, "device": "ext_dev:0"}
    assert all(is_moved(each, "ext_dev:0") for each in eval(way, names))
    settings = {"loader": loader}
    assert bridge.tree_to_device(settings, "ext_dev:0") is settings
    assert bridge.tree_to_device(range(3), "ext_dev:0") == range(3)


def test_a_module_is_not_left_in_silence():
    model = peer("torch").nn.Linear(3, 2)
    for tree, where in ((model, "tree"), ({"m": [model]}, r"tree\['m'\]\[0\]")):
        with pytest.raises(TypeError, match=rf"^{where} is a Linear.*x\.state_dict\(\)"):
            bridge.tree_to_device(tree, "ext_dev:0")
    assert set(bridge.tree_to_device(model.state_dict(), "ext_dev:0")) == {"weight", "bias"}
    optimizer = peer("torch").optim.SGD(model.parameters())
    assert bridge.tree_to_device({"o": optimizer, "a": A}, "cpu")["o"] is optimizer


def test_a_tree_that_contains_itself():
    tree = [A]
    tree.append({"again": tree})
    with pytest.raises(ValueError, match=r"tree\[1\]\['again'\] contains itself"):
        bridge.tree_to_device(tree, "cpu")


def test_refusals_name_it():
    with pytest.raises(TypeError, match=r"tree_to_device\(x, device\) moves each"):
        bridge.to_device({"a": A}, "cpu")
    for arrays in ([np.zeros(2), np.zeros(3)], [bridge.zeros(2), np.zeros((2, 2))]):
        with pytest.raises(ValueError, match=r"shapes \(2,\), \(.*tree_to_device"):
            bridge.asarray(arrays)


def test_a_container_that_refuses_is_named():
    class Sealed(dict):
        def __setitem__(self, key, value):
            raise TypeError("sealed")

    with pytest.raises(TypeError, match="sealed") as caught:
        bridge.tree_to_device({"a": [Sealed(x=A)]}, "ext_dev")
    assert caught.value.__notes__ == ["(tree_to_device: at tree['a'][0])"]
