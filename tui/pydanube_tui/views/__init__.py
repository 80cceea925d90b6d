"""The views, by name, in the order of their digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names

from pydanube_tui.page import Target
from pydanube_tui.view import View
from pydanube_tui.views import (
    brokers,
    connectors,
    fleet,
    messages,
    overview,
    records,
    stored,
    subscriptions,
    topics,
)

VIEWS: Final[dict[str, View]] = {
    view.name: view
    for view in (
        overview.VIEW,
        topics.LIST,
        subscriptions.LIST,
        messages.VIEW,
        fleet.NAMESPACES,
        brokers.BROKERS,
        stored.SCHEMAS,
        records.ALERTS,
        records.PLANS,
        records.AUDIT,
        stored.JOURNAL,
        stored.DEAD_LETTERS,
        fleet.RUNBOOKS,
        fleet.LOGS,
        fleet.CLIENTS,
        connectors.LIST,
        brokers.ONE,
        topics.ONE,
        subscriptions.ONE,
        stored.SCHEMA,
        connectors.ONE,
        stored.OBJECTS,
        records.PLAN,
        records.CHANGE,
    )
}


def unknown(kind: str, name: str, known: Iterable[str]) -> InvalidArgument:
    """Return the error for an unknown name of a view, a cluster or a theme."""
    names = list(known)
    close = close_names(name.casefold(), names, at_most=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(names)}"
    return InvalidArgument(f"there is no {kind} {name}. {hint}", field=kind, value=name)


def place(words: Sequence[str]) -> Target:
    """Parse words into a place: a view or one of its aliases, and its arguments.

    Raises:
        InvalidArgument: there is no such view, or it lacks or does not take an argument.
    """
    name, *given = words
    folded = name.casefold().replace("_", "-")
    view = VIEWS.get(folded) or next((each for each in VIEWS.values() if folded in each.aliases), None)
    if view is None:
        raise unknown("view", name, VIEWS)
    if len(given) < len(view.takes):
        example = " ".join([view.name, *(word.upper() for word in view.takes)])
        raise InvalidArgument(f"{view.name}: write {example}", field="view", value=name)
    named = [*view.takes, *view.may]
    if len(given) > len(named):
        told = f"{view.name} takes {' '.join(named) or 'nothing'}, not {given[len(named)]!r}"
        raise InvalidArgument(told, field="view", value=name)
    return Target(view=view.name, arguments=dict(zip(named, given, strict=False)))
