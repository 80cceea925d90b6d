"""The values that a schema admits, as alternatives: each a list of plain schemas that all hold, split by kind of value.

For the strict profile. `allOf` and references extend the list, `anyOf` and `oneOf` create alternatives. Other keywords
(`not`, `if`, the exclusiveness of `oneOf`) are ignored, which only makes the set larger. So a proof for all
alternatives holds for the schema's instances.

Kinds are disjoint: a number is either an `integer` (including 1.0) or a `fraction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs

from pydanube_broker.schema.json_schema.cost import weight
from pydanube_broker.schema.json_schema.document import MAX_REFERENCES, Document, pointer
from pydanube_broker.schema.json_schema.likeness import Budget, TooComplex
from pydanube_broker.schema.json_schema.references import Schema
from pydanube_broker.schema.json_text import value_key

KINDS: Final = ("null", "boolean", "integer", "fraction", "string", "array", "object")
MAX_ALTERNATIVES: Final = 64
_KINDS_OF_TYPE: Final = {
    **{kind: frozenset({kind}) for kind in KINDS if kind != "fraction"},
    "number": frozenset({"integer", "fraction"}),
}
_ALL: Final = frozenset(KINDS)
_SILENT: Final = frozenset({"$ref", "$comment", "title", "description", "default", "examples"})
_WHOLE: Final = "urn:pydanube:document"
MAX_JUDGED: Final = 5_000_000  # checks × bytes for one value


@dataclass(frozen=True, slots=True)
class Alternative:
    """Values for which all of `parts` hold. `parts` are objects of the document, so their identity is stable."""

    parts: tuple[Mapping[str, Any], ...]

    @property
    def identity(self) -> frozenset[int]:
        return frozenset(map(id, self.parts))


def alternatives(document: Document, schemas: Sequence[Schema], budget: Budget) -> list[Alternative]:
    """Return the alternatives of a conjunction, none if no value can be valid. Raises `TooComplex`."""
    done: list[Alternative] = []
    # remaining schemas, collected schemas, remaining choices, references followed
    work: list[tuple[list[Schema], dict[int, Mapping[str, Any]], list[list[Schema]], int]] = [
        (list(schemas), {}, [], 0)
    ]
    while work:
        todo, taken, choices, followed = work.pop()
        possible = True
        while todo and possible:
            schema = todo.pop()
            budget.spend(1)
            if isinstance(schema, bool):
                possible = schema
                continue
            if id(schema) in taken:
                continue
            reference = schema.get("$ref")
            if isinstance(reference, str):
                followed += 1
                target = document.target(reference, schema)
                if target is None or followed > MAX_REFERENCES:  # an unseen schema may use any name
                    raise TooComplex
                todo.append(target)
                if document.ref_hides_siblings or schema.keys() <= _SILENT:
                    continue
            taken[id(schema)] = schema
            if isinstance(schema.get("allOf"), list):
                todo += schema["allOf"]
            choices += [schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)]
        if possible and choices:
            *others, branches = choices
            budget.spend(len(branches) * (1 + len(taken)))
            work += [([branch], dict(taken), list(others), followed) for branch in branches]
        elif possible:
            done.append(Alternative(tuple(taken.values())))
        if len(work) + len(done) > MAX_ALTERNATIVES:
            raise TooComplex
    return done


def kinds_of(schema: Schema) -> frozenset[str]:
    """Return the kinds of value that the schema's `type` admits."""
    if schema is False:
        return frozenset()
    named = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(named, str):
        return _KINDS_OF_TYPE.get(named, _ALL)
    if isinstance(named, list):
        return frozenset().union(*(_KINDS_OF_TYPE.get(name, _ALL) for name in named))
    return _ALL


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def finite_values(document: Document, schema: Schema) -> list[Any] | None:
    """Return the values allowed by `enum` or `const`, None if there is neither."""
    if not isinstance(schema, Mapping) or (document.ref_hides_siblings and "$ref" in schema):
        return None
    if "const" in schema and document.knows("const"):
        return [schema["const"]]
    found = schema.get("enum")
    return list(found) if isinstance(found, list) else None


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal."""
    return value_key(one) == value_key(other)


class Judge:
    """Checks single values against schemas of one document, each in the context of the whole document."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self._document = document
        self._budget = budget
        self._validators: dict[int, jsonschema_rs.Validator | None] = {}
        self._weight: float | None = None
        self._compiling = 0

    def accepts(self, schema: Schema, value: Any) -> bool | None:
        """Return whether the value is valid. None if that cannot be decided, or not in time."""
        if isinstance(schema, bool):
            return schema
        if self._weight is None:
            self._weight = weight(self._document)
            self._compiling = (
                100 + len(value_key(self._document.root)) // 32
            )  # each compilation reads the whole document
        work = self._weight * len(value_key(value))
        if work > MAX_JUDGED:
            return None
        self._budget.spend(20 + int(work) // 64)
        if id(schema) not in self._validators:
            self._budget.spend(self._compiling)
            self._validators[id(schema)] = self._compile(schema)
        validator = self._validators[id(schema)]
        try:
            return None if validator is None else validator.is_valid(value)
        except (ValueError, OverflowError):  # a number or a nesting beyond the library's
            return None

    def _compile(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
        path = self._document.references.paths.get(id(schema))
        if path is None:
            return None
        place = quote(pointer("", *path), safe="/~")
        whole: dict[str, Any] = {"$ref": f"{_WHOLE}#{place}"}
        if self._document.dialect:
            whole["$schema"] = self._document.dialect
        try:
            return jsonschema_rs.validator_for(
                whole, retriever=self._retrieved, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (
            ValueError,
            TypeError,
            RecursionError,
            jsonschema_rs.ValidationError,
            jsonschema_rs.ReferencingError,
        ):
            return None

    def _retrieved(self, uri: str) -> Any:
        if uri.rstrip("#") != _WHOLE:
            raise ValueError(uri)
        return self._document.root


def listed(schema: Mapping[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def required_of(alternative: Alternative) -> set[str]:
    return {name for part in alternative.parts for name in listed(part, "required")}


def shown(schema: Any) -> Any:
    return dict(schema) if isinstance(schema, Mapping) else schema
