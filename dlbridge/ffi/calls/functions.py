"""Function objects: calling, binding, metadata, signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.implementation_details.python_api import immortal
from dlbridge.core.public import public_in

from .._lib import C, ffi
from ..values.reading import readonly
from ..values.tensors import converter
from ..values.words import HEADER, Handle
from ..values.wrappers import Object, wrap
from .bound import BoundCall, bind
from .callbacks import make_function
from .schemas import parse, returns_none, signature_of
from .symbols import from_mlir_symbol, from_symbol
from .unrolled import make_fast_call

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

    import jax
    import numpy as np
    import torch

    from dlbridge.typing import SupportsDLPack

    _Array = TypeVar("_Array", bound=SupportsDLPack)

__all__ = ["Function", "check_callable", "convert_func", "described"]


def _say_moved(*_arguments: Any) -> None:
    raise ValueError("the Function was moved into a call and is empty now")


# Called by an empty Function, so that no call has to check whether it is empty.
_MOVED: Final = immortal(make_function(_say_moved))


def _say_null(*_arguments: Any) -> None:
    raise ValueError("the Function is NULL: whoever made it gave no C function to call")


_NULL: Final = immortal(make_function(_say_null))


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

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ("_metadata", "_name", "_pointer")

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
        __call__ = make_fast_call()

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
        if self._handle is None:
            raise ValueError("the Function was moved into a call and is empty now")
        if not ffi.cast("TVMFFIFunctionCell *", self._handle + HEADER).safe_call:
            _say_null()
        return bind(self._handle, list(arguments), silent=returns_none(self.metadata))

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
            returns becomes an array of *library* on the same memory; tensors inside
            a container stay as they are. A *library* that is not installed, or has
            no arrays, raises `ModuleNotFoundError` or `TypeError` at such a call.

        Examples
        --------
        >>> same = ffi.convert_func(lambda x: x)
        >>> same.like("numpy")(np.ones(2))
        array([1., 1.])
        """
        convert = converter(library)
        return lambda *args, **kwargs: convert(self(*args, **kwargs))

    def reading(self, *places: int) -> Callable[..., Any]:
        """The function, known not to write to its arguments; with *places*, not to those.

        Only you can know that. It is needed for read-only tensors: see
        `dlbridge.ffi.readonly`.

        Parameters
        ----------
        *places : int
            The places of the arguments that are only read, counted from 0. None
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
                    readonly(arg) if not places or place in places else arg
                    for place, arg in enumerate(args)
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
        return wrap(from_symbol(c_symbol, keep_alive_object), C.kTVMFFIFunction, Function)

    @staticmethod
    def __from_mlir_packed_safe_call__(
        mlir_packed_symbol: int, *, keep_alive_object: object = None
    ) -> Function:
        """A function from the address of one that MLIR's C interface wraps: ``void(void **)``.

        Each call goes through Python here; a TVMFFISafeCallType symbol does not.
        """
        handle = from_mlir_symbol(mlir_packed_symbol, keep_alive_object)
        return wrap(handle, C.kTVMFFIFunction, Function)


class KeywordFunction(Function):
    """A function whose metadata names its parameters (``arg_names``)."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Function.__call__(self, *(self._in_order(args, kwargs) if kwargs else args))

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall:
        """As `Function.bind`, and with keywords; `replace` takes the places of the parameters."""
        return Function.bind(self, *(self._in_order(args, kwargs) if kwargs else args))

    def _in_order(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """The arguments by their places; TypeError if they do not fit the parameters."""
        signature = self.__signature__
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as exc:
            if is_from_handler(exc.__traceback__):
                raise
            raise TypeError(f"{exc}; the function takes {signature}") from None
        for given, name in zip(bound.arguments, signature.parameters, strict=False):
            if given != name:
                raise TypeError(
                    f"{name!r} must be given if {given!r} is: arguments reach the function by "
                    f"their place, and only it knows the default; it takes {signature}"
                )
        return bound.args


def described(function: Function, metadata: Mapping[str, Any] | str, name: str = "") -> Function:
    """*function*, which knows its metadata, and takes keywords if that names them.

    Metadata as text (JSON) is parsed when it is asked for. *name* is for its repr.
    """
    function._metadata = metadata
    function._name = name
    if type(function) is Function and not isinstance(metadata, str) and "arg_names" in metadata:
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
