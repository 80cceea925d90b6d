"""Brokers, their load and capacity, the balance, and the moves that the load manager suggests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Final

from pydanube_core.units import counted

from pydanube_tui.columns import custom, moving, number, words
from pydanube_tui.page import Cell, Column, Item, Line, Target, Tone, dim, fact, line
from pydanube_tui.text import gauge, size, span
from pydanube_tui.view import CHARTED, Arguments, Ask, Extent, Situation, View, listed
from pydanube_tui.views.charts import beside, counters, traffic
from pydanube_tui.views.wording import broker_name, broker_names

FULL: Final = 0.8  # of a capacity: from there on it is a warning, as the load manager has it
_VERDICTS: Final = {
    "BALANCED": ("✓", Tone.GOOD),
    "IMBALANCED": ("▼", Tone.WARN),
    "OVERLOADED": ("✗", Tone.BAD),
}
_MODES: Final = {
    "off": "the load manager is off",
    "suggest": "a person decides",
    "act": "the load manager moves topics automatically",
}
_TITLES: Final = {"cpu": "cpu", "network_in": "in B/s", "network_out": "out B/s"}


def _state(item: Item) -> Cell:
    word = item["state"] if item["state"] != "active" or item["ready"] else "not ready"
    fine = word == "active"
    return Cell(f"{'✓' if fine else '▼'} {word}", Tone.GOOD if fine else Tone.WARN, word)


def _asks(arguments: Arguments) -> Mapping[str, Ask]:
    return {
        **listed("brokers.list")(arguments),
        "balance": Ask(operation="cluster.balance", optional=True),
    }


def _members(situation: Situation) -> list[Item]:
    """Return each broker with its load from the load manager."""
    known = {each["broker_id"]: each for each in situation.of("balance").get("brokers", ())}
    return [{**item, **known.get(item["broker_id"], {})} for item in situation.items()]


def _amount(resource: str, value: float) -> str:
    return f"{value:.2f}" if resource == "cpu" else size(value)


def _of(resource: str, layout: str) -> Column:
    """Return a resource's load in words: how much, and the share of the capacity if it has one."""

    def cell(item: Item) -> Cell:
        used = (item.get("load") or {}).get(resource)
        capacity = (item.get("capacity") or {}).get(resource)
        if used is None:
            return Cell("–", Tone.DIM)
        share = None if capacity is None else used / capacity
        text = _amount(resource, used) + ("" if capacity is None else f" of {_amount(resource, capacity)}")
        return Cell(text, Tone.WARN if share is not None and share > FULL else Tone.PLAIN, used)

    return custom(
        resource, f"{layout} right {'count' if resource == 'cpu' else 'bytes'}", cell, title=_TITLES[resource]
    )


def _share(item: Item, situation: Situation) -> Cell:
    """Return the bottleneck's load as a bar: of the capacity, else of the most loaded broker's."""
    balance = situation.of("balance")
    resource = balance.get("bottleneck")
    used = (item.get("load") or {}).get(resource)
    if used is None:
        return Cell("")
    full = (item.get("capacity") or {}).get(resource)
    most = max((each["load"].get(resource, 0.0) for each in balance["brokers"]), default=0.0)
    part = used / (full or most or 1.0)
    tone = Tone.ACCENT if full is None else Tone.WARN if part > FULL else Tone.GOOD
    return Cell(gauge(part), tone, used)


def _head(situation: Situation) -> Sequence[Line]:
    """Return the load manager's verdict with reasons, and its suggested moves, or why there are none."""
    error, found = situation.error("balance"), situation.of("balance")
    if error is not None:
        return [fact("balance", (str(error), Tone.WARN)), line()]
    if not found:
        return []
    glyph, tone = _VERDICTS.get(found["verdict"], ("○", Tone.DIM))
    score = "" if found["score"] is None else f"score {found['score']:g} of 100   "
    mode = dim(f"{_MODES.get(found['mode'], found['mode'])}   loads {_age(found)}")
    because = wrap(found["because"], max(20, situation.width - 14))
    lines = [
        line((f" {glyph} {found['verdict']} ", tone), (f"  {score}", Tone.STRONG), mode),
        *(fact("" if at else "because", each) for at, each in enumerate(because)),
    ]
    lines += [line((f" −{each['points']:<10g}", Tone.WARN), each["because"]) for each in found["deductions"]]
    if found["hot_topics"]:
        lines.append(fact("hot", (", ".join(found["hot_topics"][:5]), Tone.WARN)))
    if found["moving"]:
        lines.append(fact("moving", f"{counted(found['moving'], 'topic is', 'topics are')} on the way"))
    return [*lines, *_proposal(found, situation), line()]


def _age(found: Item) -> str:
    ages = [each["sampled_s_ago"] for each in found["brokers"] if each["sampled_s_ago"] is not None]
    return f"of the last {span(max(ages))}" if ages else "are not measured yet"


def _proposal(found: Item, situation: Situation) -> list[Line]:
    """Return the moves that would help, or why there are none."""
    moves = found["moves"]
    if not moves:
        reasons = ", ".join(f"{why.replace('_', ' ')} ({times})" for why, times in found["rejected"].items())
        return [fact("proposal", dim(f"none: {reasons or 'nothing is uneven'}"))]
    resource = found["bottleneck"] or "cpu"
    of = dim(f"   ctrl+b plans it; {_TITLES[resource]} before and after")
    lines = [fact("proposal", (f"{counted(len(moves), 'topic')} would move", Tone.STRONG), of)]
    shares = all(resource in each["capacity"] for each in found["brokers"])
    most = 3 if situation.height < 32 else 12
    names = broker_names(situation.items())
    for each in moves[:most]:
        sides = []
        for side in ("source", "target"):
            broker = names.get(each[side], each[side])
            amounts = (each[f"{side}_before"], each[f"{side}_after"])
            told_of = (f"{value:.0%}" if shares else _amount(resource, value) for value in amounts)
            sides.append(f"{broker} ({' → '.join(told_of)})")
        unread = f"   {each['unread_messages']} unread" if each["unread_messages"] else ""
        lines.append(line((f"   {each['topic']}", Tone.STRONG), f"   {' ▶ '.join(sides)}", dim(unread)))
    return [*lines, line(dim(f"   and {len(moves) - most} more"))] if len(moves) > most else lines


def _asks_one(arguments: Arguments) -> Mapping[str, Ask]:
    named = {"broker_id": arguments["broker_id"]}
    return {
        "broker": Ask(operation="brokers.describe", arguments=named),
        "chart": Ask(operation="cluster.chart", arguments={**named, "since": CHARTED}, optional=True),
        "metrics": Ask(operation="brokers.metrics", arguments=named, optional=True),
        "topics": Ask(operation="topics.list", extent=Extent.ALL, optional=True),
    }


def _head_of_one(situation: Situation) -> Sequence[Line]:
    broker = situation.of("broker")
    if not broker:
        return []
    reasons = ", ".join(f"{each['code']}: {each['message']}" for each in broker["reasons"])
    ready = ("✓ ready", Tone.GOOD) if broker["ready"] else ("✗ not ready", Tone.BAD)
    where = f"   {broker_name(broker)}, up {span(broker['uptime_s'])}, version {broker['version']}"
    disk, journal = broker["disk"], broker["journal"]
    kept = f"journal {size(journal.get('bytes'))}B, {size(disk.get('free_bytes'))}B free"
    return [
        line((f" {ready[0]}", ready[1]), where, (f"   {reasons}" if reasons else "", Tone.WARN)),
        line(),
        *traffic(situation, situation.of("metrics").get("lag_messages")),
        beside("disk", kept),
        line(),
    ]


def _topics_of_one(situation: Situation) -> list[Item]:
    broker = situation.of("broker")  # its id: the view may be given a name or an address
    return [item for item in situation.items("topics") if broker and item["owner"] == broker["broker_id"]]


ONE: Final = View(
    name="broker",
    summary="One broker: its traffic and unread messages over the last hour, and the topics that it serves.",
    twin="danube brokers describe --broker-id BROKER_ID --json; danube cluster chart --broker-id BROKER_ID --json",
    asks=_asks_one,
    measures=counters,
    columns=(
        words("topic", "N 20-90 grows", tone=Tone.STRONG),
        number("messages", "M 8 marks"),
        number("bytes", "B 7 bytes"),
        number("producers", "R 4 drop=2", title="prod"),
        number("consumers", "C 4 drop=2", title="cons"),
        number("subscriptions", "S 4", title="subs"),
    ),
    items=_topics_of_one,
    enter=lambda item: Target(view="topic", arguments={"topic": item["topic"]}),
    head=_head_of_one,
    empty="no topic of one part is served here. Parts of topics are in the view of their topic",
    sort=("topic", False),
    dated=("chart",),
    takes=("broker_id",),
)

BROKERS: Final = View(
    name="brokers",
    summary="Members, their load against their capacity, how evenly it lies, and the moves that the load manager proposes.",
    twin="danube brokers list --json; danube cluster balance --json",
    asks=_asks,
    columns=(
        words("broker", "N 15-40", broker_name, tone=Tone.STRONG),
        custom("state", "S 11", _state),
        custom("leads", "6", lambda item: Cell("leader" if item["leader"] else "", Tone.ACCENT), title=""),
        number("topics", "T 6"),
        _of("cpu", "C 12"),
        _of("network_in", "I 8"),
        _of("network_out", "O 8 drop=1"),
        moving("share", "B 10 drop=2", _share, title="bottleneck"),
        number("up", "U 7 seconds drop=3", "uptime_s"),
        words("version", "V 8-12 drop=4"),
        words("id", "20 drop=5", "broker_id", tone=Tone.DIM),
    ),
    items=_members,
    key=lambda item: str(item["broker_id"]),
    enter=lambda item: Target(view="broker", arguments={"broker_id": item["broker_id"]}),
    head=_head,
    empty="no broker answers",
    faults="!state:active",
    aliases=("balance",),
)
