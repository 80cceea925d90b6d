"""Decides whether two schemas of two documents are equal apart from annotations (titles, descriptions, …).

References are compared by their targets, so the place of definitions and other changes in the documents do not matter.
Two schemas are alike if assuming so contradicts none of the pairs that follow from it (a bisimulation). That also works
for recursive schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from pydanube_broker.schema.json_schema.document import Document
from pydanube_broker.schema.json_schema.references import Schema
from pydanube_broker.schema.json_text import value_key

MAX_WORK: Final = 1_000_000  # steps of about a microsecond each, in a thread


class TooComplex(Exception):
    """The comparison would take too long."""


class Budget:
    """Limits the work of a comparison, because proofs branch and schemas are untrusted."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = MAX_WORK) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count work. Raises `TooComplex` when the budget is used up."""
        self._left -= steps
        if self._left < 0:
            raise TooComplex


_REMARKS: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
)
_PLACES: Final = frozenset({"$defs", "definitions", "$schema", "$id", "id", "$anchor"})
_ONE: Final = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
    }
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
_SETS: Final = frozenset({"required", "enum", "type"})

Pair: TypeAlias = tuple[Any, Any]


class Likeness:
    """Compares schemas of `writer` with schemas of `reader` for equality."""

    def __init__(self, writer: Document, reader: Document, budget: Budget) -> None:
        self._writer, self._reader, self._budget = writer, reader, budget
        self._known: dict[tuple[int, int], bool] = {}

    def schemas(self, writer: Schema, reader: Schema) -> bool:
        return self._all_alike([(writer, reader)])

    def keywords(self, writer: Mapping[str, Any], reader: Mapping[str, Any], words: Iterable[str]) -> bool:
        """Return whether two schemas agree in these keywords."""
        pairs: list[Pair] = []
        for word in words:
            if (word in writer) is not (word in reader):
                return False
            if word in writer and not self._keyword(word, writer, reader, pairs):
                return False
        return self._all_alike(pairs)

    def _all_alike(self, pairs: list[Pair]) -> bool:
        assumed: set[tuple[int, int]] = set()
        first = [(id(one), id(other)) for one, other in pairs]
        work = list(pairs)
        while work:
            one, other = work.pop()
            if not isinstance(one, Mapping) or not isinstance(other, Mapping):
                if one is not other:  # true or false
                    return False
                continue
            key = (id(one), id(other))
            known = self._known.get(key)
            if known is False or (known is None and key not in assumed and not self._step(one, other, work)):
                if len(first) == 1:
                    self._known[first[0]] = False
                return False
            assumed.add(key)
        self._known.update(dict.fromkeys(assumed, True))
        return True

    def _step(self, one: Mapping[str, Any], other: Mapping[str, Any], pairs: list[Pair]) -> bool:
        """Return whether two objects agree at their own level. Add nested schemas that must also agree to `pairs`."""
        mine, theirs = self._words(self._writer, one), self._words(self._reader, other)
        self._budget.spend(1 + len(mine))
        return mine == theirs and all(self._keyword(word, one, other, pairs) for word in mine)

    def _words(self, document: Document, schema: Mapping[str, Any]) -> frozenset[str]:
        if document.ref_hides_siblings and isinstance(schema.get("$ref"), str):
            return frozenset({"$ref"})
        return frozenset(schema.keys() - _REMARKS - _PLACES)

    def _keyword(
        self, word: str, one: Mapping[str, Any], other: Mapping[str, Any], pairs: list[Pair]
    ) -> bool:
        mine, theirs = one[word], other[word]
        self._budget.spend(1)
        if word == "$ref" and isinstance(mine, str) and isinstance(theirs, str):
            targets = (self._writer.target(mine, one), self._reader.target(theirs, other))
            if None in targets:
                return mine == theirs and targets == (None, None)
            pairs.append(targets)
            return True
        if word in _MAPS and isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            if mine.keys() != theirs.keys():
                return False
            self._budget.spend(len(mine))
            for name in mine:
                if isinstance(mine[name], list) or isinstance(theirs[name], list):  # in `dependencies`
                    if value_key(mine[name]) != value_key(theirs[name]):
                        return False
                else:
                    pairs.append((mine[name], theirs[name]))
            return True
        if word in _LISTS and isinstance(mine, list) and isinstance(theirs, list):
            self._budget.spend(len(mine))
            pairs += zip(mine, theirs, strict=False)
            return len(mine) == len(theirs)
        if word in _ONE and isinstance(mine, (Mapping, bool)) and isinstance(theirs, (Mapping, bool)):
            pairs.append((mine, theirs))
            return True
        if word in _SETS and isinstance(mine, list) and isinstance(theirs, list):
            self._budget.spend(len(mine))
            return {value_key(x) for x in mine} == {value_key(x) for x in theirs}
        return value_key(mine) == value_key(theirs)


def bare(schema: Schema) -> Schema:
    """Return the schema without annotations, at every level."""
    if not isinstance(schema, Mapping):
        return schema
    made = {word: value for word, value in schema.items() if word not in _REMARKS}
    for word, value in made.items():
        if word in _MAPS and isinstance(value, Mapping):
            made[word] = {name: bare(inner) for name, inner in value.items()}
        elif word in _LISTS and isinstance(value, list):
            made[word] = [bare(inner) for inner in value]
        elif word in _ONE:
            made[word] = bare(value)
    return made
