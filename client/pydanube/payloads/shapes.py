"""Convert between the application's objects and plain data (dicts, lists, texts, numbers) as schemas describe it.

Plain data become dataclasses, pydantic models, typed dicts and whatever else pydantic builds by type hints, checked on
the way. Any other callable takes the fields of an object by keyword.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from pydanube_core.errors import PayloadInvalid


class DataclassValue(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelValue(Protocol):
    """A value that is a pydantic model."""

    def model_dump(self) -> dict[str, Any]: ...


class GeneratedValue(Protocol):
    """A value that is a Protobuf message."""

    def SerializeToString(self) -> bytes: ...


#: values that a producer with a `schema=` encodes
Value = (
    Mapping[str, Any] | list[Any] | str | int | float | bool | DataclassValue | ModelValue | GeneratedValue
)


def pointer(*tokens: str | int) -> str:
    """Return a place in plain data as a JSON pointer (RFC 6901). `/` is the whole."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens) or "/"


def to_json_data(value: Any) -> Any:
    """Convert dataclasses, models, datetimes, enums and UUIDs to JSON values.

    Raises:
        TypeError, ValueError: JSON has no such value.
    """
    if type(value) in (dict, list, str, int, float, bool, type(None)) and _is_plain(value):
        return value
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="constants")


def _is_plain(value: Any) -> bool:
    match value:
        case dict():
            return all(type(key) is str and _is_plain(each) for key, each in value.items())
        case list():
            return all(map(_is_plain, value))
        case _:
            return type(value) in (str, int, float, bool, type(None))


def to_data(value: Any) -> Any:
    """Convert dataclasses and models to dicts. Everything else (datetimes, decimals) stays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_data(getattr(value, each.name)) for each in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump()
    match value:
        case Mapping():
            return {key: to_data(each) for key, each in value.items()}
        case list() | tuple():
            return [to_data(each) for each in value]
        case Enum():
            return value.value
        case _:
            return value


def built(value: Any, into: Callable[..., Any]) -> Any:
    """Return an object of class `into` with this data.

    Raises:
        PayloadInvalid: the data do not fit at `details["path"]`.
    """
    adapter = _adapter(into)
    if adapter is None:
        return into(**value) if isinstance(value, Mapping) else into(value)
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = pointer(*first["loc"])
        raise PayloadInvalid(
            f"the payload does not fit {getattr(into, '__name__', into)!s} at {path}: {first['msg']}",
            field="payload",
            value=repr(first.get("input"))[:200],
            path=path,
        ) from None


@lru_cache(maxsize=256)
def _adapter(into: Callable[..., Any]) -> Any:
    """Return the adapter that builds a class by its type hints. None if pydantic cannot."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    if not isinstance(into, type) and not hasattr(into, "__origin__"):
        return None
    try:
        return TypeAdapter[Any](into)  # type: ignore[arg-type]  # a class, as was seen
    except PydanticSchemaGenerationError:
        return None
