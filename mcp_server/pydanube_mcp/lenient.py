"""Take arguments as language models write them, by the schema that the tool shows.

| schema | taken |
|---|---|
| integer | `2.0`, `"2"` |
| boolean | `"true"`, `"false"`, also with a capital |
| object | its JSON as a string |
| an optional argument | `null`: left out |
| all arguments of a call | their JSON as a string |

A string stays as it is, so that no name, position or token becomes another one. Everything else that does not
fit is left for the admin core to refuse. Parameters of a method that do not fit are refused here, by their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS
from pydantic import ValidationError
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS

from pydanube_mcp.sizing import PART

META: Final = "pydanube/coerced"  # key in a result's `_meta`: the arguments that were read as another type
_INTEGER: Final = re.compile(r"-?[0-9]{1,15}")
_EXACT: Final = 2**53  # a larger float may stand for another integer than was written
_MOST_CHARS: Final = 65_536  # of an object in a string
_ABSENT: Final = object()
_TYPES: Final = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "an object",
}


def lenient(operation: Operation, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments by the operation's schema, and the names of those that were read as another type."""
    schema = operation.input_schema
    if operation.effect is Effect.READ:
        schema = schema | {"properties": {PART: {"type": "integer"}} | schema["properties"]}
    taken, coerced = _object(schema, arguments, keep=frozenset((*schema.get("required", ()), "plan_token")))
    inner = OPERATIONS.get(str(taken.get("operation")))
    if inner is not None and inner is not operation and isinstance(taken.get("arguments"), dict):
        taken["arguments"], names = lenient(inner, taken["arguments"])
        coerced += [f"arguments.{name}" for name in names]
    return taken, coerced


async def readable_parameters(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware: read the arguments of a call from a string, and name the parameter that a method does not take."""
    given = ctx.params or {}
    arguments = _read({"type": "object"}, given.get("arguments")) if ctx.method == "tools/call" else _ABSENT
    if arguments is not _ABSENT:
        ctx = replace(ctx, params={**given, "arguments": arguments})
    try:
        result = await call_next(ctx)
    except ValidationError as error:
        raise MCPError(code=INVALID_PARAMS, message=_fault(given, error)) from None
    if arguments is not _ABSENT and isinstance(result, dict):
        meta = result.setdefault("_meta", {})
        meta[META] = ["arguments", *meta.get(META, ())]
    return result


def _fault(given: Any, error: ValidationError) -> str:
    """Return which parameter has the wrong type, without its value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    names = first["loc"] if first["loc"][:1] == ("params",) else ("params", *first["loc"])
    path: list[str] = []
    found: Any = {"params": given}
    for name in names:
        if not isinstance(found, Mapping) or name not in found:
            break
        path.append(str(name))
        found = found[name]
    if first["type"] == "missing":
        return f"{'.'.join(map(str, names))} is missing"
    return f"{'.'.join(path)} is {_TYPES.get(type(found), 'null')}, which the method does not take"


def _object(
    schema: Mapping[str, Any], given: Mapping[str, Any], *, keep: frozenset[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return an object's values. `keep`: names whose null stays. None: all, because null is a value there."""
    rest = schema.get("additionalProperties")
    taken: dict[str, Any] = {}
    coerced: list[str] = []
    for name, value in given.items():
        wanted = schema.get("properties", {}).get(name, rest)
        if not isinstance(wanted, Mapping):
            taken[name] = value
            continue
        if value is None and keep is not None and name not in keep:
            coerced.append(name)
            continue
        found = _read(wanted, value)
        if found is not _ABSENT:
            value = found
            coerced.append(name)
        if wanted.get("type") == "object" and isinstance(value, Mapping):
            value, names = _object(wanted, value, keep=None)
            coerced += [f"{name}.{each}" for each in names]
        taken[name] = value
    return taken, coerced


def _read(wanted: Mapping[str, Any], value: Any) -> Any:
    """Return the intended value, or `_ABSENT` if it already has the type or stands for no value of it."""
    match wanted.get("type"), value:
        case "integer", float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case "integer" | ["integer", "string"], str() if _INTEGER.fullmatch(value):
            return int(value)
        case "boolean", "true" | "True" | "false" | "False":
            return value in ("true", "True")
        case "object", str() if len(value) <= _MOST_CHARS:
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                return _ABSENT
            return found if isinstance(found, dict) else _ABSENT
    return _ABSENT
