"""Rules on a broker's cluster: each holds on what it is for, says what to do next, and is silent otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydanube_core.balance import BrokerLoad, Policy, Resource, Snapshot, TopicLoad, assess
from pydanube_core.diagnosis.causes import cluster
from pydanube_core.diagnosis.causes.cluster import CANCELLED_MS, COPY_LATE_S, HANGS_MS, STILL_MS
from pydanube_core.diagnosis.findings import Rule, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.rules import RULES, check_view
from pydanube_core.diagnosis.views import BrokerView, ClusterView, CopyView, MemberView, TakenOverView
from pydanube_core.facts import DialFacts, FailedMoveFacts, MoveFacts

from tests.core.diagnosis.test_rules import BROKER

NOW = BROKER.now_ms
MIB = 1 << 20
WELL = ClusterView(
    members=tuple(MemberView(broker_id=each, state="active", software="1.0") for each in "123"),
    leader="1",
    takers=2,
)


def balance(*shares: float, partition: bool = False) -> Any:
    """An assessment of two brokers with topics of these loads, all at the first."""
    topics = [
        TopicLoad(
            topic="/default/hot-part-0" if partition and n == 0 else f"/default/t{n}",
            broker_id="1",
            load={Resource.NETWORK_IN: share * MIB},
        )
        for n, share in enumerate(shares)
    ]
    load = {Resource.NETWORK_IN: sum(shares) * MIB}
    brokers = [
        BrokerLoad(broker_id="1", load=load),
        BrokerLoad(broker_id="2", load={Resource.NETWORK_IN: 0.0}),
    ]
    return assess(Snapshot(epoch=0, brokers=brokers, topics=topics, interval_s=60), Policy())


def move(age_ms: int, stage: str) -> MoveFacts:
    return MoveFacts(topic="/default/t", source="2", target="3", stage=stage, begun_at_ms=NOW - age_ms)


def failed(age_ms: int) -> FailedMoveFacts:
    return FailedMoveFacts(
        topic=f"/default/t{age_ms}",
        owner="2",
        target="3",
        begun_at_ms=NOW - age_ms,
        code="DISK_FULL",
        why="no room",
    )


HOLDS: dict[str, dict[str, Any]] = {
    "owner_down": {
        "absent": {"2": 7, "3": 1},
        "tried": {"2": DialFacts(address="http://b:2", failure="Connection refused")},
    },
    "broker_unreachable": {"silent": {"2": "broker 2 does not answer at http://b:2"}},
    "no_leader": {"leader": None, "leaderless_since_ms": NOW - 5000},
    "versions_differ": {
        "members": (
            MemberView(broker_id="1", state="active", software="1.0"),
            MemberView(broker_id="2", state="active", software="1.1"),
        )
    },
    "cluster_imbalanced": {"balance": balance(5, 5, 5, 5)},
    "move_hangs": {"moves": (move(HANGS_MS, "moving"), move(5, "moving"))},
    "move_cancelled": {"failed_moves": (failed(CANCELLED_MS - 1), failed(CANCELLED_MS))},
    "taking_over": {"taken_over": {"2": TakenOverView(topics=3, why=None)}},
    "take_over_impossible": {"taken_over": {"2": TakenOverView(topics=3, why="piece 7 is missing")}},
    "copy_behind": {"copy": CopyView(behind_s=COPY_LATE_S, behind_bytes=100)},
    "fence_met": {"copy": CopyView(fence="another process has continued the chain")},
    "drain_stuck": {"draining_since_ms": NOW - 1000, "left": 5, "takers": 0},
    "store_not_shared": {"store_refused": "the store has another cluster's name"},
}


def findings(**facts: Any) -> list[Any]:
    return list(check_view(replace(BROKER, cluster=replace(WELL, **facts)), DiagnosisOptions()))


def test_take_over_that_a_damaged_copy_holds_up_names_the_plan_that_shows_the_loss() -> None:
    held_up = TakenOverView(topics=3, why="piece 7 is missing", damaged="/default/t")
    (found,) = findings(taken_over={"1": TakenOverView(topics=1, why="no heir"), "2": held_up})
    assert found.next[0].operation == "topics.take_over"
    assert found.next[0].arguments == {"topic": "/default/t", "plan_only": True}


@pytest.mark.parametrize("rule", sorted(HOLDS))
def test_rule_holds_on_what_it_is_for_and_names_the_next_call(rule: str) -> None:
    found = findings(**HOLDS[rule])
    assert [each.rule for each in found] == [rule]
    assert found[0].next
    assert found[0].evidence
    declared = RULES[rule]
    assert found[0].severity.word == declared.severity
    # Of a broker that is gone, the subject is that one, not the broker that misses it
    assert found[0].subject == {"broker_id": "2" if rule == "owner_down" else BROKER.broker_id}


def test_a_missing_owner_is_tried_before_its_start_is_proposed() -> None:
    (found,) = findings(**HOLDS["owner_down"])
    tried = "Nothing answers at its address http://b:2 (Connection refused). Start it again"
    assert tried in found.summary
    assert found.evidence["tried"] == {"2": {"address": "http://b:2", "why": "Connection refused"}}
    assert found.summary.startswith(
        "8 topics wait for brokers 2, 3, which are not registered. Broker 2: Nothing"
    )
    assert "danube brokers remove 2. Broker 3: Start it again" in found.summary
    assert found.summary.endswith("danube brokers remove 3")
    (found,) = findings(absent={"2": 7}, tried={"2": DialFacts(address="http://b:2", failure=None)})
    assert "not registered. A server" in found.summary
    assert "A server answers at its address http://b:2" in found.summary
    assert "Look at its log before you stop it" in found.summary


def test_topics_that_wait_for_the_store_since_a_start_are_counted_with_the_reason() -> None:
    (found,) = findings(copy=CopyView(error="no route to the bucket", waiting=2))
    assert found.rule == "copy_behind"
    assert found.summary == (
        "the object store refused the last piece of the journal (no route to the bucket); the broker started without the "
        "object store, and 2 stored topics wait for it"
    )


def test_hot_partition_stands_beside_the_imbalance_that_it_makes() -> None:
    loads = [60.0, *([1.0] * 20)]
    assert {each.rule for each in findings(balance=balance(*loads, partition=True))} == {
        "cluster_imbalanced",
        "hot_partition",
    }
    assert "hot_partition" not in {each.rule for each in findings(balance=balance(*loads))}


def test_nothing_is_found_of_a_cluster_that_is_well_nor_of_a_broker_alone() -> None:
    assert findings() == []
    assert findings(balance=balance(0.1)) == []
    assert findings(moves=(move(HANGS_MS - 1, "moving"),)) == []
    assert findings(failed_moves=(failed(CANCELLED_MS),)) == []
    assert findings(copy=CopyView(behind_s=COPY_LATE_S - 0.1, behind_bytes=100)) == []
    assert findings(draining_since_ms=NOW - 1000, left=5) == []
    assert findings(draining_since_ms=NOW - HANGS_MS, left=0, takers=0) == []
    assert check_view(BROKER, DiagnosisOptions()) == ()


def test_drain_that_goes_on_for_too_long_is_found_though_others_take_topics() -> None:
    (found,) = findings(draining_since_ms=NOW - HANGS_MS, left=1)
    assert found.evidence["takers"] == 2
    assert [call.operation for call in found.next] == ["brokers.list", "brokers.activate"]


def test_drain_in_which_nothing_moves_is_found_after_a_minute() -> None:
    long_ago = NOW - STILL_MS - 5_000
    (found,) = findings(draining_since_ms=long_ago, drain_moved_ms=NOW - STILL_MS, left=1)
    assert "no topic has made progress for 60 s" in found.summary
    assert findings(draining_since_ms=long_ago, drain_moved_ms=NOW - STILL_MS + 1, left=1) == []


def test_hanging_move_names_the_broker_that_it_waits_for() -> None:
    (before,) = findings(moves=(move(HANGS_MS, "moving"),))
    (after,) = findings(moves=(move(HANGS_MS, "assigned"),))
    assert before.next[1].arguments["broker_id"] == "2"
    assert after.next[1].arguments["broker_id"] == "3"


def test_leader_that_is_missed_because_nobody_reaches_the_metadata_is_no_finding_of_its_own() -> None:
    view = replace(BROKER, cluster=replace(WELL, leader=None), metadata_error="etcd does not answer")
    found = check_view(view, DiagnosisOptions())
    assert [each.rule for each in found] == ["metadata_unreachable"]
    assert found[0].severity is Severity.CRITICAL


def test_every_rule_says_why_it_does_not_hold() -> None:
    view: BrokerView = replace(BROKER, cluster=replace(WELL, leader=None))
    (found,) = check_view(view, DiagnosisOptions())
    said = {each.rule: each.because for each in found.ruled_out}
    assert {each.name for each in vars(cluster).values() if isinstance(each, Rule)} - {
        "no_leader"
    } <= said.keys()
    assert all(said.values())
