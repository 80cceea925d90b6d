"""Demands on a JSON Schema, beyond being one, before payloads of strangers are held against it.

A registered schema is held against every payload of its topics, so what cannot be done in bounded time is refused
when it is registered: expressions that need backtracking (a look ahead, a back reference), references that multiply
without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import inf
from typing import Final

import jsonschema_rs
from pydanube_core.errors import SchemaInvalid

from pydanube_broker.schema.json_schema.cost import MAX_IN_PLACE, EndlessReference, TooManyLooks, looks
from pydanube_broker.schema.json_schema.document import Document, pointer

_PATTERN_BYTES: Final = 256 << 10  # of a compiled expression: bounds the work for each character


def admit(document: Document) -> float:
    """Looks at one place of a payload (`cost.looks`).

    Raises `SchemaInvalid`: an expression or a reference that is not taken; `details["path"]` is its place.
    """
    for path, pattern in _patterns(document):
        if not _is_linear(pattern):
            raise _refused(
                path,
                f"the expression {pattern[:80]!r} needs backtracking, or is too large: write it without look-around "
                "and back references, and with small counts",
                pattern[:120],
            )
    try:
        return looks(document)
    except EndlessReference:
        raise _refused("/", "it refers to itself without going down into the instance", None) from None
    except TooManyLooks:
        raise _refused(
            "/",
            f"its references and branches look at one value more than {MAX_IN_PLACE} times: name a definition "
            "fewer times",
            None,
        ) from None


def weight(document: Document) -> float:
    """As `admit`, for a schema that was registered before; `inf` where it would be refused today."""
    try:
        return admit(document)
    except SchemaInvalid:
        return inf


def matches(pattern: str, text: str) -> bool | None:
    """Whether the expression of a schema finds something in a text; None if we cannot tell in linear time."""
    found = _compiled(pattern)
    return None if found is None else found.is_valid(text)


def _patterns(document: Document) -> Iterator[tuple[str, str]]:
    references = document.references
    for schema in references.schemas:
        at = pointer("", *references.paths[id(schema)])
        if isinstance(schema.get("pattern"), str):
            yield pointer(at, "pattern"), schema["pattern"]
        named = schema.get("patternProperties")
        for pattern in named if isinstance(named, dict) else ():
            yield pointer(at, "patternProperties", pattern), pattern


def _is_linear(pattern: str) -> bool:
    return _compiled(pattern) is not None


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": pattern},
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, ValueError):
        return None


def _refused(path: str, why: str, value: str | None) -> SchemaInvalid:
    return SchemaInvalid(
        f"the JSON Schema is not taken at {path}: {why}", field="schema_definition", path=path, value=value
    )
