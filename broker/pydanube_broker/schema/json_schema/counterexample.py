"""A message that shows why two JSON Schemas are incompatible: the writer's schema accepts it, the reader's refuses it.

A message is easier to understand than a rule. Samples are generated from the writer's schema, small ones first, and
checked against both schemas with the library that also checks payloads. For some differences no sample is found, which
does not mean that the schemas are compatible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import jsonschema_rs
from pydanube_core.schema_formats.json_schema.references import Schema

from pydanube_broker.schema.json_schema.document import Document

MOST_SAMPLES: Final = 400  # maximum tried per schema. Each costs some 10 µs
MOST_BYTES: Final = 2_000  # maximum size of a sample that is shown
_DEEPEST: Final = 6
_OF_EACH: Final = 6  # maximum samples of a nested part
_TEXTS: Final = {
    "date-time": "2026-01-31T12:00:00Z", "date": "2026-01-31", "time": "12:00:00Z", "email": "a@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000", "uri": "https://example.com/", "ipv4": "127.0.0.1", "ipv6": "::1",
    "hostname": "example.com",
}  # fmt: skip
_KINDS: Final = ("object", "string", "integer", "number", "boolean", "array", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    message: str  # JSON
    at: str  # JSON pointer to the refused value
    why: str


@dataclass(slots=True)
class _Sampler:
    document: Document
    left: int = 5_000  # remaining visits of parts of the schema: ≈ 20 ms


def counterexample(
    writer: Document, takes: jsonschema_rs.Validator, refuses: jsonschema_rs.Validator
) -> Counterexample | None:
    """Return the first sample that the writer's schema accepts and the reader's refuses. None if none is found."""
    for sample in islice(_samples(_Sampler(writer), writer.root, 0), MOST_SAMPLES):
        try:
            if not takes.is_valid(sample) or refuses.is_valid(sample):
                continue
            fault = next(iter(refuses.iter_errors(sample)), None)
        except (ValueError, RecursionError, OverflowError):
            continue
        text = json.dumps(sample, ensure_ascii=False)
        if len(text.encode()) <= MOST_BYTES:
            at = "" if fault is None else "".join(f"/{part}" for part in fault.instance_path)
            return Counterexample(
                message=text, at=at or "/", why="" if fault is None else fault.message[:300]
            )
    return None


def _samples(sampler: _Sampler, schema: Schema, depth: int) -> Iterator[Any]:
    """Yield candidate values for a schema. Not all of them are valid."""
    sampler.left -= 1
    if depth > _DEEPEST or schema is False or sampler.left < 0:
        return
    if schema is True or not isinstance(schema, Mapping):
        yield from ({}, "x", 1)
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = sampler.document.target(reference, schema)
        if target is not None:
            yield from _samples(sampler, target, depth + 1)
        return
    if "const" in schema:
        yield schema["const"]
        return
    if isinstance(schema.get("enum"), list):
        yield from schema["enum"]
        return
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            rest = {key: value for key, value in schema.items() if key != word}
            for option in schema[word]:
                if isinstance(option, Mapping):
                    yield from islice(_samples(sampler, {**rest, **option}, depth + 1), 2 * _OF_EACH)
            return
    for kind in _kinds(schema):
        yield from _of_kind(sampler, schema, kind, depth)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    told = schema.get("type")
    if isinstance(told, str):
        return [told]
    if isinstance(told, list):
        return [kind for kind in told if isinstance(kind, str)]
    if "properties" in schema or "required" in schema:
        return ["object"]
    return ["array"] if "items" in schema else list(_KINDS)


def _of_kind(sampler: _Sampler, schema: Mapping[str, Any], kind: str, depth: int) -> Iterator[Any]:
    match kind:
        case "null":
            yield None
        case "boolean":
            yield from (False, True)
        case "integer" | "number":
            yield from _numbers(schema, whole=kind == "integer")
        case "string":
            yield from _strings(schema)
        case "array":
            yield from _arrays(sampler, schema, depth)
        case "object":
            yield from _objects(sampler, schema, depth)


def _numbers(schema: Mapping[str, Any], *, whole: bool) -> Iterator[Any]:
    bounds = [
        schema[word]
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if isinstance(schema.get(word), int | float) and not isinstance(schema.get(word), bool)
    ]
    step = schema.get("multipleOf", 1)
    yield from (1, 0, -1, step)
    for bound in bounds:
        yield from (bound, bound + step, bound - step)
    yield from (1_000_000, -1_000_000, 2**53)
    if not whole:
        yield from (0.5, -0.5)


def _strings(schema: Mapping[str, Any]) -> Iterator[str]:
    known = _TEXTS.get(str(schema.get("format")))
    if known is not None:
        yield known
    least, most = schema.get("minLength", 0), schema.get("maxLength", 64)
    if isinstance(least, int) and isinstance(most, int):
        yield from ("x" * max(least, 1), "x" * least, "x" * min(most, 256))
    yield from ("text", "", "1", "x" * 64)


def _arrays(sampler: _Sampler, schema: Mapping[str, Any], depth: int) -> Iterator[list[Any]]:
    yield []
    items = schema.get("items", True)
    each = list(
        islice(_samples(sampler, items if not isinstance(items, list) else True, depth + 1), _OF_EACH)
    )
    least = schema.get("minItems", 1)
    for value in each:
        yield [value] * (least if isinstance(least, int) and 0 < least < 20 else 1)
    yield each


def _objects(sampler: _Sampler, schema: Mapping[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """Yield objects with the required properties, with all, without each, with each value of each, with an extra one."""
    properties = schema.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    required = [name for name in schema.get("required", ()) if isinstance(name, str)]
    values = {
        name: list(islice(_samples(sampler, named.get(name, True), depth + 1), 2 * _OF_EACH))
        for name in dict.fromkeys((*required, *named))
    }
    least = {name: values[name][0] for name in required if values[name]}
    whole = {name: own[0] for name, own in values.items() if own}
    yield least
    yield whole
    for name in whole:
        yield {other: value for other, value in whole.items() if other != name}
        for value in values[name]:
            yield {**least, name: value}
    extra = schema.get("additionalProperties", True)
    for value in islice(
        _samples(sampler, extra if isinstance(extra, bool | Mapping) else True, depth + 1), 3
    ):
        yield {**least, "something_else": value}
