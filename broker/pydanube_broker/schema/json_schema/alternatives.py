"""What a schema admits, as alternatives: each a list of plain schemas that all hold, split by kind of value.

For the strict profile. `allOf` and references join the list, `anyOf` and `oneOf` make alternatives, and whatever is
left out here (`not`, `if`, that only one of `oneOf` may hold) only makes the set larger: what is proved of all
alternatives is true of the schema's instances.

Kinds are disjoint: a number is either an `integer` (1.0 is one) or a `fraction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from pydanube_broker.schema.json_schema.document import MAX_REFERENCES, Document, Schema
from pydanube_broker.schema.json_text import canonical

__all__ = [
    "KINDS",
    "Alternative",
    "Judge",
    "TooComplex",
    "alternatives",
    "finite_values",
    "kind_of",
    "kinds_of",
    "listed",
    "required_of",
    "same",
    "shown",
]

KINDS: Final = ("null", "boolean", "integer", "fraction", "string", "array", "object")
MAX_ALTERNATIVES: Final = 64
_KINDS_OF_TYPE: Final = {
    **{kind: frozenset({kind}) for kind in KINDS if kind != "fraction"},
    "number": frozenset({"integer", "fraction"}),
}
_ALL: Final = frozenset(KINDS)
_SILENT: Final = frozenset({"$ref", "$comment", "title", "description", "default", "examples"})
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_OUT_OF_PLACE: Final = frozenset({"$defs", "definitions", "$id", "id", "$schema", "$anchor"})


class TooComplex(Exception):
    """The comparison would take too long to be worth it."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Values for which all of `parts` hold. `parts` are objects of the document: their identity is stable."""

    parts: tuple[Mapping[str, Any], ...]

    @property
    def identity(self) -> frozenset[int]:
        return frozenset(map(id, self.parts))


def alternatives(document: Document, schemas: Sequence[Schema]) -> list[Alternative]:
    """The alternatives of a conjunction; none if nothing can hold."""
    done: list[Alternative] = []
    # what is still to look at, what was taken, choices still to make, references followed
    work: list[tuple[list[Schema], list[Mapping[str, Any]], list[list[Schema]], int]] = [
        (list(schemas), [], [], 0)
    ]
    while work:
        todo, taken, choices, followed = work.pop()
        possible = True
        while todo and possible:
            schema = todo.pop()
            if isinstance(schema, bool):
                possible = schema
                continue
            if any(schema is known for known in taken):
                continue
            reference = schema.get("$ref")
            if isinstance(reference, str):
                followed += 1
                target = document.target(reference)
                if target is not None and followed <= MAX_REFERENCES:
                    todo.append(target)
                if document.ref_hides_siblings or schema.keys() <= _SILENT:
                    continue
            taken.append(schema)
            if isinstance(schema.get("allOf"), list):
                todo += schema["allOf"]
            choices += [schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)]
        if possible and choices:
            *others, branches = choices
            work += [([branch], list(taken), list(others), followed) for branch in branches]
        elif possible:
            done.append(Alternative(tuple(taken)))
        if len(work) + len(done) > MAX_ALTERNATIVES:
            raise TooComplex
    return done


def kinds_of(schema: Schema) -> frozenset[str]:
    """What its `type` admits."""
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
    """The values that `enum` or `const` leave, None where there is neither."""
    if not isinstance(schema, Mapping) or (document.ref_hides_siblings and "$ref" in schema):
        return None
    if "const" in schema and document.knows("const"):
        return [schema["const"]]
    found = schema.get("enum")
    return list(found) if isinstance(found, list) else None


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 and 1.0 are one number, true is none."""
    return _key(one) == _key(other)


def _key(value: Any) -> bytes:
    return canonical(_plain(value))


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case _:
            return value


class Judge:
    """Holds single values against schemas of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._validators: dict[int, jsonschema_rs.Validator | None] = {}

    def accepts(self, schema: Schema, value: Any) -> bool | None:
        """Whether the value is valid; None if we cannot tell (recursion, references we do not follow)."""
        if isinstance(schema, bool):
            return schema
        if id(schema) not in self._validators:
            self._validators[id(schema)] = self._compile(schema)
        validator = self._validators[id(schema)]
        return None if validator is None else validator.is_valid(value)

    def _compile(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
        try:
            whole = self._inlined(schema, 0)
            if not isinstance(whole, dict):
                return None
            if self._document.dialect:
                whole["$schema"] = self._document.dialect
            return jsonschema_rs.validator_for(whole, retriever=_no_network)
        except (ValueError, TypeError, RecursionError, jsonschema_rs.ValidationError):
            return None

    def _inlined(self, schema: Any, depth: int) -> Any:
        """The schema with its references put in place. Raises `ValueError` where that does not end."""
        if depth > MAX_REFERENCES:
            raise ValueError("recursive")
        if isinstance(schema, list):
            return [self._inlined(item, depth) for item in schema]
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, Any] = {}
        for word, value in schema.items():
            if word in _VALUES:
                made[word] = value
            elif word in _MAPS and isinstance(
                value, Mapping
            ):  # its keys are names, whatever they are spelled
                made[word] = {name: self._inlined(inner, depth) for name, inner in value.items()}
            elif word not in _OUT_OF_PLACE:
                made[word] = self._inlined(value, depth)
        reference = made.get("$ref")
        if isinstance(reference, str):
            target = self._document.target(reference)
            if target is None:
                raise ValueError("not known")
            del made["$ref"]
            inner = self._inlined(target, depth + 1)
            if self._document.ref_hides_siblings:
                return inner
            made["allOf"] = [*made.get("allOf", ()), inner]
        return made


def _no_network(uri: str) -> Any:
    raise ValueError(uri)


def listed(schema: Mapping[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def required_of(alternative: Alternative) -> set[str]:
    return {name for part in alternative.parts for name in listed(part, "required")}


def shown(schema: Any) -> Any:
    return dict(schema) if isinstance(schema, Mapping) else schema
