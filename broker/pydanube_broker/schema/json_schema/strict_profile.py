"""The strict profile: every document that is written by the writer's schema must be valid for the reader's.

A document counts as written by a schema if it is valid and uses only declared properties: those of `properties` and
`patternProperties`, and typed `additionalProperties`. By JSON Schema alone, an open object may hold any value under any
name, so adding a property, the most common change, would always be refused. A schema without named properties is a map
of anything. For a union, only the matching branch counts. A name that was removed and reused with another type is
found when all versions are compared (`transitive`).

Containment of JSON Schemas cannot be decided cheaply in general. So this module proves it keyword by keyword, and
without a proof reports "incompatible". An incompatible pair is never reported as compatible. The sections are those of
JSON Schema Validation 2020-12 (6.1 any type, 6.2 numbers, 6.3 strings, 6.4 arrays, 6.5 objects) and Core (10.2
subschemas in place, 10.3 subschemas below). Older dialects follow the same rules for their keywords.

The writer's side is split into alternatives by kind of value (`alternatives`). For each, every keyword of the reader
must follow from the alternative. Finite sets (`enum`, `const`, null, booleans) are checked value by value. Recursive
schemas: a pair that recurs deeper in the instance counts as proved, because instances are finite. A pair that recurs in
place proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydanube_broker.schema.differences import Difference, Direction, Findings
from pydanube_broker.schema.json_schema.alternatives import (
    KINDS,
    Alternative,
    Judge,
    alternatives,
    finite_values,
    kind_of,
    kinds_of,
    listed,
    required_of,
    same,
    shown,
)
from pydanube_broker.schema.json_schema.bounds import (
    highest_count,
    is_multiple,
    lower_bound,
    lowest_count,
    upper_bound,
)
from pydanube_broker.schema.json_schema.dialects import changed_meanings
from pydanube_broker.schema.json_schema.document import MAX_REFERENCES, Document, pointer
from pydanube_broker.schema.json_schema.likeness import Budget, Likeness, TooComplex, bare
from pydanube_broker.schema.json_schema.object_rules import ObjectRules, forbids, of_property
from pydanube_broker.schema.json_schema.references import Schema
from pydanube_broker.schema.json_text import value_key

STEP_COST: Final = 50
Parts = Sequence[Schema]


def compare_strictly(old: Document, new: Document, direction: Direction) -> list[Difference]:
    """Return the reasons why an instance of the writer may be invalid for the reader. Empty if proved otherwise."""
    writer, reader = (old, new) if direction is Direction.BACKWARD else (new, old)
    findings = Findings(direction)
    for path, value in changed_meanings(old, new):
        findings.add(path, "dialect_changed", writer=shown(value), reader=shown(value))
    try:
        if findings.ok:
            _compare(writer, reader, findings)
    except (TooComplex, RecursionError):
        findings.add("", "too_complex_to_prove", writer=None, reader=None)
    return findings.found


def _compare(writer: Document, reader: Document, findings: Findings) -> None:
    prover = _Prover(writer, reader)
    if writer.is_plain and reader.is_plain:
        prover.contained((writer.root,), reader.root, "", findings)
    elif not prover.said_again():
        findings.add("", "not_comparable", writer="dynamic references", reader="dynamic references")


class _Prover:
    def __init__(self, writer: Document, reader: Document) -> None:
        self._writer = writer
        self.reader = reader
        self._budget = Budget()
        self._writer_judge = Judge(writer, self._budget)
        self.reader_judge = Judge(reader, self._budget)
        self._likeness = Likeness(writer, reader, self._budget)
        # Pair in the current proof → level in the instance
        self._open: dict[tuple[frozenset[int], str, int], int] = {}
        self._level = 0
        self._objects = ObjectRules(self)

    # -- entry: any schemas ------------------------------------------------------------------------------------

    def contained(self, parts: Parts, reader: Schema, path: str, findings: Findings) -> None:
        """Add the reasons why values for which all of `parts` hold may be invalid for `reader`."""
        if reader is True or (not reader and reader is not False):
            return
        for alternative in alternatives(self._writer, parts, self._budget):
            if self._is_said(alternative, reader):
                continue
            kinds = frozenset(KINDS).intersection(*(kinds_of(part) for part in alternative.parts))
            values = self._finite(alternative)
            if values is not None:
                values = [value for value in values if kind_of(value) in kinds]
                self._each_value(values, alternative, reader, path, findings)
                continue
            for kind in KINDS:
                if kind in kinds:
                    self.proved(alternative, kind, reader, path, findings)

    def _is_said(self, alternative: Alternative, reader: Schema) -> bool:
        """Return whether a part of the writer's schema equals the reader's schema."""
        self._budget.spend(4 * len(alternative.parts))
        return any(self._likeness.schemas(part, reader) for part in alternative.parts)

    def said_again(self) -> bool:
        """Return whether the documents are equal apart from annotations, definitions and anchors included."""
        return value_key(bare(self._writer.root)) == value_key(bare(self.reader.root))

    def below(self, parts: Parts, reader: Schema, path: str, findings: Findings) -> None:
        """Call `contained` one level deeper in the instance."""
        self._level += 1
        try:
            self.contained(parts, reader, path, findings)
        finally:
            self._level -= 1

    def _finite(self, alternative: Alternative) -> list[Any] | None:
        found = [
            values for part in alternative.parts if (values := finite_values(self._writer, part)) is not None
        ]
        return min(found, key=len) if found else None

    def _each_value(
        self, values: Iterable[Any], alternative: Alternative, reader: Schema, path: str, findings: Findings
    ) -> None:
        possible = [
            value
            for value in values
            if all(self._writer_judge.accepts(part, value) is not False for part in alternative.parts)
        ]
        refused = [value for value in possible if self.reader_judge.accepts(reader, value) is not True]
        if refused:
            findings.add(path, "values_not_accepted", writer=refused, reader=shown(reader))

    # -- one alternative of one kind ---------------------------------------------------------------------------

    def proved(
        self, alternative: Alternative, kind: str, reader: Schema, path: str, findings: Findings
    ) -> None:
        self._budget.spend(STEP_COST + len(alternative.parts))
        if reader is True:
            return
        if reader is False:
            findings.add(path, "nothing_accepted", writer=_described(alternative), reader=False)
            return
        if self._is_said(alternative, reader):
            return
        if kind in ("null", "boolean") and (kind in kinds_of(reader) or "$ref" in reader):
            values: list[Any] = [None] if kind == "null" else [True, False]
            self._each_value(values, alternative, reader, path, findings)
            return
        key = (alternative.identity, kind, id(reader))
        begun = self._open.get(key)
        if begun is not None:
            if begun == self._level:
                findings.add(path, "not_comparable", writer=None, reader=shown(reader))
            return
        self._open[key] = self._level
        try:
            self._keywords(alternative, kind, reader, path, findings)
        finally:
            del self._open[key]

    def _holds(
        self, alternative: Alternative, kind: str, reader: Schema, path: str, findings: Findings
    ) -> bool:
        """Return whether `proved` finds no reasons, and drop the reasons."""
        trial = findings.trial()
        self.proved(alternative, kind, reader, path, trial)
        return trial.ok

    def _keywords(
        self, alternative: Alternative, kind: str, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        reference = reader.get("$ref")
        if isinstance(reference, str):
            target = self.reader.target(reference, reader)
            if target is None:
                findings.add(pointer(path, "$ref"), "not_comparable", writer=None, reader=reference)
            else:
                self.proved(alternative, kind, target, path, findings)
            if self.reader.ref_hides_siblings:
                return
        if kind not in kinds_of(reader):
            findings.add(
                pointer(path, "type"), "type_narrowed", writer=_types(alternative), reader=reader["type"]
            )
            return
        wanted = finite_values(self.reader, reader)
        if wanted is not None:
            word = "enum" if "enum" in reader else "const"
            findings.add(pointer(path, word), "values_narrowed", writer=_types(alternative), reader=wanted)
            return
        self._in_place(alternative, kind, reader, path, findings)
        match kind:
            case "integer" | "fraction":
                self._numbers(alternative, kind, reader, path, findings)
            case "string":
                self._strings(alternative, reader, path, findings)
            case "array":
                self._arrays(alternative, reader, path, findings)
            case "object":
                self._objects.check(alternative, reader, path, findings)

    def said_alike(self, alternative: Alternative, reader: Mapping[str, Any], *words: str) -> bool:
        """Return whether a part of the writer's schema has the same values for these keywords."""
        self._budget.spend(4 * len(alternative.parts))
        return any(
            all(self._writer.get(part, word) is not None for word in words if word in reader)
            and self._likeness.keywords(part, reader, words)
            for part in alternative.parts
        )

    # -- subschemas in place (Core 10.2) -----------------------------------------------------------------------

    def _in_place(
        self, alternative: Alternative, kind: str, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        for index, schema in enumerate(listed(reader, "allOf")):
            self.proved(alternative, kind, schema, pointer(path, "allOf", index), findings)
        if "anyOf" in reader and not self.said_alike(alternative, reader, "anyOf"):
            self._any_of(alternative, kind, reader["anyOf"], pointer(path, "anyOf"), findings)
        if "oneOf" in reader and not self.said_alike(alternative, reader, "oneOf"):
            self._one_of(alternative, kind, reader["oneOf"], pointer(path, "oneOf"), findings)
        if "not" in reader and not (
            self.said_alike(alternative, reader, "not") or self._disjoint(alternative, kind, reader["not"], 0)
        ):
            findings.add(
                pointer(path, "not"), "may_be_excluded", writer=_described(alternative), reader=reader["not"]
            )
        if self.reader.get(reader, "if") is not None and not self.said_alike(
            alternative, reader, "if", "then", "else"
        ):
            for word in ("then", "else"):
                if not self._holds(alternative, kind, reader.get(word, True), pointer(path, word), findings):
                    findings.add(
                        pointer(path, word),
                        "condition_not_proved",
                        writer=None,
                        reader=shown(reader.get(word)),
                    )
        for word in ("unevaluatedItems", "unevaluatedProperties"):  # they depend on the schema as a whole
            if reader.get(word, True) is not True:
                findings.add(pointer(path, word), "not_comparable", writer=None, reader=shown(reader[word]))

    def _any_of(
        self, alternative: Alternative, kind: str, branches: Sequence[Schema], path: str, findings: Findings
    ) -> None:
        for index, branch in enumerate(branches):
            if self._holds(alternative, kind, branch, pointer(path, index), findings):
                return
        findings.add(path, "no_branch_covers", writer=_described(alternative), reader=shown(branches))

    def _one_of(
        self, alternative: Alternative, kind: str, branches: Sequence[Schema], path: str, findings: Findings
    ) -> None:
        """Check that one branch covers the alternative and every other branch excludes it."""
        covered = False
        for index, branch in enumerate(branches):
            if not self._holds(alternative, kind, branch, pointer(path, index), findings):
                continue
            covered = True
            others = [other for at, other in enumerate(branches) if at != index]
            if all(self._disjoint(alternative, kind, other, 0) for other in others):
                return
        rule = "branches_overlap" if covered else "no_branch_covers"
        findings.add(path, rule, writer=_described(alternative), reader=shown(branches))

    def _disjoint(self, alternative: Alternative, kind: str, schema: Schema, followed: int) -> bool:
        """Return whether no value of the alternative can be valid for a schema of the reader. False if not proved."""
        self._budget.spend(10)
        if isinstance(schema, bool):
            return not schema
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self.reader.target(reference, schema) if followed < MAX_REFERENCES else None
            if target is not None and self._disjoint(alternative, kind, target, followed + 1):
                return True
            if self.reader.ref_hides_siblings:
                return False
        if kind not in kinds_of(schema):
            return True
        wanted = finite_values(self.reader, schema)
        if wanted is not None and all(kind_of(value) != kind for value in wanted):
            return True
        if any(self._disjoint(alternative, kind, part, followed + 1) for part in listed(schema, "allOf")):
            return True
        for word in ("anyOf", "oneOf"):
            branches = listed(schema, word)
            if branches and all(self._disjoint(alternative, kind, each, followed + 1) for each in branches):
                return True
        return kind == "object" and self._told_apart(alternative, schema)

    def _told_apart(self, alternative: Alternative, schema: Mapping[str, Any]) -> bool:
        """Return whether a property separates the two: its values differ (a discriminator), or only one may have it."""
        demanded = set(listed(schema, "required"))
        if any(forbids(alternative, name) for name in demanded):
            return True
        properties = schema.get("properties", {})
        for name in required_of(alternative):
            wanted = finite_values(self.reader, properties.get(name, True))
            if properties.get(name, True) is False:
                return True
            if wanted is None:
                continue
            for part in of_property(alternative, name):
                possible = finite_values(self._writer, part)
                if possible is not None and not any(same(one, other) for one in possible for other in wanted):
                    return True
        return False

    # -- numbers (6.2) and strings (6.3) -----------------------------------------------------------------------

    def _numbers(
        self, alternative: Alternative, kind: str, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        for find, words in (
            (lower_bound, ("minimum", "exclusiveMinimum")),
            (upper_bound, ("maximum", "exclusiveMaximum")),
        ):
            wanted = find((reader,))
            if wanted is None:
                continue
            given = find(alternative.parts)
            if given is None or not given.implies(wanted):
                word = next(word for word in reversed(words) if word in reader)
                findings.add(
                    pointer(path, word),
                    "bound_narrowed",
                    writer=None if given is None else given.value,
                    reader=reader[word],
                )
        step = reader.get("multipleOf")
        if step is not None:
            steps = [part["multipleOf"] for part in alternative.parts if "multipleOf" in part]
            if kind == "integer":
                steps.append(1)
            if not any(is_multiple(each, step) for each in steps):
                findings.add(pointer(path, "multipleOf"), "step_narrowed", writer=steps or None, reader=step)

    def _strings(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        self.counts(alternative, reader, "minLength", "maxLength", path, findings)
        self._only_alike(
            alternative, reader, ("pattern", "format", "contentEncoding", "contentMediaType"), path, findings
        )

    def _only_alike(
        self,
        alternative: Alternative,
        reader: Mapping[str, Any],
        words: Iterable[str],
        path: str,
        findings: Findings,
    ) -> None:
        """Check keywords that are implied only by the same keyword with an equal value."""
        for word in words:
            if self.reader.get(reader, word) is not None and not self.said_alike(alternative, reader, word):
                given = [part[word] for part in alternative.parts if word in part]
                findings.add(
                    pointer(path, word), f"{_snake(word)}_changed", writer=given or None, reader=reader[word]
                )

    def counts(
        self,
        alternative: Alternative,
        reader: Mapping[str, Any],
        low: str,
        high: str,
        path: str,
        findings: Findings,
        *,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> None:
        """Check that the writer's lengths, with `at_least` and `at_most`, satisfy the reader's bounds."""
        if low in reader:
            given = max(lowest_count(alternative.parts, low), at_least)
            if given < reader[low]:
                findings.add(pointer(path, low), "bound_narrowed", writer=given, reader=reader[low])
        if high in reader:
            limits = [x for x in (highest_count(alternative.parts, high), at_most) if x is not None]
            if not limits or min(limits) > reader[high]:
                findings.add(
                    pointer(path, high),
                    "bound_narrowed",
                    writer=min(limits) if limits else None,
                    reader=reader[high],
                )

    # -- arrays (6.4, Core 10.3.1) -----------------------------------------------------------------------------

    def _arrays(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        parts = alternative.parts
        longest = highest_count(parts, "maxItems")
        self.counts(alternative, reader, "minItems", "maxItems", path, findings)
        at_most_one = longest is not None and longest <= 1
        if reader.get("uniqueItems") is True and not (
            at_most_one or any(part.get("uniqueItems") is True for part in parts)
        ):
            findings.add(pointer(path, "uniqueItems"), "items_must_be_unique", writer=False, reader=True)
        if self.reader.get(reader, "contains") is not None and not self.said_alike(
            alternative, reader, "contains", "minContains", "maxContains"
        ):
            findings.add(
                pointer(path, "contains"), "contains_changed", writer=None, reader=shown(reader["contains"])
            )
        firsts, rest, first_word, rest_word = _items(self.reader, reader)
        splits = [_items(self._writer, part) for part in parts]
        places = max([len(firsts), *(len(split[0]) for split in splits)])
        for index in range(places):
            if longest is not None and longest <= index:
                return
            given = [split[0][index] if index < len(split[0]) else split[1] for split in splits]
            wanted = firsts[index] if index < len(firsts) else rest
            at = pointer(path, first_word, index) if index < len(firsts) else pointer(path, rest_word)
            self.below(given, wanted, at, findings)
        if longest is None or longest > places:
            self.below([split[1] for split in splits], rest, pointer(path, rest_word), findings)


def _items(document: Document, part: Mapping[str, Any]) -> tuple[list[Schema], Schema, str, str]:
    """Return the schemas of the first items and of the rest, and their keywords."""
    items = part.get("items", True)
    if isinstance(items, list):
        return items, part.get("additionalItems", True), "items", "additionalItems"
    firsts = document.get(part, "prefixItems")
    return firsts if isinstance(firsts, list) else [], items, "prefixItems", "items"


def _types(alternative: Alternative) -> Any:
    named = [part["type"] for part in alternative.parts if "type" in part]
    return named[0] if len(named) == 1 else named or None


def _described(alternative: Alternative) -> Any:
    parts = [dict(part) for part in alternative.parts]
    return parts[0] if len(parts) == 1 else parts or True


def _snake(word: str) -> str:
    return re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), word)
