"""Equal findings of many subjects as one: how many there are, which is worst, and where the others can be read.

Two thousand subscriptions that nobody reads are one piece of news. The worst of them is told in full, the next few by
name; all of them are pages of `alerts.list`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Rule, RuleArea

NAMED: Final = 5  # members told by name
BRIEF_CALLS: Final = 2  # next calls told of each
BRIEF_BYTES: Final = 5_500  # of findings as JSON; with tools and commands an answer stays below 8 KB


def grouped(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """One finding for each rule and severity, in the order of their worst; `findings` are ranked.

    What was ruled out is left to the diagnosis of the subject, which is the first call of `next`.
    """
    members: dict[tuple[str, int], list[Finding]] = {}
    for one in findings:
        members.setdefault((one.rule, one.severity), []).append(one)
    return [_together(found, rules[found[0].rule]) for found in members.values()]


def _together(found: Sequence[Finding], rule: Rule) -> Finding:
    worst = found[0]
    calls = (*_in_full(worst, rule), *worst.next)[:BRIEF_CALLS]
    if len(found) == 1:
        return replace(worst, ruled_out=(), next=calls)
    everyone = NextCall(
        operation="alerts.list",
        arguments={"filter": rule.name},
        why=f"see all {len(found)} once they have lasted",
    )
    return replace(
        worst,
        summary=f"{len(found)} {rule.many}; worst: {worst.summary}",
        evidence={
            **worst.evidence,
            "members": len(found),
            "messages_of_all": sum(one.impact for one in found),
            "worst": [{**one.subject, "messages": one.impact} for one in found[:NAMED]],
        },
        ruled_out=(),
        next=(*calls[: BRIEF_CALLS - 1], everyone),
    )


def _in_full(finding: Finding, rule: Rule) -> tuple[NextCall, ...]:
    """The diagnosis of the subject alone, with what is ruled out."""
    arguments = {name: finding.subject[name] for name in ("topic", "subscription") if name in finding.subject}
    if rule.area is RuleArea.BROKER:
        return ()
    operation = "diagnose.subscription" if "subscription" in arguments else "diagnose.topic"
    return (
        NextCall(
            operation=operation, arguments=arguments, why="see all of its evidence, and what is ruled out"
        ),
    )


def that_fit(findings: Sequence[Finding]) -> Sequence[Finding]:
    """As many of the first as a brief answer has room for; the first always."""
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
