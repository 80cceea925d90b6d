"""The overview: findings and alerts first, then the slowest subscriptions, the busiest topics, and changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.units import counted

from pydanube_tui.columns import column
from pydanube_tui.page import Cell, Line, Row, Span, Target, Tone, dim, headings, line
from pydanube_tui.text import ago, count, gauge, rate, size, span, sparkline
from pydanube_tui.view import CHARTED, Answer, Ask, Extent, Situation, View
from pydanube_tui.views.charts import beside, counters, traffic
from pydanube_tui.views.subscriptions import blocked_by, key_of, merged, place_of_subscription, urgency
from pydanube_tui.views.topics import sizes_of_topics
from pydanube_tui.views.wording import (
    VERDICT,
    caller,
    decision_cell,
    next_of,
    said_of,
    severity_cell,
    status_cell,
    subject_text,
    together,
)

_FINDINGS: Final = 50


def asks(_: Mapping[str, Any]) -> Mapping[str, Ask]:
    return {
        "diagnosis": Ask(operation="diagnose.cluster"),
        "metrics": Ask(operation="cluster.metrics"),
        "status": Ask(operation="brokers.status"),
        "chart": Ask(operation="cluster.chart", arguments={"since": CHARTED}, optional=True),
        "alerts": Ask(operation="alerts.list", arguments={"limit": 100}, optional=True),
        "lag": Ask(operation="subscriptions.lag", arguments={"limit": 200}, optional=True),
        "topics": Ask(operation="topics.list", extent=Extent.ALL, optional=True),
        "audit": Ask(operation="audit.query", extent=Extent.NEWS, optional=True),
    }


def measures(answers: Mapping[str, Answer]) -> Mapping[str, float]:
    return {**counters(answers), **sizes_of_topics(answers, "topics")}


def _head(situation: Situation) -> list[Line]:
    diagnosis, status, metrics = (situation.of(name) for name in ("diagnosis", "status", "metrics"))
    verdict = str(diagnosis.get("verdict", "unknown"))
    glyph, tone = VERDICT.get(verdict, ("○", Tone.DIM))
    findings = together(each for each in diagnosis.get("findings", ()) if each["severity"] != "info")
    more = int(diagnosis.get("omitted", 0))
    said = counted(len(findings) + more, "finding") if findings else ""
    reasons = [str(each.get("message", each)) for each in status.get("reasons", ())]
    first = line(
        (f" {glyph} {verdict.upper()} ", tone),
        (f" {said}" if said else " no findings", Tone.STRONG if said else Tone.DIM),
        *([(f"   not ready: {'; '.join(reasons)}", Tone.BAD)] if reasons else []),
    )
    there = (
        f"– {name}s" if (found := metrics.get(f"{name}s")) is None else counted(found, name)
        for name in ("topic", "subscription", "producer", "consumer")
    )
    runs = f"{status.get('durability', '–')}, version {status.get('version', '–')}"
    lines = [
        *(first, line(), *traffic(situation, metrics.get("lag_messages")), _storage(status, situation.width)),
        beside("cluster", " · ".join(there)),
        beside("broker", f"up {span(status.get('uptime_s'))}, {runs}"),
    ]
    unseen = wrap("; ".join(map(str, diagnosis.get("unobservable", ()))), max(20, situation.width - 12))
    lines += [beside("" if at else "not seen", dim(each)) for at, each in enumerate(unseen)]
    return [*lines, line()]


def _storage(status: Mapping[str, Any], cells: int) -> Line:
    disk, journal, tier = (status.get(name) or {} for name in ("disk", "journal", "tier"))
    total, free = disk.get("total_bytes"), disk.get("free_bytes")
    used = None if not total or free is None else 1 - free / total
    tone = Tone.GOOD if used is None or used < 0.8 else Tone.WARN if used < 0.92 else Tone.BAD
    sync_ms = journal.get("fsync_p99_ms")
    sync = f"fsync p99 {'–' if sync_ms is None else f'{sync_ms:.1f} ms'}"
    spans: list[Span | str] = [
        *((f"{gauge(used)} ", tone), f"{size(free)}B free" + (f" of {size(total)}B" if cells >= 100 else "")),
        dim(f"   journal {size(journal.get('bytes'))}B"),
        dim(f", {sync}" if cells >= 100 else ""),
    ]
    if tier.get("enabled"):
        spans.append(dim(f", tier waits {size(tier.get('backlog_bytes'))}B"))
        if tier.get("errors"):
            spans.append((f", {tier['errors']} errors", Tone.BAD))
    if status.get("read_only"):
        spans.append(("   ✗ READ ONLY", Tone.BAD))
    return beside("disk", *spans)


def _most(situation: Situation) -> int:
    """Return how many rows of a kind there is room for."""
    return 5 if situation.height < 40 else 12


def _needs(situation: Situation) -> Iterator[Row]:
    findings = together(situation.of("diagnosis").get("findings", ())[:_FINDINGS])
    opened = {
        (alert["rule"], subject_text(alert["subject"])): alert
        for alert in situation.items("alerts")
        if alert.get("closed_at") is None
    }
    if not findings and not opened:
        return
    yield headings("findings")
    # Of each rule the diagnosis has the worst finding, and their number
    said = {finding["rule"] for finding, _ in findings}
    findings += [
        each
        for each in together(alert["finding"] for alert in opened.values())
        if each[0]["rule"] not in said
    ]
    for finding, times in findings:
        subject = subject_text(finding["subject"])
        since = opened.get((finding["rule"], subject), {}).get("opened_at")
        more = f" (and {times - 1} more partitions)" if times > 1 else ""
        cells = (
            severity_cell(finding["severity"]),
            Cell(subject, Tone.STRONG, subject),
            Cell(said_of(subject, finding["summary"]) + more),
            _since(since, situation),
        )
        key = f"finding {finding['rule']} {subject}"
        yield Row(key=key, cells=cells, item=finding, enter=next_of(finding, "overview"))


def _slowest(situation: Situation) -> Iterator[Row]:
    error = situation.error("lag")
    if error is not None:
        yield headings(f"slowest subscriptions: {error}")
        return
    behind = [item for item in merged(situation.items("lag")) if item["lag_messages"]]
    behind = sorted(behind, key=urgency, reverse=True)[: _most(situation)]
    if not behind:
        return
    cut = situation.of("lag").get("next_page")
    yield headings(f"slowest subscriptions{' of the first 200 looked at' if cut else ''}")
    for item in behind:
        says = f"{count(item['lag_messages'])} unread, oldest {span(item['oldest_unread_age_s'])}"
        if item["eta_s"] is not None:
            says += f", done in {span(item['eta_s'])}"
        if blocked := blocked_by(item):
            says += f", blocked by {blocked}"
        cells = (
            status_cell(item["status"]),
            Cell(f"{item['topic']} › {item['subscription']}", Tone.STRONG),
            Cell(says),
            _since(item.get("since"), situation),
        )
        yield Row(key=f"behind {key_of(item)}", cells=cells, item=item, enter=place_of_subscription(item))


def _busiest(situation: Situation) -> Iterator[Row]:
    rates = {item["topic"]: situation.rate(item["topic"]) or 0.0 for item in situation.items("topics")}
    busy = sorted((topic for topic, grows in rates.items() if grows), key=rates.__getitem__, reverse=True)
    if not busy:
        return
    yield headings("busiest topics")
    items = {item["topic"]: item for item in situation.items("topics")}
    for topic in busy[: _most(situation)]:
        item = items[topic]
        clients = f"{counted(item['producers'], 'producer')}, {counted(item['consumers'], 'consumer')}"
        cells = (
            Cell(rate(rates[topic]), Tone.ACCENT),
            Cell(topic, Tone.STRONG),
            Cell(f"{sparkline(situation.rates(topic), 20)}  {count(item['messages'])} messages, {clients}"),
            Cell(""),
        )
        enter = Target(view="topic", arguments={"topic": topic})
        yield Row(key=f"busy {topic}", cells=cells, item=item, enter=enter)


def _since(time: str | None, situation: Situation) -> Cell:
    return Cell(ago(time, situation.now_ms) if time else "", Tone.DIM)


def is_change(record: Mapping[str, Any]) -> bool:
    """Return whether an audit record is the outcome of a change, or of a failed attempt."""
    operation = OPERATIONS.get(record["operation"])
    done = record["phase"] == "outcome" and record["decision"] != "planned"
    return done and (operation is None or operation.effect is not Effect.READ)


def _changes(situation: Situation) -> Iterator[Row]:
    changes = [record for record in situation.items("audit") if is_change(record)]
    changes = changes[: _most(situation)]
    if not changes:
        return
    yield headings("recent changes")
    for record in changes:
        arguments = record["arguments"]
        subject = subject_text(arguments.get("arguments") or arguments) if arguments else ""
        cells = (
            decision_cell(record),
            Cell("" if subject == "cluster" else subject, Tone.STRONG),
            Cell(f"{record['operation']} by {caller(record['principal'])}"),
            _since(record["time"], situation),
        )
        enter = Target(view="change", arguments={"call_id": record["call_id"]})
        yield Row(key=f"change {record['seq']}", cells=cells, item=record, enter=enter)


VIEW: Final = View(
    name="overview",
    summary="Is it well? Verdict, what needs a person, rates, disk, the slowest subscriptions, the busiest topics, recent changes.",
    twin="danube diagnose cluster --json",
    asks=asks,
    measures=measures,
    columns=(
        column("state", "16"),
        column("subject", "14-40 grows", title="what"),
        column("says", "20-150 grows", title="how it is"),
        column("since", "6 right drop=1 seconds"),
    ),
    rows=lambda situation: [
        *_needs(situation),
        *_slowest(situation),
        *_busiest(situation),
        *_changes(situation),
    ],
    head=_head,
    empty="all is well: no finding, no subscription behind, no change",
    dated=("diagnosis",),
    aliases=("home", "o"),
)
