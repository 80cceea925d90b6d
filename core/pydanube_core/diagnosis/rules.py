"""All rules, in the order in which causes come before what they cause; and how they are carried out together.

A view is held against every rule of its area. What holds is a finding; what does not says why, and findings of the
same view carry that as what was ruled out. The worst severity comes first, then the order of `RULES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydanube_core.diagnosis.broker_rules import BROKER_RULES
from pydanube_core.diagnosis.findings import Diagnosis, Finding, Rule, RuledOut, Severity, verdict_of
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.subscription_rules import SUBSCRIPTION_RULES
from pydanube_core.diagnosis.topic_rules import TOPIC_RULES
from pydanube_core.diagnosis.views import BrokerView, SubscriptionView, TopicView

RULES: Final[Mapping[str, Rule]] = {
    rule.name: rule for rule in (*BROKER_RULES, *TOPIC_RULES, *SUBSCRIPTION_RULES)
}
_ORDER: Final = {name: place for place, name in enumerate(RULES)}
MOST_FINDINGS: Final = 100  # of one answer; the others are counted


def check_view(
    view: SubscriptionView | TopicView | BrokerView, options: DiagnosisOptions
) -> tuple[Finding, ...]:
    """Every finding of one view, ranked."""
    match view:
        case SubscriptionView():
            rules: Sequence[Rule] = SUBSCRIPTION_RULES
        case TopicView():
            rules = TOPIC_RULES
        case BrokerView():
            rules = BROKER_RULES
    found: list[Finding] = []
    ruled_out: list[RuledOut] = []
    for rule in rules:
        outcome = rule.check(view, options)
        if isinstance(outcome, str):
            ruled_out.append(RuledOut(rule=rule.name, because=outcome))
        else:
            found.append(outcome)
    if not found:
        return ()
    return tuple(ranked(replace(one, ruled_out=tuple(ruled_out)) for one in found))


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first: by severity, then by rule, causes before effects, then by confidence."""
    return sorted(findings, key=lambda one: (-one.severity, _ORDER[one.rule], -one.confidence))


def diagnose(
    findings: Iterable[Finding],
    *,
    subject: Mapping[str, Any],
    as_of_ms: int,
    seen: bool = True,
    unobservable: tuple[str, ...] = (),
) -> Diagnosis:
    """Put findings of several views together."""
    every = ranked(findings)
    return Diagnosis(
        subject=subject,
        verdict=verdict_of(every, seen=seen),
        findings=tuple(every[:MOST_FINDINGS]),
        as_of_ms=as_of_ms,
        unobservable=unobservable,
        omitted=max(0, len(every) - MOST_FINDINGS),
        counts=dict(Counter(one.rule for one in every if one.severity > Severity.INFO)),
    )
