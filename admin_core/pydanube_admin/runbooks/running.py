"""Carry out a runbook step by step. The caller provides functions for calls and for approval.

A step that changes something is planned first, and only the approved plan is applied. The results of steps
are compared with their checks. An error of one step is reported and ends the run, because later steps depend
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.spelling import shown

from pydanube_admin.engine.declaration import declarations
from pydanube_admin.runbooks.runbook import Check, Runbook, RunbookStep
from pydanube_admin.runbooks.texts import MISSING, fill, fill_arguments, find, spread

# Takes an operation and its arguments. Raises `ClusterError`
Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
Approve = Callable[[str, Mapping[str, Any]], bool]  # the operation and its plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of a check on a result."""

    fine: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one step. A step for several items has one for each."""

    step: RunbookStep
    title: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None  # None: advice, refused approval, or an error
    verdicts: tuple[CheckResult, ...] = ()
    error: ClusterError | None = None
    declined: bool = False
    stop: bool = False  # no step follows
    advice: str = ""
    commands: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        return self.error is None and all(verdict.fine for verdict in self.verdicts)


def values_of(runbook: Runbook, given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters, with defaults filled in.

    Raises `InvalidArgument`: one is missing, unknown, or none of its choices.
    """
    for name in given:
        if runbook.parameter(name) is None:
            known = [parameter.name for parameter in runbook.parameters]
            raise InvalidArgument(
                f"the runbook {runbook.name} has no parameter {shown(name)!r}: "
                + (f"it takes {', '.join(known)}" if known else "it takes none"),
                field=name,
                value=given[name],
            )
    values = dict(given)
    for parameter in runbook.parameters:
        if parameter.name not in values:
            if parameter.required:
                raise InvalidArgument(
                    f"{parameter.name}: must be given: {parameter.description}",
                    field=parameter.name,
                    value=None,
                )
            if parameter.default is not None:
                values[parameter.name] = fill(parameter.default, values)
        elif parameter.choices and values[parameter.name] not in parameter.choices:
            raise InvalidArgument(
                f"{parameter.name}: must be one of {', '.join(parameter.choices)}",
                field=parameter.name,
                value=values[parameter.name],
            )
    return values


def run(runbook: Runbook, given: Mapping[str, str], *, call: Call, approve: Approve) -> Iterator[Outcome]:
    """Yield the outcomes, each as soon as it is available.

    Raises `InvalidArgument`: the parameters are not those of the runbook, and nothing was done.
    """
    known: dict[str, Any] = dict(values_of(runbook, given))
    for step in runbook.steps:
        if any(find(name, known) != wanted for name, wanted in step.when.items()):
            continue
        for item in _items(step, known):
            outcome = _carry_out(step, known if item is None else {**known, "item": item}, call, approve)
            if outcome.result is not None:
                known[step.id] = outcome.result
            yield outcome
            if outcome.stop:
                return


def _items(step: RunbookStep, known: Mapping[str, Any]) -> list[Any]:
    if step.each is None:
        return [None]
    found = find(step.each, known)
    return list(found)[: step.most] if isinstance(found, list) else []


def _carry_out(step: RunbookStep, known: Mapping[str, Any], call: Call, approve: Approve) -> Outcome:
    title = fill(step.title, known)
    if step.operation is None:
        commands = tuple(
            declarations()[name].command_line(_as_far_as_known(arguments, known))
            for name, arguments in step.suggests
        )
        return Outcome(step=step, title=title, advice=fill(step.why, known), commands=commands)
    arguments = fill_arguments(step.arguments, known)
    try:
        result = _call(step.operation, arguments, call, approve)
    except ClusterError as error:
        return Outcome(step=step, title=title, arguments=arguments, error=error, stop=True)
    if result is None:
        return Outcome(step=step, title=title, arguments=arguments, declined=True, stop=True)
    told = [(check, _verdict(check, result, known)) for check in step.checks]
    return Outcome(
        step=step,
        title=title,
        arguments=arguments,
        result=result,
        verdicts=tuple(verdict for _, verdict in told if verdict.text),
        stop=any(check.stop and not verdict.fine for check, verdict in told),
    )


def _call(name: str, arguments: Mapping[str, Any], call: Call, approve: Approve) -> dict[str, Any] | None:
    """Return the result, of a change only after its plan was approved. None: it was not."""
    if not declarations()[name].planned:
        return call(name, arguments)
    plan = call(name, {**arguments, "plan_only": True})
    if not approve(name, plan):
        return None
    return call(name, {**arguments, "plan_token": plan["plan_token"]})


def _as_far_as_known(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for a command to paste. Values that only a person has stay placeholders, as `NAME`."""
    filled = fill_arguments(arguments, known)
    return {
        name: filled.get(
            name, value.strip("{}").rpartition(".")[2].upper() if isinstance(value, str) else value
        )
        for name, value in arguments.items()
        if name in filled or (isinstance(value, str) and "." in value)
    }


def _verdict(check: Check, result: Mapping[str, Any], known: Mapping[str, Any]) -> CheckResult:
    values = spread(check.path, result)
    if check.relation in ("empty", "not_empty"):
        filled = any(value not in (MISSING, None, [], {}, "") for value in values)
        fine = filled if check.relation == "not_empty" else not filled
        wrong: Any = next((value for value in values if value), None)
    else:
        wrongs = [value for value in values if not _holds(check, value)]
        fine, wrong = not wrongs, wrongs[0] if wrongs else None
    return CheckResult(
        fine=fine, text=fill(check.fine if fine else check.attention, {**known, "value": wrong})
    )


def _holds(check: Check, value: Any) -> bool:
    match check.relation:
        case "equals":
            return bool(value == check.value)
        case "not_equals":
            return bool(value != check.value)
        case "at_most":
            return value is not None and bool(value <= check.value)
        case "at_least":
            return value is not None and bool(value >= check.value)
        case "one_of":
            return value in check.value
        case "none_of":
            return value not in check.value
        case _:
            raise AssertionError(check.relation)
