"""The payload of a message item: its bytes, its decoded value, and any value as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Self

TOO_DEEP: Final = '"… nested too deep to be shown"'


def payload_of(item: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message, as far as they were kept."""
    untrusted = item["untrusted"]
    return (
        base64.b64decode(untrusted["base64"]) if "base64" in untrusted else (untrusted["text"] or "").encode()
    )


def is_null(item: Mapping[str, Any]) -> bool:
    """Return whether the payload is null, which marks the key as deleted."""
    return item["untrusted"].get("text", "") is None


def value_of(item: Mapping[str, Any]) -> Any:
    """Return the payload's value: parsed as JSON, else decoded by its schema. None if it is neither.

    Numbers are `Number`, objects are `Fields`, so that `written` gives them back as the producer wrote them.
    """
    untrusted = item["untrusted"]
    text = untrusted.get("text") or ""
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(text, parse_float=Number, parse_int=Number, object_pairs_hook=Fields)
    return untrusted.get("value")


class Number(Decimal):
    """A number of JSON that compares by its value and keeps its text: 1.10, or twenty digits."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Return the number. One beyond a decimal's range counts as infinite."""
        try:
            number = super().__new__(cls, text)
        except InvalidOperation:
            number = super().__new__(cls, "-Infinity" if text.startswith("-") else "Infinity")
        number.text = text
        return number


class Fields(dict[str, Any]):
    """An object of JSON that keeps each of its pairs, also where a key stands twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def written(value: object, *, indent: int | None = None) -> str:
    """Return a value of `value_of` as JSON, with numbers and doubled keys as they were written."""
    try:
        text = _written(value, indent, 0)
    except RecursionError:
        return TOO_DEEP
    return text.encode(errors="backslashreplace").decode()


def _written(value: object, indent: int | None, level: int) -> str:
    within = level + 1
    match value:
        case Number():
            return value.text
        case Fields():
            parts = [
                f"{json.dumps(key, ensure_ascii=False)}: {_written(each, indent, within)}"
                for key, each in value.pairs
            ]
            left, right = "{}"
        case list():
            parts = [_written(each, indent, within) for each in value]
            left, right = "[]"
        case _:
            return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    if indent is None or not parts:
        return f"{left}{', '.join(parts)}{right}"
    edge = "\n" + " " * indent * level
    step = edge + " " * indent
    return f"{left}{step}{f',{step}'.join(parts)}{edge}{right}"


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON for any file and terminal: other types as their text, lone surrogates escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return TOO_DEEP
    return text.encode(errors="backslashreplace").decode()
