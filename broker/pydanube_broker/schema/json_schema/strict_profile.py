"""The strict profile: every document that is written by the writer's schema must be valid for the reader's.

A document counts as written by a schema if it is valid and uses only declared properties: those of `properties` and
`patternProperties`, and typed `additionalProperties`. By JSON Schema alone, an open object may hold any value under any
name, so adding a property, the most common change, would always be refused. A schema without named properties is a map
of anything. For a union, only the matching branch counts. A name that was removed and reused with another type is
found when all versions are compared (`transitive`).

jsonschema-rs decides whether a schema contains another, exactly or with "unknown". The rules here do more: they name
the keyword and the place of a difference, ignore names that the writer never uses, and follow recursive schemas.
Each rule splits the question into smaller ones, down to single keywords. Without a proof the result is
"incompatible". An incompatible pair is never reported as compatible.

The writer's side is split into alternatives (`anyOf`, `oneOf`, lists of types), each a list of plain schemas that all
hold. Recursive schemas: a pair that recurs deeper in the instance counts as proved, because instances are finite. A
pair that recurs in place proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs.canonical import Containment, Satisfiability
from pydanube_core.json_types import json_type_of
from pydanube_core.schema_formats.json_schema.references import Schema, inner_schemas

from pydanube_broker.schema.differences import MAX_DIFFERENCES, Difference, Direction, Findings
from pydanube_broker.schema.json_schema.cost import matches
from pydanube_broker.schema.json_schema.dialects import changed_meanings
from pydanube_broker.schema.json_schema.document import MAX_REFERENCES, PATTERNS, Document, pointer
from pydanube_broker.schema.json_text import value_key
from pydanube_broker.schema.step_budget import StepBudget, TooComplex

MAX_ALTERNATIVES: Final = 64
MAX_WORK: Final = 500_000  # steps of a few microseconds, in a thread
# In a schema that the library compares. Its time is exponential in the first and quadratic in the second
MAX_BRANCHES: Final = 8
MAX_VALUES: Final = 200
_STEP: Final = 30  # for a call of the library, which takes about as many microseconds
_PATTERN_STEP: Final = 300
_COPY_STEP: Final = 10
_REMARKS: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
)
_IGNORED: Final = _REMARKS | {"$defs", "definitions", "$schema", "$id", "id", "$anchor"}
_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_OBJECTS: Final = ("properties", "patternProperties", "additionalProperties")
_ARRAYS: Final = ("prefixItems", "items", "additionalItems")
# Keywords that limit properties outside `properties`, and are not analysed on the writer's side
_LIMITS_OTHERS: Final = frozenset(
    {"if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties"}
)
_BESIDE: Final = {"if": ("then", "else"), "contains": ("minContains", "maxContains")}
_PER_NAME: Final = ("dependentRequired", "dependentSchemas", "dependencies")
_ONE: Final = frozenset(
    {"not", "if", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)
_HARD: Final = _ONE | _IN_PLACE | {"patternProperties", "pattern", "uniqueItems", *_PER_NAME}
# Their meaning depends on all keywords beside them: compared with the whole schema only
_OF_THE_REST: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_NESTING: Final = (
    _ONE
    | _IN_PLACE
    | {*_OBJECTS, *_ARRAYS, *_PER_NAME, "then", "else", "minContains", "maxContains", "contentSchema"}
)
_DECOMPOSED: Final = {*_IGNORED, *_IN_PLACE, *_OBJECTS, *_ARRAYS, *_PER_NAME, "required"}
_RULES: Final = {
    "type": "type_narrowed",
    "enum": "values_narrowed",
    "const": "values_narrowed",
    "multipleOf": "step_narrowed",
    "uniqueItems": "items_must_be_unique",
    "not": "may_be_excluded",
    "if": "condition_not_proved",
    "propertyNames": "property_names_narrowed",
    "unevaluatedItems": "not_comparable",
    "unevaluatedProperties": "not_comparable",
}


class Alternative:
    """Values for which all of `parts` hold. `parts` are objects of the document, so their identity is stable."""

    def __init__(self, parts: tuple[Mapping[str, Any], ...]) -> None:
        self.parts = parts
        self.identity = frozenset(map(id, parts))
        self.named = dict.fromkeys(name for part in parts for name in part.get("properties", ()))
        self.required = {name for part in parts for name in part.get("required", ())}


def compare_strictly(old: Document, new: Document, direction: Direction) -> list[Difference]:
    """Return the reasons why an instance of the writer may be invalid for the reader. Empty if proved otherwise."""
    writer, reader = (old, new) if direction is Direction.BACKWARD else (new, old)
    findings = Findings(direction)
    for path, value in changed_meanings(old, new):
        findings.add(path, "dialect_changed", writer=value, reader=value)
    try:
        if findings.ok:
            _compare(writer, reader, findings)
    except (TooComplex, RecursionError):
        findings.add("", "too_complex_to_prove", writer=None, reader=None)
    return findings.found


def _compare(writer: Document, reader: Document, findings: Findings) -> None:
    if writer.is_plain and reader.is_plain:
        _Comparison(writer, reader).contained((writer.root,), reader.root, "", findings)
    elif not _form(_bare(reader.root)).contains(_form(_bare(writer.root))):
        findings.add("", "not_comparable", writer="dynamic references", reader="dynamic references")


@dataclass(frozen=True, slots=True)
class _Form:
    """A schema without annotations, and the library's form of it, None if it has none."""

    text: bytes
    canonical: jsonschema_rs.CanonicalSchema | None

    def contains(self, writer: _Form) -> bool:
        """Return whether every value of the writer is proved to be one of this schema."""
        if self.text == writer.text:
            return True
        if self.canonical is None or writer.canonical is None:
            return False
        try:
            return self.canonical.covers(writer.canonical) is Containment.YES
        except ValueError:  # no common form
            return False

    def may_share_a_value(self, other: _Form) -> bool:
        if self.canonical is None or other.canonical is None:
            return True
        try:
            shared = self.canonical.intersect(other.canonical)
        except ValueError:  # no common form
            return True
        return shared.satisfiability() is not Satisfiability.NO


def _form(schema: Any) -> _Form:
    canonical = None
    # The library has no form of a schema with numbers or expressions beyond its own
    with suppress(ValueError, TypeError, OverflowError, jsonschema_rs.ReferencingError):
        if not _is_hard(schema):
            canonical = jsonschema_rs.canonicalize(
                schema, pattern_options=PATTERNS, offline=True, validate_formats=True
            )
    return _Form(value_key(schema), canonical)


def _is_hard(schema: Any) -> bool:
    """Return whether the library may need long."""
    # The parts of an outermost `allOf` do not count
    branches = -len(schema.get("allOf", ())) if isinstance(schema, Mapping) else 0
    work = [schema]
    while work:
        found = work.pop()
        if not isinstance(found, Mapping):
            continue
        for word in _HARD & found.keys():
            branches += len(found[word]) if isinstance(found[word], (list, dict)) and word not in _ONE else 1
        if len(found.get("enum", ())) > MAX_VALUES:
            return True
        if branches > MAX_BRANCHES or ("uniqueItems" in found and not found.keys().isdisjoint(_ARRAYS)):
            return True
        work += [inner for _, inner in inner_schemas(found)]
    return False


def _bare(schema: Any) -> Any:
    """Return a document without annotations."""
    if not isinstance(schema, Mapping):
        return schema
    made = {word: value for word, value in schema.items() if word not in _REMARKS}
    for keys, inner in inner_schemas(schema):
        _replaced(made, schema, keys, _bare(inner))
    return made


def _replaced(made: dict[str, Any], schema: Mapping[str, Any], keys: Sequence[Any], inner: Any) -> None:
    """Put a schema within a copy of another, and leave the original's lists and objects as they are."""
    if len(keys) == 1:
        made[keys[0]] = inner
        return
    if made[keys[0]] is schema[keys[0]]:
        made[keys[0]] = schema[keys[0]].copy()
    made[keys[0]][keys[1]] = inner


class _Side:
    """One document, and copies of its schemas for the library."""

    def __init__(self, document: Document, dialect: str) -> None:
        self.document = document
        self._dialect = dialect
        # With the schemas, because their identities are the key
        self._forms: dict[tuple[Any, ...], tuple[Sequence[Schema], _Form]] = {}
        self.budget = StepBudget(MAX_WORK)

    def form(self, schemas: Iterable[Schema], words: Sequence[str] = ()) -> _Form:
        """Return the form of a conjunction.

        Args:
            words: the keywords that count. If empty, those without subschemas, and the values of properties that may
                distinguish objects. So the form admits more values.
        """
        parts = list(schemas)
        self.budget.spend(len(parts))
        key = (tuple(sorted(map(id, parts))), *words)
        if key not in self._forms:
            self._forms[key] = parts, _form(self._copy(parts, words))
        return self._forms[key][1]

    def flat(self, schema: Schema) -> _Form:
        """Return a form that admits at least the schema's values, also if a reference or `allOf` limits them."""
        found: dict[int, Schema] = {}
        work = [schema]
        while work and len(found) < MAX_REFERENCES:
            each = work.pop()
            if id(each) in found:
                continue
            found[id(each)] = each
            if isinstance(each, Mapping):
                target = (
                    self.document.target(each["$ref"], each) if isinstance(each.get("$ref"), str) else None
                )
                if self.document.ref_hides_siblings and "$ref" in each:
                    del found[id(each)]
                else:
                    work += each.get("allOf", ())
                if target is not None:
                    work.append(target)
        return self.form(found.values())

    def _copy(self, parts: Sequence[Schema], words: Sequence[str]) -> dict[str, Any]:
        """Copy schemas and those that they refer to. Equal schemas have equal copies, wherever their definitions are."""
        numbers: dict[int, int] = {}
        waiting: list[Schema] = []

        def copied(schema: Any, dropped: Set[str] = _IGNORED) -> Any:
            self.budget.spend(_COPY_STEP)
            if not isinstance(schema, Mapping):
                return schema
            made = {word: value for word, value in schema.items() if word not in dropped}
            reference = made.get("$ref")
            if isinstance(reference, str):
                target = self.document.target(reference, schema)
                if self.document.ref_hides_siblings:
                    made = {"$ref": reference}
                if target is not None:
                    if id(target) not in numbers:
                        numbers[id(target)] = len(numbers)
                        waiting.append(target)
                    made["$ref"] = f"#/definitions/{numbers[id(target)]}"
            for keys, inner in inner_schemas(schema):
                if keys[0] in made:
                    _replaced(made, schema, keys, copied(inner))
            return made

        made = [
            part
            if not isinstance(part, Mapping)
            else copied(part, _IGNORED | (part.keys() - words))
            if words
            else self._flat(part)
            for part in parts
        ]
        whole: dict[str, Any] = {"allOf": made, "definitions": {}} if made else {"definitions": {}}
        while waiting:
            target = waiting.pop()
            whole["definitions"][str(numbers[id(target)])] = copied(target)
        if self._dialect:
            whole["$schema"] = self._dialect
        return whole

    def _flat(self, part: Mapping[str, Any]) -> dict[str, Any]:
        made = {word: value for word, value in part.items() if word not in _IGNORED | _NESTING}
        if len(made.get("enum", ())) > MAX_VALUES:
            made["type"] = sorted({json_type_of(value) for value in made.pop("enum")})
        named = part.get("properties", {})
        self.budget.spend(1 + len(named) // 10)
        made["properties"] = {
            name: {word: inner[word] for word in ("type", "enum", "const") if word in inner}
            if isinstance(inner, Mapping) and not (self.document.ref_hides_siblings and "$ref" in inner)
            else {"not": {}}
            if inner is False
            else {}
            for name, inner in named.items()
        }
        if part.get("additionalProperties") is False and not part.get("patternProperties"):
            made["additionalProperties"] = False
        return made


class _Comparison:
    def __init__(self, writer: Document, reader: Document) -> None:
        dialect = max((writer, reader), key=lambda each: each.year).dialect
        self._writer = _Side(writer, dialect)
        self._reader = _Side(reader, dialect)
        self._types: dict[str, Mapping[str, Any]] = {}
        # Pair in the current proof → level in the instance
        self._open: dict[tuple[frozenset[int], int], int] = {}
        self._level = 0
        self._object, self._array = (
            _form({"type": kind, **({"$schema": dialect} if dialect else {})}) for kind in ("object", "array")
        )

    # -- any schemas -------------------------------------------------------------------------------------------

    def contained(self, parts: Sequence[Schema], reader: Schema, path: str, findings: Findings) -> None:
        """Add the reasons why values for which all of `parts` hold may be invalid for `reader`."""
        if reader is True or reader == {}:
            return
        for alternative in self._alternatives(parts):
            self._proved(alternative, reader, path, findings)

    def _below(self, parts: Sequence[Schema], reader: Schema, path: str, findings: Findings) -> None:
        """Call `contained` one level deeper in the instance."""
        self._level += 1
        try:
            self.contained(parts, reader, path, findings)
        finally:
            self._level -= 1

    def _alternatives(self, schemas: Sequence[Schema]) -> list[Alternative]:
        """Return the alternatives of a conjunction, none if no value can be valid. Raises `TooComplex`."""
        document = self._writer.document
        done: list[Alternative] = []
        # remaining schemas, collected schemas, remaining choices, references followed
        work: list[tuple[list[Schema], dict[int, Mapping[str, Any]], list[Sequence[Schema]], int]] = [
            (list(schemas), {}, [], 0)
        ]
        while work:
            todo, taken, choices, followed = work.pop()
            possible = True
            while todo and possible:
                schema = todo.pop()
                self._writer.budget.spend(1)
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
                    if document.ref_hides_siblings or schema.keys() <= _IGNORED | {"$ref"}:
                        continue
                taken[id(schema)] = schema
                todo += schema.get("allOf", ())
                choices += [schema[word] for word in ("anyOf", "oneOf") if word in schema]
                if isinstance(schema.get("type"), list):
                    choices.append([self._types.setdefault(name, {"type": name}) for name in schema["type"]])
            if possible and choices:
                *others, branches = choices
                self._writer.budget.spend(len(branches) * (1 + len(taken)))
                work += [([branch], dict(taken), list(others), followed) for branch in branches]
            elif possible:
                done.append(Alternative(tuple(taken.values())))
            if len(work) + len(done) > MAX_ALTERNATIVES:
                raise TooComplex
        return done

    # -- one alternative ---------------------------------------------------------------------------------------

    def _proved(self, alternative: Alternative, reader: Schema, path: str, findings: Findings) -> None:
        self._reader.budget.spend(_STEP)
        if len(findings.found) >= MAX_DIFFERENCES:
            return
        given = self._writer.form(alternative.parts)
        if reader is False:
            if given.may_share_a_value(given):
                findings.add(path, "nothing_accepted", writer=_described(alternative), reader=False)
            return
        # For a union, its branches are compared first: they are smaller
        if reader is True or (
            not reader.keys() - _IGNORED <= _IN_PLACE and self._is_covered(alternative, reader)
        ):
            return
        key = (alternative.identity, id(reader))
        begun = self._open.get(key)
        if begun is not None:
            if begun == self._level:
                findings.add(path, "not_comparable", writer=None, reader=dict(reader))
            return
        self._open[key] = self._level
        try:
            self._by_keyword(alternative, reader, path, findings)
        finally:
            del self._open[key]

    def _is_covered(self, alternative: Alternative, reader: Mapping[str, Any]) -> bool:
        """Return whether the library proves the whole question, or a part of the writer's schema equals the reader's."""
        wanted, given = self._whole(reader), self._writer.form(alternative.parts)
        self._writer.budget.spend(_STEP * len(alternative.parts))
        return wanted.contains(given) or any(
            wanted.contains(self._writer.form((part,), tuple(part)))
            for part in alternative.parts
            if given.canonical is None or not _IN_PLACE.isdisjoint(part)
        )

    def _holds(self, alternative: Alternative, reader: Schema, path: str, findings: Findings) -> bool:
        """Return whether `_proved` finds no reasons, and drop the reasons."""
        trial = findings.trial()
        self._proved(alternative, reader, path, trial)
        return trial.ok

    def _said(self, alternative: Alternative, reader: Mapping[str, Any], *words: str) -> bool:
        """Return whether the alternative, or one part of it, ensures these keywords."""
        if words[0] == "enum" and len(reader["enum"]) > MAX_VALUES:
            wanted = set(map(value_key, reader["enum"]))
            return any(
                wanted.issuperset(map(value_key, part.get("enum", [None])))
                for part in alternative.parts
                if "enum" in part
            )
        self._writer.budget.spend(
            (1 + len(alternative.parts)) * (_PATTERN_STEP if words[0] == "pattern" else _STEP)
        )
        form = self._reader.form((reader,), words)
        return form.contains(self._writer.form(alternative.parts)) or any(
            form.contains(self._writer.form((part,), words)) for part in alternative.parts if words[0] in part
        )

    def _by_keyword(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        reference = reader.get("$ref")
        if isinstance(reference, str):
            target = self._reader.document.target(reference, reader)
            if target is None:
                findings.add(pointer(path, "$ref"), "not_comparable", writer=None, reader=reference)
            else:
                self._proved(alternative, target, path, findings)
            if self._reader.document.ref_hides_siblings:
                return
        for index, schema in enumerate(reader.get("allOf", ())):
            self._proved(alternative, schema, pointer(path, "allOf", index), findings)
        for word in ("anyOf", "oneOf"):
            if word not in reader:
                continue
            at = pointer(path, word)
            rule = self._of_branches(alternative, reader[word], at, findings, exclusive=word == "oneOf")
            if rule and not self._said(alternative, reader, word):
                findings.add(at, rule, writer=_described(alternative), reader=reader[word])
        for word in reader:
            beside = _BESIDE.get(word, ())
            if word in _DECOMPOSED or (word == "if" and reader.keys().isdisjoint(beside)):
                continue
            if word in _OF_THE_REST or not self._said(alternative, reader, word, *beside):
                rule = _RULES.get(word) or (
                    "bound_narrowed" if _is_bound(word) else f"{_snake(word)}_changed"
                )
                findings.add(pointer(path, word), rule, writer=_given(alternative, word), reader=reader[word])
        given = self._writer.form(alternative.parts)
        if given.may_share_a_value(self._object):
            self._objects(alternative, reader, path, findings)
        if given.may_share_a_value(self._array):
            self._arrays(alternative, reader, path, findings)

    def _of_branches(
        self,
        alternative: Alternative,
        branches: Sequence[Schema],
        path: str,
        findings: Findings,
        *,
        exclusive: bool,
    ) -> str | None:
        """Return the broken rule, None if one branch covers the alternative and, if `exclusive`, no other may hold."""
        given = self._writer.form(alternative.parts)
        self._writer.budget.spend(_STEP * len(branches))
        possible = [
            (at, branch)
            for at, branch in enumerate(branches)
            if given.may_share_a_value(self._reader.flat(branch))
        ]
        covered = any(
            self._holds(alternative, branch, pointer(path, at), findings) for at, branch in possible
        )
        if not covered:
            return "no_branch_covers"
        return "branches_overlap" if exclusive and len(possible) > 1 else None

    def _whole(self, reader: Schema) -> _Form:
        return self._reader.form((reader,), tuple(reader) if isinstance(reader, Mapping) else ())

    # -- objects (Validation 6.5, Core 10.3.2) -----------------------------------------------------------------

    def _objects(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        for name in reader.get("required", ()):
            if name not in alternative.required:
                findings.add(
                    pointer(path, "properties", name),
                    "property_not_always_written",
                    writer="optional" if name in alternative.named else None,
                    reader="required",
                )
        for word in _PER_NAME:
            if not isinstance(self._reader.document.get(reader, word), Mapping):
                continue
            for name, needs in reader[word].items():
                if not self._said(alternative, {**reader, word: {name: needs}}, word):
                    findings.add(pointer(path, word, name), "dependency_added", writer=None, reader=needs)
        for name in dict.fromkeys((*alternative.named, *reader.get("properties", ()))):
            if not _is_unknown(alternative, name):
                for wanted, at in self._wanted_of(reader, name, path):
                    self._below(_of_property(alternative, name), wanted, at, findings)
        patterns: Mapping[str, Schema] = reader.get("patternProperties", {})
        for pattern, wanted in patterns.items():
            possible = [
                [part["patternProperties"][pattern]]
                if pattern in part.get("patternProperties", {})
                else [*part.get("patternProperties", {}).values(), part.get("additionalProperties", True)]
                for part in alternative.parts
            ]
            self._by_some_part(possible, wanted, pointer(path, "patternProperties", pattern), findings)
        if "additionalProperties" in reader:
            possible = [
                [
                    *(
                        schema
                        for each, schema in part.get("patternProperties", {}).items()
                        if each not in patterns
                    ),
                    part.get("additionalProperties", True),
                ]
                for part in alternative.parts
            ]
            self._by_some_part(
                possible, reader["additionalProperties"], pointer(path, "additionalProperties"), findings
            )

    def _wanted_of(self, reader: Mapping[str, Any], name: str, path: str) -> Iterator[tuple[Schema, str]]:
        """Yield the reader's schemas for a property of that name, each with its path."""
        listed = name in reader.get("properties", {})
        if listed:
            yield reader["properties"][name], pointer(path, "properties", name)
        for pattern, schema in reader.get("patternProperties", {}).items():
            if matches(pattern, name) is not False:
                listed = True
                yield schema, pointer(path, "patternProperties", pattern)
        if not listed and "additionalProperties" in reader:
            rest = reader["additionalProperties"]
            yield (
                rest,
                pointer(path, "properties", name) if rest is False else pointer(path, "additionalProperties"),
            )

    def _by_some_part(
        self, possible: Sequence[Sequence[Schema]], wanted: Schema, path: str, findings: Findings
    ) -> None:
        """Check that some part of the writer's schema guarantees `wanted` by each of its possible schemas."""
        first: Findings | None = None
        for schemas in possible or [[True]]:
            trial = findings.trial()
            for schema in schemas:
                self._below([schema], wanted, path, trial)
            if trial.ok:
                return
            first = first or trial
        if wanted is False:
            findings.add(path, "additional_properties_refused", writer=True, reader=False)
        elif first is not None:
            findings.found += first.found

    # -- arrays (Validation 6.4, Core 10.3.1) ------------------------------------------------------------------

    def _arrays(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        longest = min((part["maxItems"] for part in alternative.parts if "maxItems" in part), default=None)
        firsts, rest, first_word, rest_word = _items(self._reader.document, reader)
        splits = [_items(self._writer.document, part) for part in alternative.parts]
        places = max([len(firsts), *(len(split[0]) for split in splits)])
        for index in range(places):
            if longest is not None and longest <= index:
                return
            given = [split[0][index] if index < len(split[0]) else split[1] for split in splits]
            wanted = firsts[index] if index < len(firsts) else rest
            at = pointer(path, first_word, index) if index < len(firsts) else pointer(path, rest_word)
            self._below(given, wanted, at, findings)
        if longest is None or longest > places:
            self._below([split[1] for split in splits], rest, pointer(path, rest_word), findings)


def _items(document: Document, part: Mapping[str, Any]) -> tuple[list[Schema], Schema, str, str]:
    """Return the schemas of the first items and of the rest, and their keywords."""
    items = part.get("items", True)
    if isinstance(items, list):
        return items, part.get("additionalItems", True), "items", "additionalItems"
    firsts = document.get(part, "prefixItems")
    return firsts if isinstance(firsts, list) else [], items, "prefixItems", "items"


def _of_property(alternative: Alternative, name: str) -> list[Schema]:
    """Return the schemas for a property of that name in the writer's schema. Fewer if a pattern cannot be decided."""
    found: list[Schema] = []
    for part in alternative.parts:
        fits = {each: matches(each, name) for each in part.get("patternProperties", {})}
        own = [part["patternProperties"][each] for each, yes in fits.items() if yes]
        if name in part.get("properties", {}):
            own.append(part["properties"][name])
        if not own and None not in fits.values() and "additionalProperties" in part:
            own.append(part["additionalProperties"])
        found += own
    return found


def _is_unknown(alternative: Alternative, name: str) -> bool:
    """Return whether the writer's schema names properties, but no keyword of it covers this one."""
    return (
        bool(alternative.named)
        and name not in alternative.named
        and not any(
            part.keys() & _LIMITS_OTHERS
            or part.get("additionalProperties", True) not in (True, {})
            or name in part.get("required", ())
            or any(matches(pattern, name) is not False for pattern in part.get("patternProperties", {}))
            for part in alternative.parts
        )
    )


def _given(alternative: Alternative, word: str) -> Any:
    """Return the writer's value of a keyword: one, several, or None."""
    found = [part[word] for part in alternative.parts if word in part]
    return found[0] if len(found) == 1 else found or None


def _described(alternative: Alternative) -> Any:
    parts = [dict(part) for part in alternative.parts]
    return parts[0] if len(parts) == 1 else parts or True


def _is_bound(word: str) -> bool:
    return word.startswith(("min", "max", "exclusive"))


def _snake(word: str) -> str:
    return re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), word)
