"""Templates of requests: fill fields of a record into the `{field}` of texts and JSON bodies. Pure.

`{$key}`, `{$topic}`, `{$partition}`, `{$offset}` and `{$value}` are facts of the record. In a body, a text that
consists of one placeholder becomes the value itself, with its type. `{{` is a literal brace.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from pydanube_connect.records import Record, Refused
from pydanube_connect.shaping import key_text

Fill = Callable[[Record], Any]


def text_template(text: str, *, in_url: bool = False) -> Fill | str:
    """Return a function from a record to the text, or the text itself if it has no placeholder.

    Args:
        in_url: whether values are percent-encoded.

    Raises:
        ValueError: a brace is not closed.
    """
    parts = [(before, name) for before, name, _, _ in string.Formatter().parse(text)]
    if all(name is None for _, name in parts):
        return "".join(before for before, _ in parts)

    def fill(record: Record) -> str:
        return "".join(
            before + ("" if name is None else _as_text(fact(record, name), in_url=in_url))
            for before, name in parts
        )

    return fill


def body_template(tree: Any) -> Fill:
    """Return a function from a record to the JSON value of a template. Raises `ValueError` as `text_template` does."""
    match tree:
        case str():
            parts = list(string.Formatter().parse(tree))
            if len(parts) == 1 and parts[0][0] == "" and parts[0][1] is not None:
                name = parts[0][1]
                return lambda record: fact(record, name)
            filled = text_template(tree)
            return filled if callable(filled) else lambda _: filled
        case dict():
            fields = {name: body_template(value) for name, value in tree.items()}
            return lambda record: {name: fill(record) for name, fill in fields.items()}
        case list():
            items = [body_template(value) for value in tree]
            return lambda record: [fill(record) for fill in items]
        case _:
            return lambda _: tree


def fact(record: Record, name: str) -> Any:
    """Return the value of a placeholder. Raises `Refused` if the record has no such field."""
    if not name.startswith("$"):
        return record.field(name)
    match name:
        case "$key":
            return record.key
        case "$value":
            return record.value
        case "$offset":
            return record.offset
        case "$topic" if record.place is not None:
            return record.place.topic
        case "$partition" if record.place is not None:
            return record.place.partition or 0
        case _:
            raise Refused(
                [record], f"{{{name}}} is no fact of a record: $key, $value, $offset, $topic, $partition"
            )


def _as_text(value: Any, *, in_url: bool) -> str:
    text = "" if value is None else key_text(value)
    return quote(text, safe="") if in_url else text
