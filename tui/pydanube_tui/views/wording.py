"""Statuses, severities and states as glyph, word and tone, the same in every view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any, Final

from pydanube_tui.page import Call, Cell, Item, Line, Target, Tone, line
from pydanube_tui.text import shown

# Status of a subscription -> (glyph, tone, its urgency).
STATUS: Final[dict[str, tuple[str, Tone, int]]] = {
    "DATA_LOST": ("✗", Tone.BAD, 7),
    "STUCK": ("■", Tone.BAD, 6),
    "AT_RISK": ("◆", Tone.BAD, 5),
    "FALLING_BEHIND": ("▼", Tone.WARN, 4),
    "SLOW": ("◐", Tone.WARN, 3),
    "UNKNOWN": ("○", Tone.DIM, 2),
    "CATCHING_UP": ("▲", Tone.GOOD, 1),
    "CAUGHT_UP": ("✓", Tone.GOOD, 0),
}
SEVERITY: Final[dict[str, tuple[str, Tone, int]]] = {
    "critical": ("✗", Tone.BAD, 3),
    "warning": ("▼", Tone.WARN, 2),
    "info": ("○", Tone.ACCENT, 1),
}
VERDICT: Final[dict[str, tuple[str, Tone]]] = {
    "healthy": ("✓", Tone.GOOD),
    "degraded": ("▼", Tone.WARN),
    "failing": ("✗", Tone.BAD),
    "unknown": ("○", Tone.DIM),
}
_DECISIONS: Final = {
    "allowed": ("✓", Tone.GOOD),
    "planned": ("○", Tone.ACCENT),
    "interrupted": ("▼", Tone.WARN),
}
# If an operation's answer has its own view, entering a finding's next call goes there.
_VIEWS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "diagnose.subscription": ("subscription", ("topic", "subscription")),
    "diagnose.topic": ("topic", ("topic",)),
    "topics.describe": ("topic", ("topic",)),
    "topics.chart": ("topic", ("topic",)),
    "topics.list": ("topics", ()),
    "subscriptions.list": ("subscriptions", ()),
    "dead_letters.list": ("dead-letters", ("topic", "subscription")),
    "objects.list": ("objects", ("topic",)),
    "journal.describe": ("journal", ()),
    "brokers.logs": ("logs", ()),
    "brokers.list": ("brokers", ()),
    "brokers.describe": ("broker", ("broker_id",)),
    "cluster.balance": ("brokers", ()),
    "cluster.rebalance": ("brokers", ()),
    "alerts.list": ("alerts", ()),
    "schemas.versions": ("schema", ("subject",)),
    "schemas.list": ("schemas", ()),
    "connectors.describe": ("connector", ("connector",)),
    "connectors.logs": ("connector", ("connector",)),
}


def rank(status: str) -> int:
    """Return how urgent a subscription's status is, 0 for not at all."""
    return STATUS.get(status, ("", Tone.DIM, 2))[2]


def status_cell(status: str) -> Cell:
    """Return the cell of a subscription's status: glyph, word and tone."""
    glyph, tone, _ = STATUS.get(status, ("○", Tone.DIM, 2))
    return Cell(f"{glyph} {status.lower().replace('_', ' ')}", tone, rank(status))


def severity_cell(severity: str) -> Cell:
    """Return the cell of a finding's severity: glyph, word and tone."""
    glyph, tone, rank = SEVERITY.get(severity, ("○", Tone.PLAIN, 0))
    return Cell(f"{glyph} {severity}", tone, rank)


def broker_name(item: Item) -> str:
    """Return the name of a broker of `brokers.list`. Older brokers give none: then its address, else its id."""
    address = str(item["listen"].get("grpc") or "").rpartition("://")[2]
    return str(item.get("name") or address or item["broker_id"])


def broker_names(brokers: Iterable[Item]) -> dict[str, str]:
    """Return id → name of brokers."""
    return {str(item["broker_id"]): broker_name(item) for item in brokers}


def worst_alerts(alerts: Iterable[Item]) -> dict[str, str]:
    """Return topic → the severity of its worst open alert, those of its subscriptions and partitions among them."""
    worst: dict[str, str] = {}
    for alert in alerts:
        topic = alert["subject"].get("topic")
        if topic is None or alert.get("closed_at") is not None:
            continue
        for name in {str(topic), str(topic).partition("-part-")[0]}:
            if _urgency(alert["severity"]) > _urgency(worst.get(name)):
                worst[name] = alert["severity"]
    return worst


def _urgency(severity: str | None) -> int:
    return 0 if severity is None else SEVERITY.get(severity, ("", Tone.DIM, 0))[2]


def health_cell(severity: str | None) -> Cell:
    """Return the cell of the health that open alerts give a thing."""
    return Cell("✓ well", Tone.GOOD, 0) if severity in (None, "info") else severity_cell(severity)


def decision_cell(record: Mapping[str, Any]) -> Cell:
    """Return the cell of a call's outcome, from its audit record."""
    if record["phase"] == "call":
        return Cell("○ begun", Tone.DIM, "begun")
    decision = record["decision"]
    glyph, tone = _DECISIONS.get(decision, ("✗", Tone.WARN))
    word = (
        "done" if decision == "allowed" else record["code"] if glyph == "✗" and record["code"] else decision
    )
    return Cell(f"{glyph} {word}", tone, decision)


def subject_text(subject: Mapping[str, Any]) -> str:
    """Return a finding's subject in words: `/default/orders › billing`."""
    words = [subject.get(name) for name in ("topic", "subscription", "producer", "key", "subject")]
    if subject.get("partition") is not None and words[0]:
        words[0] = f"{words[0]}[{subject['partition']}]"
    named = [str(word) for word in words if word]
    if not named:
        named = [f"{name} {value}" for name, value in subject.items() if not isinstance(value, list | dict)]
    return " › ".join(named) or "cluster"


def place_of(operation: str, arguments: Mapping[str, Any]) -> Target | Call:
    """Return the view that shows a call's answer, or the call itself if none does."""
    view, takes = _VIEWS.get(operation, ("", ()))
    if view and all(name in arguments for name in takes):
        return Target(view=view, arguments={name: arguments[name] for name in takes})
    return Call(operation=operation, arguments=dict(arguments))


def next_of(finding: Mapping[str, Any], here: str = "") -> Target | Call | None:
    """Return where Enter on a finding leads: to its first next call that is not the present view."""
    for call in finding.get("next", ()):
        place = place_of(call["operation"], call.get("arguments", {}))
        if not (isinstance(place, Target) and place.view == here):
            return place
    return None


_ONE_LINE: Final = 100_000  # cells: the screen cuts the line


def together(findings: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Return findings with counts: those that differ only in the partition are joined."""
    found: dict[tuple[str, str], tuple[Mapping[str, Any], int]] = {}
    for finding in findings:
        subject = {name: value for name, value in finding["subject"].items() if name != "partition"}
        key = (finding["rule"], subject_text(subject))
        first, count = found.get(key, (finding, 0))
        found[key] = (first, count + 1)
    return list(found.values())


def caller(principal: str) -> str:
    """Return a principal, or the address of a caller without a name. Its port changes with each connection."""
    kind, _, address = principal.partition(":")
    return address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else principal


def said_of(subject: str, summary: str) -> str:
    """Return the summary of a finding without the names of its subject, for a row that names the subject."""
    said = summary.removeprefix(f"{subject.replace(' › ', ' / ')} ")
    topic, _, subscription = subject.partition(" › ")
    if subscription:
        said = said.replace(f" of {topic} ", " ", 1).replace(f" for subscription '{subscription}' ", " ", 1)
    return said


def finding_lines(findings: Iterable[Mapping[str, Any]], room: tuple[int, int]) -> list[Line]:
    """Return findings in lines: summary, numbers, causes ruled out, remedies.

    Args:
        findings: of a diagnosis.
        room: height and width in cells. A high screen shows more findings, and what is too long for a line on the next.
    """
    lines: list[Line] = []
    told = together(findings)
    height, width = room
    most, details = (1, 1) if height < 32 else (4, 2)
    for finding, count in told[:most]:
        glyph, tone, _ = SEVERITY.get(finding["severity"], ("○", Tone.PLAIN, 0))
        more = f" (and {count - 1} more partitions)" if count > 1 else ""
        says = wrap(f"{glyph} {finding['summary']}{more}", max(20, width - 2), subsequent_indent="  ")
        lines += [line((f" {each}", tone)) for each in says]
        numbers = [f"{name} {shown(value)}" for name, value in finding.get("evidence", {}).items()]
        told_of = [("evidence", " · ".join(numbers[:6]), "")] if numbers else []
        told_of += [
            ("excluded", f"{out['rule']}: {out['because']}", "")
            for out in finding.get("ruled_out", ())[:details]
        ]
        told_of += [
            ("next", call["command"], f"  {call['why']}") for call in finding.get("next", ())[:details]
        ]
        for title, text, why in told_of:
            tone = Tone.ACCENT if why else Tone.PLAIN
            cells = max(20, width - 13) if details > 1 else _ONE_LINE
            whole = len(text) + len(why) <= cells
            first, *rest = wrap(text, cells, break_on_hyphens=False) or [""]
            lines.append(line((f"   {title:<9}", Tone.DIM), (first, tone), (why if whole else "", Tone.DIM)))
            below = [(each, tone) for each in rest]
            below += [] if whole else [(each, Tone.DIM) for each in wrap(why, cells)]
            lines += [line((" " * 12, Tone.DIM), each) for each in below]
    if len(told) > most:
        lines.append(line((f"   and {len(told) - most} more: danube diagnose has all", Tone.DIM)))
    return lines
