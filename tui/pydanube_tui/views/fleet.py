"""Brokers and their balance, namespaces, clients, the broker's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_admin.registry import OPERATIONS

from pydanube_tui.page import Call, Cell, Column, Line, Page, Row, Target, Tone, line
from pydanube_tui.text import ago, count, milliseconds
from pydanube_tui.view import Ask, Extent, Situation, View
from pydanube_tui.views.listing import Item, Listing, number, since, told, view_of, words
from pydanube_tui.views.wording import shown


def _state(item: Item) -> Cell:
    fine = item["state"] == "active" and item.get("ready", True)
    word = item["state"] if fine or item["state"] != "active" else "not ready"
    return Cell(f"{'✓' if fine else '▼'} {word}", Tone.GOOD if fine else Tone.WARN, word)


_BALANCE: Final = "cluster.balance"


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


BROKERS: Final = view_of(
    Listing(
        operation="brokers.list",
        shapes=(
            words("broker", "broker", "broker_id", key="N", least=20, most=24, tone=Tone.STRONG),
            told("state", "state", _state, key="S", least=11, most=11),
            told(
                "leads",
                "",
                lambda item: Cell("leader" if item.get("is_leader") else "", Tone.ACCENT),
                least=6,
                most=6,
            ),
            number("topics", "topics", key="T", least=7, most=7),
            number("up", "up", "uptime_s", key="U", unit="seconds", least=7, most=7),
            number(
                "in",
                "in B/s",
                lambda item: (item.get("load") or {}).get("in_bytes_s"),
                unit="bytes",
                least=7,
                most=7,
                drop=2,
            ),
            number(
                "out",
                "out B/s",
                lambda item: (item.get("load") or {}).get("out_bytes_s"),
                unit="bytes",
                least=7,
                most=7,
                drop=2,
            ),
            words("version", "version", key="V", least=8, most=12, drop=3),
            words("zone", "zone", key="Z", least=6, most=12, drop=5),
            words(
                "address",
                "address",
                lambda item: (item.get("listen") or item).get("grpc"),
                least=22,
                most=40,
                drop=4,
            ),
        ),
        key=lambda item: str(item["broker_id"]),
        empty="no broker answers",
        enter=lambda item: Call(operation="brokers.describe", arguments={"broker_id": item["broker_id"]}),
        head=_balance,
        beside={"balance": Ask(operation=_BALANCE, optional=True)} if _BALANCE in OPERATIONS else None,
    ),
    name="brokers",
    title="Brokers",
    summary="Members, their state and load, and how evenly it lies; the proposal of the load manager.",
    twin="danube brokers list --json",
    aliases=("broker", "balance"),
)

NAMESPACES: Final = view_of(
    Listing(
        operation="namespaces.list",
        shapes=(
            words("namespace", "namespace", key="N", least=20, most=60, grows=True, tone=Tone.STRONG),
            number("topics", "topics", key="T", least=7, most=7),
            words("policies", "policies", key="P", least=20, most=80, grows=True),
            since("made", "made", "created_at", key="A"),
        ),
        key=lambda item: str(item["namespace"]),
        empty="no namespaces",
        enter=lambda item: Target(view="topics", arguments={"namespace": item["namespace"]}),
        sort=("namespace", False),
    ),
    name="namespaces",
    title="Namespaces",
    summary="Namespaces with their policies; Enter shows a namespace's topics.",
    twin="danube namespaces list --json",
    aliases=("ns",),
)

_CLIENT_COLUMNS: Final = (
    Column(name="kind", title="kind", key="K", least=8, most=8),
    Column(name="name", title="name", key="N", least=14, most=40, grows=True),
    Column(name="topic", title="topic", key="T", least=14, most=50, grows=True),
    Column(name="subscription", title="subscription", key="B", least=12, most=30, grows=True),
    Column(name="holds", title="holds", key="H", least=6, most=6, right=True, unit="count", marks=True),
    Column(name="state", title="state", key="S", least=14, most=14),
    Column(name="since", title="since", key="A", least=6, most=6, right=True, unit="seconds", drop=1),
    Column(name="id", title="id", least=12, most=22, drop=2),
)


def _clients(situation: Situation) -> Page:
    rows = [_consumer(item, situation.now_ms) for item in situation.items("consumers")]
    rows += [_producer(item) for item in situation.items("producers")]
    as_of = milliseconds(situation.of("consumers").get("as_of"))
    return Page(columns=_CLIENT_COLUMNS, rows=rows, empty="nobody is connected", as_of_ms=as_of)


def _consumer(item: Item, now_ms: int) -> Row:
    answering = item["standing"] == "answering"
    state = (
        "answering"
        if answering and item["active"]
        else "waits"
        if answering
        else item["standing"].replace("_", " ")
    )
    mark, tone = ("✓", Tone.GOOD) if answering else ("▼", Tone.WARN)
    connected = milliseconds(item.get("connected_at"))
    cells = (
        Cell("consumer", Tone.DIM, "consumer"),
        Cell(item["consumer"], Tone.STRONG, item["consumer"]),
        Cell(item["topic"], Tone.PLAIN, item["topic"]),
        Cell(item["subscription"], Tone.PLAIN, item["subscription"]),
        Cell(count(item["in_flight"]), Tone.PLAIN, item["in_flight"]),
        Cell(f"{mark} {state}", tone, state),
        Cell(
            ago(item.get("connected_at"), now_ms),
            Tone.DIM,
            None if connected is None else (now_ms - connected) / 1000,
        ),
        Cell(item["id"], Tone.DIM),
    )
    place = {"topic": item["topic"], "subscription": item["subscription"]}
    return Row(
        key=f"consumer {item['id']}",
        cells=cells,
        item=item,
        enter=Target(view="subscription", arguments=place),
    )


def _producer(item: Item) -> Row:
    cells = (
        Cell("producer", Tone.DIM, "producer"),
        Cell(item["producer"], Tone.STRONG, item["producer"]),
        Cell(item["topic"], Tone.PLAIN, item["topic"]),
        Cell(""),
        Cell("", value=None),
        Cell("exclusive" if item["exclusive"] else "", Tone.DIM),
        Cell("", value=None),
        Cell(item["id"], Tone.DIM),
    )
    enter = Target(view="topic", arguments={"topic": item["topic"]})
    return Row(key=f"producer {item['id']}", cells=cells, item=item, enter=enter)


def _asks_clients(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    wanted = {"topic": arguments["topic"]} if arguments.get("topic") else {}
    return {
        "consumers": Ask(operation="consumers.list", arguments=wanted, extent=Extent.ALL),
        "producers": Ask(operation="producers.list", arguments=wanted, extent=Extent.ALL),
    }


CLIENTS: Final = View(
    name="clients",
    title="Clients",
    summary="Consumers with what each holds, and producers.",
    asks=_asks_clients,
    page=_clients,
    columns=_CLIENT_COLUMNS,
    twin="danube consumers list --json; danube producers list --json",
    aliases=("consumers", "producers"),
    may=("topic",),
)

_LEVELS: Final = {
    "error": Tone.BAD,
    "critical": Tone.BAD,
    "warning": Tone.WARN,
    "info": Tone.PLAIN,
    "debug": Tone.DIM,
}


def _text(item: Item) -> str:
    """The line without what has columns of its own."""
    text = str(item["untrusted"].get("text", ""))
    return text.split(f" {item['event']} ", 1)[-1] if item.get("event") else text


LOGS: Final = view_of(
    Listing(
        operation="brokers.logs",
        arguments={"lines": 500},
        extent=Extent.ONE,
        shapes=(
            words(
                "time",
                "time",
                lambda item: item["time"][:23].replace("T", " "),
                key="T",
                least=23,
                most=23,
                tone=Tone.DIM,
            ),
            told(
                "level",
                "level",
                lambda item: Cell(item["level"], _LEVELS.get(item["level"], Tone.PLAIN), item["level"]),
                key="L",
                least=8,
                most=8,
            ),
            words("event", "event", key="E", least=16, most=30, tone=Tone.STRONG),
            words("text", "text", _text, least=20, most=400, grows=True),
        ),
        key=lambda item: f"{item['time']} {item.get('event')} {item['untrusted'].get('text', '')}",
        empty="the broker has logged nothing",
        sort=("time", True),
    ),
    name="logs",
    title="Logs",
    summary="The broker's last lines, the newest first.",
    twin="danube brokers logs --json",
    aliases=("log",),
)
