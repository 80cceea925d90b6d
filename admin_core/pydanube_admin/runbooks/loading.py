"""The data files, read and checked: a name that a file does not spell right fails here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names

from pydanube_admin.engine.spelling import shown
from pydanube_admin.runbooks.runbook import Check, Parameter, Runbook, Step

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
    """The runbook of that name; `-` stands for `_`. Raises `InvalidArgument`: there is none."""
    runbooks = all_runbooks()
    runbook = runbooks.get(name.replace("-", "_"))
    if runbook is None:
        near = close_names(name.replace("-", "_"), runbooks, at_most=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(runbooks))}"
        raise InvalidArgument(
            f"there is no runbook {shown(name)!r}; {hint}",
            field="name",
            value=shown(name),
            existing=sorted(runbooks),
        )
    return runbook


def parse_runbook(name: str, text: str) -> Runbook:
    """Read a file. Whatever is wrong in it is a mistake of ours, and an AssertionError or a TypeError."""
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


def _step(body: dict[str, Any]) -> Step:
    checks = tuple(_check(each) for each in body.pop("checks", ()))
    suggests = tuple((each["operation"], each.get("arguments", {})) for each in body.pop("suggests", ()))
    return Step(
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
