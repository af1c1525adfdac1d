"""Modules: compiled libraries whose functions are attributes."""

from __future__ import annotations

import os
import re
import sys
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

from dlbridge import device as as_device
from dlbridge.abi import immortal
from dlbridge.extending import did_you_mean, public_in, unless_handler

from ._lib import address, ffi, py
from .classes import register_own
from .errors import raised
from .frames import ask
from .functions import (
    Function,
    check_symbol,
    described,
    get_global_func,
    list_global_func_names,
    parse,
)
from .objects import Object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dlbridge.typing import DeviceLike

    from .containers import Array


SYMBOL_PREFIX: Final = "__tvm_ffi_"
"""The beginning of the symbol of each function."""

# Symbols stand in the file as text that ends with NUL. Those that go on with an
# underscore are not functions of users, such as __tvm_ffi__metadata_NAME.
_SYMBOL: Final = re.compile(SYMBOL_PREFIX.encode() + rb"([A-Za-z0-9][!-~]*)\0")
_LARGEST: Final = 256 << 20  # bytes of a file that is searched


def names_in(file: Path) -> set[str]:
    """What stands in *file* as the symbol of a function; it need not be exported.

    Empty for a file that cannot be read, or is so large that the search takes long.
    The C API does not list the functions of a module.
    """
    try:
        content = file.read_bytes() if file.stat().st_size <= _LARGEST else b""
    except OSError:
        return set()
    return {match[1].decode("ascii") for match in _SYMBOL.finditer(content)}


_LOADERS: Final = "ffi.Module.load_from_file."
_LISTED: Final = 20  # names of functions in a message
# Endings for which the library takes the loader of ``so``.
_LIKE_SO: Final = frozenset({"dll", "dylib", "dso"})
# Compilers of sources, by the ending; those of GPUs pass -fPIC on in their own ways.
_COMPILERS: Final = {
    "c": "gcc -shared -fPIC",
    **dict.fromkeys(("cc", "cpp", "cxx"), "g++ -shared -fPIC"),
    "cu": "nvcc -shared -Xcompiler -fPIC",
    "hip": "hipcc -shared -fPIC",
}


@public_in("dlbridge.ffi")
class ModulePropertyMask(IntFlag):
    """The properties of a module, as flags.

    Examples
    --------
    >>> ffi.ModulePropertyMask.RUNNABLE in ffi.system_lib().get_property_mask()
    True
    """

    BINARY_SERIALIZABLE = 0b001
    RUNNABLE = 0b010
    COMPILATION_EXPORTABLE = 0b100


@public_in("dlbridge.ffi")
class Module(Object):
    """A library of functions: ``module.add_one(x)``.

    If `Module` has a method of the same name, ``module["kind"]`` is the function.
    Functions taken from the module keep the library loaded.

    Examples
    --------
    >>> hasattr(ffi.system_lib(), "no_such_function")
    False
    """

    # All calls hold the GIL (`ask`): loading registers functions and types in tables
    # that have no lock, and import lists have none either.

    # The functions that were got are kept as attributes.
    __slots__ = ("__dict__",)

    entry_name = "main"

    def _ask(self, question: str, name: str, query_imports: bool) -> Any:
        """The library's answer about the function *name*; None for a name with a NUL."""
        if isinstance(name, str) and "\0" in name:
            return None  # C would look for what is before the NUL
        return ask(question, self, name, query_imports)

    if TYPE_CHECKING:
        imports_: Array[Module]
        """The field of the object; `imports` is a list of them."""

    def __getattr__(self, name: str) -> Function:
        if name.startswith("__") or name in Object.__slots__:
            raise AttributeError(f"a Module has no attribute {name!r}", name=name, obj=self)
        function = self.get_function(name)
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Function:
        return self.get_function(name)

    def __call__(self, *args: Any) -> Any:  # anybody's: what the function returns
        """Call the function ``main``."""
        return self.main(*args)

    def __dir__(self) -> list[str]:
        return sorted(
            {*super().__dir__(), *vars(self), *self._exported()} - {"_device", "_names", "_path"}
        )

    def __repr__(self) -> str:
        file = vars(self).get("_path")
        if file is None or self._handle is None:
            return super().__repr__()
        return f"<ffi.Module {file.name} at {self._handle:#x}>"

    def _exported(self) -> list[str]:
        """The names of the functions, as far as its file says them; read once."""
        if self._handle is None:
            return []
        known: list[str] | None = vars(self).get("_names")
        if known is None:
            file = vars(self).get("_path")
            names = set() if file is None else names_in(file)
            known = sorted(name for name in names if self.implements_function(name))
            vars(self)["_names"] = known
        return known

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """The function *name*.

        Parameters
        ----------
        name : str
            Without the ``__tvm_ffi_`` of the symbol.
        query_imports : bool, optional
            Whether modules that this one imports are asked, too.

        Returns
        -------
        Function
            It keeps the library loaded, and knows its metadata.

        Raises
        ------
        AttributeError
            If the module has no such function.
        TypeError
            If *name* is not a str.

        Examples
        --------
        >>> module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
        >>> module.get_function("testing_dll_schema_id_int")(3)
        3
        """
        if not isinstance(name, str):
            raise TypeError(f"a function's name is a str, not {type(name).__name__}")
        function = self._ask("ffi.ModuleGetFunction", name, query_imports)
        if function is None:
            raise AttributeError(_no_function(name, self._exported()), name=name, obj=self)
        file = vars(self).get("_path")
        shown = name if file is None else f"{name} of {file.name}"
        metadata = self.get_function_metadata(name, query_imports) or {}
        return described(function, metadata, shown, vars(self).get("_device"))

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Whether the module has the function *name*.

        Parameters
        ----------
        name : str
            Without the ``__tvm_ffi_`` of the symbol.
        query_imports : bool, optional
            Whether modules that this one imports are asked, too.

        Returns
        -------
        bool
            Whether `get_function` finds it.

        Examples
        --------
        >>> ffi.system_lib().implements_function("no_such_function")
        False
        """
        return bool(self._ask("ffi.ModuleImplementsFunction", name, query_imports))

    def get_function_metadata(
        self, name: str, query_imports: bool = False
    ) -> Mapping[str, Any] | None:
        """The metadata of the function *name*.

        Parameters
        ----------
        name : str
            Without the ``__tvm_ffi_`` of the symbol.
        query_imports : bool, optional
            Whether modules that this one imports are asked, too.

        Returns
        -------
        Mapping or None
            With the key ``type_schema``, perhaps among others. None if the library
            says nothing, or has no such function.

        Examples
        --------
        >>> module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
        >>> list(module.get_function_metadata("testing_dll_schema_id_int"))
        ['type_schema']
        """
        text = self._ask("ffi.ModuleGetFunctionMetadata", name, query_imports)
        return parse(text or "") or None

    def get_function_doc(self, name: str, query_imports: bool = False) -> str | None:
        """The documentation of the function *name*.

        Parameters
        ----------
        name : str
            Without the ``__tvm_ffi_`` of the symbol.
        query_imports : bool, optional
            Whether modules that this one imports are asked, too.

        Returns
        -------
        str or None
            None if the library has none, or no such function.

        Examples
        --------
        >>> ffi.system_lib().get_function_doc("no_such_function") is None
        True
        """
        return self._ask("ffi.ModuleGetFunctionDoc", name, query_imports) or None

    @property
    def kind(self) -> str:
        """The kind of the module, such as ``"library"`` for a shared library."""
        return ask("ffi.ModuleGetKind", self)  # type: ignore[no-any-return]

    @property
    def imports(self) -> list[Module]:
        """The modules that this one imports."""
        return list(self.imports_)

    def import_module(self, module: Module) -> None:
        """Add *module* to the modules that `get_function` searches with ``query_imports=True``.

        Parameters
        ----------
        module : Module
            It is added to `imports`.

        Raises
        ------
        RuntimeError
            If *module* imports this one, itself or through others.

        Examples
        --------
        >>> module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
        >>> module.import_module(ffi.system_lib())
        >>> len(module.imports)
        1
        >>> module.clear_imports()
        """
        ask("ffi.ModuleImportModule", self, module)

    def clear_imports(self) -> None:
        """Remove all modules from `imports`."""
        ask("ffi.ModuleClearImports", self)

    def inspect_source(self, fmt: str = "") -> str:
        """The source that the module carries.

        Parameters
        ----------
        fmt : str, optional
            The format that is wanted, by a name that the module's kind knows;
            its usual one if empty.

        Returns
        -------
        str
            Empty if the module carries none.

        Examples
        --------
        >>> ffi.system_lib().inspect_source()
        ''
        """
        return ask("ffi.ModuleInspectSource", self, fmt)  # type: ignore[no-any-return]

    def get_write_formats(self) -> list[str]:
        """The formats that `write_to_file` knows for this kind of module."""
        return list(ask("ffi.ModuleGetWriteFormats", self))

    def write_to_file(self, file_name: str | os.PathLike[str], fmt: str = "") -> None:
        """Write the module to a file.

        Parameters
        ----------
        file_name : str or os.PathLike
            The file, which is made or replaced.
        fmt : str, optional
            One of `get_write_formats`; the usual one of the module's kind if empty.

        Raises
        ------
        RuntimeError
            If this kind of module cannot be written, as a shared library cannot.

        Examples
        --------
        >>> ffi.system_lib().get_write_formats()
        []
        >>> ffi.system_lib().write_to_file("module.so")
        Traceback (most recent call last):
            ...
        RuntimeError: Module[library] does not support WriteToFile
        """
        ask("ffi.ModuleWriteToFile", self, os.fspath(file_name), fmt)

    def get_property_mask(self) -> ModulePropertyMask:
        """The properties of the module, as flags.

        Returns
        -------
        ModulePropertyMask
            What the module can do.

        Examples
        --------
        >>> ffi.system_lib().get_property_mask() & ffi.ModulePropertyMask.RUNNABLE
        <ModulePropertyMask.RUNNABLE: 2>
        """
        return ModulePropertyMask(ask("ffi.ModuleGetPropertyMask", self))

    def is_binary_serializable(self) -> bool:
        """Whether the module can be converted to bytes."""
        return ModulePropertyMask.BINARY_SERIALIZABLE in self.get_property_mask()

    def is_runnable(self) -> bool:
        """Whether the module's functions can be called."""
        return ModulePropertyMask.RUNNABLE in self.get_property_mask()

    def is_compilation_exportable(self) -> bool:
        """Whether the module can be written as source or object code."""
        return ModulePropertyMask.COMPILATION_EXPORTABLE in self.get_property_mask()


register_own("ffi.Module", Module)


@public_in("dlbridge.ffi")
def load_module(
    path: str | os.PathLike[str],
    keep_module_alive: bool = True,
    *,
    device: DeviceLike | None = None,
) -> Module:
    """The module in a shared library, or in another kind of file that has a loader.

    Parameters
    ----------
    path : str or os.PathLike
        The file. A bare name is looked for by the system's loader.
    keep_module_alive : bool
        Whether it stays loaded for the life of the process: code in it frees the
        objects that its functions return.
    device : DeviceLike, optional
        The kind of device that its functions work on, such as ``"cpu"``; the number of the
        device does not matter. Tensors on others are then refused, also those in lists and
        containers, which costs a call some time. None: every tensor is passed, and a function
        that is given another device's must check that itself.

    Returns
    -------
    Module
        Its functions are attributes. With *device* they raise ExchangeError, a BufferError,
        for a tensor that they cannot reach.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    RuntimeError
        If it cannot be loaded; the message says why.

    Examples
    --------
    >>> module = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
    >>> module.testing_dll_schema_id_int(3)
    3
    """
    from pathlib import Path

    works_on = None if device is None else as_device(device)
    file = Path(path)
    if file.exists():
        file = file.absolute()  # the system's loader looks for a bare name elsewhere
    elif os.path.dirname(path):  # noqa: PTH120 - a Path forgets that "./nope.so" begins so
        raise _no_file(file)
    try:
        module: Module = ask("ffi.ModuleLoadFromFile", str(file))
    except unless_handler(RuntimeError) as exc:
        said = f"{file}: cannot open shared object file: No such file or directory"
        if not file.exists() and said in str(exc):  # and not another that it needs
            raise _no_file(file, "; the system's loader does not find it, either") from exc
        raise RuntimeError(_why_not(file, exc)) from exc
    vars(module)["_path"] = file  # for the repr of the module and of its functions
    if works_on is not None:
        vars(module)["_device"] = works_on
    if keep_module_alive:
        ask("ffi.ModuleGlobalsAdd", module)
    return module


def _no_function(name: str, known: list[str]) -> str:
    """The message for a *name* that is not among the *known* ones, as far as those are known."""
    if "\0" in name:
        return f"a function's name is text without NUL, not {name!r}; give what is before the NUL"
    listed = ", ".join(known[:_LISTED])
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return (
        f"the module has no function {name!r}{did_you_mean(name, known)}: its library exports no "
        f"symbol {SYMBOL_PREFIX}{name}"
    ) + (f"; its functions are {listed}{more}" if known else "")


def _no_file(file: Path, more: str = "") -> FileNotFoundError:
    return FileNotFoundError(
        f"there is no file {str(file)!r} to load (looked from {str(file.cwd())!r}{more}); build it "
        "first, or give the path of the library that was built"
    )


def _why_not(file: Path, error: RuntimeError) -> str:
    """The message for a *file* that cannot be loaded: the reason, and what to do."""
    names = list_global_func_names()
    known = {name.removeprefix(_LOADERS) for name in names if name.startswith(_LOADERS)}
    if "so" in known:
        known |= _LIKE_SO
    if file.suffix[1:] not in known:
        compiler, way = _COMPILERS.get(file.suffix[1:]), "rename the file"
        if compiler is not None:
            way = f"this is source: compile it (`{compiler} -o {file.stem}.so {file.name}`)"
        elif file.suffix == ".py":
            way = "this is source of Python: import it"
        elif ".so." in file.name:
            way = (
                "load a link to it whose name ends so (os.symlink), or take ctypes.CDLL(path) if "
                "it is a library of C without functions of TVM-FFI"
            )
        return (
            f"{str(file)!r} cannot be loaded: files are told apart by their ending, and there is "
            f"a loader for {', '.join('.' + one for one in sorted(known))} only; {way}, "
            "or load the library that registers its loader first"
        )
    reason = str(error).rpartition(f"{file}: ")[2]
    return (
        f"{str(file)!r} cannot be loaded: {reason}; it must be a shared library for this machine "
        "whose own dependencies are found (ldd lists them)"
    )


@public_in("dlbridge.ffi")
def system_lib(symbol_prefix: str = "") -> Module:
    """The functions that were registered in this process, as one module.

    Parameters
    ----------
    symbol_prefix : str
        ``system_lib("my.")["f"]`` is the symbol ``__tvm_ffi_my.f``, or ``__tvm_ffi_f``.

    Returns
    -------
    Module
        Its functions are attributes.

    Examples
    --------
    >>> ffi.system_lib().kind
    'library'
    """
    return ask("ffi.SystemLib", symbol_prefix)  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
def register_system_lib_symbol(name: str, symbol: Any) -> None:
    """Make a C function of type TVMFFISafeCallType *name* of the system library.

    Parameters
    ----------
    name : str
        With or without ``__tvm_ffi_`` in front.
    symbol : int or cffi function pointer
        The function's address, or a cffi function pointer or callback, which is
        kept for ever: a registered symbol can be replaced, but not removed.

    Raises
    ------
    TypeError
        If *symbol* is something else.
    ValueError
        If *symbol* is NULL or no address, or *name* cannot be the name of a C symbol.

    Examples
    --------
    >>> from ctypes import CFUNCTYPE, c_int, c_void_p, cast
    >>> safe_call = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
    >>> nothing = safe_call(lambda self, arguments, count, result: 0)
    >>> ffi.register_system_lib_symbol("docs.nothing", cast(nothing, c_void_p).value)
    >>> ffi.system_lib("docs.")["nothing"]() is None
    True
    """
    at = address(symbol) if _is_function_pointer(symbol) else symbol
    check_symbol(at)
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"the name of a C symbol is text without NUL, not {name!r}")
    full = name if name.startswith(SYMBOL_PREFIX) else SYMBOL_PREFIX + name
    if at is not symbol:
        immortal(symbol)
    if py.TVMFFIEnvModRegisterSystemLibSymbol(full.encode(), at):
        raise raised()


def _is_function_pointer(symbol: Any) -> bool:
    """Whether *symbol* is a cffi pointer to a function, or a ``void *``, which may be one."""
    kind = ffi.typeof(symbol) if isinstance(symbol, ffi.CData) else None
    return kind is not None and (kind.kind == "function" or kind == ffi.typeof("void *"))


@public_in("dlbridge.ffi")
def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
    """Put the global functions ``namespace.name`` into a module, each as ``name``.

    Parameters
    ----------
    namespace : str
        The beginning of the functions' names, without the dot.
    target_module_name : str, optional
        The module's name in `sys.modules`; *namespace* by default.

    Raises
    ------
    KeyError
        If there is no such module.

    Examples
    --------
    >>> import sys, types
    >>> sys.modules["docs_api"] = types.ModuleType("docs_api")
    >>> ffi.init_ffi_api("ffi", "docs_api")
    >>> sys.modules["docs_api"].Array(1)
    (1,)
    """
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace is a str such as 'my_library', not {namespace!r}")
    target = target_module_name or namespace
    module = sys.modules.get(target)
    if module is None:
        raise KeyError(f"there is no module {target!r} in sys.modules: import it before")
    prefix = namespace.removeprefix("tvm.") + "."
    for full in list_global_func_names():
        name = full.removeprefix(prefix)
        if name != full and "." not in name:
            setattr(module, name, get_global_func(full))
