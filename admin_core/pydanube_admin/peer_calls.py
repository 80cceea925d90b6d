"""What one broker asks of another's port, as JSON: arguments and answers by the signatures of `ClusterPort`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import InvalidArgument

_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=True)


def named(method: str, arguments: tuple[Any, ...], more: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method of the port by their names, as it is called with them."""
    bound = inspect.signature(getattr(ClusterPort, method)).bind(None, *arguments, **more)
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def arguments_to_json(method: str, arguments: Mapping[str, Any]) -> bytes:
    """For `arguments_of`."""
    return _arguments(method)(**arguments).model_dump_json(exclude_unset=True).encode()


def arguments_of(method: str, text: bytes) -> dict[str, Any]:
    """Raises `InvalidArgument`."""
    try:
        given = _arguments(method).model_validate_json(text or b"{}")
    except ValidationError as error:
        raise InvalidArgument(
            f"another broker asks {method} with what this version does not know: {error.errors()[0]['msg']}",
            field="arguments",
        ) from error
    return {name: getattr(given, name) for name in given.model_fields_set}


def answer_to_json(method: str, answer: Any) -> bytes:
    """For `answer_of`."""
    return _answer(method).dump_json((answer,))


def answer_of(method: str, text: bytes) -> Any:
    """What the method returned there."""
    return _answer(method).validate_json(text)[0]


@cache
def _arguments(method: str) -> type[BaseModel]:
    function = getattr(ClusterPort, method)
    hints = get_type_hints(function)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }
    return create_model(method, __config__=_BYTES, **fields)


@cache
def _answer(method: str) -> TypeAdapter[tuple[Any]]:
    answer = get_type_hints(getattr(ClusterPort, method))["return"]
    alone: Any = tuple.__class_getitem__(answer)  # pydantic takes a configuration for no dataclass by itself
    return TypeAdapter(alone, config=_BYTES)
