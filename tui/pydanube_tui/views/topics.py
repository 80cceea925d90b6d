"""Topics, and one of them with partitions, skew, policies, schema, subscriptions and its last minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydanube_tui.page import Cell, Column, Line, Page, Row, Target, Tone, headings, line
from pydanube_tui.text import clock, count, milliseconds, rate, size, span, sparkline
from pydanube_tui.view import Answer, Ask, Extent, Situation, View
from pydanube_tui.views.subscriptions import grouped
from pydanube_tui.views.wording import finding_lines, shown, status_cell

_COLUMNS: Final = (
    Column(name="topic", title="topic", key="N", least=20, most=90, grows=True),
    Column(name="parts", title="parts", key="P", least=5, most=5, right=True, drop=4, unit="count"),
    Column(name="messages", title="messages", key="M", least=8, most=8, right=True, unit="count", marks=True),
    Column(name="in", title="in/s", key="I", least=7, most=7, right=True, drop=1, unit="count"),
    Column(name="bytes", title="bytes", key="B", least=7, most=7, right=True, unit="bytes"),
    Column(name="producers", title="prod", key="R", least=4, most=4, right=True, drop=2, unit="count"),
    Column(name="consumers", title="cons", key="C", least=4, most=4, right=True, drop=2, unit="count"),
    Column(name="subscriptions", title="subs", key="S", least=4, most=4, right=True, unit="count"),
    Column(name="kind", title="kind", key="K", least=12, most=12, drop=5),
    Column(name="owner", title="owner", key="O", least=12, most=22, drop=6),
)


def asks_list(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    wanted = {"namespace": arguments["namespace"]} if arguments.get("namespace") else {}
    return {"topics": Ask(operation="topics.list", arguments=wanted, extent=Extent.ALL)}


def measures_list(answers: Mapping[str, Answer]) -> Mapping[str, float]:
    topics = answers.get("topics")
    items = topics["items"] if isinstance(topics, Mapping) else ()
    return {item["topic"]: float(item["messages"]) for item in items}


def page_list(situation: Situation) -> Page:
    topics = situation.of("topics")
    return Page(
        columns=_COLUMNS,
        rows=[
            situation.row(item["topic"], item, lambda each: _row(each, situation))
            for item in situation.items("topics")
        ],
        empty="no topics; one is made by a producer, or by n (danube topics create)",
        as_of_ms=milliseconds(topics.get("as_of")),
        sort=("topic", False),
    )


def _row(item: Mapping[str, Any], situation: Situation) -> Row:
    name = item["topic"]
    grows = situation.rate(name)
    owner = item["owner"] or str(item.get("owner_reason") or "–")
    cells = (
        Cell(name, Tone.STRONG, name),
        Cell(str(item["partitions"] or "–"), Tone.DIM, item["partitions"]),
        Cell(count(item["messages"]), Tone.PLAIN if item["messages"] else Tone.DIM, item["messages"]),
        Cell(count(grows), Tone.ACCENT if grows else Tone.DIM, grows),
        Cell(size(item["bytes"]), Tone.PLAIN if item["bytes"] else Tone.DIM, item["bytes"]),
        Cell(count(item["producers"]), Tone.PLAIN if item["producers"] else Tone.DIM, item["producers"]),
        Cell(count(item["consumers"]), Tone.PLAIN if item["consumers"] else Tone.DIM, item["consumers"]),
        Cell(
            count(item["subscriptions"]),
            Tone.PLAIN if item["subscriptions"] else Tone.DIM,
            item["subscriptions"],
        ),
        Cell(item["dispatch_strategy"].replace("_", "-"), Tone.DIM, item["dispatch_strategy"]),
        Cell(owner, Tone.DIM, owner),
    )
    return Row(key=name, cells=cells, item=item, enter=Target(view="topic", arguments={"topic": name}))


_ONE_COLUMNS: Final = (
    Column(name="name", title="partition or subscription", key="N", least=18, most=60, grows=True),
    Column(name="state", title="state", key="S", least=16, most=24),
    Column(name="messages", title="messages", key="M", least=8, most=8, right=True, unit="count", marks=True),
    Column(name="share", title="share", least=10, most=10, drop=2),
    Column(name="bytes", title="bytes", key="B", least=7, most=7, right=True, unit="bytes", drop=3),
    Column(name="from", title="from", least=10, most=14, right=True, unit="count", drop=4),
    Column(name="end", title="end", least=10, most=14, right=True, unit="count", drop=4),
)


def asks_one(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    named = {"topic": arguments["topic"]}
    return {
        "topic": Ask(operation="topics.describe", arguments=named),
        "policies": Ask(operation="topics.get_policies", arguments=named, optional=True),
        "chart": Ask(operation="topics.chart", arguments=named, optional=True),
        "lag": Ask(operation="subscriptions.lag", arguments={**named, "limit": 1000}, optional=True),
        "producers": Ask(operation="producers.list", arguments={**named, "limit": 50}, optional=True),
        "diagnosis": Ask(operation="diagnose.topic", arguments=named, optional=True),
    }


def page_one(situation: Situation) -> Page:
    topic = situation.of("topic")
    rows: list[Row] = []
    subscriptions = grouped(situation.items("lag"))
    if subscriptions:
        rows.append(headings("subscriptions, and what they have not read", len(_ONE_COLUMNS)))
    for each in subscriptions:
        cells = (
            Cell(each.subscription, Tone.STRONG, each.subscription),
            status_cell(each.status),
            Cell(count(each.lag_messages), Tone.PLAIN, each.lag_messages),
            *(Cell(""), Cell(""), Cell(""), Cell("")),
        )
        place = {"topic": each.topic, "subscription": each.subscription}
        enter = Target(view="subscription", arguments=place)
        rows.append(Row(key=f"sub {each.subscription}", cells=cells, item=each.item(), enter=enter))
    parts = topic.get("parts", ())
    if parts:
        rows.append(headings("partitions", len(_ONE_COLUMNS)))
    most = max((part["messages"] for part in parts), default=0) or 1
    for part in parts:
        cells = (
            Cell(part["topic"], Tone.PLAIN, part["topic"]),
            Cell(
                f"✓ on {part['owner'][-6:]}" if part["owner"] else f"✗ {part.get('owner_reason')}",
                Tone.GOOD if part["owner"] else Tone.BAD,
            ),
            Cell(count(part["messages"]), Tone.PLAIN, part["messages"]),
            Cell("█" * max(1, round(part["messages"] / most * 10)) if part["messages"] else "", Tone.ACCENT),
            Cell(size(part["bytes"]), Tone.DIM, part["bytes"]),
            Cell(str(part["start_offset"]), Tone.DIM, part["start_offset"]),
            Cell(str(part["next_offset"]), Tone.DIM, part["next_offset"]),
        )
        rows.append(
            Row(key=part["topic"], cells=cells, item={**part, "topic": topic["topic"], "part": part["topic"]})
        )
    return Page(
        head=_head(situation),
        columns=_ONE_COLUMNS,
        rows=rows,
        empty="nobody subscribes to it",
        as_of_ms=milliseconds(situation.of("diagnosis").get("as_of")),
        title=topic.get("topic", ""),
    )


def _head(situation: Situation) -> list[Line]:
    topic = situation.of("topic")
    if not topic:
        return []
    producers = situation.items("producers")
    names = ", ".join(str(each["producer"]) for each in producers[:4])
    lines = [
        line(
            (f" {topic['messages']:,} messages", Tone.STRONG),
            f"   {size(topic['bytes'])}B   {topic['producers']} producers, {topic['consumers']} consumers",
            (f"   {names}" if names else "", Tone.DIM),
        ),
        line(
            (" kept       ", Tone.DIM),
            f"journal {size(topic['journal_bytes'])}B, tier {size(topic['object_bytes'])}B",
            (
                f"   {topic['dispatch_strategy']}, {topic['durability']}, made {clock(topic['created_at'])}",
                Tone.DIM,
            ),
        ),
    ]
    if topic["next_offset"] is not None:
        tiered = topic["tiered_offset"]
        lines.append(
            line(
                (" offsets    ", Tone.DIM),
                f"{topic['start_offset']} to {topic['next_offset']}",
                (f"   in the tier below {tiered}" if tiered is not None else "", Tone.DIM),
            )
        )
    chart = situation.of("chart")
    if chart:
        rates = chart["publish_rate"]
        over = span((chart["age_s"] or [0])[0])
        lines.append(
            line(
                (" in         ", Tone.DIM),
                (f"{sparkline(rates, 31):<31}", Tone.ACCENT),
                f"  {rate(rates[-1] if rates else None)}",
                (f"   over {over}", Tone.DIM),
            )
        )
    policies = situation.of("policies")
    own, effective = policies.get("policies", {}), policies.get("effective", {})
    told = [
        f"{name} {shown(value)}{'' if name in own else ' (inherited)'}"
        for name, value in effective.items()
        if value
    ]
    lines.append(line((" policies   ", Tone.DIM), ", ".join(told) or "none"))
    schema = topic.get("schema")
    if schema:
        lines.append(line((" schema     ", Tone.DIM), shown(schema)))
    lines += finding_lines(situation.of("diagnosis").get("findings", ()), (situation.height, situation.width))
    return [*lines, line()]


LIST: Final = View(
    name="topics",
    title="Topics",
    summary="Every topic: messages, growth, bytes, producers, consumers, subscriptions, owner.",
    asks=asks_list,
    page=page_list,
    measures=measures_list,
    columns=_COLUMNS,
    twin="danube topics list --json",
    aliases=("t",),
    may=("namespace",),
)
ONE: Final = View(
    name="topic",
    title="Topic",
    summary="One topic: partitions with skew, subscriptions, producers, schema, policies and where they come from.",
    asks=asks_one,
    page=page_one,
    columns=_ONE_COLUMNS,
    twin="danube topics describe TOPIC --json",
    takes=("topic",),
)
