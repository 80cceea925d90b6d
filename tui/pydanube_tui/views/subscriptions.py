"""Subscriptions and their lag. One of them with its partitions, consumers, evidence and findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pydanube_core.cursor_state import LAG_FIELDS, Join, joined
from pydanube_core.units import counted

from pydanube_tui.columns import column, custom, moving, number, words
from pydanube_tui.page import Cell, Item, Line, Row, Target, Tone, dim, fact, line
from pydanube_tui.text import chart, count, milliseconds, rate, shown, size, span, sparkline
from pydanube_tui.view import (
    CHARTED,
    Answer,
    Arguments,
    Ask,
    Extent,
    Situation,
    View,
    given,
    items_of,
    listed,
)
from pydanube_tui.views.charts import scale
from pydanube_tui.views.wording import STATUS, finding_lines, rank, status_cell

#: fields of one partition, left out
_OF_A_PARTITION: Final = frozenset(field.name for field in LAG_FIELDS if field.join is Join.NONE)
_COUNTED: Final = tuple((field.name, field.title) for field in LAG_FIELDS if field.title is not None)


def merged(items: Iterable[Item]) -> list[Item]:
    """Return items of `subscriptions.lag` in order, with the partitions of a subscription joined."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(key_of(item), []).append(item)
    return [_together(parts) if len(parts) > 1 else parts[0] for parts in found.values()]


def _together(parts: Sequence[Item]) -> Item:
    """Join the partitions of a subscription."""
    worst = max(parts, key=lambda part: (rank(part["status"]), part["lag_messages"]))
    return {
        **{name: value for name, value in worst.items() if name not in _OF_A_PARTITION},
        **joined(parts),
        "parts": list(parts),
    }


def key_of(item: Item) -> str:
    """Return the key of a subscription among those of all topics."""
    return f"{item['topic']} {item['subscription']}"


def place_of_subscription(item: Item, view: str = "subscription") -> Target:
    """Return the view of the subscription that an item names."""
    return Target(view=view, arguments={"topic": item["topic"], "subscription": item["subscription"]})


def urgency(item: Item) -> tuple[int, float, int]:
    """Return how urgent a subscription is. Larger is more urgent."""
    return rank(item["status"]), item["oldest_unread_age_s"] or 0.0, item["lag_messages"]


def age_s(item: Item, situation: Situation) -> float | None:
    """Return the present age of the oldest unread message."""
    then_s: float | None = item["oldest_unread_age_s"]
    return then_s + _passed_s(item, situation) if then_s else then_s


def headroom_s(item: Item, situation: Situation) -> float | None:
    """Return the seconds until retention deletes the oldest unread message."""
    then_s = item["retention_headroom_s"]
    return None if then_s is None else max(0, then_s - _passed_s(item, situation))


def _passed_s(item: Item, situation: Situation) -> float:
    """Return the seconds since the item's answer, which no change reports."""
    then = milliseconds(item.get("as_of"))
    now = milliseconds((situation.of("list") or situation.of("lag")).get("as_of"))
    return 0.0 if then is None or now is None else (now - then) / 1000


def measures(answers: Mapping[str, Answer]) -> Mapping[str, float]:
    return {key_of(item): float(item["lag_messages"]) for item in merged(items_of(answers, "list"))}


def _tone(item: Item) -> Tone:
    return STATUS.get(item["status"], ("", Tone.PLAIN, 0))[1]


def _topic(item: Item) -> Cell:
    parts = f" ({len(item['parts'])})" if "parts" in item else ""
    return Cell(item["topic"] + parts, Tone.PLAIN, item["topic"])


def _lag(item: Item) -> Cell:
    unread = item["lag_messages"]
    return Cell(count(unread), _tone(item) if unread else Tone.DIM, unread)


def _consumers(item: Item) -> Cell:
    consumers = item.get("consumers") or 0
    return Cell(
        str(consumers), Tone.WARN if not consumers and item["lag_messages"] else Tone.PLAIN, consumers
    )


def _age(item: Item, situation: Situation) -> Cell:
    age = age_s(item, situation)
    return Cell(span(age), Tone.PLAIN if item["lag_messages"] else Tone.DIM, age)


def _headroom(item: Item, situation: Situation) -> Cell:
    left = headroom_s(item, situation)
    return Cell(span(left), Tone.BAD if left is not None and left < 3600 else Tone.DIM, left)


def blocked_by(item: Item) -> str:
    """Return the cause that blocks a subscription. Empty if it is not blocked."""
    return shown(item["blocked_by"]) if item.get("blocked_by") else ""


def _joined(situation: Situation) -> list[Item]:
    return situation.once("joined", lambda: merged(situation.items()))


def _totals(situation: Situation) -> list[Line]:
    items = _joined(situation)
    if len(items) < 2:
        return []
    unread, out = (sum(item[name] or 0 for item in items) for name in ("lag_messages", "consume_rate"))
    unwell = sum(rank(item["status"]) >= rank("SLOW") for item in items)
    parts = (counted(len(items), "subscription"), f"{count(unread)} unread", f"out {rate(out)}")
    return [line(dim(f"  {' · '.join(parts)}"), (f" · {unwell} not well" if unwell else "", Tone.WARN))]


LIST: Final = View(
    name="subscriptions",
    summary="How far every subscription is behind: status, messages, age of the oldest, eta, headroom, history.",
    twin="danube subscriptions lag --json",
    asks=listed("subscriptions.lag", "topic"),
    measures=measures,
    columns=(
        custom("status", "S 16", lambda item: status_cell(item["status"])),
        custom("topic", "N 14-60 grows", _topic),
        words("subscription", "B 10-40 grows", tone=Tone.STRONG),
        custom("lag", "L 6 right count marks", _lag),
        moving("age", "A 6 right seconds", _age, title="oldest"),
        number("eta", "E 6 drop=3 seconds", "eta_s", tone=Tone.DIM),
        custom("consumers", "C 4 right drop=2 count", _consumers, title="cons"),
        moving(
            "history",
            "30 drop=6",
            lambda item, s: Cell(sparkline(s.values(key_of(item))), _tone(item)),
            title="lag so far",
        ),
        number("in", "I 7 drop=5", "produce_rate", title="in/s", tone=Tone.DIM),
        number("out", "O 7 drop=5", "consume_rate", title="out/s", tone=Tone.DIM),
        moving("headroom", "H 8 right drop=4 seconds", _headroom),
        number("flight", "F 6 drop=8", "in_flight", tone=Tone.DIM),
        words("type", "Y 10 drop=9", lambda item: item["type"].replace("_", "-"), tone=Tone.DIM),
        words("blocked", "12-30 drop=7", blocked_by, title="blocked by", tone=Tone.WARN),
    ),
    items=_joined,
    key=key_of,
    enter=place_of_subscription,
    head=_totals,
    empty="no subscriptions. One is made by a consumer, or by danube subscriptions create",
    faults="!status:caught !status:catching !status:unknown",
    sort=("status", True),
    aliases=("subs", "lag", "s"),
    may=("topic",),
)


def _asks_one(arguments: Arguments) -> Mapping[str, Ask]:
    named = given(arguments, "topic", "subscription")
    return {
        "subscription": Ask(operation="subscriptions.describe", arguments=named),
        "lag": Ask(operation="subscriptions.lag", arguments=named, extent=Extent.ALL),
        "diagnosis": Ask(
            operation="diagnose.subscription", arguments={**named, "explain": True}, optional=True
        ),
        "chart": Ask(operation="topics.chart", arguments={**named, "since": CHARTED}, optional=True),
    }


def _head_of_one(situation: Situation) -> list[Line]:
    described = situation.of("subscription")
    lines: list[Line] = []
    for item in merged(situation.items("lag"))[:1]:
        lines += _standing(item, situation, described)
    lines += _chart(situation)
    policy = described.get("failure_policy")
    if policy:
        delay = span(policy["base_redelivery_delay_ms"] / 1000)
        to = f" to {policy['dead_letter_topic']}" if policy["dead_letter_topic"] else ""
        tries = f"{policy['max_redelivery_count']} redeliveries, {policy['backoff_strategy']} from {delay}"
        lines.append(fact("failures", f"{tries}, then {policy['poison_policy']}{to}"))
    lines += finding_lines(situation.of("diagnosis").get("findings", ()), (situation.height, situation.width))
    return [*lines, line()]


def _standing(item: Item, situation: Situation, described: Item) -> Iterator[Line]:
    status = status_cell(item["status"])
    eta, headroom = (
        span(value) if value is not None else f"– ({reason.replace('_', ' ')})" if reason else "–"
        for value, reason in (
            (item["eta_s"], item.get("eta_s_reason")),
            (headroom_s(item, situation), item.get("retention_headroom_s_reason")),
        )
    )
    yield line(
        (f" {status.text.upper()} ", status.tone),
        (f"  {item['lag_messages']:,} unread", Tone.STRONG),
        f"   oldest {span(age_s(item, situation))}   eta {eta}   headroom {headroom}",
    )
    told_of = [
        counted(described.get("consumers", 0), "consumer"),
        f"{count(item.get('in_flight'))} in flight",
        f"in {rate(item.get('produce_rate'))}",
        f"out {rate(item.get('consume_rate'))}",
        *(f"{count(item.get(name))} {title}" for name, title in _COUNTED),
    ]
    if item.get("lag_bytes") is not None:
        told_of.append(f"{size(item['lag_bytes'])}B unread")
    yield fact(str(described.get("type", "")), " · ".join(told_of))
    if item.get("lost_messages"):
        yield line((f" ✗ {count(item['lost_messages'])} messages went before they were read", Tone.BAD))
    if blocked := blocked_by(item):
        yield fact("blocked by", (blocked, Tone.WARN))
    if not situation.of("diagnosis").get("findings"):  # a finding shows its own
        evidence = " · ".join(f"{name} {shown(value)}" for name, value in item.get("evidence", {}).items())
        yield fact("evidence", dim(evidence))


def _chart(situation: Situation) -> Iterator[Line]:
    history = situation.of("chart")
    if not history.get("subscriptions"):
        return
    one, age_s = history["subscriptions"][0], (history.get("age_s") or [0])[0]
    now = situation.of("subscription").get("lag_messages")
    cells = max(24, situation.width - 40)
    drawn, peak = chart([*one["lag_messages"][1:], now], cells, cut=False)
    yield fact("lag", (drawn, Tone.WARN), scale(peak, count, age_s))
    drawn, peak = chart(one["acknowledge_rate"][1:], cells)
    yield fact("acks", (drawn, Tone.GOOD), scale(peak, rate, age_s))


def _parts(situation: Situation) -> Iterator[Row]:
    described = situation.of("subscription")
    lag = {part["partition"]: part for part in situation.items("lag")}
    total = max(1, described.get("lag_messages", 0))
    for part in described.get("parts", ()):
        number, unread = part["partition"], part["lag_messages"]
        known = lag.get(number, {})
        status = status_cell(known["status"]) if known else Cell("")
        age = age_s(known, situation) if known else None
        held = "; ".join(
            f"{each.get('consumer') or each.get('name') or each.get('id')}: {count(each.get('in_flight'))} held"
            for each in part.get("consumers", ())
        )
        cells = (
            Cell("–" if number is None else str(number), Tone.PLAIN, -1 if number is None else number),
            status,
            Cell(count(unread), Tone.STRONG if unread else Tone.DIM, unread),
            Cell("█" * max(1, round(unread / total * 10)) if unread else "", status.tone, unread / total),
            Cell(span(age), Tone.PLAIN, age),
            Cell(str(part["next_unacked"]), Tone.DIM, part["next_unacked"]),
            Cell(str(part["next_offset"]), Tone.DIM, part["next_offset"]),
            Cell(count(part["in_flight"]), Tone.PLAIN, part["in_flight"]),
            Cell(held or "no consumer", Tone.PLAIN if held else Tone.DIM),
        )
        item = {**part, "topic": described["topic"], "subscription": described["subscription"]}
        yield Row(key=str(number), cells=cells, item=item)


ONE: Final = View(
    name="subscription",
    summary="One subscription: skew by partition, consumers with their messages, evidence, diagnosis, actions.",
    twin="danube subscriptions describe TOPIC SUBSCRIPTION --json",
    asks=_asks_one,
    columns=(
        column("part", "N 9", title="partition"),
        column("status", "S 16 drop=1"),
        column("lag", "L 6 right count marks"),
        column("share", "H 10 drop=2"),
        column("age", "A 6 right seconds", title="oldest"),
        column("next", "11-12 right drop=4 count", title="unread from"),
        column("head", "8-12 right drop=5 count", title="end"),
        column("flight", "F 6 right count"),
        column("consumer", "16-60 grows", title="consumers, and their messages"),
    ),
    rows=_parts,
    head=_head_of_one,
    dated=("diagnosis", "lag"),
    takes=("topic", "subscription"),
)
