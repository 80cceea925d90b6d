"""All rules, causes before their effects, and how they are evaluated together.

Every rule of its area checks a view. If it holds, it returns a finding. If not, it returns a reason, which findings of
the same view carry as ruled out. The worst severity comes first, then the broker itself, on which everything depends,
then the subject with most messages. Findings from a short history are provisional. Findings of one subject have the order of `RULES`. A diagnosis of a subject has its
own warnings before those of the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, TypeVar

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.causes import broker, cluster, consumers, links, messages, pace, quotas, topics
from pydanube_core.diagnosis.findings import (
    Diagnosis,
    Finding,
    NextCall,
    Rule,
    RuleArea,
    RuledOut,
    Severity,
    Verdict,
    verdict_of,
)
from pydanube_core.diagnosis.grouping import grouped, joined, of_partitions, that_fit
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView, SubscriptionView, TopicView

RULES_OF: Final[Mapping[RuleArea, tuple[Rule, ...]]] = {
    RuleArea.BROKER: (
        broker.journal_read_only,
        broker.disk_nearly_full,
        broker.object_store_unreachable,
        broker.object_damaged,
        broker.metadata_set_aside,
        broker.undo_given_up,
        broker.clock_stepped,
        broker.clocks_apart,
        broker.credential_expires,
        quotas.changes_burst,
        broker.disk_sync_slow,
        broker.sync_helper_slow,
        broker.noisy_neighbour,
        broker.reconnect_storm,
        broker.metadata_unreachable,
        broker.metadata_full,
        cluster.store_not_shared,
        cluster.owner_down,
        cluster.no_leader,
        cluster.broker_unreachable,
        cluster.move_hangs,
        cluster.move_cancelled,
        cluster.taking_over,
        cluster.take_over_impossible,
        cluster.copy_behind,
        cluster.fence_met,
        cluster.drain_stuck,
        cluster.cluster_imbalanced,
        cluster.hot_partition,
        cluster.versions_differ,
        links.link_not_copying,
        links.mirror_has_a_gap,
    ),
    RuleArea.TOPIC: (
        topics.publish_too_large,
        topics.producer_limit,
        topics.schema_rejections,
        topics.publish_throttled,
        topics.producer_stopped,
        quotas.publish_over_quota,
        topics.repeated_publishes,
        topics.publish_time_off,
        topics.topic_burst,
        topics.sessions_growing,
    ),
    RuleArea.SUBSCRIPTION: (
        consumers.consumer_crash_loop,
        consumers.consumer_refused,
        quotas.delivery_over_quota,
        messages.everything_fails,
        messages.poison_message,
        pace.cursor_rewound,
        consumers.consumer_dead,
        consumers.no_consumers,
        consumers.consumer_not_acking,
        consumers.ack_timeout_short,
        consumers.consumer_expiring,
        consumers.worker_slow,
        messages.message_held,
        messages.head_held,
        pace.cursor_moved_forward,
        messages.hot_key,
        pace.rate_step,
        pace.produce_burst,
        pace.consumer_slow,
        messages.dead_letters_growing,
        messages.messages_dropped,
        messages.filter_matches_nothing,
        pace.retention_risk,
        messages.cursor_stuck,
        pace.threshold_exceeded,  # no cause, so after the fallback: it explains nothing
    ),
}
RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rules in RULES_OF.values() for rule in rules}
_ORDER: Final = {name: place for place, name in enumerate(RULES)}
FoundT = TypeVar("FoundT", Finding, Alert)
#: operations that describe the broker that receives the call, unless they name another
OF_ONE_BROKER: Final = frozenset(
    {
        "brokers.status",
        "brokers.describe",
        "brokers.config",
        "brokers.logs",
        "brokers.metrics",
        "journal.describe",
    }
)
MOST_FINDINGS: Final = 100  # of one answer. The others are counted


def check_view(
    view: SubscriptionView | TopicView | BrokerView, options: DiagnosisOptions
) -> tuple[Finding, ...]:
    """Return every finding about one view, ranked."""
    found: list[Finding] = []
    ruled_out: list[RuledOut] = []
    for rule in RULES_OF[view.area]:  # fallbacks stand last
        if rule.fallback and any(one.severity >= Severity.WARNING for one in found):
            ruled_out.append(RuledOut(rule=rule.name, because=f"{found[0].rule} explains it"))
            continue
        outcome = rule.check(view, options)
        if isinstance(outcome, str):
            ruled_out.append(RuledOut(rule=rule.name, because=outcome))
        else:
            unseen = rule.unobservable if outcome.unobservable is None else outcome.unobservable
            subject = outcome.subject or view.subject
            if rule.of_rates and view.settles_at_ms is not None:
                outcome = outcome.until_settled(view.settles_at_ms)
            if isinstance(view, BrokerView) and view.cluster is not None:
                outcome = replace(outcome, next=tuple(_at(view.broker_id, call) for call in outcome.next))
            found.append(replace(outcome, rule=rule.name, subject=subject, unobservable=unseen))
    because, impact = tuple(ruled_out), view.impact
    return tuple(ranked(replace(one, ruled_out=because, impact=impact) for one in found))


def _at(broker_id: str, call: NextCall) -> NextCall:
    """Return the call with this broker, if it is about one broker and names none. Any broker may receive it."""
    if call.operation not in OF_ONE_BROKER or "broker_id" in call.arguments:
        return call
    return replace(call, arguments={"broker_id": broker_id, **call.arguments})


def ranked(findings: Iterable[Finding], *, of_subject: bool = False) -> list[Finding]:
    """Rank findings, worst first (see the module).

    Args:
        of_subject: the broker's warnings come after the subject's own, and remarks on a topic after those on its
            subscriptions.
    """

    def place(one: Finding) -> tuple[float, ...]:
        area = RULES[one.rule].area
        broker = area is RuleArea.BROKER
        first = broker and (not of_subject or one.severity is Severity.CRITICAL)
        last = broker and not first
        last = last or (of_subject and area is RuleArea.TOPIC and one.severity is Severity.INFO)
        return -one.severity, not first, last, -one.impact, _ORDER[one.rule], -one.confidence

    return sorted(findings, key=place)


def diagnose(
    findings: Iterable[Finding],
    *,
    subject: Mapping[str, Any],
    as_of_ms: int,
    seen: bool = True,
    unobservable: tuple[str, ...] = (),
    brief: bool = False,
) -> Diagnosis:
    """Join the findings of several views into one diagnosis.

    Args:
        brief: equal findings are joined, so that all problems fit into a few kilobytes.
    """
    every = ranked(findings, of_subject=not brief)
    told = grouped(every, RULES) if brief else of_partitions(every, RULES)
    shown = that_fit(told) if brief else told[:MOST_FINDINGS]
    return Diagnosis(
        subject=subject,
        verdict=verdict_of(every, seen=seen),
        findings=tuple(shown),
        as_of_ms=as_of_ms,
        unobservable=unobservable,
        omitted=len(told) - len(shown),
        counts=dict(Counter(one.rule for one in every if one.severity > Severity.INFO)),
    )


def of_all_brokers(answers: Mapping[str, Diagnosis], *, missing: Mapping[str, str]) -> Diagnosis:
    """Join the findings of all brokers of a cluster into one brief diagnosis.

    Args:
        answers: by broker.
        missing: broker → why it did not answer. Then no findings of the others do not mean health.
    """
    subject = {"brokers": len(answers), "topics": sum(each.subject["topics"] for each in answers.values())}
    named = [
        replace(each, unobservable=tuple(f"broker {broker}: {why}" for why in each.unobservable))
        for broker, each in answers.items()
    ]
    unseen = [f"findings of broker {broker}: {why}" for broker, why in sorted(missing.items())]
    return _of_several(named, subject=subject, unseen=unseen, brief=True)


def of_owners(answers: Sequence[Diagnosis]) -> Diagnosis:
    """Join the findings of the owners of a topic's partitions into one diagnosis."""
    return _of_several(answers, subject=answers[0].subject, unseen=(), brief=False)


def _of_several(
    answers: Sequence[Diagnosis], *, subject: Mapping[str, Any], unseen: Sequence[str], brief: bool
) -> Diagnosis:
    found = ranked(chain.from_iterable(each.findings for each in answers), of_subject=not brief)
    every = list(_once(found))
    told = joined(every, RULES) if brief else of_partitions(every, RULES)
    shown = that_fit(told) if brief else told[:MOST_FINDINGS]
    counts: Counter[str] = Counter()
    for each in answers:
        for rule, count in each.counts.items():
            counts[rule] = count if RULES[rule].of_cluster else counts[rule] + count
    seen = not unseen and all(each.verdict is not Verdict.UNKNOWN for each in answers)
    less = chain.from_iterable(each.unobservable for each in answers)
    return Diagnosis(
        subject=subject,
        verdict=verdict_of(every, seen=seen),
        findings=tuple(shown),
        as_of_ms=min(each.as_of_ms for each in answers),
        unobservable=tuple(dict.fromkeys((*unseen, *less))),
        omitted=len(told) - len(shown) + sum(each.omitted for each in answers),
        counts=dict(counts),
    )


def alerts_of_all(found: Iterable[Sequence[Alert]]) -> list[Alert]:
    """Return the alerts of all brokers. For one about the whole cluster only the first that opened."""
    return list(_once(sorted(chain.from_iterable(found), key=lambda alert: alert.opened_at_ms)))


def _once(found: Iterable[FoundT]) -> Iterator[FoundT]:
    """Keep only the first of findings that every broker of a cluster has."""
    told: set[str] = set()
    for one in found:
        if not (RULES[one.rule].of_cluster and one.rule in told):
            yield one
        told.add(one.rule)
