"""Brokers and their balance, namespaces, clients, the broker's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_admin.registry import OPERATIONS

from pydanube_tui.columns import moving, number, since, told, words
from pydanube_tui.page import Call, Cell, Item, Line, Target, Tone, line
from pydanube_tui.text import ago, count, milliseconds, shown
from pydanube_tui.view import Arguments, Ask, Extent, Situation, View, given, listed

_BALANCE: Final = "cluster.balance"


def _state(item: Item) -> Cell:
    fine = item["state"] == "active" and item.get("ready", True)
    word = item["state"] if fine or item["state"] != "active" else "not ready"
    return Cell(f"{'✓' if fine else '▼'} {word}", Tone.GOOD if fine else Tone.WARN, word)


def _balance(situation: Situation) -> Sequence[Line]:
    """What the load manager says: score, bottleneck, why nothing is to be done; or that there is none yet."""
    if _BALANCE not in OPERATIONS:
        return [
            line((" balance    ", Tone.DIM), ("NOT_IMPLEMENTED: there is no load manager yet", Tone.DIM)),
            line(),
        ]
    error = situation.error("balance")
    if error is not None:
        return [line((" balance    ", Tone.DIM), (str(error), Tone.WARN)), line()]
    lines = [
        line((f" {name:<11}", Tone.DIM), shown(value))
        for name, value in situation.of("balance").items()
        if not name.endswith("_reason")
    ]
    return [*lines, line()]


def _asks_brokers(arguments: Arguments) -> Mapping[str, Ask]:
    asked = listed("brokers.list")(arguments)
    return {**asked, "balance": Ask(operation=_BALANCE, optional=True)} if _BALANCE in OPERATIONS else asked


BROKERS: Final = View(
    name="brokers",
    title="Brokers",
    summary="Members, their state and load, and how evenly it lies; the proposal of the load manager.",
    twin="danube brokers list --json",
    asks=_asks_brokers,
    columns=(
        words("broker", "N 20-24", "broker_id", tone=Tone.STRONG),
        told("state", "S 11", _state),
        told(
            "leads", "6", lambda item: Cell("leader" if item.get("is_leader") else "", Tone.ACCENT), title=""
        ),
        number("topics", "T 7"),
        number("up", "U 7 seconds", "uptime_s"),
        number(
            "in", "7 bytes drop=2", lambda item: (item.get("load") or {}).get("in_bytes_s"), title="in B/s"
        ),
        number(
            "out", "7 bytes drop=2", lambda item: (item.get("load") or {}).get("out_bytes_s"), title="out B/s"
        ),
        words("version", "V 8-12 drop=3"),
        words("zone", "Z 6-12 drop=5"),
        words("address", "22-40 drop=4", lambda item: (item.get("listen") or item).get("grpc")),
    ),
    key=lambda item: str(item["broker_id"]),
    enter=lambda item: Call(operation="brokers.describe", arguments={"broker_id": item["broker_id"]}),
    head=_balance,
    empty="no broker answers",
    aliases=("broker", "balance"),
)

NAMESPACES: Final = View(
    name="namespaces",
    title="Namespaces",
    summary="Namespaces with their policies; Enter shows a namespace's topics.",
    twin="danube namespaces list --json",
    asks=listed("namespaces.list"),
    columns=(
        words("namespace", "N 20-60 grows", tone=Tone.STRONG),
        number("topics", "T 7"),
        words("policies", "P 20-80 grows"),
        since("made", "A", "created_at"),
    ),
    key=lambda item: str(item["namespace"]),
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


def _connected(item: Item, situation: Situation) -> Cell:
    then = milliseconds(item.get("connected_at"))
    if _kind(item) == "producer":
        return Cell("")
    age_s = None if then is None else (situation.now_ms - then) / 1000
    return Cell(ago(item.get("connected_at"), situation.now_ms), Tone.DIM, age_s)


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
    title="Clients",
    summary="Consumers with what each holds, and producers.",
    twin="danube consumers list --json; danube producers list --json",
    asks=_asks_clients,
    columns=(
        words("kind", "K 8", _kind, tone=Tone.DIM),
        words("name", "N 14-40 grows", _name, tone=Tone.STRONG),
        words("topic", "T 14-50 grows"),
        words("subscription", "B 12-30 grows", lambda item: item.get("subscription", "")),
        told("holds", "H 6 right count marks", _holds),
        told("state", "S 14", _standing),
        moving("since", "A 6 right seconds drop=1", _connected),
        words("id", "12-22 drop=2", tone=Tone.DIM),
    ),
    items=lambda situation: [*situation.items("consumers"), *situation.items("producers")],
    key=lambda item: f"{_kind(item)} {item['id']}",
    enter=_place_of_client,
    empty="nobody is connected",
    dated=("consumers",),
    aliases=("consumers", "producers"),
    may=("topic",),
)

_LEVELS: Final = {
    **{"error": Tone.BAD, "critical": Tone.BAD, "warning": Tone.WARN},
    **{"info": Tone.PLAIN, "debug": Tone.DIM},
}


def _text(item: Item) -> str:
    """The line without what has columns of its own."""
    text = str(item["untrusted"].get("text", ""))
    return text.split(f" {item['event']} ", 1)[-1] if item.get("event") else text


def _level(item: Item) -> Cell:
    return Cell(item["level"], _LEVELS.get(item["level"], Tone.PLAIN), item["level"])


LOGS: Final = View(
    name="logs",
    title="Logs",
    summary="The broker's last lines, the newest first.",
    twin="danube brokers logs --json",
    asks=listed("brokers.logs", extent=Extent.ONE, lines=500),
    columns=(
        words("time", "T 23", lambda item: item["time"][:23].replace("T", " "), tone=Tone.DIM),
        told("level", "L 8", _level),
        words("event", "E 16-30", tone=Tone.STRONG),
        words("text", "20-400 grows", _text),
    ),
    key=lambda item: f"{item['time']} {item.get('event')} {item['untrusted'].get('text', '')}",
    empty="the broker has logged nothing",
    sort=("time", True),
    aliases=("log",),
)
