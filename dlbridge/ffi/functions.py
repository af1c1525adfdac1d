"""Functions: of C, of Python for C, and by name in the global registry; their signatures."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from dlbridge.abi import expire_lent, immortal
from dlbridge.errors import ExchangeError
from dlbridge.extending import did_you_mean, public_in, unless_handler

from ._calls import call
from ._lib import C, address, destructor, ffi, py
from .any import HEADER, ByteArray, Temporaries, made, new_slot, pack, release, view
from .calls import BoundCall, bind, call_keeping
from .errors import raised, set_raised, untaken
from .frames import ask, look_up
from .objects import Object, handle_of, with_owner, wrap
from .tensors import OfOneDevice, converter, readonly

if TYPE_CHECKING:
    import inspect
    from inspect import Signature

    import jax
    import numpy as np
    import torch

    from dlbridge import Device
    from dlbridge.typing import SupportsDLPack

    from .any import Handle

    _Array = TypeVar("_Array", bound=SupportsDLPack)


class Entry:
    """The C entry point of one kind of function, and what C calls when it drops one.

    *enter* runs as a TVMFFISafeCallType of the cffi *declaration*, whose first
    parameter is a key of *table*.
    """

    def __init__(self, table: dict[int, Any], declaration: str, enter: Callable[..., int]) -> None:
        self._table = table
        self._keys = itertools.count(1)
        # All immortal: C may call them late, and from any thread.
        call = ffi.callback(declaration, immortal(enter), error=-1, onerror=immortal(_escaped))
        self._call = immortal(ffi.cast("TVMFFISafeCallType", immortal(call)))
        # A method of C: an exception that is pending in whoever drops the function stays.
        self._deleter = destructor("void(*)(void *)", table.__delitem__)

    def function(self, value: Any) -> Handle:
        """A new function object; *enter* finds *value* in the table, while C has the object."""
        key, slot = next(self._keys), new_slot()
        owner, table = ffi.cast("void *", key), self._table
        try:
            table[key] = value
            _status, handle = made(slot, C.TVMFFIFunctionCreate, owner, self._call, self._deleter)
        finally:
            if not slot[0]:  # else the object removes the entry when it dies
                table.pop(key, None)
        if handle is None:
            raise raised()
        return handle


def _escaped(_class: type, exception: BaseException, _traceback: Any) -> None:
    """An exception that came before or after *enter* could catch it (a signal's)."""
    set_raised(exception)


_INT: Final[int] = C.kTVMFFIInt
_DLTENSOR: Final[int] = C.kTVMFFIDLTensorPtr

_callables: dict[int, Callable[..., Any]] = {}


def _enter(key: int, arguments: Any, count: int, result: Any, _callables: Any = _callables) -> int:
    """Run the callable *key*: a TVMFFISafeCallType, its arguments as pairs of int64."""
    borrowed: list[Any] | None = None
    # An error that waits in this thread is that of a callee further out, and not ours to drop.
    set_aside = get_ident() in untaken if untaken else False
    if set_aside:
        untaken.discard(get_ident())
    try:
        if count == 1:  # the most frequent: 0.3 us less than by a list
            tag = arguments[0]
            argument = arguments[1] if tag == _INT else view(tag, arguments[1])
            if tag == _DLTENSOR:
                borrowed = [argument]
            value = _callables[key](argument)
        elif count:
            words = ffi.unpack(arguments, 2 * count)
            tags, payloads = words[::2], words[1::2]
            given = [
                payload if tag == _INT else view(tag, payload)
                for tag, payload in zip(tags, payloads, strict=True)
            ]
            if _DLTENSOR in tags:
                borrowed = [
                    tensor for tensor, tag in zip(given, tags, strict=True) if tag == _DLTENSOR
                ]
            value = _callables[key](*given)
        else:
            value = _callables[key]()
        if value is None:
            result[0] = _NOTHING
        else:
            _give(value, result)
        if borrowed is not None:
            _check_not_kept(borrowed, ffi.cast("int64_t *", result))
    except BaseException as exc:  # KeyboardInterrupt too crosses C, as an error
        set_raised(exc)
        return -1
    finally:
        if borrowed is not None:  # their memory is the caller's, who may free it now
            for tensor in borrowed:
                expire_lent(tensor)
        if set_aside:
            untaken.add(get_ident())
    return 0


def _check_not_kept(borrowed: list[Any], result: Any) -> None:
    """ExchangeError if the callback returns a borrowed tensor, or an object has one now."""
    for tensor in borrowed:
        handle = getattr(tensor, "_native", None)
        # If no other code has the tensor as an object, ours is the only reference.
        if handle is not None and handle.is_lent():
            release(result)
            raise ExchangeError(
                "the callback returns or keeps in an object a tensor that was only lent to it "
                "(DLTensor *), whose memory may be gone when it has returned: copy it "
                "(dlbridge.to_device(t, 'cpu', copy=True))"
            )


_NOTHING: Final = ffi.new("TVMFFIAny *")[0]


def _give(value: Any, result: Any) -> None:
    """Write *value* to *result* so that the caller owns it."""
    keep = Temporaries()
    given = ffi.new("int64_t[2]", pack(value, keep))
    if C.TVMFFIAnyViewToOwnedAny(ffi.cast("TVMFFIAny *", given), result):
        raise raised()


_python_entry: Final = Entry(_callables, "int(intptr_t, int64_t *, int32_t, TVMFFIAny *)", _enter)


def make_function(function: Callable[..., Any]) -> Handle:
    """A new function object that calls *function*, and keeps it alive."""
    return _python_entry.function(function)


def pack_callable(value: Callable[..., Any], keep: Temporaries) -> tuple[int, int]:
    """A Python callable as a new function object."""
    return keep.own(C.kTVMFFIFunction, make_function(value))


def check_symbol(symbol: int) -> None:
    """TypeError or ValueError unless *symbol* can be the address of a C function."""
    if not isinstance(symbol, int) or isinstance(symbol, bool):
        raise TypeError(
            f"the address of a C function is an int, not {symbol!r}: int(ffi.cast('intptr_t', f)) "
            "gives it for a cffi function, ctypes.cast(f, ctypes.c_void_p).value for a ctypes one"
        )
    if not symbol:
        raise ValueError("the C function's address is NULL: its library has no such symbol")
    if not 0 < symbol <= sys.maxsize * 2 + 1:
        raise ValueError(f"{symbol:#x} is not the address of a C function: no pointer has it")


_symbols: dict[int, tuple[Any, object]] = {}


def _call_mlir(key: int, arguments: Any, count: int, result: Any, _symbols: Any = _symbols) -> int:
    """Call the ``void(void **)`` of MLIR's ``llvm.emit_c_interface``.

    It takes an array of pointers to what a TVMFFISafeCallType takes, and to its result.
    """
    try:
        passed = ffi.new("void *[]", [ffi.NULL, arguments, result])
        number, status = ffi.new("int32_t *", count), ffi.new("int *", 0)
        pointers = ffi.new("void *[]", [passed, passed + 1, number, passed + 2, status])
        _symbols[key][0](pointers)
    except BaseException as exc:  # such as Ctrl-C: it crosses C as an error
        set_raised(exc)
        return -1
    return int(status[0])


_mlir_entry: Final = Entry(_symbols, "int(intptr_t, TVMFFIAny *, int32_t, TVMFFIAny *)", _call_mlir)


_CLASSES: Final = "Array Dict List Map Module Object Shape Tensor"
_NAMES: Final = {f"ffi.{name}": name for name in _CLASSES.split()} | {
    "ffi.String": "str",
    "ffi.Bytes": "bytes",
    "ffi.Function": "Callable",
    "DLTensor*": "Tensor",
    "DataType": "dtype",
    "ffi.OpaquePtr": "c_void_p",
    "void*": "c_void_p",
}


def parse(text: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON in *text*; empty for empty text. tvm_ffi nests some of it unquoted: as it is."""
    if not isinstance(text, str):
        return text
    import json  # 2 ms, which the first call of a function need not take

    return json.loads(text) if text else {}


def _typed(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``named_args`` of a function's schema; empty for a packed function."""
    schema = metadata.get("type_schema")
    named_args = parse(schema).get("named_args") if schema else None
    return named_args or {}


def returns_none(metadata: Mapping[str, Any]) -> bool:
    """Whether the function is known to return nothing."""
    returns = _typed(metadata).get("return")
    return returns is not None and returns[0]["type"] == "None"


class _NoDefault:
    """The default of a parameter that only the function knows, or that has none."""

    def __repr__(self) -> str:
        return "..."


NO_DEFAULT: Final = _NoDefault()


def signature_of(metadata: Mapping[str, Any]) -> Signature:
    """The signature that *metadata* describes; ``(*args)`` where it says nothing."""
    from inspect import Parameter, Signature

    names = metadata.get("arg_names")
    typed = _typed(metadata)
    types, returns = typed.get("params"), typed.get("return")
    result = annotation_of(returns[0]) if returns else Signature.empty
    if names is None and types is None:
        return Signature([Parameter("args", Parameter.VAR_POSITIONAL)], return_annotation=result)
    count = len(names if names is not None else types or ())
    required = count - metadata.get("arg_optional", 0)
    parameters = [
        Parameter(
            names[i] if names else f"arg{i}",
            Parameter.POSITIONAL_OR_KEYWORD if names else Parameter.POSITIONAL_ONLY,
            default=Parameter.empty if i < required else NO_DEFAULT,
            annotation=annotation_of(types[i]) if types else Parameter.empty,
        )
        for i in range(count)
    ]
    return Signature(parameters, return_annotation=result)


def annotation_of(schema: Mapping[str, Any]) -> str:
    """A schema as an annotation: ``"Array[int | None]"``."""
    name = schema["type"]
    arguments = [annotation_of(part) for part in schema.get("args", ())]
    if name == "Optional":
        return f"{arguments[0]} | None"
    if name == "Variant":
        return " | ".join(arguments)
    named = schema.get("named_args")
    if named:
        taken = ", ".join(annotation_of(part) for part in named["params"])
        return f"Callable[[{taken}], {annotation_of(named['return'][0])}]"
    name = _NAMES.get(name, name)
    return f"{name}[{', '.join(arguments)}]" if arguments else name


def _say_moved(*_arguments: Any) -> None:
    raise ValueError("the Function was moved into a call and is empty now")


# Called by an empty Function, so that no call has to check whether it is empty.
_MOVED: Final = immortal(make_function(_say_moved))


def _say_null(*_arguments: Any) -> None:
    raise ValueError("the Function is NULL: whoever made it gave no C function to call")


_NULL: Final = immortal(make_function(_say_null))


@public_in("dlbridge.ffi")
class Function(Object):
    """A function of libtvm_ffi: call it with any values and with tensors of any library.

    It takes positional arguments only, unless its metadata names the parameters.
    `get_global_func`, a `Module` and `convert_func` give such functions.

    Examples
    --------
    >>> f = ffi.convert_func(lambda x, y: x + y)
    >>> f(1, 2)
    3
    >>> step = f.bind(1, 2)
    >>> step()
    3
    """

    __slots__ = ("_device", "_metadata", "_name", "_pointer")

    _device: Device  # of a `DeviceFunction` only
    _pointer: Any
    _name: str  # for people: not set where nobody said one
    _metadata: Mapping[str, Any] | str  # not parsed yet

    def _adopt(self, handle: Handle | None) -> None:
        super()._adopt(handle)
        if handle is None:
            handle = _MOVED
        elif not ffi.cast("TVMFFIFunctionCell *", handle + HEADER).safe_call:
            handle = _NULL  # to call it would end the process
        self._pointer = ffi.cast("void *", handle)

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # anybody's: what C returns
            """Call the function; its metadata may name the parameters."""

    else:
        __call__ = call

    def __repr__(self) -> str:
        name = getattr(self, "_name", "")
        if not name or self._handle is None:
            return super().__repr__()
        return f"<ffi.Function {name} at {self._handle:#x}>"

    def __copy__(self) -> Function:
        return self  # as Python's functions do

    def __deepcopy__(self, _memo: Any) -> Function:
        return self

    def bind(self, *arguments: Any) -> BoundCall:
        """A call prepared once: ``step = f.bind(x, y)``, then ``step()`` as often as you like.

        The arguments are packed now, and kept; tensors are not exported again,
        so that a call costs little more than the C call itself.

        Parameters
        ----------
        *arguments : object
            The arguments of all the calls, in the order of the parameters. A
            function whose metadata names its parameters takes keywords, too.

        Returns
        -------
        BoundCall
            ``step()`` calls the function, from any thread and also while another
            call runs; ``step.replace(index, value)`` packs one argument anew.

        Raises
        ------
        ValueError
            If the function was moved into a call, or has no C function.
        ExchangeError
            A BufferError, if a tensor is read-only and did not come by
            `dlbridge.ffi.readonly`.

        Examples
        --------
        >>> step = ffi.get_global_func("ffi.Array").bind(1, 2)
        >>> step()
        (1, 2)
        """
        handle = handle_of(self)
        if not ffi.cast("TVMFFIFunctionCell *", handle + HEADER).safe_call:
            _say_null()
        silent = returns_none(self.metadata)
        return bind(handle, list(arguments), silent=silent, keeping=self._keeping)

    def _keeping(self) -> Temporaries:
        """What keeps, and looks at, what the arguments of a bound call need."""
        return Temporaries()

    # A function that returns no tensor gains nothing by `like`: the types say tensors.
    @overload
    def like(self, library: Literal["numpy"]) -> Callable[..., np.ndarray[Any, Any]]: ...
    @overload
    def like(self, library: Literal["torch"]) -> Callable[..., torch.Tensor]: ...
    @overload
    def like(self, library: Literal["jax"]) -> Callable[..., jax.Array]: ...
    @overload
    def like(self, library: type[_Array]) -> Callable[..., _Array]: ...
    @overload
    def like(self, library: str) -> Callable[..., Any]: ...
    def like(self, library: str | type) -> Callable[..., Any]:
        """The function, returning tensors of *library* instead of `dlbridge.Tensor`.

        Parameters
        ----------
        library : str or type
            The library's name, such as ``"torch"``, or one of its tensor classes.

        Returns
        -------
        callable
            It takes the arguments of the function. A tensor that the function
            returns becomes an array of *library* on the same memory. A container with
            tensors in it comes back as a tuple, a list or a dict with such arrays; one
            without stays as it is. A *library* that is not installed, or has no arrays,
            raises `ModuleNotFoundError` or `TypeError` at such a call.

        Examples
        --------
        >>> same = ffi.convert_func(lambda x: x)
        >>> same.like("numpy")(np.ones(2))
        array([1., 1.])
        >>> same.like("numpy")([np.ones(2), 5])
        (array([1., 1.]), 5)
        """
        convert = converter(library)
        return lambda *args, **kwargs: _converted(self(*args, **kwargs), convert)

    def reading(self, *places: int) -> Callable[..., Any]:
        """The function, known not to write to its arguments; with *places*, not to those.

        Only you can know that. It is needed for read-only tensors: see
        `dlbridge.ffi.readonly`.

        Parameters
        ----------
        *places : int
            The positions of the arguments that are only read, counted from 0. None
            given: all arguments are only read.

        Returns
        -------
        callable
            It takes the arguments of the function, by position only.

        Examples
        --------
        >>> x = np.arange(3.0)
        >>> x.flags.writeable = False
        >>> total = ffi.convert_func(lambda x: float(x.sum()), tensor_cls="numpy")
        >>> total.reading(0)(x)
        3.0
        """

        def call(*args: Any) -> Any:
            return self(
                *[
                    readonly(arg) if not places or index in places else arg
                    for index, arg in enumerate(args)
                ]
            )

        return call

    @property
    def release_gil(self) -> bool:
        """True, as every call releases the GIL."""
        return True

    @release_gil.setter
    def release_gil(self, release: bool) -> None:
        if not release:
            raise ValueError("a call through cffi always releases the GIL; release_gil stays True")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that was registered with the function; empty if there is none."""
        metadata = getattr(self, "_metadata", {})
        if isinstance(metadata, str):
            metadata = self._metadata = parse(metadata)
        return metadata

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.metadata)

    @staticmethod
    def __from_extern_c__(c_symbol: int, *, keep_alive_object: object = None) -> Function:
        """A function from the address of a C function of type TVMFFISafeCallType.

        *keep_alive_object*, a library perhaps, lives as long as the function.
        """
        check_symbol(c_symbol)
        entry, make = ffi.cast("TVMFFISafeCallType", c_symbol), C.TVMFFIFunctionCreate
        if keep_alive_object is None:
            handle = made(new_slot(), make, ffi.NULL, entry, ffi.NULL)[1]
        else:
            handle = with_owner(keep_alive_object, make, entry)
        if handle is None:
            raise raised()
        return wrap(handle, C.kTVMFFIFunction, Function)

    @staticmethod
    def __from_mlir_packed_safe_call__(
        mlir_packed_symbol: int, *, keep_alive_object: object = None
    ) -> Function:
        """A function from the address of one that MLIR's C interface wraps: ``void(void **)``.

        Each call goes through Python here; a TVMFFISafeCallType symbol does not.
        """
        check_symbol(mlir_packed_symbol)
        function = ffi.cast("void(*)(void **)", mlir_packed_symbol)
        handle = _mlir_entry.function((function, keep_alive_object))
        return wrap(handle, C.kTVMFFIFunction, Function)


class KeywordFunction(Function):
    """A function whose metadata names its parameters (``arg_names``)."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, with arguments by position or by name."""
        return Function.__call__(self, *(self._in_order(args, kwargs) if kwargs else args))

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall:
        """As `Function.bind`, and with keywords; `replace` takes positions of parameters."""
        return Function.bind(self, *(self._in_order(args, kwargs) if kwargs else args))

    def _in_order(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """The arguments by their positions; TypeError if they do not fit the parameters."""
        signature = self.__signature__
        try:
            bound = signature.bind(*args, **kwargs)
        except unless_handler(TypeError) as exc:
            raise TypeError(f"{exc}; the function takes {signature}") from None
        for given, name in zip(bound.arguments, signature.parameters, strict=False):
            if given != name:
                raise TypeError(
                    f"{name!r} must be given if {given!r} is: arguments reach the function by "
                    f"their place, and only it knows the default; it takes {signature}"
                )
        return bound.args


class DeviceFunction(KeywordFunction):
    """A function of a module that was loaded for a device: tensors of others are refused."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, with arguments by position or, where they have names, by name."""
        arguments = self._in_order(args, kwargs) if kwargs else args
        return call_keeping(self, arguments, self._keeping())

    def _keeping(self) -> Temporaries:
        return OfOneDevice(self._device, getattr(self, "_name", "a function"))


def _converted(value: Any, convert: Callable[[Any], Any], above: tuple[Any, ...] = ()) -> Any:
    """*value* with its tensors converted; a container with such inside as one of Python's own.

    *above* are the containers that *value* is in: one that contains itself stays as it is there.
    """
    if not isinstance(value, Object) or any(value is other for other in above):
        return convert(value)
    keys: list[Any] = []
    if isinstance(value, Mapping):
        keys, before = map(list, zip(*value.items(), strict=True)) if value else ([], [])
    elif isinstance(value, Sequence):
        before = list(value)
    else:
        return value
    converted = [_converted(item, convert, (*above, value)) for item in before]
    if not any(map(operator.is_not, converted, before)):
        return value
    if isinstance(value, Mapping):
        return dict(zip(keys, converted, strict=True))
    return converted if isinstance(value, MutableSequence) else tuple(converted)


def described(
    function: Function,
    metadata: Mapping[str, Any] | str,
    name: str = "",
    device: Device | None = None,
) -> Function:
    """*function*, which knows its metadata, and takes keywords if that names them.

    Metadata as text (JSON) is parsed when it is asked for. *name* is for its repr; of another
    device than *device*, if given, no tensors are passed to it.
    """
    function._metadata = metadata
    function._name = name
    if device is not None:
        function._device = device
        function.__class__ = DeviceFunction
    if type(function) is Function and "arg_names" in metadata:
        function.__class__ = KeywordFunction
    return function


def check_callable(function: object) -> None:
    """TypeError if *function* cannot be called."""
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called, so it cannot become a Function")


@public_in("dlbridge.ffi")
def convert_func(pyfunc: Callable[..., Any], tensor_cls: Any = None) -> Function:
    """The Python callable as a `Function`.

    Parameters
    ----------
    pyfunc : callable
        It is called with positional arguments.
    tensor_cls : type or str, optional
        Tensor arguments come as instances of this class, or of this library's
        class; as `dlbridge.Tensor` by default.

    Returns
    -------
    Function
        It keeps *pyfunc* alive.

    Raises
    ------
    TypeError
        If *pyfunc* cannot be called.

    Examples
    --------
    >>> total = ffi.convert_func(lambda x: float(x.sum()), tensor_cls="numpy")
    >>> total(np.ones(3))
    3.0
    """
    check_callable(pyfunc)
    target = pyfunc
    if tensor_cls is not None:
        convert = converter(tensor_cls)

        def target(*arguments: Any) -> Any:
            return pyfunc(*map(convert, arguments))

    function = wrap(make_function(target), C.kTVMFFIFunction, Function)
    function._name = getattr(pyfunc, "__qualname__", "")
    return function


_Callable = TypeVar("_Callable", bound="Callable[..., object]")


@overload
def get_global_func(name: str, allow_missing: Literal[False] = False) -> Function: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> Function | None: ...
@public_in("dlbridge.ffi")
def get_global_func(name: str, allow_missing: bool = False) -> Function | None:
    """The global function *name*.

    Parameters
    ----------
    name : str
        As the library registered it.
    allow_missing : bool
        Whether None is returned where there is no such function.

    Returns
    -------
    Function or None
        The function, which keeps working when the name is removed.

    Raises
    ------
    ValueError
        If there is no such function, unless *allow_missing*.

    Examples
    --------
    >>> ffi.get_global_func("ffi.Array")(1, 2)
    (1, 2)
    >>> ffi.get_global_func("docs.nothing", allow_missing=True) is None
    True
    """
    status, handle = look_up(_name(name))
    if status:
        raise raised()
    if handle is None:
        if allow_missing:
            return None
        hint = did_you_mean(name, list_global_func_names())
        raise ValueError(
            f"there is no global function {name!r}{hint}; list_global_func_names() lists them, and "
            "a library that registers functions must be loaded first"
        )
    function = wrap(handle, C.kTVMFFIFunction, Function)
    try:
        text = ask("ffi.GetGlobalFuncMetadata", name) or ""
    except unless_handler(RuntimeError):
        text = ""  # another thread has just removed the name; the function is ours
    return described(function, text, name)


def _name(name: str) -> ByteArray:
    if not isinstance(name, str):
        raise TypeError(f"the name of a global function is a str, not {name!r}")
    return ByteArray(name)


@public_in("dlbridge.ffi")
def get_global_func_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of the global function *name*.

    Parameters
    ----------
    name : str
        As the library registered it.

    Returns
    -------
    Mapping
        What the registrar said about the function, its ``type_schema`` first.

    Raises
    ------
    ValueError
        If there is no such function.

    Examples
    --------
    >>> "type_schema" in ffi.get_global_func_metadata("ffi.GetRegisteredTypeKeys")
    True
    """
    return get_global_func(name).metadata


@overload
def register_global_func(func_name: _Callable, *, override: bool = False) -> _Callable: ...
@overload
def register_global_func(func_name: str, f: _Callable, override: bool = False) -> _Callable: ...
@overload
def register_global_func(
    func_name: str, f: None = None, override: bool = False
) -> Callable[[_Callable], _Callable]: ...
@public_in("dlbridge.ffi")
def register_global_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Make the Python callable *f* the global function *func_name*.

    ``register_global_func("name", f)``, or as a decorator: ``@register_global_func``
    (the function's own name), ``@register_global_func("name")``. Positional
    parameters are published by name, so that others can pass keywords.

    Parameters
    ----------
    func_name : str or callable
        The name, or the decorated function.
    f : callable, optional
        The function.
    override : bool
        Whether a function with that name is replaced.

    Returns
    -------
    callable
        *f* itself; without it, a decorator.

    Raises
    ------
    RuntimeError
        If the name is taken and *override* is false.

    Examples
    --------
    >>> @ffi.register_global_func("docs.double")
    ... def double(x):
    ...     return 2 * x
    >>> ffi.get_global_func("docs.double")(x=4)
    8
    >>> ffi.remove_global_func("docs.double")
    """
    if callable(func_name):
        f, func_name = func_name, func_name.__name__
    if f is None:
        return lambda function: register_global_func(func_name, function, override)
    import inspect
    import json

    name = _name(func_name)
    check_callable(f)
    handle = handle_of(f) if isinstance(f, Function) else make_function(f)
    metadata = ByteArray(json.dumps(_published(f)))
    doc = ByteArray(inspect.getdoc(f) or "")
    info = ffi.new("TVMFFIMethodInfo *")
    info.name, info.doc, info.metadata = name.pointer[0], doc.pointer[0], metadata.pointer[0]
    info.method.type_index = C.kTVMFFIFunction
    info.method.v_ptr = ffi.cast("void *", handle)
    if py.TVMFFIFunctionSetGlobalFromMethodInfo(address(info), int(override)):
        raise raised()
    return f


def _published(function: Any) -> dict[str, Any]:
    """The metadata that is registered with *function*: a schema, and its parameters' names."""
    if isinstance(function, Function):
        return dict(function.metadata)
    metadata: dict[str, Any] = {"type_schema": '{"type":"ffi.Function"}'}
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except unless_handler(TypeError, ValueError):
        return metadata
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        metadata["arg_names"] = [parameter.name for parameter in parameters]
        metadata["arg_optional"] = sum(
            parameter.default is not parameter.empty for parameter in parameters
        )
    return metadata


@public_in("dlbridge.ffi")
def remove_global_func(name: str) -> None:
    """Remove the global function *name*; functions that were got keep working.

    Parameters
    ----------
    name : str
        As it was registered.

    Examples
    --------
    >>> _ = ffi.register_global_func("docs.short", lambda: 1)
    >>> ffi.remove_global_func("docs.short")
    >>> "docs.short" in ffi.list_global_func_names()
    False
    """
    _name(name)
    ask("ffi.FunctionRemoveGlobal", name)


@public_in("dlbridge.ffi")
def list_global_func_names() -> list[str]:
    """The names of all global functions.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> "ffi.Array" in ffi.list_global_func_names()
    True
    """
    # The list is copied when the functor is made: nothing changes in between.
    functor = ask("ffi.FunctionListGlobalNamesFunctor")
    return sorted(functor(i) for i in range(functor(-1)))
