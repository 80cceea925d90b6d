"""The parts of a runbook, and the data files that define them.

Texts and arguments hold references in braces: `{topic}` is a parameter, `{lag.items.0.topic}` a result of an
earlier step, `{item.subscription}` the current item of a step with `each`. An argument that is only a
reference takes the value unchanged. An argument whose reference has no value is left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    description: str
    required: bool = False
    default: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of a result: every value at `path` (`items.*.status`) has to satisfy `is` with `value`."""

    path: str
    relation: str  # equals | not_equals | at_most | at_least | one_of | none_of | empty | not_empty
    value: Any = None
    fine: str = ""  # the text if the check holds
    attention: str = ""  # the text if it does not. `{value}` is the first wrong value
    stop: bool = False  # a failed check ends the run, because later steps make no sense then


@dataclass(frozen=True, slots=True, kw_only=True)
class RunbookStep:
    """A call with checks of its result, or (without an operation) advice based on earlier results.

    A step whose operation changes something is an approval point: its plan is shown, and applied after a
    person's approval.
    """

    id: str
    title: str
    why: str = ""
    operation: str | None = None
    arguments: Mapping[str, Any]
    when: Mapping[str, Any]  # parameter or reference → its required value, without which the step is left out
    each: str | None = None  # a reference to a list: once for each, up to `most`
    most: int = 10
    checks: tuple[Check, ...] = ()
    show: tuple[str, ...] = ()  # fields of the result, or of its items, worth showing
    suggests: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # operation and arguments, of advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    name: str
    title: str
    summary: str
    parameters: tuple[Parameter, ...]
    steps: tuple[RunbookStep, ...]

    @property
    def label(self) -> str:
        """Return the name as a heading."""
        return self.name.replace("_", " ").capitalize()

    def summary_naming(self, style: Callable[[str], str] = str) -> str:
        """Return the summary with the names of the parameters, in a style, where their values would stand."""
        return self.summary.format_map({each.name: style(each.name) for each in self.parameters})

    def parameter(self, name: str) -> Parameter | None:
        return next((each for each in self.parameters if each.name == name), None)


RELATIONS: Final = frozenset(
    ("equals", "not_equals", "at_most", "at_least", "one_of", "none_of", "empty", "not_empty")
)


@cache
def all_runbooks() -> Mapping[str, Runbook]:
    """Return every runbook, by name."""
    found = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            runbook = parse_runbook(file.name.removesuffix(".toml"), file.read_text(encoding="utf-8"))
            found[runbook.name] = runbook
    return MappingProxyType(found)


def get(name: str) -> Runbook:
    """Return the runbook of that name. `-` counts as `_`. Raises `InvalidArgument`: there is none."""
    runbooks = all_runbooks()
    runbook = runbooks.get(name.replace("-", "_"))
    if runbook is None:
        near = close_names(name.replace("-", "_"), runbooks, at_most=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(sorted(runbooks))}"
        raise InvalidArgument(
            f"there is no runbook {shown(name)!r}. {hint}",
            field="name",
            value=shown(name),
            existing=sorted(runbooks),
        )
    return runbook


def parse_runbook(name: str, text: str) -> Runbook:
    """Parse a file. A mistake in it is ours, and an AssertionError or a TypeError."""
    body = tomllib.loads(text)
    return Runbook(
        name=name,
        title=body.pop("title"),
        summary=body.pop("summary"),
        parameters=tuple(
            Parameter(**{**each, "choices": tuple(each.get("choices", ()))})
            for each in body.pop("parameters", ())
        ),
        steps=tuple(_step(each) for each in body.pop("steps")),
        **body,
    )


def _step(body: dict[str, Any]) -> RunbookStep:
    checks = tuple(_check(each) for each in body.pop("checks", ()))
    suggests = tuple((each["operation"], each.get("arguments", {})) for each in body.pop("suggests", ()))
    return RunbookStep(
        arguments=body.pop("arguments", {}),
        when=body.pop("when", {}),
        show=tuple(body.pop("show", ())),
        checks=checks,
        suggests=suggests,
        **body,
    )


def _check(body: dict[str, Any]) -> Check:
    """`{path = "verdict", equals = "healthy", fine = …, attention = …}`"""
    (relation,) = RELATIONS & set(body)
    return Check(relation=relation, value=body.pop(relation), **body)
