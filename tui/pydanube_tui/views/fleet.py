"""Namespaces, clients, the broker's log, and the runbooks, which are part of the program and need no call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydanube_admin import runbooks

from pydanube_tui.columns import custom, number, since, words
from pydanube_tui.page import Cell, Item, Target, Tone, line
from pydanube_tui.text import count
from pydanube_tui.view import Arguments, Ask, Extent, Situation, View, given, listed

NAMESPACES: Final = View(
    name="namespaces",
    summary="Namespaces with their policies. Enter shows a namespace's topics.",
    twin="danube namespaces list --json",
    asks=listed("namespaces.list"),
    columns=(
        words("namespace", "N 20-60 grows", tone=Tone.STRONG),
        number("topics", "T 7"),
        words("policies", "P 20-80 grows"),
        since("made", "A", "created_at"),
    ),
    enter=lambda item: Target(view="topics", arguments={"namespace": item["namespace"]}),
    empty="no namespaces",
    sort=("namespace", False),
    aliases=("ns",),
)


def _name(item: Item) -> str:
    return str(item.get("consumer") or item["producer"])


def _kind(item: Item) -> str:
    return "consumer" if "consumer" in item else "producer"


def _holds(item: Item) -> Cell:
    held = item.get("in_flight")
    return Cell("" if held is None else count(held), Tone.PLAIN, held)


def _standing(item: Item) -> Cell:
    if _kind(item) == "producer":
        return Cell("exclusive" if item["exclusive"] else "", Tone.DIM)
    if item["standing"] != "answering":
        state = item["standing"].replace("_", " ")
        return Cell(f"▼ {state}", Tone.WARN, state)
    state = "answering" if item["active"] else "waits"
    return Cell(f"✓ {state}", Tone.GOOD, state)


def _asks_clients(arguments: Arguments) -> Mapping[str, Ask]:
    wanted = given(arguments, "topic")
    return {
        name: Ask(operation=f"{name}.list", arguments=wanted, extent=Extent.ALL)
        for name in ("consumers", "producers")
    }


def _place_of_client(item: Item) -> Target:
    place = {"topic": item["topic"]}
    if _kind(item) == "producer":
        return Target(view="topic", arguments=place)
    return Target(view="subscription", arguments={**place, "subscription": item["subscription"]})


CLIENTS: Final = View(
    name="clients",
    summary="Consumers with their unacknowledged messages, and producers.",
    twin="danube consumers list --json; danube producers list --json",
    asks=_asks_clients,
    columns=(
        words("kind", "K 8", _kind, tone=Tone.DIM),
        words("name", "N 14-40 grows", _name, tone=Tone.STRONG),
        words("topic", "T 14-50 grows"),
        words("subscription", "B 12-30 grows", lambda item: item.get("subscription", "")),
        custom("holds", "H 6 right count marks", _holds),
        custom("state", "S 14", _standing),
        since("since", "A drop=1", "connected_at"),
        words("id", "12-22 drop=2", tone=Tone.DIM),
    ),
    items=lambda situation: [*situation.items("consumers"), *situation.items("producers")],
    key=lambda item: f"{_kind(item)} {item['id']}",
    enter=_place_of_client,
    empty="no client is connected",
    dated=("consumers",),
    aliases=("consumers", "producers"),
    may=("topic",),
)

_LEVELS: Final = {
    **{"error": Tone.BAD, "critical": Tone.BAD, "warning": Tone.WARN},
    **{"info": Tone.PLAIN, "debug": Tone.DIM},
}


def _text(item: Item) -> str:
    """Return a log line without the parts that have columns."""
    text = str(item["untrusted"].get("text", ""))
    return text.split(f" {item['event']} ", 1)[-1] if item.get("event") else text


def level_cell(item: Item) -> Cell:
    return Cell(item["level"], _LEVELS.get(item["level"], Tone.PLAIN), item["level"])


LOGS: Final = View(
    name="logs",
    summary="The broker's last lines, the newest first.",
    twin="danube brokers logs --json",
    asks=listed("brokers.logs", extent=Extent.ONE, lines=500),
    columns=(
        words("time", "T 23", lambda item: item["time"][:23].replace("T", " "), tone=Tone.DIM),
        custom("level", "L 8", level_cell),
        words("event", "E 16-30 grows", tone=Tone.STRONG),
        words("text", "20-400 grows", _text),
    ),
    key=lambda item: f"{item['time']} {item.get('event')} {item['untrusted'].get('text', '')}",
    empty="the broker has logged nothing",
    sort=("time", True),
    aliases=("log",),
)


def _books(_: Situation) -> Iterator[Item]:
    """Return every runbook as an item of the list."""
    for book in runbooks.all().values():
        yield {
            "runbook": book.name,
            "summary": book.summary_naming(str.upper),
            "asks": [each.name for each in book.parameters],
            "steps": [step.title for step in book.steps],
        }


RUNBOOKS: Final = View(
    name="runbooks",
    summary="Tasks step by step: health, lag, schemas, dead letters, capacity. Enter carries one out.",
    twin="danube runbook NAME --json",
    asks=lambda _: {},
    columns=(
        words("name", "N 24-32", "runbook", title="runbook", tone=Tone.STRONG),
        words("summary", "30-160 grows", title="what it does"),
        custom(
            "steps",
            "S 5 right count drop=1",
            lambda item: Cell(str(len(item["steps"])), Tone.DIM, len(item["steps"])),
        ),
        words(
            "asks",
            "16-40 drop=2",
            lambda item: ", ".join(item["asks"]) or "–",
            title="asks for",
            tone=Tone.DIM,
        ),
    ),
    items=_books,
    aliases=("runbook",),
    key=lambda item: str(item["runbook"]),
    head=lambda _: [
        line((" Enter carries one out, step by step. Each change is shown and needs your consent", Tone.DIM)),
        line(),
    ],
)
