"""Subscriptions and how far they are behind; one of them with its partitions, consumers, evidence and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydanube_tui.columns import column, moving, told, words
from pydanube_tui.page import Cell, Column, Item, Line, Row, Target, Tone, line
from pydanube_tui.text import count, milliseconds, rate, shown, size, span, sparkline
from pydanube_tui.view import Answer, Arguments, Ask, Extent, Situation, View, listed
from pydanube_tui.views.wording import STATUS, finding_lines, rank, status_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A subscription, its partitions taken together: the worst status, the oldest message, the longest way."""

    parts: tuple[Item, ...]
    passed_s: float = 0.0  # since the item was answered: what the clock alone moves comes with no change

    @property
    def _worst(self) -> Item:
        if len(self.parts) == 1:
            return self.parts[0]
        return max(self.parts, key=lambda part: (rank(part["status"]), part["lag_messages"]))

    @property
    def topic(self) -> str:
        return str(self.parts[0]["topic"])

    @property
    def subscription(self) -> str:
        return str(self.parts[0]["subscription"])

    @property
    def key(self) -> str:
        return f"{self.topic} {self.subscription}"

    @property
    def status(self) -> str:
        return str(self._worst["status"])

    @property
    def since(self) -> str | None:
        return self._worst.get("since")

    @property
    def blocked_by(self) -> str | None:
        found = next((part["blocked_by"] for part in self.parts if part.get("blocked_by")), None)
        return None if found is None else shown(found)

    @property
    def lag_messages(self) -> int:
        return sum(part["lag_messages"] for part in self.parts)

    @property
    def age_s(self) -> float | None:
        age_s = _most(self.parts, "oldest_unread_age_s")
        return age_s + self.passed_s if age_s and self.passed_s else age_s

    @property
    def eta_s(self) -> float | None:
        behind = [part for part in self.parts if part["lag_messages"]]
        if any(part["eta_s"] is None for part in behind):
            return None
        return _most(behind, "eta_s")

    @property
    def headroom_s(self) -> float | None:
        known = [
            part["retention_headroom_s"] for part in self.parts if part["retention_headroom_s"] is not None
        ]
        left_s = min(known, default=None)
        return left_s if left_s is None else max(0, left_s - self.passed_s)

    def urgency(self) -> tuple[int, float, int]:
        """The more, the sooner somebody should look."""
        return (rank(self.status), self.age_s or 0.0, self.lag_messages)

    def total(self, name: str) -> float | None:
        """A field summed; None where a partition's is not known."""
        values = [part.get(name) for part in self.parts]
        return None if None in values else sum(value for value in values if value is not None)

    @property
    def item(self) -> Item:
        """As `y` shows it: the item itself, or its partitions."""
        if len(self.parts) == 1:
            return self.parts[0]
        return {"topic": self.topic, "subscription": self.subscription, "parts": list(self.parts)}

    @property
    def target(self) -> Target:
        """The view of this subscription alone."""
        place = {"topic": self.topic, "subscription": self.subscription}
        return Target(view="subscription", arguments=place)


def behind(item: Item, situation: Situation | None = None) -> Behind:
    """Of a row's item; its ages in that situation, else as they were answered."""
    parts = tuple(item.get("parts", (item,)))
    then = milliseconds(parts[0].get("as_of"))
    answer = {} if situation is None else situation.of("list") or situation.of("lag")
    now = milliseconds(answer.get("as_of"))
    return Behind(parts=parts, passed_s=0.0 if then is None or now is None else (now - then) / 1000)


def _most(parts: Iterable[Item], name: str) -> float | None:
    return max((part[name] for part in parts if part.get(name) is not None), default=None)


def grouped(items: Iterable[Item]) -> list[Behind]:
    """Items of `subscriptions.lag` by subscription, in their order."""
    found: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        found.setdefault((item["topic"], item["subscription"]), []).append(item)
    return [Behind(parts=tuple(parts)) for parts in found.values()]


def measures(answers: Mapping[str, Answer]) -> Mapping[str, float]:
    lag = answers.get("list")
    items = lag["items"] if isinstance(lag, Mapping) else ()
    return {each.key: float(each.lag_messages) for each in grouped(items)}


def _of(name: str, lies: str, cell: Callable[[Behind], Cell], title: str | None = None) -> Column:
    return told(name, lies, lambda item: cell(behind(item)), title=title)


def _tone(each: Behind) -> Tone:
    return STATUS.get(each.status, ("", Tone.PLAIN, 0))[1]


def _lag(each: Behind) -> Cell:
    return Cell(count(each.lag_messages), _tone(each) if each.lag_messages else Tone.DIM, each.lag_messages)


def _consumers(each: Behind) -> Cell:
    consumers = int(each.total("consumers") or 0)
    return Cell(str(consumers), Tone.WARN if not consumers and each.lag_messages else Tone.PLAIN, consumers)


def _per_s(each: Behind, name: str) -> Cell:
    value = each.total(name)
    return Cell(rate(value)[:-2] or "–", Tone.DIM, value)


def _age(item: Item, situation: Situation) -> Cell:
    each = behind(item, situation)
    return Cell(span(each.age_s), Tone.PLAIN if each.lag_messages else Tone.DIM, each.age_s)


def _headroom(item: Item, situation: Situation) -> Cell:
    left = behind(item, situation).headroom_s
    return Cell(span(left), Tone.BAD if left is not None and left < 3600 else Tone.DIM, left)


def _topic(each: Behind) -> Cell:
    parts = f" ({len(each.parts)})" if len(each.parts) > 1 else ""
    return Cell(each.topic + parts, Tone.PLAIN, each.topic)


def _history(item: Item, situation: Situation) -> Cell:
    each = behind(item)
    return Cell(sparkline(situation.values(each.key)), _tone(each))


LIST: Final = View(
    name="subscriptions",
    title="Subscriptions",
    summary="How far every subscription is behind: status, messages, age of the oldest, eta, headroom, history.",
    twin="danube subscriptions lag --json",
    asks=listed("subscriptions.lag", "topic"),
    measures=measures,
    columns=(
        _of("status", "S 16", lambda each: status_cell(each.status)),
        _of("topic", "N 14-60 grows", _topic),
        words("subscription", "B 10-40 grows", tone=Tone.STRONG),
        _of("lag", "L 6 right count marks", _lag),
        moving("age", "A 6 right seconds", _age, title="oldest"),
        _of("eta", "E 6 right drop=3 seconds", lambda each: Cell(span(each.eta_s), Tone.DIM, each.eta_s)),
        _of("consumers", "C 4 right drop=2 count", _consumers, "cons"),
        moving("history", "30 drop=6", _history, title="lag so far"),
        _of("in", "I 7 right drop=5 count", lambda each: _per_s(each, "produce_rate"), "in/s"),
        _of("out", "O 7 right drop=5 count", lambda each: _per_s(each, "consume_rate"), "out/s"),
        moving("headroom", "H 8 right drop=4 seconds", _headroom),
        _of(
            "flight",
            "F 6 right drop=8 count",
            lambda each: Cell(count(each.total("in_flight")), Tone.DIM, each.total("in_flight")),
        ),
        _of(
            "type",
            "Y 10 drop=9",
            lambda each: Cell(each.parts[0]["type"].replace("_", "-"), Tone.DIM, each.parts[0]["type"]),
        ),
        _of("blocked", "12-30 drop=7", lambda each: Cell(each.blocked_by or "", Tone.WARN), "blocked by"),
    ),
    items=lambda situation: [each.item for each in grouped(situation.items())],
    key=lambda item: f"{item['topic']} {item['subscription']}",
    enter=lambda item: behind(item).target,
    empty="no subscriptions; one is made by a consumer, or by danube subscriptions create",
    sort=("status", True),
    aliases=("subs", "lag", "s"),
    may=("topic",),
)


def _asks_one(arguments: Arguments) -> Mapping[str, Ask]:
    named = {"topic": arguments["topic"], "subscription": arguments["subscription"]}
    return {
        "subscription": Ask(operation="subscriptions.describe", arguments=named),
        "lag": Ask(operation="subscriptions.lag", arguments=named, extent=Extent.ALL),
        "diagnosis": Ask(operation="diagnose.subscription", arguments=named, optional=True),
        "chart": Ask(operation="topics.chart", arguments=named, optional=True),
    }


def _head_of_one(situation: Situation) -> list[Line]:
    described = situation.of("subscription")
    lines: list[Line] = []
    for each in grouped(situation.items("lag"))[:1]:
        lines += _standing(behind(each.item, situation), described)
    lines += _chart(situation)
    policy = described.get("failure_policy")
    if policy:
        delay = span(policy["base_redelivery_delay_ms"] / 1000)
        to = f" to {policy['dead_letter_topic']}" if policy["dead_letter_topic"] else ""
        tries = f"{policy['max_redelivery_count']} redeliveries, {policy['backoff_strategy']} from {delay}"
        lines.append(line((" failures   ", Tone.DIM), f"{tries}, then {policy['poison_policy']}{to}"))
    lines += finding_lines(situation.of("diagnosis").get("findings", ()), (situation.height, situation.width))
    return [*lines, line()]


def _standing(each: Behind, described: Item) -> Iterator[Line]:
    status = status_cell(each.status)
    yield line(
        (f" {status.text.upper()} ", status.tone),
        (f"  {each.lag_messages:,} unread", Tone.STRONG),
        f"   oldest {span(each.age_s)}   eta {_or_reason(each, 'eta_s', each.eta_s)}"
        f"   headroom {_or_reason(each, 'retention_headroom_s', each.headroom_s)}",
    )
    told_of = [
        f"{described.get('consumers', 0)} consumers",
        f"{count(each.total('in_flight'))} in flight",
        f"in {rate(each.total('produce_rate'))}",
        f"out {rate(each.total('consume_rate'))}",
        f"{count(each.total('redelivered'))} redelivered",
        f"{count(each.total('dead_lettered'))} dead letters",
    ]
    if each.total("lag_bytes") is not None:
        told_of.append(f"{size(each.total('lag_bytes'))}B unread")
    yield line((f" {described.get('type', '')}   ", Tone.DIM), " · ".join(told_of))
    lost = each.total("lost_messages")
    if lost:
        yield line((f" ✗ {count(lost)} messages went before they were read", Tone.BAD))
    if each.blocked_by:
        yield line((" blocked by ", Tone.DIM), (each.blocked_by, Tone.WARN))
    evidence = " · ".join(
        f"{name} {shown(value)}" for name, value in each.parts[0].get("evidence", {}).items()
    )
    yield line((" evidence   ", Tone.DIM), (evidence, Tone.DIM))


def _or_reason(each: Behind, name: str, value: float | None) -> str:
    if value is not None:
        return span(value)
    reason = next((part[f"{name}_reason"] for part in each.parts if part.get(f"{name}_reason")), None)
    return f"– ({str(reason).replace('_', ' ')})" if reason else "–"


def _chart(situation: Situation) -> Iterator[Line]:
    chart = situation.of("chart")
    if not chart.get("subscriptions"):
        return
    one, over = chart["subscriptions"][0], span((chart.get("age_s") or [0])[0])
    lag, acks = (f"{sparkline(one[name], 31):<31}" for name in ("lag_messages", "acknowledge_rate"))
    yield line((" lag        ", Tone.DIM), (lag, Tone.WARN), (f"  over {over}", Tone.DIM))
    yield line((" acks/s     ", Tone.DIM), (acks, Tone.GOOD))


def _parts(situation: Situation) -> Iterator[Row]:
    described = situation.of("subscription")
    lag = {part["partition"]: part for part in situation.items("lag")}
    total = max(1, described.get("lag_messages", 0))
    for part in described.get("parts", ()):
        number, unread = part["partition"], part["lag_messages"]
        known = lag.get(number, {})
        status = status_cell(known["status"]) if known else Cell("")
        age = behind(known, situation).age_s if known else None
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
            Cell(held or "nobody", Tone.PLAIN if held else Tone.DIM),
        )
        item = {**part, "topic": described["topic"], "subscription": described["subscription"]}
        yield Row(key=str(number), cells=cells, item=item)


ONE: Final = View(
    name="subscription",
    title="Subscription",
    summary="One subscription: skew by partition, consumers with what each holds, evidence, diagnosis, actions.",
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
        column("consumer", "16-60 grows", title="consumers, and what each holds"),
    ),
    rows=_parts,
    head=_head_of_one,
    dated=("diagnosis", "lag"),
    takes=("topic", "subscription"),
)
