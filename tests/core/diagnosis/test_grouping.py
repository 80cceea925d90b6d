"""What matters is in a short answer, however many subjects have something."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.diagnosis.findings import Finding, Severity, Verdict
from pydanube_core.diagnosis.rules import RULES, check_view, diagnose, of_all_brokers, of_owners
from pydanube_core.diagnosis.views import ClusterView, Departure

from tests.core.diagnosis.test_rules import BROKER, NOW, OPTIONS, SOME, view


def unread(index: int, messages: int) -> Finding:
    [found] = check_view(view(topic=f"/default/t{index}", log=f"/default/t{index}", unread=messages), OPTIONS)
    return found


def test_the_topic_that_matters_is_the_worst_of_two_thousand() -> None:
    findings = [unread(index, 1) for index in range(1999)] + [unread(1999, 100_001)]
    answer = diagnose(findings, subject={}, as_of_ms=NOW, brief=True)
    [told] = answer.findings
    assert told.subject["topic"] == "/default/t1999"
    assert told.summary.startswith(
        "2000 subscriptions have unread messages and no consumer; worst: 100001 messages"
    )
    assert (told.evidence["members"], told.evidence["messages_of_all"]) == (2000, 102_000)
    assert [one["messages"] for one in told.evidence["worst"]] == [100_001, 1, 1, 1, 1]
    assert (answer.omitted, answer.counts) == (0, {"no_consumers": 2000})
    assert [call.operation for call in told.next] == ["diagnose.subscription", "alerts.list"]
    whole = diagnose(findings, subject={}, as_of_ms=NOW)
    assert whole.findings[0].subject["topic"] == "/default/t1999", (
        "unasked to be brief, the worst comes first too"
    )


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 50)),
        min_size=1,
        max_size=30,
        unique_by=itemgetter(1),
    )
)
def test_what_several_brokers_found_is_told_as_if_one_had_found_it(where: list[tuple[str, int]]) -> None:
    found = [(broker, unread(index, messages)) for index, (broker, messages) in enumerate(where)]
    answers = {
        broker: diagnose(
            [one for at, one in found if at == broker], subject={"topics": 7}, as_of_ms=NOW, brief=True
        )
        for broker in sorted({broker for broker, _ in found})
    }
    joined = of_all_brokers(answers, missing={})
    alone = diagnose([one for _, one in found], subject={}, as_of_ms=NOW, brief=True)
    assert joined.subject == {"brokers": len(answers), "topics": 7 * len(answers)}
    assert (joined.verdict, joined.counts, joined.omitted) == (alone.verdict, alone.counts, 0)
    [told], [as_one] = joined.findings, alone.findings
    for field in ("members", "messages_of_all"):
        assert told.evidence.get(field) == as_one.evidence.get(field)
    assert told.summary == as_one.summary
    assert [one["messages"] for one in told.evidence.get("worst", ())] == [
        one["messages"] for one in as_one.evidence.get("worst", ())
    ]
    assert [call.operation for call in told.next] == [call.operation for call in as_one.next]


def test_a_fact_of_the_cluster_is_told_once_and_silence_of_a_few_is_not_health() -> None:
    cluster = ClusterView(members=(), leader="1", absent={"9": 3})
    answers = {
        broker: diagnose(
            check_view(replace(BROKER, broker_id=broker, cluster=cluster), OPTIONS),
            subject={"topics": 1},
            as_of_ms=NOW,
            brief=True,
        )
        for broker in ("1", "2")
    }
    joined = of_all_brokers(answers, missing={})
    assert [one.rule for one in joined.findings] == ["owner_down"]
    assert (joined.counts, joined.verdict) == ({"owner_down": 1}, Verdict.FAILING)
    of_topic = of_owners(list(answers.values()))
    assert ([one.rule for one in of_topic.findings], of_topic.counts) == (["owner_down"], {"owner_down": 1})
    broken = {
        broker: diagnose(
            check_view(replace(BROKER, broker_id=broker, journal_error="EIO"), OPTIONS),
            subject={"topics": 1},
            as_of_ms=NOW,
            brief=True,
        )
        for broker in ("1", "2")
    }
    told = of_all_brokers(broken, missing={}).findings
    assert [(one.rule, one.subject["broker_id"]) for one in told] == [
        ("journal_read_only", "1"),
        ("journal_read_only", "2"),
    ]
    quiet = {"1": diagnose((), subject={"topics": 1}, as_of_ms=NOW, brief=True)}
    assert of_all_brokers(quiet, missing={}).verdict is Verdict.HEALTHY
    less = of_all_brokers(quiet, missing={"2": "it does not answer"})
    assert (less.verdict, less.unobservable) == (
        Verdict.UNKNOWN,
        ("findings of broker 2: it does not answer",),
    )


def test_a_cause_outside_the_brokers_is_one_finding_that_names_them() -> None:
    away = {"metadata_error": "no answer", "store_error": "no answer", "journal_error": "EIO"}
    answers = {
        broker: diagnose(
            check_view(replace(BROKER, broker_id=broker, **away), OPTIONS),
            subject={"topics": 1},
            as_of_ms=NOW,
            brief=True,
        )
        for broker in ("3", "1", "2")
    }
    told = of_all_brokers(answers, missing={}).findings
    by_rule = {rule: [one for one in told if one.rule == rule] for rule in {one.rule for one in told}}
    for rule, many in (
        ("metadata_unreachable", "3 brokers do not reach the metadata store (1, 2, 3); the first: "),
        ("object_store_unreachable", "3 brokers do not reach their object store (1, 2, 3); the first: "),
    ):
        [one] = by_rule[rule]
        assert one.summary.startswith(many)
        assert one.evidence["brokers"] == ["1", "2", "3"]
        assert one.evidence["error"] == "no answer"
    assert len(by_rule["journal_read_only"]) == 3, "each disk is mended at its broker"
    [alone] = [
        each for each in of_all_brokers({"1": answers["1"]}, missing={}).findings if "metadata" in each.rule
    ]
    assert "brokers" not in alone.evidence


def test_the_next_calls_about_a_broker_name_it() -> None:
    """Any broker may be asked for the diagnosis. Without the id it would describe itself, not the broker that is ill."""
    ill = replace(BROKER, broker_id="7", journal_error="EIO")
    one_of_several = replace(ill, cluster=ClusterView(members=(), leader="7"))
    for view_of_broker, expected in ((ill, {}), (one_of_several, {"broker_id": "7"})):
        [found] = [each for each in check_view(view_of_broker, OPTIONS) if each.rule == "journal_read_only"]
        assert [(call.operation, dict(call.arguments)) for call in found.next] == [
            ("brokers.status", expected)
        ]


def test_a_brief_answer_is_short_whatever_is_wrong_and_begins_with_the_worst() -> None:
    name = "/default/" + "x" * 200
    left = Departure(at_ms=NOW - 90_000, name="c" * 200, abrupt=True, in_flight=7, unread=3)
    broken = view(
        topic=name, log=name, departure=left, dead_lettered=SOME, dropped=SOME, poison_policy="drop"
    )
    template = check_view(broken, OPTIONS)[0]
    everything = [
        replace(
            template, rule=rule, severity=severity, subject={**template.subject, "topic": f"{name[:-2]}{i}"}
        )
        for rule in RULES
        for severity in (Severity.CRITICAL, Severity.WARNING)
        for i in range(3)
    ]
    critical = check_view(replace(BROKER, journal_error="EIO"), OPTIONS)
    answer = diagnose([*everything, *critical], subject={}, as_of_ms=NOW, brief=True)
    assert answer.verdict is Verdict.FAILING
    assert answer.findings[0].rule == "journal_read_only"
    assert answer.omitted == 2 * len(RULES) - len(answer.findings)
    assert sum(answer.counts.values()) == 6 * len(RULES) + 1, "what is not shown is counted by rule"
    text = json.dumps([[dict(one.subject), dict(one.evidence), one.summary] for one in answer.findings])
    assert len(text) < 6_000


def test_ten_thousand_findings_are_put_together_in_one_short_turn() -> None:
    findings = [unread(index, index + 1) for index in range(10_000)]
    best = min(_timed(findings) for _ in range(3))
    assert best < 0.2, "a guard against ten times as much, not a measurement"


def _timed(findings: list[Finding]) -> float:
    begun = time.thread_time()
    diagnose(findings, subject={}, as_of_ms=NOW, brief=True)
    return time.thread_time() - begun


def test_partitions_without_a_consumer_are_one_finding_at_one_broker_and_at_several() -> None:
    parts = [
        one
        for index in range(6)
        for one in check_view(
            view(topic="/default/t", log=f"/default/t-part-{index}", partition=index, unread=index + 1),
            OPTIONS,
        )
    ]
    [told] = diagnose(parts, subject={}, as_of_ms=NOW).findings
    assert told.subject == {"topic": "/default/t", "subscription": "s"}
    assert (told.evidence["partitions"], told.evidence["messages_of_all"]) == ([0, 1, 2, 3, 4, 5], 21)
    assert told.summary.startswith(
        "6 partitions of /default/t / s have unread messages and no consumer, 21 messages"
    )
    answers = [diagnose(parts[at::2], subject={}, as_of_ms=NOW) for at in range(2)]
    [joined] = of_owners(answers).findings
    assert (joined.evidence["partitions"], joined.evidence["messages_of_all"]) == ([0, 1, 2, 3, 4, 5], 21)
    assert joined.summary.count("worst: ") == 1
    [alone] = diagnose(parts[:1], subject={}, as_of_ms=NOW).findings
    assert alone.subject["partition"] == 0
