"""The place where data do not fit an Avro schema, which fastavro does not report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str | int, ...]


def fault_of(
    data: Any, schema: Any, named: Mapping[str, Any], fits: Callable[[Any, Any], bool], path: Path = ()
) -> tuple[Path, str]:
    """Return the first place where data do not fit a parsed schema, and why. The reason is empty if none is found.

    Args:
        data: plain data.
        schema: as fastavro parsed it.
        named: its named types.
        fits: whether data fit a schema, without looking at fields too many.
        path: where `data` are.
    """
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    match schema:
        case list():
            branches = [branch for branch in schema if branch != "null"]
            if data is None and len(branches) < len(schema):
                return path, ""
            chosen = [branch for branch in branches if fits(data, branch)] or branches
            if len(chosen) == 1:
                return fault_of(data, chosen[0], named, fits, path)
            return path, f"{data!r:.100} fits none of {_named(schema)}" if chosen == branches else ""
        case {"type": "record" | "error", "fields": fields}:
            return _record_fault(data, schema, fields, named, fits, path)
        case {"type": "array", "items": items} if isinstance(data, list):
            parts: list[tuple[str | int, Any, Any]] = [(at, each, items) for at, each in enumerate(data)]
        case {"type": "map", "values": values} if isinstance(data, Mapping):
            parts = [(key, each, values) for key, each in data.items()]
        case _:
            return path, "" if fits(data, schema) else f"it is {_named(schema)}, got {data!r:.100}"
    for key, each, kind in parts:
        where, why = fault_of(each, kind, named, fits, (*path, key))
        if why:
            return where, why
    return path, ""


def _record_fault(
    data: Any,
    schema: Mapping[str, Any],
    fields: list[Mapping[str, Any]],
    named: Mapping[str, Any],
    fits: Callable[[Any, Any], bool],
    path: Path,
) -> tuple[Path, str]:
    if not isinstance(data, Mapping):
        return path, f"it is {_named(schema)}, got {data!r:.100}"
    for each in fields:
        name = each["name"]
        if name not in data:
            if "default" not in each:
                return (*path, name), "the field is missing"
            continue
        where, why = fault_of(data[name], each["type"], named, fits, (*path, name))
        if why:
            return where, why
    extra = sorted(map(str, data.keys() - {each["name"] for each in fields}))
    return ((*path, extra[0]), "the schema has no such field") if extra else (path, "")


def _named(schema: Any) -> str:
    match schema:
        case list():
            return ", ".join(map(_named, schema))
        case {"logicalType": str(kind)} | {"name": str(kind)} | {"type": str(kind)}:
            return kind
        case _:
            return str(schema)
