"""The default profile: the reference broker's rules, also applied to nested schemas.

Its rules for the top level are in docs/research/data-plane.md#115-results-per-rpc. These differences are refused there,
with `old` and `new` as registered:

* backward: a required field is removed, an optional field becomes required, or the `type` of a shared property
  changes. A brand-new required field is accepted.
* forward: a new property is required, or the `type` of a shared property changes.

The same rules apply below: to the properties of a shared property, to items, to additional properties, and through
references within the document. As in the reference broker, the root's own `type` is not compared. The strict profile
has more rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.schema_formats.json_schema.references import Schema

from pydanube_broker.schema.differences import Difference, Direction, Findings
from pydanube_broker.schema.json_schema.document import MAX_REFERENCES, Document, pointer


def compare_by_default(old: Document, new: Document, direction: Direction) -> list[Difference]:
    """Return the differences that the default profile refuses. Empty if there are none."""
    comparison = _Comparison(old, new, direction)
    comparison.schemas(old.root, new.root, "")
    return comparison.findings.found


class _Comparison:
    def __init__(self, old: Document, new: Document, direction: Direction) -> None:
        self.findings = Findings(direction)
        self._old, self._new = old, new
        self._backward = direction is Direction.BACKWARD
        self._seen: set[tuple[int, int]] = set()

    def _add(self, path: str, rule: str, *, old: Any, new: Any) -> None:
        writer, reader = (old, new) if self._backward else (new, old)
        self.findings.add(path, rule, writer=writer, reader=reader)

    def schemas(self, old: Schema, new: Schema, path: str) -> None:
        """Compare the schemas nested in two schemas. The caller has compared their own types."""
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping) or (id(old), id(new)) in self._seen:
            return
        self._seen.add((id(old), id(new)))
        self._objects(old, new, path)
        for keyword in ("items", "additionalProperties", "additionalItems"):
            before, after = old.get(keyword), new.get(keyword)
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                self._shared(before, after, pointer(path, keyword))
        for keyword in ("prefixItems", "items"):
            befores, afters = old.get(keyword), new.get(keyword)
            if isinstance(befores, list) and isinstance(afters, list):
                for index, (before, after) in enumerate(zip(befores, afters, strict=False)):
                    self._shared(before, after, pointer(path, keyword, index))

    def _objects(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> None:
        before, after = _properties(old), _properties(new)
        required_before, required_after = _required(old), _required(new)
        for name in required_before if self._backward else ():
            if name not in after:
                self._add(
                    pointer(path, "properties", name),
                    "required_property_removed",
                    old=before.get(name, "required"),
                    new=None,
                )
        for name in required_after:
            if name in required_before:
                continue
            if self._backward and name in before:
                self._add(
                    pointer(path, "properties", name),
                    "property_became_required",
                    old="optional",
                    new="required",
                )
            elif not self._backward and name not in before:
                self._add(
                    pointer(path, "properties", name),
                    "required_property_added",
                    old=None,
                    new=after.get(name, "required"),
                )
        for name, schema in before.items():
            if name in after:
                self._shared(schema, after[name], pointer(path, "properties", name))

    def _shared(self, old: Schema, new: Schema, path: str) -> None:
        before, after = _types(_resolved(self._old, old)), _types(_resolved(self._new, new))
        if before != after:
            self._add(pointer(path, "type"), "type_changed", old=_shown(before), new=_shown(after))
        else:
            self.schemas(old, new, path)


def _resolved(document: Document, schema: Schema) -> Schema:
    """Follow the references of a schema within the document. An unresolvable one is returned as it is."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        target = document.target(schema["$ref"], schema)
        if target is None:
            break
        schema = target
    return schema


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Schema]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _types(schema: Schema) -> frozenset[str] | None:
    """Return the types allowed by a schema, None for any. A list of one type equals that type."""
    found = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(found, str):
        return frozenset({found})
    return frozenset(found) if isinstance(found, list) else None


def _shown(types: frozenset[str] | None) -> Any:
    if types is None:
        return None
    return next(iter(types)) if len(types) == 1 else sorted(types)
