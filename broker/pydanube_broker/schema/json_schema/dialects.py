"""Keywords whose meaning depends on `$schema`, which prevents a literal comparison across dialects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydanube_broker.schema.json_schema.document import Document, pointer

# keyword → the first dialect with its present meaning. None: different in every dialect
_STABLE_SINCE: Final[Mapping[str, int | None]] = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "format": 2019,  # an assertion before, with different formats in each dialect
    "contentEncoding": 2019,
    "contentMediaType": 2019,
    "contentSchema": 2019,
    "minContains": 2019,
    "maxContains": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedItems": None,  # items matched by `contains` count as evaluated only in 2020-12
    "unevaluatedProperties": None,
    "prefixItems": None,
    "additionalItems": None,
    "dependencies": None,
    "exclusiveMinimum": 6,
    "exclusiveMaximum": 6,
    "$dynamicRef": None,
    "$dynamicAnchor": None,
    "$recursiveRef": None,
    "$recursiveAnchor": None,
    "$anchor": 2019,
}
_REMARKS: Final = frozenset(
    {"$ref", "$comment", "title", "description", "default", "examples", "$defs", "definitions"}
)
_FIRST_WITH_1_0: Final = 6  # in older dialects, 1.0 is not an integer
_FIRST_BESIDE_REF: Final = 2019


def changed_meanings(one: Document, other: Document) -> Iterator[tuple[str, Any]]:
    """Yield (pointer, value) of each keyword, in either document, that may differ in meaning in the other's dialect."""
    if one.year == other.year:
        return
    oldest = min(one.year, other.year)
    for document in (one, other):
        for schema in document.references.schemas:
            at = pointer("", *document.references.paths[id(schema)])
            for word, value in schema.items():
                if _differs(word, value, oldest):
                    yield pointer(at, word), value
            if (
                "$ref" in schema
                and oldest < _FIRST_BESIDE_REF
                and not schema.keys() <= _REMARKS | {"$schema"}
            ):
                yield pointer(at, "$ref"), schema["$ref"]


def _differs(word: str, value: Any, oldest: int) -> bool:
    if word in _STABLE_SINCE:
        since = _STABLE_SINCE[word]
        return since is None or oldest < since
    if word == "items":
        return isinstance(value, list)
    if word == "type" and oldest < _FIRST_WITH_1_0:
        return value == "integer" or (isinstance(value, list) and "integer" in value)
    return word == ("id" if oldest < _FIRST_WITH_1_0 else "$id") and oldest < _FIRST_WITH_1_0
