"""A runbook as a text: what a person or a model follows who carries it out by hand."""

from __future__ import annotations

from collections.abc import Mapping

from pydanube_admin.engine.effect import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.runbooks.references import fill, fill_arguments, named
from pydanube_admin.runbooks.runbook import Check, Runbook, Step


def text(runbook: Runbook, values: Mapping[str, str], *, by_tools: bool = False) -> str:
    """The steps with the values put in; calls as MCP tools or as commands."""
    numbers = {step.id: number for number, step in enumerate(runbook.steps, 1)}
    lines = [fill(runbook.title, values), "", fill(runbook.summary, values), ""]
    for number, step in enumerate(runbook.steps, 1):
        lines.append(f"{number}. {fill(step.title, values)}")
        lines += [f"   {line}" for line in _details(step, values, numbers, by_tools=by_tools)]
    return named("\n".join(lines) + "\n", {name for name, value in values.items() if value == f"{{{name}}}"})


def _details(
    step: Step, values: Mapping[str, str], numbers: Mapping[str, int], *, by_tools: bool
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
        operation = OPERATIONS[name]
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
        if operation.effect is not Effect.READ:
            lines.append("This changes the cluster: show its plan and ask before it is applied.")
    return lines + [f"Look for: {_attention(check, values)}" for check in step.checks if check.attention]


def _attention(check: Check, values: Mapping[str, str]) -> str:
    """What a check warns of; the value that it would quote is named by its field, with those it may be."""
    field = check.path.rpartition(".")[2]
    bad = f" ({' or '.join(check.value)})" if check.relation == "none_of" else ""
    return fill(check.attention, {**values, "value": f"<{field}>{bad}"})
