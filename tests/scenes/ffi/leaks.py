"""Nothing leaks: the process does not grow while the same is done again and again."""

from __future__ import annotations

import copy
import gc
import pickle
import resource
from typing import Any

from dlbridge import ffi

from .scene import raised, testing

TEXT = "a text of more than seven bytes"


class Thing:
    """What C knows as an opaque object only."""


def values() -> None:
    echo = testing("echo")
    for value in (TEXT, 2**100, b"bytes that are not inline", Thing(), lambda: None):
        echo(value)


def containers() -> None:
    echo = testing("echo")
    echo([Thing(), TEXT, {"k": [1.5, None]}])
    changed: ffi.List[Any] = ffi.List([TEXT] * 5)
    changed[1:3] = [ffi.Dict({1: TEXT})]
    list(changed), changed.pop(), changed == [1]
    list(ffi.Map({"key": TEXT}).items())
    echo(ffi.Shape((1, 2)))


def objects() -> None:
    base = ffi.object_class("testing.TestObjectBase")
    thing = ffi.object_class("testing.TestObjectPtrHolder")(base(v_str=TEXT)).value
    thing.v_str = TEXT + thing.v_str
    thing.add_i64(1), repr(thing), copy.copy(thing), copy.deepcopy(thing)
    pickle.loads(pickle.dumps(thing))
    ffi.object_class("testing.SchemaAllTypes").make_with(1, 2.0, TEXT).append_int([1], 2)
    ffi.structural_hash([TEXT, [TEXT]]), ffi.structural_equal([TEXT], TEXT)


def refusals() -> None:
    for wrong in (
        lambda: ffi.object_class("testing.TestCxxKwOnly")(1),
        lambda: setattr(ffi.object_class("testing.TestObjectBase")(), "v_i64", "text"),
        lambda: ffi.object_class("no.such.type"),
        lambda: ffi.system_lib("dlbridge.leak.")["absent"],
        lambda: ffi.load_module("/no/such/file.so"),
    ):
        raised(Exception, wrong)


# How often each is done: an Array that leaks each time is 200 KiB or more.
WORK = {values: 10_000, containers: 3000, objects: 2400, refusals: 2400}


def growth(work: Any, times: Any) -> Any:
    """By how many KiB the process grows while *work* is done so many times."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(times):
        work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def leak() -> None:
    """In a process of its own: the largest size that it had says nothing if it was larger before."""
    testing("nop")
    for work, times in WORK.items():
        # What leaks grows each time; at first the allocators take more, too.
        grown = [growth(work, times) for _ in range(2)]
        while grown[-1] >= 128 and len(grown) < 6:
            grown.append(growth(work, times))
        assert grown[-1] < 128, f"{work.__name__}: {grown} KiB more"
