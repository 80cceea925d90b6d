"""The cost of a JSON Schema: the number of validator checks per instance location.

With references, a small text can cause much work. Forty definitions that each reference the previous one twice take
2^40 checks at one location. Properties described twice multiply the same way, once per level. So the checks are counted
before a library validates a payload: subschemas in place (`allOf`, `$ref`, …) multiply at the same location, and those
below lead to the locations of their names. A location is represented by the multiset of schemas that describe it. The
search ends when it finds no new locations, or too many.

The count is an upper bound: every branch is taken, every pattern matches every name, and a dynamic reference leads to
all its anchors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, Final

import jsonschema_rs
from pydanube_core.errors import SchemaInvalid
from pydanube_core.schema_formats.json_schema.references import Schema

from pydanube_broker.schema.json_schema.document import Document, pointer
from pydanube_broker.schema.step_budget import StepBudget, TooComplex

MAX_IN_PLACE: Final = 20_000  # checks per instance location: ≈ 0.5 ms
MAX_PLACES: Final = 5_000
MAX_STEPS: Final = 300_000  # counting steps: ≈ 0.2 s, in a thread
# Checks for a reference to a dialect's own schema, the only kind that leaves a document
FOREIGN_LOOKS: Final = 300
_PROPERTY, _ITEM, _NAME = "property", "item", "name"
_REST: Final = (
    (_PROPERTY, "additionalProperties"),
    (_PROPERTY, "unevaluatedProperties"),
    (_ITEM, "items"),
    (_ITEM, "additionalItems"),
    (_ITEM, "unevaluatedItems"),
)

# To find unevaluated items or properties, a validator visits the subschemas in place once more.
_AGAIN: Final = ("unevaluatedItems", "unevaluatedProperties")


class EndlessReference(Exception):
    """A schema refers to itself without descending in the instance."""


def looks(document: Document) -> float:
    """Return the maximum checks per instance location. `inf` if that grows with the depth of instances.

    Raises `EndlessReference`, `TooComplex`: no instance can be checked against such a schema.
    """
    if not isinstance(document.root, Mapping):
        return 1.0
    count = _Count(document)
    for schema in document.references.schemas:
        count.in_place(schema)
    return count.largest(document.root)


class _Count:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._all: dict[int, Counter[int]] = {}  # schema → checks of it and of others in place
        self._kept: dict[int, Mapping[str, Any]] = {}
        self._below: dict[int, _Below] = {}
        self._budget = StepBudget(20 * MAX_STEPS)

    def in_place(self, schema: Mapping[str, Any]) -> Counter[int]:
        """Return the schemas that apply in the same place, with their counts. Iterative, because chains may be long."""
        path: list[tuple[Mapping[str, Any], Iterator[Mapping[str, Any]]]] = []
        opened: set[int] = set()

        def enter(entered: Mapping[str, Any]) -> None:
            opened.add(id(entered))
            self._kept[id(entered)] = entered
            path.append((entered, iter(_beside(self._document, entered))))

        if id(schema) not in self._all:
            enter(schema)
        while path:
            current, rest = path[-1]
            inner = next(rest, None)
            if inner is None:
                path.pop()
                opened.discard(id(current))
                self._all[id(current)] = self._summed(current)
            elif id(inner) in opened:
                raise EndlessReference
            elif id(inner) not in self._all:
                enter(inner)
        return self._all[id(schema)]

    def _summed(self, schema: Mapping[str, Any]) -> Counter[int]:
        found: Counter[int] = Counter({id(schema): 1})
        times = 1 + sum(word in schema for word in _AGAIN)
        total = 1
        for inner in _beside(self._document, schema):
            for one, number in self._all[id(inner)].items():
                found[one] += number * times
                total += number * times
            self._budget.spend(len(self._all[id(inner)]))
            if total > MAX_IN_PLACE:
                raise TooComplex
        return found

    def largest(self, root: Mapping[str, Any]) -> float:
        """Return the largest number of checks over all possible instance locations."""
        start = frozenset({(id(root), 1)})
        seen = {start}
        work = [start]
        most = 1.0
        steps = 0
        while work:
            place = work.pop()
            everything: Counter[int] = Counter()
            for schema, number in place:
                for one, times in self._all[schema].items():
                    everything[one] += times * number
            steps += len(everything)
            most = max(most, sum(self._weight(one) * number for one, number in everything.items()))
            if most > MAX_IN_PLACE * 10 or len(seen) > MAX_PLACES or steps > MAX_STEPS:
                return inf
            for below in self._places_below(everything):
                steps += len(below)
                if below not in seen:
                    seen.add(below)
                    work.append(below)
        return most

    def _weight(self, schema: int) -> float:
        found = self._kept[schema]
        if found.get("format") == "regex":
            return inf  # compiles an expression from the payload
        reference = found.get("$ref")
        foreign = isinstance(reference, str) and self._document.target(reference, found) is None
        pattern = found.get("pattern")
        return 1 + FOREIGN_LOOKS * foreign + (len(pattern) / 8 if isinstance(pattern, str) else 0)

    def _places_below(self, everything: Counter[int]) -> list[frozenset[tuple[int, int]]]:
        any_name: dict[str, Counter[int]] = {}
        named: dict[tuple[str, str], Counter[int]] = {}
        for one, number in everything.items():
            below = self._below.get(one)
            if below is None:
                below = self._below[one] = _below(self._kept[one])
                for schema in (*below.named.values(), *below.always.values(), *below.rest.values()):
                    for each in schema:
                        self.in_place(each)
            for group in (below.always, below.rest):
                for kind, schemas in group.items():
                    counter = any_name.setdefault(kind, Counter())
                    for each in schemas:
                        counter[id(each)] += number
            for (kind, name), schemas in below.named.items():
                counter = named.setdefault((kind, name), Counter())
                for each in schemas:
                    counter[id(each)] += number
                for each in below.rest.get(kind, ()):  # listed names are not among the rest
                    counter[id(each)] -= number
        places = list(any_name.values())
        for (kind, _), counter in named.items():
            counter.update(any_name.get(kind, Counter()))
            places.append(counter)
        return [frozenset((one, n) for one, n in place.items() if n > 0) for place in places if place]


@dataclass(frozen=True, slots=True)
class _Below:
    """Object schemas one level below, by kind of location (property, item, name of a property)."""

    named: dict[tuple[str, str], list[Mapping[str, Any]]]
    always: dict[str, list[Mapping[str, Any]]]  # for all names
    rest: dict[str, list[Mapping[str, Any]]]  # for unlisted names


def _beside(document: Document, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the object schemas that apply to the same value."""
    found: list[Schema | None] = []
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found.append(document.target(reference, schema))
        if document.ref_hides_siblings:
            return [each for each in found if isinstance(each, Mapping)]
    dynamic = schema.get("$dynamicRef")
    if isinstance(dynamic, str):
        anchors = document.references.dynamic_anchors.get(dynamic.rpartition("#")[2], [])
        target = document.target(dynamic, schema)
        found += anchors if any(target is each for each in anchors) else [*anchors, target]
    if "$recursiveRef" in schema:
        recursive = [each for each in document.references.schemas if each.get("$recursiveAnchor") is True]
        target = document.target("#", schema)
        found += recursive if any(target is each for each in recursive) else [*recursive, target]
    for word in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            found += schema[word]
    found += [schema.get(word) for word in ("not", "if", "then", "else")]
    for word in ("dependentSchemas", "dependencies"):
        if isinstance(schema.get(word), Mapping):
            found += schema[word].values()
    return [each for each in found if isinstance(each, Mapping)]


def _below(schema: Mapping[str, Any]) -> _Below:
    below = _Below({}, {}, {})
    for name, inner in _objects(schema.get("properties")):
        below.named[_PROPERTY, name] = [inner]
    for word in ("prefixItems", "items"):
        if isinstance(schema.get(word), list):
            for index, inner in enumerate(schema[word]):
                if isinstance(inner, Mapping):
                    below.named.setdefault((_ITEM, str(index)), []).append(inner)
    for kind, word in _REST:
        if isinstance(schema.get(word), Mapping):
            below.rest.setdefault(kind, []).append(schema[word])
    for kind, word in ((_ITEM, "contains"), (_NAME, "propertyNames")):
        if isinstance(schema.get(word), Mapping):
            below.always.setdefault(kind, []).append(schema[word])
    patterns = [inner for _, inner in _objects(schema.get("patternProperties"))]
    if patterns:
        below.always.setdefault(_PROPERTY, []).extend(patterns)
    return below


def _objects(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, Mapping):
        return []
    return [(name, inner) for name, inner in value.items() if isinstance(inner, Mapping)]


_PATTERN_BYTES: Final = 256 << 10  # maximum compiled size of an expression, to bound the work per character


def admit(document: Document) -> float:
    """Return the checks per location of a payload, and refuse a schema that cannot be checked in bounded time.

    Every payload of its topics is checked against a registered schema. So registration refuses expressions that need
    backtracking (a look ahead, a back reference) and references that multiply without bound.

    Raises `SchemaInvalid` for such an expression or reference. `details["path"]` is its place.
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
    except TooComplex:
        raise _refused(
            "/",
            f"its references and branches look at one value more than {MAX_IN_PLACE} times: name a definition "
            "fewer times",
            None,
        ) from None


def weight(document: Document) -> float:
    """Return the checks per location for a registered schema. `inf` if registration would refuse it today."""
    try:
        return admit(document)
    except SchemaInvalid:
        return inf


def matches(pattern: str, text: str) -> bool | None:
    """Return whether a schema's expression matches in a text. None if it cannot be matched in linear time."""
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
