"""Calls that are prepared (`Function.bind`), and those whose arguments are looked at."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dlbridge.errors import ExchangeError
from dlbridge.extending import public_in
from dlbridge.kit.resources import shared_lock

from ._calls import bound as bound_call, silent as silent_call
from ._lib import ffi
from .any import Handle, Temporaries, unpack, untrack
from .frames import CALL, new_memory, pack_frame, perform
from .streams import on_streams
from .tensors import name_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@public_in("dlbridge.ffi")
class BoundCall(Protocol):
    """The result of `Function.bind`: a plain Python function, the fastest to call.

    Examples
    --------
    >>> step = ffi.convert_func(lambda x, y: x + y).bind(1, 2)
    >>> step()
    3
    >>> step.replace(1, 10)
    >>> step()
    11
    """

    def __call__(self) -> Any:
        """Call with the bound arguments."""

    def replace(self, index: int, value: Any) -> None:
        """Bind *value* in place of argument *index*, for the calls that begin later.

        If it fails, the arguments stay as they were.

        Parameters
        ----------
        index : int
            The position of the argument, counted from 0; a negative one counts from the end.
        value : object
            The new argument.

        Raises
        ------
        IndexError
            If so many arguments were not bound.
        RuntimeError
            If code that runs while *value* is packed calls `replace` itself.

        Examples
        --------
        >>> step = ffi.get_global_func("ffi.Array").bind(1, 2)
        >>> step.replace(-1, "new")
        >>> step()
        (1, "new")
        """


def call_keeping(function: Any, arguments: Sequence[Any], keep: Temporaries) -> Any:
    """Call the Function *function*, whose arguments *keep* looks at."""
    try:
        words, first, result = pack_frame(arguments, keep)
        call_c = partial(on_streams, keep.streams) if keep.streams else CALL
        passed = function._pointer, first, len(arguments), result
        return unpack(*perform(words, call_c, *passed))
    except BaseException as error:
        name_argument(error, arguments)
        raise


def bind(
    function: Handle,
    bound: list[Any],
    *,
    silent: bool,
    keeping: Callable[[], Temporaries] = Temporaries,
) -> BoundCall:
    """The closure behind `Function.bind`; its cells are the prepared call.

    *silent*: the function is known to return nothing, so no result is looked at. *keeping* makes
    what looks at the arguments.
    """
    memory = new_memory(0)
    packed: Any = [*_pack(function, bound, memory[2], keeping())]
    replacing = shared_lock()
    inside = [False]  # whether this thread, which has the lock, is replacing already

    def slow() -> Any:
        (pointer, first, count, _ready), call_c, _kept = packed
        words, _none, result = new_memory(0)
        return unpack(*perform(words, call_c, pointer, first, count, result))

    step: Any = silent_call(memory, packed) if silent else bound_call(memory, packed, slow)

    def replace(index: int, value: Any) -> None:
        with replacing:
            if inside[0]:
                raise RuntimeError("an argument cannot be replaced by the value being bound")
            try:
                inside[0] = True
                changed = [*bound]
                changed[index] = value
                passed = _pack(function, changed, memory[2], keeping())
                # In one line, which a trace function leaves whole; the first may need memory.
                bound[:], packed[:] = changed, passed
                inside[0] = False
            except BaseException:  # no `finally`: a trace function may raise at its first line
                inside[0] = False
                raise

    step.replace = replace
    return step  # type: ignore[no-any-return]


def _pack(
    function: Handle, bound: list[Any], result: Any, keep: Temporaries
) -> tuple[tuple[Any, Any, int, Any], Callable[..., int], tuple[Any, ...]]:
    """What a bound call passes (in a tuple: 30 ns less for each call), to what, and its owners.

    The third is kept by plain references: the collector has `ffi.gc` give up what it
    keeps before the finalizers of a cycle, which may make the call.
    """
    try:
        words, first, _result = pack_frame(bound, keep)
    except ExchangeError as exc:
        name_argument(exc, bound)
        raise
    for handle in (function, *keep):
        if isinstance(handle, Handle):
            untrack(handle)
    kept = (words, keep, function, *bound)  # an object is packed as its address
    passed = ffi.cast("void *", function), first, len(bound), result
    return passed, partial(on_streams, keep.streams) if keep.streams else CALL, kept
