"""Type schemas, the JSON in which functions and fields publish their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature

__all__ = [
    "annotation_of",
    "parse",
    "returns_none",
    "signature_of",
]

_NAMES: Final = {
    "ffi.String": "str",
    "ffi.Bytes": "bytes",
    "ffi.Function": "Callable",
    "ffi.Object": "Object",
    "ffi.Tensor": "Tensor",
    "ffi.Array": "Array",
    "ffi.List": "List",
    "ffi.Map": "Map",
    "ffi.Dict": "Dict",
    "ffi.Shape": "Shape",
    "ffi.Module": "Module",
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
    found = parse(schema).get("named_args") if schema else None
    return found or {}


def _parameters_of(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The schema of each parameter; None for a packed function, which takes anything."""
    return _typed(metadata).get("params")


def returns_none(metadata: Mapping[str, Any]) -> bool:
    """Whether the function is known to return nothing."""
    returns = _typed(metadata).get("return")
    return returns is not None and returns[0]["type"] == "None"


class _Unknown:
    """The default of a parameter that only the function knows."""

    def __repr__(self) -> str:
        return "..."


_UNKNOWN: Final = _Unknown()


def signature_of(metadata: Mapping[str, Any]) -> Signature:
    """The signature that *metadata* describes; ``(*args)`` where it says nothing."""
    from inspect import Parameter, Signature

    names = metadata.get("arg_names")
    types = _parameters_of(metadata)
    returns = _typed(metadata).get("return")
    result = annotation_of(returns[0]) if returns else Signature.empty
    if names is None and types is None:
        return Signature([Parameter("args", Parameter.VAR_POSITIONAL)], return_annotation=result)
    count = len(names if names is not None else types or ())
    required = count - metadata.get("arg_optional", 0)
    parameters = [
        Parameter(
            names[i] if names else f"arg{i}",
            Parameter.POSITIONAL_OR_KEYWORD if names else Parameter.POSITIONAL_ONLY,
            default=Parameter.empty if i < required else _UNKNOWN,
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
