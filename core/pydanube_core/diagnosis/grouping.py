"""Join findings of one rule about many subjects into one finding, with their number and the worst subjects.

Two thousand subscriptions without a consumer are one finding. The worst is reported in full, the next few by name.
`alerts.list` has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Rule, RuleArea
from pydanube_core.units import counted

NAMED: Final = 5  # members listed by name
_WORST: Final = "; worst: "
BRIEF_CALLS: Final = 2  # next calls of each
BRIEF_BYTES: Final = 5_500  # of findings as JSON. With tools and commands, an answer stays below 8 KB


def grouped(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Return one finding for each rule and severity, ordered by its worst member. `findings` are ranked.

    The causes ruled out are those of the worst member.
    """
    members: dict[tuple[str, int], list[Finding]] = {}
    for one in findings:
        members.setdefault((one.rule, one.severity), []).append(one)
    return [_together(found, rules[found[0].rule]) for found in members.values()]


def of_partitions(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Join equal findings about the partitions of one subscription, such as partitions without a consumer.

    The first has the numbers of the worst partition. `partitions` in its evidence names all of them.
    """
    members: dict[tuple[Any, ...], list[Finding]] = {}
    for place, one in enumerate(findings):
        subject = dict(one.subject)
        parted = subject.pop("partition", None) is not None or "partitions" in one.evidence
        alone = not (parted and rules[one.rule].of_partitions)
        members.setdefault((one.rule, one.severity, str(subject), place if alone else None), []).append(one)
    return [
        found[0] if len(found) == 1 else _of_parts(found, rules[found[0].rule]) for found in members.values()
    ]


def _of_parts(found: Sequence[Finding], rule: Rule) -> Finding:
    subject = {name: value for name, value in found[0].subject.items() if name != "partition"}
    partitions = sorted(
        chain.from_iterable(one.evidence.get("partitions") or [one.subject["partition"]] for one in found)
    )
    waiting = sum(one.impact for one in found)
    return replace(
        found[0],
        subject=subject,
        impact=waiting,
        summary=f"{len(partitions)} partitions of {subject['topic']} / {subject['subscription']} have unread messages and no "
        f"consumer, {counted(waiting, 'message waits', 'messages wait')}; worst: "
        f"{found[0].summary.rpartition(_WORST)[2]}",
        evidence={**found[0].evidence, "partitions": partitions, "messages_of_all": waiting},
    )


def joined(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Join findings of several brokers, each of which has grouped its own.

    Findings about a broker itself stay separate, because their remedies differ by broker, unless their cause is outside
    the brokers.
    """
    members: dict[tuple[Any, ...], list[Finding]] = {}
    for one in findings:
        rule = rules[one.rule]
        apart = rule.area is RuleArea.BROKER and not rule.of_all_brokers
        members.setdefault((one.rule, one.severity, apart and one.subject.get("broker_id")), []).append(one)
    return [_of_brokers(found, rules[found[0].rule]) for found in members.values()]


def _of_brokers(found: Sequence[Finding], rule: Rule) -> Finding:
    if len(found) == 1:
        return found[0]
    if not rule.of_all_brokers:
        return _as_one(found, rule, _of_worst(found[0]))
    found = sorted(found, key=lambda one: str(one.subject["broker_id"]))  # the same one first in every answer
    brokers = [str(one.subject["broker_id"]) for one in found]
    more = ", …" if len(brokers) > NAMED else ""
    return replace(
        found[0],
        summary=f"{len(brokers)} {rule.many} ({', '.join(brokers[:NAMED])}{more}); the first: {found[0].summary}",
        evidence={**found[0].evidence, "brokers": brokers},
    )


def _of_worst(group: Finding) -> Sequence[NextCall]:
    return [call for call in group.next if call.operation != "alerts.list"]


def _together(found: Sequence[Finding], rule: Rule) -> Finding:
    calls = (*_in_full(found[0], rule), *found[0].next)[:BRIEF_CALLS]
    if len(found) == 1:
        return replace(found[0], next=calls)
    return _as_one(found, rule, calls)


def _as_one(found: Sequence[Finding], rule: Rule, calls: Sequence[NextCall]) -> Finding:
    """Join findings into one. Each is single, or a group made by this function. The first is the worst."""
    worst = found[0]
    count = sum(one.evidence.get("members", 1) for one in found)
    named = chain.from_iterable(
        one.evidence.get("worst", [{**one.subject, "messages": one.impact}]) for one in found
    )
    everyone = NextCall("alerts.list", {"filter": rule.name}, f"see all {count} once they have lasted")
    return replace(
        worst,
        summary=f"{count} {rule.many}{_WORST}{worst.summary.partition(_WORST)[2] or worst.summary}",
        evidence={
            **worst.evidence,
            "members": count,
            "messages_of_all": sum(one.evidence.get("messages_of_all", one.impact) for one in found),
            "worst": sorted(named, key=lambda each: -each["messages"])[:NAMED],
        },
        next=(*calls[: BRIEF_CALLS - 1], everyone),
    )


def _in_full(finding: Finding, rule: Rule) -> tuple[NextCall, ...]:
    """Return the call that diagnoses the subject alone."""
    arguments = {name: finding.subject[name] for name in ("topic", "subscription") if name in finding.subject}
    if rule.area is RuleArea.BROKER:
        return ()
    operation = "diagnose.subscription" if "subscription" in arguments else "diagnose.topic"
    return (NextCall(operation, arguments, "see all of its evidence"),)


def that_fit(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return as many of the first findings as a brief answer has room for, at least the first."""
    left = BRIEF_BYTES
    for place, one in enumerate(findings):
        left -= _size(one)
        if left < 0 and place:
            return findings[:place]
    return findings


def _size(one: Finding) -> int:
    calls = [(call.operation, dict(call.arguments), call.why) for call in one.next]
    parts = (one.summary, dict(one.subject), dict(one.evidence), dict(one.untrusted), one.unobservable, calls)
    return len(json.dumps(parts, default=str)) + 100 + 150 * len(calls)
