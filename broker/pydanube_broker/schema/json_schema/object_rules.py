"""The strict profile's rules for objects (JSON Schema 2020-12 Validation 6.5, Core 10.3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pydanube_broker.schema.differences import Findings
from pydanube_broker.schema.json_schema.alternatives import Alternative, Judge, listed, required_of, shown
from pydanube_broker.schema.json_schema.cost import matches
from pydanube_broker.schema.json_schema.document import Document, pointer
from pydanube_broker.schema.json_schema.references import Schema

# keywords that may constrain properties outside `properties`, and are not analysed on the writer's side
_SPEAK_OF_OTHERS: Final = frozenset(
    {"if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties"}
)


class Prover(Protocol):
    """The part of the prover that the rules for objects use."""

    reader: Document
    reader_judge: Judge

    def below(self, parts: Sequence[Schema], reader: Schema, path: str, findings: Findings) -> None: ...

    def proved(
        self, alternative: Alternative, kind: str, reader: Schema, path: str, findings: Findings
    ) -> None: ...

    def said_alike(self, alternative: Alternative, reader: Mapping[str, Any], *words: str) -> bool: ...

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
    ) -> None: ...


class ObjectRules:
    """Finds the reasons why objects of an alternative may be invalid for a reader."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover

    def check(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        present = required_of(alternative)
        for name in listed(reader, "required"):
            if name not in present:
                findings.add(
                    pointer(path, "properties", name),
                    "property_not_always_written",
                    writer="optional" if _knows(alternative, name) else None,
                    reader="required",
                )
        self._prover.counts(
            alternative,
            reader,
            "minProperties",
            "maxProperties",
            path,
            findings,
            at_least=len(present),
            at_most=_most_properties(alternative),
        )
        self._dependencies(alternative, reader, path, findings)
        self._property_names(alternative, reader, path, findings)
        names = dict.fromkeys(
            name for part in (*alternative.parts, reader) for name in part.get("properties", {})
        )
        for name in names:
            if _is_unknown(alternative, name):
                continue
            for wanted, at in self._wanted_of(reader, name, path, findings):
                self._prover.below(of_property(alternative, name), wanted, at, findings)
        self._other_properties(alternative, reader, path, findings)

    def _wanted_of(
        self, reader: Mapping[str, Any], name: str, path: str, findings: Findings
    ) -> list[tuple[Schema, str]]:
        """Return the reader's schemas for a property of that name, each with its path."""
        wanted: list[tuple[Schema, str]] = []
        if name in reader.get("properties", {}):
            wanted.append((reader["properties"][name], pointer(path, "properties", name)))
        for pattern, schema in reader.get("patternProperties", {}).items():
            fits = matches(pattern, name)
            if fits is None:
                findings.add(
                    pointer(path, "patternProperties", pattern), "not_comparable", writer=None, reader=pattern
                )
            if fits is not False:
                wanted.append((schema, pointer(path, "patternProperties", pattern)))
        if not wanted and "additionalProperties" in reader:
            rest = reader["additionalProperties"]
            at = pointer(path, "properties", name) if rest is False else pointer(path, "additionalProperties")
            wanted.append((rest, at))
        return wanted

    def _other_properties(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        """Check names that neither side lists: those that match a pattern of the reader, and those that match none."""
        patterns: Mapping[str, Schema] = reader.get("patternProperties", {})
        for pattern, wanted in patterns.items():
            self._by_some_part(
                alternative,
                lambda part, pattern=pattern: (  # type: ignore[misc]
                    [part["patternProperties"][pattern]]
                    if pattern in part.get("patternProperties", {})
                    else [*part.get("patternProperties", {}).values(), part.get("additionalProperties", True)]
                ),
                wanted,
                pointer(path, "patternProperties", pattern),
                findings,
            )
        if "additionalProperties" in reader:
            self._by_some_part(
                alternative,
                lambda part: [
                    *(s for p, s in part.get("patternProperties", {}).items() if p not in patterns),
                    part.get("additionalProperties", True),
                ],
                reader["additionalProperties"],
                pointer(path, "additionalProperties"),
                findings,
            )

    def _by_some_part(
        self,
        alternative: Alternative,
        possible: Callable[[Mapping[str, Any]], Sequence[Schema]],
        wanted: Schema,
        path: str,
        findings: Findings,
    ) -> None:
        """Check that some part of the writer's schema guarantees `wanted` by each of its `possible` schemas."""
        first: Findings | None = None
        for part in alternative.parts or ({},):
            trial = findings.trial()
            for schema in possible(part):
                self._prover.below([schema], wanted, path, trial)
            if trial.ok:
                return
            first = first or trial
        assert first is not None
        if wanted is False:
            findings.add(path, "additional_properties_refused", writer=True, reader=False)
        else:
            findings.found += first.found

    def _dependencies(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        present = required_of(alternative)
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            asked = self._prover.reader.get(reader, word)
            if not isinstance(asked, Mapping) or self._prover.said_alike(alternative, reader, word):
                continue
            for name, needs in asked.items():
                if forbids(alternative, name):
                    continue
                at = pointer(path, word, name)
                if isinstance(needs, list):
                    missing = [need for need in needs if need not in present]
                    if missing:
                        findings.add(at, "dependency_added", writer=None, reader=missing)
                else:
                    self._prover.proved(alternative, "object", needs, at, findings)

    def _property_names(
        self, alternative: Alternative, reader: Mapping[str, Any], path: str, findings: Findings
    ) -> None:
        asked = self._prover.reader.get(reader, "propertyNames")
        if asked is None or self._prover.said_alike(alternative, reader, "propertyNames"):
            return
        closed = next((part for part in alternative.parts if _is_closed_object(part)), None)
        names = None if closed is None else list(closed.get("properties", {}))
        if names is None or any(self._prover.reader_judge.accepts(asked, name) is not True for name in names):
            findings.add(
                pointer(path, "propertyNames"), "property_names_narrowed", writer=names, reader=shown(asked)
            )


def _is_closed_object(part: Mapping[str, Any]) -> bool:
    return part.get("additionalProperties") is False and not part.get("patternProperties")


def _of_name(part: Mapping[str, Any], name: str) -> list[Schema]:
    """Return the schemas for a property in one part of the writer's schema. Fewer if a pattern cannot be decided."""
    found: list[Schema] = []
    sure = True
    if name in part.get("properties", {}):
        found.append(part["properties"][name])
    for pattern, schema in part.get("patternProperties", {}).items():
        fits = matches(pattern, name)
        if fits:
            found.append(schema)
        elif fits is None:
            sure = False
    if not found and sure and "additionalProperties" in part:
        found.append(part["additionalProperties"])
    return found


def of_property(alternative: Alternative, name: str) -> list[Schema]:
    """Return all schemas for a property of that name in the writer's schema."""
    return [schema for part in alternative.parts for schema in _of_name(part, name)]


def forbids(alternative: Alternative, name: str) -> bool:
    return any(schema is False for schema in of_property(alternative, name))


def _knows(alternative: Alternative, name: str) -> bool:
    return any(name in part.get("properties", {}) for part in alternative.parts)


def _is_unknown(alternative: Alternative, name: str) -> bool:
    """Return whether the writer's schema names properties, but no keyword of it covers this one."""
    named = {known for part in alternative.parts for known in part.get("properties", {})}
    return (
        bool(named)
        and name not in named
        and not any(
            part.keys() & _SPEAK_OF_OTHERS
            or part.get("additionalProperties", True) not in (True, {})
            or name in listed(part, "required")
            or any(matches(pattern, name) is not False for pattern in part.get("patternProperties", {}))
            for part in alternative.parts
        )
    )


def _most_properties(alternative: Alternative) -> int | None:
    closed = [len(part.get("properties", {})) for part in alternative.parts if _is_closed_object(part)]
    return min(closed) if closed else None
