"""Function objects and the global registry: calling, metadata, signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._lib import C, address, ffi, immortal, py
from .any import ByteArray, Handle, constructors, packer_of, packers
from .bound import BoundCall, bind
from .call import call_with_gil, make_fast_call
from .callback import make_function
from .error import raised
from .object import Object, own, wrap
from .schema import borrows_tensors, parse, returns_none, signature_of
from .symbol import from_mlir_symbol, from_symbol
from .tensor import converter, view_packer_of, view_packers

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

__all__ = [
    "Function",
    "builtin",
    "convert_func",
    "described",
    "get_global_func",
    "get_global_func_metadata",
    "list_global_func_names",
    "register_global_func",
    "remove_global_func",
]


def _say_moved(*_arguments: Any) -> None:
    raise ValueError("the Function was moved into a call and is empty now")


# What an empty Function calls: nobody has to look whether it is empty.
_MOVED: Final = immortal(make_function(_say_moved))


class Function(Object):
    """A function of libtvm_ffi: call it with any values and anybody's tensors.

    Positional arguments only, unless its metadata names the parameters.
    """

    __slots__ = ("_metadata", "_pointer")

    _pointer: Any
    _metadata: Mapping[str, Any] | str  # not parsed yet

    def _adopt(self, handle: Handle | None) -> None:
        super()._adopt(handle)
        self._pointer = ffi.cast("void *", _MOVED if handle is None else handle)

    __call__ = make_fast_call(packers, packer_of)

    def __copy__(self) -> Function:
        return self  # as Python's functions do

    def __deepcopy__(self, _memo: Any) -> Function:
        return self

    def bind(self, *arguments: Any) -> BoundCall:
        """A call prepared once: ``step = f.bind(x, y)``, then ``step()`` as often as you like.

        The arguments are packed now, and kept; tensors are not exported again,
        so that a call costs little more than the C call itself.
        ``step.replace(i, value)`` packs one of them anew. May be called from
        any thread and while it runs.
        """
        if self._handle is None:
            raise ValueError("the Function was moved into a call and is empty now")
        return bind(self._handle, list(arguments), silent=returns_none(self.metadata))

    def like(self, library: Any) -> Callable[..., Any]:
        """The function, returning tensors of *library*: a name, or a tensor class.

        ``f.like("torch")(x)``. The memory is the same; dlbridge's Tensor is the default.
        """
        convert = converter(library)
        return lambda *args, **kwargs: convert(self(*args, **kwargs))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the registrar says about the function, as JSON; empty if nothing."""
        found = getattr(self, "_metadata", {})
        if isinstance(found, str):
            found = self._metadata = parse(found)
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.metadata)

    @staticmethod
    def __from_extern_c__(c_symbol: int, *, keep_alive_object: object = None) -> Function:
        """A function from the address of a C function of type TVMFFISafeCallType.

        *keep_alive_object*, a library perhaps, lives as long as the function.
        """
        return own(from_symbol(c_symbol, keep_alive_object), C.kTVMFFIFunction, Function)

    @staticmethod
    def __from_mlir_packed_safe_call__(
        mlir_packed_symbol: int, *, keep_alive_object: object = None
    ) -> Function:
        """A function from the address of one that MLIR's C interface wraps: ``void(void **)``.

        Each call goes through Python here; a TVMFFISafeCallType symbol does not.
        """
        handle = from_mlir_symbol(mlir_packed_symbol, keep_alive_object)
        return own(handle, C.kTVMFFIFunction, Function)


class KeywordFunction(Function):
    """A function whose metadata names its parameters (``arg_names``)."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Function.__call__(self, *(self._in_order(args, kwargs) if kwargs else args))

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall:
        """As `Function.bind`; `replace` takes the places of the parameters."""
        return Function.bind(self, *(self._in_order(args, kwargs) if kwargs else args))

    def _in_order(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """The arguments by their places; TypeError if they do not fit the parameters."""
        signature = self.__signature__
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{exc}; the function takes {signature}") from None
        for given, name in zip(bound.arguments, signature.parameters, strict=False):
            if given != name:
                raise TypeError(
                    f"{name!r} must be given if {given!r} is: arguments reach the function by "
                    f"their place, and only it knows the default; it takes {signature}"
                )
        return bound.args


class BorrowingFunction(Function):
    """A function all of whose tensor parameters are ``DLTensor *``: they are lent to it.

    Half the cost of a managed tensor. A function that takes anything might keep
    the pointer, so only a schema allows this.
    """

    __slots__ = ()

    __call__ = make_fast_call(view_packers, view_packer_of)


constructors[C.kTVMFFIFunction] = lambda handle, index: wrap(handle, index, Function)


def get_global_func(name: str, allow_missing: bool = False) -> Any:
    """The global function *name*; None if *allow_missing*, else ValueError if there is none."""
    out = ffi.new("void **")
    if py.TVMFFIFunctionGetGlobal(_name(name), address(out)):
        raise raised()
    if not out[0]:
        if allow_missing:
            return None
        raise ValueError(
            f"there is no global function {name!r}; list_global_func_names() lists them, and "
            "a library that registers functions must be loaded first"
        )
    function = wrap(address(out[0]), C.kTVMFFIFunction, Function)
    try:
        text = call_with_gil(builtin("ffi.GetGlobalFuncMetadata"), name) or ""
    except RuntimeError:
        text = ""  # another thread has just removed the name; the function is ours
    if '"arg_names"' in text or "DLTensor*" in text:
        return described(function, parse(text))
    function._metadata = text
    return function


def described(function: Function, metadata: Mapping[str, Any]) -> Function:
    """*function*, which knows its metadata, and takes keywords if that names them."""
    function._metadata = metadata
    if type(function) is Function:
        if "arg_names" in metadata:
            function.__class__ = KeywordFunction
        elif borrows_tensors(metadata):
            function.__class__ = BorrowingFunction
    return function


def _name(name: str) -> ByteArray:
    if not isinstance(name, str):
        raise TypeError(f"the name of a global function is a str, not {name!r}")
    return ByteArray(name)


def _check_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called, so it becomes no function")


_builtins: dict[str, Handle] = {}


def builtin(name: str) -> Handle:
    """The handle of a function of the library's own, kept."""
    handle = _builtins.get(name)
    if handle is None:
        out = ffi.new("void **")
        if py.TVMFFIFunctionGetGlobal(ByteArray(name), address(out)) or not out[0]:
            raise ValueError(f"this libtvm_ffi has no {name}")
        handle = _builtins[name] = Handle(address(out[0]))
    return handle


def get_global_func_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of the global function *name*; ValueError if there is none."""
    return get_global_func(name).metadata  # type: ignore[no-any-return]


def register_global_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Make the Python callable *f* the global function *func_name*.

    ``register_global_func("name", f)``, or as a decorator: ``@register_global_func``
    (the function's own name), ``@register_global_func("name")``. Positional
    parameters are published by name, so that others can pass keywords.
    RuntimeError if the name is taken and *override* is false.
    """
    if callable(func_name):
        f, func_name = func_name, func_name.__name__
    if f is None:
        return lambda found: register_global_func(func_name, found, override)
    import inspect
    import json

    name = _name(func_name)
    _check_callable(f)
    handle = f._handle if isinstance(f, Function) else make_function(f)
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
    """What is registered beside *function*: a schema, and its parameters' names."""
    if isinstance(function, Function):
        return dict(function.metadata)
    metadata: dict[str, Any] = {"type_schema": '{"type":"ffi.Function"}'}
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return metadata
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        metadata["arg_names"] = [parameter.name for parameter in parameters]
        metadata["arg_optional"] = sum(
            parameter.default is not parameter.empty for parameter in parameters
        )
    return metadata


def remove_global_func(name: str) -> None:
    """Remove the global function *name*; functions that were got keep working."""
    _name(name)
    call_with_gil(builtin("ffi.FunctionRemoveGlobal"), name)


def list_global_func_names() -> list[str]:
    """The names of all global functions, sorted."""
    # The list is copied when the functor is made: nothing changes in between.
    functor = call_with_gil(builtin("ffi.FunctionListGlobalNamesFunctor"))
    return sorted(functor(i) for i in range(functor(-1)))


def convert_func(pyfunc: Callable[..., Any], tensor_cls: Any = None) -> Function:
    """The Python callable as a `Function`.

    Tensor arguments come as instances of *tensor_cls*, a class or a library's
    name; as dlbridge's Tensor by default.
    """
    _check_callable(pyfunc)
    target = pyfunc
    if tensor_cls is not None:
        convert = converter(tensor_cls)

        def target(*arguments: Any) -> Any:
            return pyfunc(*map(convert, arguments))

    return own(make_function(target), C.kTVMFFIFunction, Function)
