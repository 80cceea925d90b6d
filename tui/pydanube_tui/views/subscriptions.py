"""Subscriptions and how far they are behind; one of them with its partitions, consumers, evidence and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_tui.page import Cell, Column, Line, Page, Row, Target, Tone, line
from pydanube_tui.text import count, milliseconds, rate, size, span, sparkline
from pydanube_tui.view import Answer, Ask, Extent, Situation, View
from pydanube_tui.views.wording import STATUS, finding_lines, shown, status_cell

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A subscription, its partitions taken together: the worst status, the oldest message, the longest way."""

    parts: tuple[Item, ...]

    @property
    def _worst(self) -> Item:
        return max(
            self.parts, key=lambda part: (STATUS.get(part["status"], ("", "", 2))[2], part["lag_messages"])
        )

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
        return _most(self.parts, "oldest_unread_age_s")

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
        return min(known, default=None)

    def urgency(self) -> tuple[int, float, int]:
        """The more, the sooner somebody should look."""
        rank = STATUS.get(self.status, ("", "", 2))[2]
        return (rank, self.age_s or 0.0, self.lag_messages)

    def total(self, name: str) -> float | None:
        """A field summed; None where a partition's is not known."""
        values = [part.get(name) for part in self.parts]
        return None if None in values else sum(value for value in values if value is not None)

    def item(self) -> dict[str, Any]:
        """As `y` shows it: the item itself, or its partitions."""
        if len(self.parts) == 1:
            return dict(self.parts[0])
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "parts": [dict(p) for p in self.parts],
        }


def _most(parts: Iterable[Item], name: str) -> float | None:
    return max((part[name] for part in parts if part.get(name) is not None), default=None)


def grouped(items: Iterable[Item]) -> list[Behind]:
    """Items of `subscriptions.lag` by subscription, in their order."""
    found: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        found.setdefault((item["topic"], item["subscription"]), []).append(item)
    return [Behind(parts=tuple(parts)) for parts in found.values()]


_COLUMNS: Final = (
    Column(name="status", title="status", key="S", least=16, most=16),
    Column(name="topic", title="topic", key="N", least=14, most=60, grows=True),
    Column(name="subscription", title="subscription", key="B", least=10, most=40, grows=True),
    Column(name="lag", title="lag", key="L", least=6, most=6, right=True, unit="count", marks=True),
    Column(name="age", title="oldest", key="A", least=6, most=6, right=True, unit="seconds"),
    Column(name="eta", title="eta", key="E", least=6, most=6, right=True, drop=3, unit="seconds"),
    Column(name="consumers", title="cons", key="C", least=4, most=4, right=True, drop=2, unit="count"),
    Column(name="history", title="lag so far", least=30, most=30, drop=6),
    Column(name="in", title="in/s", key="I", least=7, most=7, right=True, drop=5, unit="count"),
    Column(name="out", title="out/s", key="O", least=7, most=7, right=True, drop=5, unit="count"),
    Column(name="headroom", title="headroom", key="H", least=8, most=8, right=True, drop=4, unit="seconds"),
    Column(name="flight", title="flight", key="F", least=6, most=6, right=True, drop=8, unit="count"),
    Column(name="type", title="type", key="Y", least=10, most=10, drop=9),
    Column(name="blocked", title="blocked by", least=12, most=30, drop=7),
)


def asks_list(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    wanted = {"topic": arguments["topic"]} if arguments.get("topic") else {}
    return {"lag": Ask(operation="subscriptions.lag", arguments=wanted, extent=Extent.ALL)}


def measures_list(answers: Mapping[str, Answer]) -> Mapping[str, float]:
    lag = answers.get("lag")
    items = lag["items"] if isinstance(lag, Mapping) else ()
    return {each.key: float(each.lag_messages) for each in grouped(items)}


def page_list(situation: Situation) -> Page:
    return Page(
        columns=_COLUMNS,
        rows=[_row(each, situation) for each in grouped(situation.items("lag"))],
        empty="no subscriptions; one is made by a consumer, or by danube subscriptions create",
        as_of_ms=milliseconds(situation.of("lag").get("as_of")),
        sort=("status", True),
    )


def _row(each: Behind, situation: Situation) -> Row:
    consumers, headroom = int(each.total("consumers") or 0), each.headroom_s
    in_rate, out_rate = each.total("produce_rate"), each.total("consume_rate")
    tone = STATUS.get(each.status, ("", Tone.PLAIN, 0))[1]
    age, eta = each.age_s, each.eta_s
    name = each.topic if len(each.parts) == 1 else f"{each.topic} ({len(each.parts)})"
    flight = each.total("in_flight")
    cells = (
        status_cell(each.status),
        Cell(name, Tone.PLAIN, each.topic),
        Cell(each.subscription, Tone.STRONG, each.subscription),
        Cell(count(each.lag_messages), tone if each.lag_messages else Tone.DIM, each.lag_messages),
        Cell(span(age), Tone.PLAIN if each.lag_messages else Tone.DIM, age),
        Cell(span(eta), Tone.DIM, eta),
        Cell(str(consumers), Tone.WARN if not consumers and each.lag_messages else Tone.PLAIN, consumers),
        Cell(sparkline(situation.values(each.key)), tone),
        Cell(rate(in_rate)[:-2] or "–", Tone.DIM, in_rate),
        Cell(rate(out_rate)[:-2] or "–", Tone.DIM, out_rate),
        Cell(span(headroom), Tone.BAD if headroom is not None and headroom < 3600 else Tone.DIM, headroom),
        Cell(count(flight), Tone.DIM, flight),
        Cell(str(each.parts[0]["type"]).replace("_", "-"), Tone.DIM, str(each.parts[0]["type"])),
        Cell(each.blocked_by or "", Tone.WARN),
    )
    enter = Target(view="subscription", arguments={"topic": each.topic, "subscription": each.subscription})
    return Row(key=each.key, cells=cells, item=each.item(), enter=enter)


_PART_COLUMNS: Final = (
    Column(name="part", title="partition", key="N", least=9, most=9),
    Column(name="status", title="status", key="S", least=16, most=16, drop=1),
    Column(name="lag", title="lag", key="L", least=6, most=6, right=True, unit="count", marks=True),
    Column(name="share", title="share", key="H", least=10, most=10, drop=2),
    Column(name="age", title="oldest", key="A", least=6, most=6, right=True, unit="seconds"),
    Column(name="next", title="unread from", least=11, most=12, right=True, drop=4, unit="count"),
    Column(name="head", title="end", least=8, most=12, right=True, drop=5, unit="count"),
    Column(name="flight", title="flight", key="F", least=6, most=6, right=True, unit="count"),
    Column(name="consumer", title="consumers, and what each holds", least=16, most=60, grows=True),
)


def asks_one(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    named = {"topic": arguments["topic"], "subscription": arguments["subscription"]}
    return {
        "subscription": Ask(operation="subscriptions.describe", arguments=named),
        "lag": Ask(operation="subscriptions.lag", arguments=named, extent=Extent.ALL),
        "diagnosis": Ask(operation="diagnose.subscription", arguments=named, optional=True),
        "chart": Ask(operation="topics.chart", arguments=named, optional=True),
    }


def page_one(situation: Situation) -> Page:
    described = situation.of("subscription")
    lag = {part["partition"]: part for part in situation.items("lag")}
    behind = grouped(situation.items("lag"))
    total = max(1, described.get("lag_messages", 0))
    rows = [
        _part_row(part, lag.get(part["partition"]), total, described) for part in described.get("parts", ())
    ]
    return Page(
        head=_one_head(situation, behind[0] if behind else None),
        columns=_PART_COLUMNS,
        rows=rows,
        as_of_ms=milliseconds(situation.of("diagnosis").get("as_of") or situation.of("lag").get("as_of")),
        title=f"{described.get('topic', '')} › {described.get('subscription', '')}",
    )


def _one_head(situation: Situation, behind: Behind | None) -> list[Line]:
    described = situation.of("subscription")
    lines: list[Line] = []
    if behind is not None:
        status = status_cell(behind.status)
        lines.append(
            line(
                (f" {status.text.upper()} ", status.tone),
                (f"  {behind.lag_messages:,} unread", Tone.STRONG),
                f"   oldest {span(behind.age_s)}   eta {_or_reason(behind, 'eta_s')}"
                f"   headroom {_or_reason(behind, 'retention_headroom_s')}",
            )
        )
        lost = behind.total("lost_messages")
        told = [
            f"{described.get('consumers', 0)} consumers",
            f"{count(behind.total('in_flight'))} in flight",
            f"in {rate(behind.total('produce_rate'))}",
            f"out {rate(behind.total('consume_rate'))}",
            f"{count(behind.total('redelivered'))} redelivered",
            f"{count(behind.total('dead_lettered'))} dead letters",
        ]
        if behind.total("lag_bytes") is not None:
            told.append(f"{size(behind.total('lag_bytes'))}B unread")
        lines.append(line((f" {described.get('type', '')}   ", Tone.DIM), " · ".join(told)))
        if lost:
            lines.append(line((f" ✗ {count(lost)} messages went before they were read", Tone.BAD)))
        if behind.blocked_by:
            lines.append(line((" blocked by ", Tone.DIM), (behind.blocked_by, Tone.WARN)))
        evidence = behind.parts[0].get("evidence", {})
        lines.append(
            line(
                (" evidence   ", Tone.DIM),
                (" · ".join(f"{k} {shown(v)}" for k, v in evidence.items()), Tone.DIM),
            )
        )
    lines += _chart_lines(situation)
    policy = described.get("failure_policy") or {}
    if policy:
        lines.append(
            line(
                (" failures   ", Tone.DIM),
                f"{policy['max_redelivery_count']} redeliveries, {policy['backoff_strategy']} from "
                f"{span(policy['base_redelivery_delay_ms'] / 1000)}, then {policy['poison_policy']}"
                + (f" to {policy['dead_letter_topic']}" if policy["dead_letter_topic"] else ""),
            )
        )
    lines += finding_lines(situation.of("diagnosis").get("findings", ()), (situation.height, situation.width))
    return [*lines, line()]


def _or_reason(behind: Behind, name: str) -> str:
    value = behind.eta_s if name == "eta_s" else behind.headroom_s
    if value is not None:
        return span(value)
    reason = next((part.get(f"{name}_reason") for part in behind.parts if part.get(f"{name}_reason")), None)
    return f"– ({str(reason).replace('_', ' ')})" if reason else "–"


def _chart_lines(situation: Situation) -> list[Line]:
    chart = situation.of("chart")
    if not chart.get("subscriptions"):
        return []
    one = chart["subscriptions"][0]
    spans = chart.get("age_s") or [0]
    over = f"over {span(spans[0])}"
    return [
        line(
            (" lag        ", Tone.DIM),
            (f"{sparkline(one['lag_messages'], 31):<31}", Tone.WARN),
            (f"  {over}", Tone.DIM),
        ),
        line((" acks/s     ", Tone.DIM), (f"{sparkline(one['acknowledge_rate'], 31):<31}", Tone.GOOD)),
    ]


def _part_row(part: Item, lag: Item | None, total: int, described: Item) -> Row:
    behind = part["lag_messages"]
    status = status_cell(lag["status"]) if lag else Cell("")
    age = lag.get("oldest_unread_age_s") if lag else None
    consumers: Sequence[Item] = part.get("consumers", ())
    held = "; ".join(
        f"{each.get('consumer') or each.get('name') or each.get('id')}: {count(each.get('in_flight'))} held"
        for each in consumers
    )
    share = behind / total
    name = "–" if part["partition"] is None else str(part["partition"])
    cells = (
        Cell(name, Tone.PLAIN, -1 if part["partition"] is None else part["partition"]),
        status,
        Cell(count(behind), Tone.STRONG if behind else Tone.DIM, behind),
        Cell("█" * max(1, round(share * 10)) if behind else "", status.tone, share),
        Cell(span(age), Tone.PLAIN, age),
        Cell(str(part["next_unacked"]), Tone.DIM, part["next_unacked"]),
        Cell(str(part["next_offset"]), Tone.DIM, part["next_offset"]),
        Cell(count(part["in_flight"]), Tone.PLAIN, part["in_flight"]),
        Cell(held or "nobody", Tone.PLAIN if held else Tone.DIM),
    )
    item = {**part, "topic": described["topic"], "subscription": described["subscription"]}
    return Row(key=str(part["partition"]), cells=cells, item=item)


LIST: Final = View(
    name="subscriptions",
    title="Subscriptions",
    summary="How far every subscription is behind: status, messages, age of the oldest, eta, headroom, history.",
    asks=asks_list,
    page=page_list,
    measures=measures_list,
    columns=_COLUMNS,
    twin="danube subscriptions lag --json",
    aliases=("subs", "lag", "s"),
    may=("topic",),
)
ONE: Final = View(
    name="subscription",
    title="Subscription",
    summary="One subscription: skew by partition, consumers with what each holds, evidence, diagnosis, actions.",
    asks=asks_one,
    page=page_one,
    columns=_PART_COLUMNS,
    twin="danube subscriptions describe TOPIC SUBSCRIPTION --json",
    takes=("topic", "subscription"),
)
