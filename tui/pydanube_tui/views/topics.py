"""Topics, and one of them with partitions, skew, policies, schema, subscriptions and its last minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydanube_core.units import counted

from pydanube_tui.columns import column, custom, moving, number, words
from pydanube_tui.page import Cell, Item, Line, Row, Target, Tone, dim, fact, headings, line
from pydanube_tui.text import chart, clock, count, rate, shown, size, sparkline
from pydanube_tui.view import CHARTED, Answer, Arguments, Ask, Extent, Situation, View, items_of, listed
from pydanube_tui.views.charts import scale
from pydanube_tui.views.subscriptions import merged, place_of_subscription
from pydanube_tui.views.wording import broker_names, finding_lines, health_cell, status_cell, worst_alerts


def _growth(item: Item, situation: Situation) -> Cell:
    grows = situation.rate(item["topic"])
    return Cell(count(grows), Tone.ACCENT if grows else Tone.DIM, grows)


def _history(item: Item, situation: Situation) -> Cell:
    return Cell(sparkline(situation.rates(item["topic"]), 20), Tone.ACCENT)


def _partitions(item: Item) -> Cell:
    return Cell(str(item["partitions"] or "–"), Tone.DIM, item["partitions"])


def _asks(arguments: Arguments) -> Mapping[str, Ask]:
    return {
        **listed("topics.list", "namespace")(arguments),
        "brokers": Ask(operation="brokers.list", extent=Extent.ALL, optional=True, for_names=True),
        "alerts": Ask(operation="alerts.list", arguments={"limit": 100}, optional=True),
    }


def _health(item: Item, situation: Situation) -> Cell:
    worst = situation.once("worst", lambda: worst_alerts(situation.items("alerts")))
    return health_cell(worst.get(item["topic"]))


def _owner(item: Item, situation: Situation) -> Cell:
    owner = item["owner"]
    names = situation.once("names", lambda: broker_names(situation.items("brokers")))
    name = item.get("owner_reason") if owner is None else names.get(owner, owner)
    return Cell(shown(name), Tone.DIM, name)


def sizes_of_topics(answers: Mapping[str, Answer], name: str = "list") -> Mapping[str, float]:
    """Return the number of messages of each topic of a list."""
    return {item["topic"]: float(item["messages"]) for item in items_of(answers, name)}


def _totals(situation: Situation) -> list[Line]:
    items = situation.items()
    if len(items) < 2:
        return []
    sums = {
        name: sum(item[name] or 0 for item in items)
        for name in ("messages", "bytes", "producers", "consumers")
    }
    known = [grows for item in items if (grows := situation.rate(item["topic"])) is not None]
    parts = (
        counted(len(items), "topic"),
        f"{count(sums['messages'])} messages",
        f"{size(sums['bytes'])}B",
        f"in {rate(sum(known) if known else None)}",
        counted(sums["producers"], "producer"),
        counted(sums["consumers"], "consumer"),
    )
    return [line(dim(f"  {' · '.join(parts)}"))]


LIST: Final = View(
    name="topics",
    summary="Every topic: messages, growth, bytes, producers, consumers, subscriptions, owner.",
    twin="danube topics list --json",
    asks=_asks,
    measures=sizes_of_topics,
    columns=(
        words("topic", "N 20-90 grows", tone=Tone.STRONG),
        moving("health", "H 10 drop=1", _health),
        custom("parts", "P 5 drop=3 right count", _partitions),
        number("messages", "M 8 marks"),
        moving("in", "I 7 drop=1 right count", _growth, title="in/s"),
        number("bytes", "B 7 bytes"),
        number("producers", "R 4 drop=2", title="prod"),
        number("consumers", "C 4 drop=2", title="cons"),
        number("subscriptions", "S 4", title="subs"),
        words("kind", "K 12 drop=5", lambda item: item["dispatch_strategy"].replace("_", "-"), tone=Tone.DIM),
        column("owner", "O 12-22 drop=6", cell=_owner),
        moving("history", "20 drop=4", _history, title="in/s so far"),
    ),
    enter=lambda item: Target(view="topic", arguments={"topic": item["topic"]}),
    head=_totals,
    empty="no topics. One is made by a producer, or by n (danube topics create)",
    faults="!health:well",
    sort=("topic", False),
    aliases=("t",),
    may=("namespace",),
)


def _asks_one(arguments: Arguments) -> Mapping[str, Ask]:
    named = {"topic": arguments["topic"]}
    return {
        "topic": Ask(operation="topics.describe", arguments=named),
        "brokers": Ask(operation="brokers.list", extent=Extent.ALL, optional=True),
        "policies": Ask(operation="topics.get_policies", arguments=named, optional=True),
        "chart": Ask(operation="topics.chart", arguments={**named, "since": CHARTED}, optional=True),
        "lag": Ask(operation="subscriptions.lag", arguments={**named, "limit": 1000}, optional=True),
        "producers": Ask(operation="producers.list", arguments={**named, "limit": 50}, optional=True),
        "diagnosis": Ask(operation="diagnose.topic", arguments={**named, "explain": True}, optional=True),
    }


def _rows_of_one(situation: Situation) -> Iterator[Row]:
    subscriptions = merged(situation.items("lag"))
    if subscriptions:
        yield headings("subscriptions, and their unread messages")
    for item in subscriptions:
        name, unread = item["subscription"], item["lag_messages"]
        cells = (
            Cell(name, Tone.STRONG, name),
            status_cell(item["status"]),
            Cell(count(unread), Tone.PLAIN, unread),
            *[Cell("")] * 4,
        )
        yield Row(key=f"sub {name}", cells=cells, item=item, enter=place_of_subscription(item))
    topic = situation.of("topic")
    parts, names = topic.get("parts", ()), broker_names(situation.items("brokers"))
    if parts:
        yield headings("partitions")
    most = max((part["messages"] or 0 for part in parts), default=0) or 1
    for part in parts:
        owner, messages = part["owner"], part["messages"]
        is_served = owner and "messages_reason" not in part
        state = (
            f"✓ on {names.get(owner, owner[-6:])}"
            if is_served
            else f"✗ {part.get('owner_reason') or part.get('messages_reason', 'gone').removeprefix('owner_')}"
        )
        cells = (
            Cell(part["topic"], Tone.PLAIN, part["topic"]),
            Cell(state, Tone.GOOD if is_served else Tone.BAD),
            Cell(count(messages), Tone.PLAIN, messages),
            Cell("█" * max(1, round(messages / most * 10)) if messages else "", Tone.ACCENT),
            Cell(size(part["bytes"]), Tone.DIM, part["bytes"]),
            Cell(shown(part["start_offset"]), Tone.DIM, part["start_offset"]),
            Cell(shown(part["next_offset"]), Tone.DIM, part["next_offset"]),
        )
        yield Row(
            key=part["topic"], cells=cells, item={**part, "topic": topic["topic"], "part": part["topic"]}
        )


def _head_of_one(situation: Situation) -> list[Line]:
    topic = situation.of("topic")
    if not topic:
        return []
    producers = dict.fromkeys(str(each["producer"]) for each in situation.items("producers"))
    names = ", ".join([*producers][:4])  # one producer writes to several partitions
    kept = f"journal {size(topic['journal_bytes'])}B, tier {size(topic['object_bytes'])}B"
    how = f"   {topic['dispatch_strategy']}, {topic['durability']}, made {clock(topic['created_at'])}"
    if topic["messages"] is None:
        lines = [line((" owner down", Tone.BAD), f"   {topic['because']}"), fact("made", dim(how))]
    else:
        clients = f"{counted(topic['producers'], 'producer')}, {counted(topic['consumers'], 'consumer')}"
        there = f"   {size(topic['bytes'])}B   {clients}"
        total = (f" {topic['messages']:,} messages", Tone.STRONG)
        lines = [line(total, there, dim(f"   {names}" if names else "")), fact("kept", kept, dim(how))]
    if topic["next_offset"] is not None:
        tiered = topic["tiered_offset"]
        below = f"   in the tier below {tiered}" if tiered is not None else ""
        lines.append(fact("offsets", f"{topic['start_offset']} to {topic['next_offset']}", dim(below)))
    history = situation.of("chart")
    if history:
        rates, age_s = history["publish_rate"], (history["age_s"] or [0])[0]
        last = f"  {rate(rates[-1] if rates else None)}"
        drawn, peak = chart(rates[1:], max(24, situation.width - 46))
        lines.append(fact("in", (drawn, Tone.ACCENT), last, scale(peak, rate, age_s)))
    policies = situation.of("policies")
    own, effective = policies.get("policies", {}), policies.get("effective", {})
    told_of = (
        f"{name} {shown(value)}{'' if name in own else ' (inherited)'}"
        for name, value in effective.items()
        if value
    )
    lines.append(fact("policies", ", ".join(told_of) or "none"))
    if topic.get("schema"):
        lines.append(fact("schema", shown(topic["schema"])))
    lines += finding_lines(situation.of("diagnosis").get("findings", ()), (situation.height, situation.width))
    return [*lines, line()]


ONE: Final = View(
    name="topic",
    summary="One topic: partitions with skew, subscriptions, producers, schema, policies and where they come from.",
    twin="danube topics describe TOPIC --json",
    asks=_asks_one,
    columns=(
        column("name", "N 18-60 grows", title="partition or subscription"),
        column("state", "S 16-24"),
        column("messages", "M 8 right count marks"),
        column("share", "10 drop=2"),
        column("bytes", "B 7 right bytes drop=3"),
        column("from", "10-14 right count drop=4"),
        column("end", "10-14 right count drop=4"),
    ),
    rows=_rows_of_one,
    head=_head_of_one,
    empty="no subscription",
    dated=("diagnosis",),
    takes=("topic",),
)
