"""Fill references in braces with values, and write a runbook as a text for a person or a model to follow."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydanube_admin.engine.declaration import declarations
from pydanube_admin.runbooks.runbook import Check, Runbook, RunbookStep

_REFERENCE: Final = re.compile(r"\{([a-z_]+(?:\.[A-Za-z0-9_*]+)*)\}")


class _Missing:
    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


def find(path: str, known: Mapping[str, Any]) -> Any:
    """Return the value that `step.items.0.name` leads to, or MISSING."""
    value: Any = known
    for word in path.split("."):
        if isinstance(value, Mapping) and word in value:
            value = value[word]
        elif isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        else:
            return MISSING
    return value


def spread(path: str, result: Any) -> list[Any]:
    """Yield every value at a path in which `*` stands for each item of a list."""
    values = [result]
    for word in path.split("."):
        found: list[Any] = []
        for value in values:
            if word == "*" and isinstance(value, list):
                found += value
            elif isinstance(value, Mapping) and word in value:
                found.append(value[word])
        values = found
    return values


def fill(text: str, known: Mapping[str, Any]) -> str:
    """Return the text with its references filled. One without a value stays, so that readers see its name."""

    def put(match: re.Match[str]) -> str:
        value = find(match[1], known)
        return match[0] if value is MISSING or value is None else str(value)

    return _REFERENCE.sub(put, text)


def fill_arguments(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, without those that have no value."""
    filled: dict[str, Any] = {}
    for name, value in arguments.items():
        if not isinstance(value, str):
            filled[name] = value
            continue
        whole = _REFERENCE.fullmatch(value)
        if whole is not None:
            found = find(whole[1], known)
            if found is not MISSING and found is not None:
                filled[name] = found
        elif all(find(path, known) not in (MISSING, None) for path in _REFERENCE.findall(value)):
            filled[name] = fill(value, known)
    return filled


def named(text: str, kept: Collection[str] = ()) -> str:
    """Return the text for reading: a reference without a value is shown by name, `{item.topic}` as `<topic>`.

    `kept`: parameters of a skill, which explains their notation itself.
    """

    def name(match: re.Match[str]) -> str:
        return match[0] if match[1] in kept else f"<{match[1].rpartition('.')[2]}>"

    return _REFERENCE.sub(name, text)


def text(runbook: Runbook, values: Mapping[str, str], *, by_tools: bool = False) -> str:
    """Return the steps with the values filled in, with calls as MCP tools or as commands."""
    numbers = {step.id: number for number, step in enumerate(runbook.steps, 1)}
    lines = [fill(runbook.title, values), "", fill(runbook.summary, values), ""]
    for number, step in enumerate(runbook.steps, 1):
        lines.append(f"{number}. {fill(step.title, values)}")
        lines += [f"   {line}" for line in _details(step, values, numbers, by_tools=by_tools)]
    return named("\n".join(lines) + "\n", {name for name, value in values.items() if value == f"{{{name}}}"})


def _details(
    step: RunbookStep, values: Mapping[str, str], numbers: Mapping[str, int], *, by_tools: bool
) -> list[str]:
    lines = [fill(step.why, values)] if step.why else []
    conditions = [f"{name} is {value}" for name, value in step.when.items()]
    if conditions:
        lines.append(f"Only if {' and '.join(conditions)}.")
    if step.each is not None:
        of, _, field = step.each.partition(".")
        lines.append(f"For each of the {field} of step {numbers[of]} (at most {step.most}).")
    calls = [(step.operation, step.arguments)] if step.operation else []
    for name, arguments in [*calls, *step.suggests]:
        operation = declarations()[name]
        given = {key: fill(str(value), values) for key, value in arguments.items()}
        open_parameters = {
            key for key in given if fill_arguments({key: arguments[key]}, values) or "." in given[key]
        }
        given = {key: value for key, value in given.items() if key in open_parameters}
        if by_tools:
            pairs = ", ".join(f"{key}={value}" for key, value in given.items())
            lines.append(f"Call {operation.tool}({pairs}).")
        else:
            lines.append(f"$ {operation.command_line(given)}")
        if not operation.reads:
            lines.append("This changes the cluster: show its plan, and apply it only after a confirmation.")
    return lines + [f"Look for: {_attention(check, values)}" for check in step.checks if check.attention]


def _attention(check: Check, values: Mapping[str, str]) -> str:
    """Return the warning of a check, with the field and its possible values in place of the quoted value."""
    field = check.path.rpartition(".")[2]
    bad = f" ({' or '.join(check.value)})" if check.relation == "none_of" else ""
    return fill(check.attention, {**values, "value": f"<{field}>{bad}"})
