"""Compile `[shape]` of a connector's file into functions over records."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName

from pydanube_connect.file import Shape
from pydanube_connect.installed import search_beside
from pydanube_connect.records import Record, Refused

MASK: Final = "***"

Shaping = Callable[[Record], None]
Function = Callable[[Sequence[Record]], Sequence[Record] | None]


def shaper(
    shape: Shape, *, path: str
) -> Callable[[Sequence[Record]], tuple[list[Record], list[Refused]]] | None:
    """Return a function that shapes records, or None if `shape` changes nothing.

    The function returns the shaped records and the refusals. The user's function runs last, on all records together.
    Its exceptions propagate.

    Raises:
        InvalidArgument: `function` cannot be imported, or `topic` is not a valid template.
    """
    steps = [step for step in _steps(shape, path) if step is not None]
    function = function_of(shape.function, path) if shape.function else None
    if not steps and function is None:
        return None

    def apply(records: Sequence[Record]) -> tuple[list[Record], list[Refused]]:
        refusals: list[Refused] = []
        kept: list[Record] = []
        for record in records:
            try:
                for step in steps:
                    step(record)
                kept.append(record)
            except Refused as refused:
                refusals.append(refused)
        if function is not None and kept:
            made = function(kept)
            kept = kept if made is None else list(made)
        return kept, refusals

    return apply


def _steps(shape: Shape, path: str) -> list[Shaping | None]:
    return [
        _masking(shape.mask),
        _keying(shape.key),
        _topic(shape.topic, path),
        _selecting(shape.select),
        _dropping(shape.drop),
        _renaming(shape.rename),
    ]


def _object(record: Record) -> dict[str, Any] | None:
    """Return the record's object, or None for a deletion, which has no object."""
    value = record.value
    if isinstance(value, dict):
        return value
    if value is None:
        return None
    raise Refused([record], f"[shape] works on objects, and the value is {type(value).__name__}")


def _masking(names: Sequence[str]) -> Shaping | None:
    def mask(record: Record) -> None:
        if (value := _object(record)) is not None:
            record.value = value | {name: MASK for name in names if value.get(name) is not None}

    return mask if names else None


def key_text(value: Any) -> str:
    """Return a field's value as a key: text unchanged, any other value as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _keying(name: str | None) -> Shaping | None:
    def key(record: Record) -> None:
        if record.value is not None:
            value = record.field(name or "")
            record.key = None if value is None else key_text(value)

    return key if name else None


def _topic(template: str | None, path: str) -> Shaping | None:
    if template is None:
        return None
    try:
        parts = [(text, name) for text, name, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise InvalidArgument(
            f"{path}: shape.topic = {template!r}: {error}. Write orders-{{country}}.",
            file=path, field="shape.topic", value=template,
        ) from None  # fmt: skip

    def topic(record: Record) -> None:
        chosen = "".join(text + ("" if name is None else str(record.field(name))) for text, name in parts)
        try:
            record.topic = str(TopicName.parse(chosen))
        except ClusterError as error:
            raise Refused([record], f"{chosen!r:.200} is no topic: {error.message}") from None

    return topic


def _selecting(names: Sequence[str]) -> Shaping | None:
    def select(record: Record) -> None:
        if (value := _object(record)) is not None:
            record.value = {name: value[name] for name in names if name in value}

    return select if names else None


def _dropping(names: Sequence[str]) -> Shaping | None:
    gone = frozenset(names)

    def drop(record: Record) -> None:
        if (value := _object(record)) is not None:
            record.value = {name: field for name, field in value.items() if name not in gone}

    return drop if names else None


def _renaming(names: dict[str, str]) -> Shaping | None:
    def rename(record: Record) -> None:
        if (value := _object(record)) is None:
            return
        record.value = {names.get(name, name): field for name, field in value.items()}
        if len(record.value) < len(value):
            raise Refused([record], f"[shape] rename gives two fields the same name: {names}")

    return rename if names else None


def function_of(reference: str, path: str, field: str = "shape.function") -> Function:
    """Import `module:function`. The folder of `path` is searched too.

    Raises:
        InvalidArgument: there is no such function. The error names `field`.
    """
    module, colon, name = reference.partition(":")
    search_beside(path)
    try:
        if not colon:
            raise AttributeError("it has no colon")
        found = getattr(import_module(module), name)
        if not callable(found):
            raise AttributeError(f"{name} is no function")
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"{path}: {field} = {reference!r}: {error}. Write module:function of a module that can be imported.",
            file=path, field=field, value=reference,
        ) from error  # fmt: skip
    return found  # type: ignore[no-any-return]  # the user's, called as documented
