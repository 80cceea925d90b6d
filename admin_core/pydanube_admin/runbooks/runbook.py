"""The parts of a runbook.

Texts and arguments hold references in braces: `{topic}` is a parameter, `{lag.items.0.topic}` what an earlier step
found, `{item.subscription}` the one that a step with `each` is at. An argument that is nothing but a reference takes
the value as it is; one whose reference leads nowhere is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    description: str
    required: bool = False
    default: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An expectation of a result: every value at `path` (`items.*.status`) fulfils `is` with `value`."""

    path: str
    relation: str  # equals | not_equals | at_most | at_least | one_of | none_of | empty | not_empty
    value: Any = None
    fine: str = ""  # what to say when it holds
    attention: str = ""  # and when it does not; `{value}` is the first that does not
    stop: bool = False  # the later steps have no sense then


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call with checks of its result, or (without an operation) advice that rests on what was found.

    A step whose operation changes something is an approval point: its plan is shown, and it is applied when
    somebody says so.
    """

    id: str
    title: str
    why: str = ""
    operation: str | None = None
    arguments: Mapping[str, Any]
    when: Mapping[str, Any]  # parameter or reference → the value it must have; else the step is left out
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
    steps: tuple[Step, ...]

    def parameter(self, name: str) -> Parameter | None:
        return next((each for each in self.parameters if each.name == name), None)
