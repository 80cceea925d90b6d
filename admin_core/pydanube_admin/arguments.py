"""Check arguments from outside: return a typed request, or an error with the field, the value and a remedy.

pydantic checks, but its messages are not used. Errors describe a field by the schema that callers see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from pydantic import ValidationError
from pydanube_core.errors import InvalidArgument, InvalidName, NotImplementedYet
from pydanube_core.names import TopicName
from pydanube_core.spelling import close_names, either, shown

from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import MAX_WHY_CHARS, Call, Operation
from pydanube_admin.registry import OPERATIONS, TOOLS
from pydanube_admin.value_limit import check_values

MAX_ARGUMENT_BYTES: Final = 4 * 1024 * 1024
MAX_ENTRIES: Final = 1000  # of an object: checking each costs some 50 µs, and an error lists the faulty ones
MAX_FAULTS: Final = 10  # listed in one answer
MAX_TOLD_BYTES: Final = 2048  # of arguments that an error repeats


def find_operation(name: str) -> Operation:
    """Return the operation of that name. Raises `InvalidArgument`, with similar names, if there is none."""
    operation = OPERATIONS.get(name)
    if operation is not None:
        return operation
    if name in TOOLS:  # a tool's name used as a method: suggest the method
        close = [TOOLS[name].name]
    else:
        spelled = name.replace("-", "_").replace(" ", ".")
        close = close_names(spelled, OPERATIONS)
        if close and OPERATIONS[close[0]].effect is not Effect.DESTROY:
            close = [each for each in close if OPERATIONS[each].effect is not Effect.DESTROY]
    hint = f"did you mean {either(close)}?" if close else f"known: {', '.join(OPERATIONS)}"
    raise InvalidArgument(
        f"there is no operation {shown(name)!r}; {hint}",
        field="operation",
        value=shown(name),
        did_you_mean=close,
        next=[
            *(OPERATIONS[known].next_call({}, "the operation of that name") for known in close),
            OPERATIONS["operations.find"].next_call({"query": _words(name)}, "finds it by its purpose"),
        ],
    )


_NAMED: Final = re.compile(r"'([^']+)'")


def _words(name: str) -> str:
    """Return a name that no operation has as words to search for. A name stays whole: its parts are words, too."""
    if re.fullmatch(r"[A-Za-z0-9.-]{1,100}", name):
        return name
    return " ".join(re.findall(r"[A-Za-z0-9]+", name))[:100] or "help"


def parse_call(name: str, arguments: bytes | str | Mapping[str, Any], *, plan_token: str = "") -> Call:
    """Check a call.

    Args:
        name: of the operation.
        arguments: a JSON object as text, or as Python values. `plan_only` and `plan_token` are removed from
            those of a change, `detach` from those of a detachable operation.
        plan_token: of the plan to apply, if it is not in the arguments.

    Raises:
        InvalidArgument, NotImplementedYet: with `field` and `value` in `details`.
    """
    operation = find_operation(name)
    values = _object(arguments)
    plan_only = False
    if operation.planned:
        plan_only = values.pop("plan_only", False)
        plan_token = values.pop("plan_token", "") or plan_token
        if not isinstance(plan_only, bool):
            raise InvalidArgument(
                f"plan_only must be true or false, not {shown(plan_only)!r}",
                field="plan_only",
                value=shown(plan_only),
            )
        if not isinstance(plan_token, str):
            raise InvalidArgument(
                f"plan_token must be a string, not {shown(plan_token)!r}",
                field="plan_token",
                value=shown(plan_token),
            )
        if plan_only and plan_token:
            raise InvalidArgument(
                "plan_only and plan_token exclude each other: the one makes a plan, the other applies one",
                field="plan_only",
                value=True,
            )
    detach = _detached(operation, values, plan_only=plan_only)
    why = _why(values.pop("why", None)) if operation.takes_why else ""
    for field, piece in operation.later_arguments.items():
        if values.get(field) is not None:
            raise NotImplementedYet(
                f"{operation.name}: the argument {field!r} does not exist yet. It comes with the work named "
                f"{piece!r}. Leave it out",
                field=field,
                value=shown(values[field]),
                arrives_with=piece,
            )
        values.pop(field, None)
    try:
        request = operation.request.model_validate(values)
    except ValidationError as error:
        _refuse(operation, values, error, plan_only=plan_only)
    return Call(
        operation=operation,
        request=request,
        arguments=values,
        plan_only=plan_only,
        plan_token=plan_token if operation.planned else "",
        detach=detach,
        why=why,
    )


def _detached(operation: Operation, values: dict[str, Any], *, plan_only: bool) -> bool:
    """Return whether the call is to become a task, and remove `detach` from the values."""
    if not operation.detachable or "detach" in operation.request_names:
        return False
    detach = values.pop("detach", False)
    if not isinstance(detach, bool):
        raise InvalidArgument(
            f"detach must be true or false, not {shown(detach)!r}", field="detach", value=shown(detach)
        )
    if detach and plan_only:
        raise InvalidArgument(
            "plan_only and detach exclude each other: a plan needs no task", field="detach", value=True
        )
    return detach


def _why(given: Any) -> str:
    """Return the reason of a change as it is recorded. Raises `InvalidArgument`."""
    if given is None:
        return ""
    sound = isinstance(given, str) and len(given) <= MAX_WHY_CHARS and given.isprintable()
    if not sound:
        raise InvalidArgument(
            f"why must be one line of at most {MAX_WHY_CHARS} characters with the reason for the change, not "
            + (
                f"{len(given)} characters: shorten it"
                if isinstance(given, str) and len(given) > MAX_WHY_CHARS
                else _quoted(given)
            ),
            field="why",
            value=shown(given),
        )
    return str(given)


def _object(arguments: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object as a dict. Refuse non-JSON values (NaN, lone surrogates) and absurd sizes."""
    if not arguments or arguments == b"{}":
        return {}
    if isinstance(arguments, Mapping):
        values: Any = dict(arguments)
    else:
        if len(arguments) > MAX_ARGUMENT_BYTES:
            raise InvalidArgument(
                f"the arguments are {len(arguments)} bytes, and at most {MAX_ARGUMENT_BYTES} are accepted",
                field="arguments",
            )
        check_values(
            arguments.encode(errors="replace") if isinstance(arguments, str) else arguments, "arguments"
        )
        try:
            values = json.loads(arguments, parse_constant=no_constant)
        except (
            ValueError,
            RecursionError,
        ) as error:  # ValueError: also bad UTF-8 and integers of absurd length
            raise InvalidArgument(
                "the arguments are not a JSON object", field="arguments", value=shown(_text(arguments))
            ) from error
    if not isinstance(values, dict):
        raise InvalidArgument(
            f"the arguments must be a JSON object, not {_kind(values)}",
            field="arguments",
            value=shown(values),
        )
    for field, entries in (("arguments", values), *values.items()):
        if isinstance(entries, (dict, list)) and len(entries) > MAX_ENTRIES:
            raise InvalidArgument(
                f"{shown(field)} holds {len(entries)} values, and at most {MAX_ENTRIES} are accepted",
                field=shown(field),
                value=len(entries),
                limit=MAX_ENTRIES,
            )
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(
            "the arguments hold text that is not Unicode, or a value that JSON does not have",
            field="arguments",
        ) from error
    check_values(text, "arguments")
    return values


def no_constant(text: str) -> NoReturn:
    """Refuse NaN and the infinities, which JSON does not have. For `json.loads(parse_constant=…)`."""
    raise ValueError(text)


def _text(arguments: bytes | str) -> str:
    return arguments.decode("utf-8", "replace") if isinstance(arguments, bytes) else arguments


def _refuse(
    operation: Operation, values: Mapping[str, Any], error: ValidationError, *, plan_only: bool
) -> NoReturn:
    """Raise the error: the first fault in full, the others listed, and the call that was probably intended."""
    found = error.errors(include_url=False, include_context=False)
    faults = [
        _fault(operation, fault["type"], fault["loc"], fault["input"], fault["msg"])
        for fault in found[:MAX_FAULTS]
    ]
    first = faults[0]
    details: dict[str, Any] = {key: value for key, value in first.items() if key != "message"}
    if len(faults) > 1:
        details["more"] = faults[1:]
    if len(found) > MAX_FAULTS:
        details["more_omitted"] = len(found) - MAX_FAULTS
    if operation.examples:
        details["example"] = dict(operation.examples[-1].arguments)
    meant = _renamed(operation, values, faults)
    if plan_only and meant is not None:
        meant["plan_only"] = True
    why = "the same call, with the names that exist"
    steps = [] if meant is None else [operation.next_call(meant, why)]
    raise InvalidArgument(f"{operation.name}: {first['message']}", next=steps, **details) from None


def _renamed(
    operation: Operation, values: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the arguments with misspelled names corrected, or None unless that alone makes the call valid."""
    meant = dict(values)
    for fault in faults:
        given, close = fault["field"], fault.get("did_you_mean")
        if close and given in meant and close[0] not in meant:
            meant[close[0]] = meant.pop(given)
    if meant.keys() == values.keys() or len(json.dumps(meant)) > MAX_TOLD_BYTES:
        return None
    try:
        operation.request.model_validate(meant)
        if "topic" in meant:
            TopicName.parse(meant["topic"])
    except (ValidationError, InvalidArgument, InvalidName):
        return None
    return meant


def _fault(
    operation: Operation, kind: str, place: tuple[int | str, ...], given: Any, said: str
) -> dict[str, Any]:
    field = ".".join(str(part) for part in place) or "arguments"
    properties = operation.input_schema["properties"]
    match kind:
        case "extra_forbidden":
            close = close_names(field, properties)
            hint = (
                f"did you mean {either(close)}?" if close else f"it takes {', '.join(properties) or 'none'}"
            )
            return {
                "field": shown(field),
                "value": shown(given),
                "message": f"there is no argument {shown(field)!r}; {hint}",
                "did_you_mean": close,
            }
        case "missing":
            meaning = properties.get(field, {}).get("description", "")
            return {
                "field": field,
                "value": None,
                "message": f"the argument {field!r} is required" + (f": {meaning}" if meaning else ""),
            }
        case _:
            argument = properties.get(str(place[0]), {}) if place else {}
            if len(place) == 3 and place[-1] == "[key]":  # a name in a map whose names are declared
                # Where the schema leaves them to that of another tool, pydantic has them: Input should be 'a' or 'b'
                known = argument.get("propertyNames", {}).get("enum") or _NAMED.findall(said)
                close = close_names(str(given), known)
                hint = f"did you mean {either(close)}?" if close else f"use {', '.join(known)}"
                return {
                    "field": shown(f"{place[0]}.{place[1]}"),
                    "value": shown(given),
                    "message": f"{place[0]} has no {shown(given)!r}; {hint}",
                    "did_you_mean": close,
                }
            within = argument.get("additionalProperties") if len(place) == 2 else None
            wanted = _wanted(within if isinstance(within, dict) else properties.get(field, {}))
            fault = {
                "field": field,
                "value": shown(given),
                "message": f"{field} must be {wanted}, not {_quoted(given)}",
            }
            allowed = properties.get(field, {}).get("enum")
            if allowed:
                fault["allowed"] = allowed
                close = close_names(given, allowed) if isinstance(given, str) else []
                if close:
                    fault["message"] += f"; did you mean {either(close)}?"
            return fault


def _wanted(schema: Mapping[str, Any]) -> str:
    """Describe the valid values of a field, from its schema."""
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    match schema.get("type"):
        case "integer" if low is not None and high is not None:
            return f"an integer from {low} to {high}"
        case "integer" if low is not None:
            return f"an integer from {low}"
        case "integer":
            return "an integer"
        case "boolean":
            return "true or false"
        case "string" if "pattern" in schema:
            return f"a string that matches {schema['pattern']}"
        case "string" if longest is not None:
            return f"a string of {shortest} to {longest} characters"
        case "string":
            return "a string"
        case ["integer", "string"]:
            return "an integer or a string"
        case other:
            return f"of type {other}" if other else "of another type"


def _quoted(given: Any) -> str:
    if isinstance(given, str):
        return f"the string {shown(given)!r}"
    if isinstance(given, (dict, list)) or given is None:
        return _kind(given)
    return json.dumps(shown(given))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
