"""Each rule on the facts it is made for, and on those it must not be fooled by."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis import DiagnosisOptions, LagStatus, LagWindow, judge_lag
from pydanube_core.diagnosis.filling import Filling
from pydanube_core.diagnosis.findings import Finding, Severity, Verdict
from pydanube_core.diagnosis.lag_status import Rewind
from pydanube_core.diagnosis.rate_steps import rate_step
from pydanube_core.diagnosis.rules import RULES, check_view, diagnose, ranked
from pydanube_core.diagnosis.views import (
    BadObjectView,
    BrokerView,
    ConsumerFacts,
    Count,
    Departure,
    Departures,
    HeadOfLine,
    KeySample,
    LateStoreView,
    Pressure,
    Production,
    PublishClock,
    Refusal,
    RefusedChanges,
    Repetition,
    SubscriptionView,
    Tail,
    Thresholds,
    TopicView,
)
from pydanube_core.facts import QuarantinedKey
from pydanube_core.security.credential import Credential

OPTIONS = DiagnosisOptions(sample_interval_s=5.0, window_s=300.0, stuck_after_s=60.0)
NOW = 10_000_000
NONE = Count(total=0, in_window=0)
SOME = Count(total=50, in_window=50, last_ms=NOW - 1000)


def flow(**changes: Any) -> Production:
    facts: dict[str, Any] = {
        "window_s": 300.0,
        "messages": 800,
        "last_ms": NOW - 1000,
        "steady_since_ms": NOW - 300_000,
        "longest_gap_s": 5.0,
        "steady_messages": 800,
        "segments": (100,) * 8,
    }
    return Production(**facts | changes)


def judged(*, heads: list[int], cursors: list[int], age_s: float) -> Any:
    count = len(heads)
    return judge_lag(
        LagWindow(
            states=[
                CursorState(NOW - 5000 * (count - i - 1), 0, head, cursor, 0, 0, 1)
                for i, (head, cursor) in enumerate(zip(heads, cursors, strict=True))
            ],
            now_ms=NOW,
            interval_s=5.0,
            window_s=300.0,
            oldest_unread_append_ms=NOW - int(age_s * 1000),
        ),
        OPTIONS,
    )


FALLING = judged(heads=[100 * i for i in range(60)], cursors=[50 * i for i in range(60)], age_s=150)
STANDING = judged(heads=[100] * 60, cursors=[20] * 60, age_s=290)
STEPPED = judged(
    heads=[10 * i for i in range(50)] + [490 + 1000 * i for i in range(1, 11)],
    cursors=[10 * i for i in range(50)] + [490 + 3 * i for i in range(1, 11)],
    age_s=40,
)
READ = judged(heads=[100] * 60, cursors=[100] * 60, age_s=0)
YOUNG = judged(heads=[20] * 50 + [100] * 10, cursors=[20] * 60, age_s=50)

#: twenty messages a second for a minute, two before and after, read at twelve. For fifty seconds nothing is read
HUNG = judged(
    heads=[10 * i for i in range(28)] + [270 + 100 * i for i in range(1, 13)] + [1470 + 10 * i for i in range(1, 21)],
    cursors=[10 * i for i in range(28)] + [270 + 60 * i for i in range(1, 22)] + [1530] * 11,
    age_s=60,
)  # fmt: skip
HUNG_S = Count(total=1530, in_window=1530, last_ms=NOW - 55_000)


def consumer(**changes: Any) -> ConsumerFacts:
    facts: dict[str, Any] = {
        "consumer_id": "1",
        "name": "c",
        "active": True,
        "credit_messages": 10,
        "in_flight": 0,
        "delivered": 10,
        "connected_at_ms": NOW - 200_000,
        "oldest_in_flight_s": None,
        "heard_at_ms": NOW - 100,
        "answered_at_ms": NOW - 100,
    }
    return ConsumerFacts(**facts | changes)


def view(**changes: Any) -> SubscriptionView:
    facts: dict[str, Any] = {
        "topic": "/default/t",
        "log": "/default/t",
        "partition": None,
        "subscription": "s",
        "type": "shared",
        "now_ms": NOW,
        "lag": STANDING,
        "consumers": (),
        "created_ms": None,
        "departure": None,
        "cursor_moved_ms": None,
        "acknowledged": NONE,
        "failed": NONE,
        "dead_lettered": NONE,
        "dropped": NONE,
        "redelivered": NONE,
        "poison_policy": "block",
        "max_redelivery_count": 5,
        "dead_letter_topic": None,
        "dispatch_rate_limit": 0,
        "production": flow(),
    }
    state = {"unread": 80, "next_unacked": 20, "in_flight": 0, "acked_above": 0}
    state |= {name: changes.pop(name) for name in tuple(state) if name in changes}
    if not state["unread"] and "lag" not in changes:
        facts["lag"] = READ
    cursor, in_flight, above = state["next_unacked"], state["in_flight"], state["acked_above"]
    facts["state"] = CursorState(
        NOW, 0, cursor + state["unread"] + above, cursor, above, in_flight, members=1
    )
    return SubscriptionView(**facts | changes)


HELD = consumer(in_flight=80, oldest_in_flight_s=150.0, heard_at_ms=NOW - 150_000)
BUSY = replace(HELD, in_flight=1, heard_at_ms=NOW)
LEFT = Departure(at_ms=NOW - 90_000, name="c", abrupt=False, in_flight=0, unread=30)
WORST = HeadOfLine(offset=20, deliveries=3, failures=3, blocked=False, reason="nack")
KEYS = KeySample(key="k", messages=70, sampled=80, keys=4)
BURST = flow(segments=(10, 10, 10, 10, 10, 10, 900, 10), messages=970)

REFUSED = Refusal(at_ms=NOW - 5000, name="other", code="CONSUMER_BUSY", holder="c")
STANDS: dict[str, Any] = {"cursor_moved_ms": NOW - 70_000, "settled": LagStatus.CATCHING_UP}
GONE = Departures(count=5, abrupt=5, fruitless=0, since_ms=NOW - 120_000)

SLOW_WORKER = consumer(
    consumer_id="9", name="old", in_flight=20, oldest_in_flight_s=30.0, acked=20, handling_p50_ms=2900,
    handling_from_taken=True,
)  # fmt: skip
WORKERS = (
    SLOW_WORKER,
    *(consumer(consumer_id=str(i), name=f"w{i}", acked=500, handling_p50_ms=90) for i in range(3)),
)
AGED = judged(heads=[20] * 50 + [100] * 10, cursors=[20 + i for i in range(60)], age_s=30)

FIRING: list[tuple[str, SubscriptionView]] = [
    ("no_consumers", view()),
    ("no_consumers", view(departure=LEFT)),
    ("consumer_dead", view(departure=replace(LEFT, abrupt=True, in_flight=7))),
    ("consumer_dead", view(consumers=(replace(HELD, answered_at_ms=NOW - 160_000),), in_flight=80)),
    ("consumer_not_acking", view(consumers=(replace(HELD, answered_at_ms=None),), in_flight=80)),
    (
        "consumer_expiring",
        view(consumers=(consumer(), consumer(expired=3, standing="set_aside", standing_s=4.0)), unread=0),
    ),
    ("consumer_expiring", view(consumers=(consumer(expired=3),), unread=1)),
    ("poison_message", view(consumers=(consumer(),), head_of_line=WORST, acknowledged=SOME)),
    ("poison_message", view(consumers=(consumer(),), head_of_line=replace(WORST, failures=1, blocked=True))),
    (
        "hot_key",
        view(
            type="key-shared", consumers=(consumer(), consumer(consumer_id="2")), keys=KEYS, acknowledged=SOME
        ),
    ),
    (
        "cursor_rewound",
        view(
            consumers=(consumer(),),
            acknowledged=SOME,
            rewind=Rewind(at_ms=NOW - 9, from_offset=90, to_offset=5),
        ),
    ),
    ("rate_step", view(lag=STEPPED, unread=1900, consumers=(consumer(),), acknowledged=SOME)),
    ("produce_burst", view(lag=FALLING, consumers=(consumer(),), acknowledged=SOME, production=BURST)),
    ("consumer_slow", view(lag=FALLING, unread=2950, consumers=(consumer(),), acknowledged=SOME)),
    (
        "consumer_not_acking",
        view(
            lag=HUNG,
            unread=140,
            in_flight=80,
            acknowledged=HUNG_S,
            consumers=(replace(HELD, oldest_in_flight_s=50.0, heard_at_ms=NOW - 500),),
        ),
    ),
    ("consumer_slow", view(lag=HUNG, unread=140, acknowledged=HUNG_S, consumers=(consumer(),))),
    ("dead_letters_growing", view(consumers=(consumer(),), unread=0, dead_lettered=SOME, acknowledged=SOME)),
    (
        "filter_matches_nothing",
        view(type="key-shared", consumers=(consumer(),), unread=0, unrouted=SOME),
    ),
    ("consumer_crash_loop", view(departures=GONE, departure=replace(LEFT, abrupt=True))),
    ("consumer_crash_loop", view(departures=replace(GONE, abrupt=0, fruitless=5), departure=LEFT)),
    (
        "consumer_crash_loop",
        view(departures=GONE, consumers=(consumer(connected_at_ms=NOW - 500),), unread=7, lag=YOUNG),
    ),
    (
        "message_held",
        view(consumers=(BUSY,), in_flight=1, acked_above=60, unread=20, acknowledged=SOME),
    ),
    (
        "head_held",
        view(consumers=(BUSY,), in_flight=1, acked_above=60, unread=20, acknowledged=SOME, **STANDS),
    ),
    (
        "head_held",
        view(
            consumers=(consumer(),),
            acked_above=3,
            acknowledged=SOME,
            head_of_line=replace(WORST, reason="ack timeout"),
            **STANDS,
        ),
    ),
    ("consumer_refused", view(consumers=(consumer(),), refusals=(REFUSED,) * 3)),
    (
        "consumer_refused",
        view(refusals=(replace(REFUSED, code="LIMIT_REACHED", holder=None),) * 3, consumers=(consumer(),)),
    ),
    ("everything_fails", view(consumers=(consumer(),), failing=12, failed=SOME, head_of_line=WORST)),
    (
        "everything_fails",
        view(consumers=(consumer(),), dead_lettered=SOME, failed=SOME, poison_policy="dead_letter"),
    ),
    (
        "ack_timeout_short",
        view(consumers=(consumer(expired=2),), unanswered=SOME, answered_late=25, acknowledged=SOME),
    ),
    ("worker_slow", view(consumers=WORKERS, lag=AGED, in_flight=21, unread=40, acknowledged=SOME)),
    ("retention_risk", view(settled=LagStatus.AT_RISK)),
    ("retention_risk", view(settled=LagStatus.AT_RISK, consumers=(consumer(),), acknowledged=SOME)),
    ("cursor_stuck", view(consumers=(consumer(),))),
    (
        "messages_dropped",
        view(consumers=(consumer(),), unread=0, dropped=SOME, poison_policy="drop", acknowledged=SOME),
    ),
]


@pytest.mark.parametrize(("rule", "facts"), FIRING, ids=[f"{r}-{i}" for i, (r, _) in enumerate(FIRING)])
def test_the_top_finding_is_the_cause(rule: str, facts: SubscriptionView) -> None:
    found = check_view(facts, OPTIONS)
    assert found[0].rule == rule
    assert found[0].severity >= Severity.WARNING
    assert found[0].subject == {"topic": "/default/t", "subscription": "s"}
    named = {one.rule for one in found} | {one.rule for one in found[0].ruled_out}
    assert named == {name for name, one in RULES.items() if one.area.value == "subscription"}
    assert all(one.because for one in found[0].ruled_out)


def quiet(facts: SubscriptionView) -> list[Finding]:
    return [one for one in check_view(facts, OPTIONS) if one.severity > Severity.INFO]


def test_what_a_slow_consumer_of_a_topic_that_stores_nothing_loses_is_no_dropping_by_policy() -> None:
    lost = {"consumers": (consumer(),), "unread": 0, "dropped": SOME, "acknowledged": SOME}
    assert quiet(view(**lost)) == []
    assert quiet(view(**lost | {"dropped": NONE, "poison_policy": "drop"})) == []


@pytest.mark.parametrize(
    ("thresholds", "over"),
    [
        (Thresholds(messages=79), True),
        (Thresholds(messages=80), False),
        (Thresholds(age_s=49), True),
        (Thresholds(age_s=50), False),
        (Thresholds(messages=80, age_s=49), True),
        (Thresholds(), False),
    ],
)
def test_more_than_a_threshold_is_told_whatever_the_cause(thresholds: Thresholds, over: bool) -> None:
    facts = view(consumers=(consumer(),), lag=YOUNG, acknowledged=SOME, thresholds=thresholds)
    found = [one for one in quiet(facts) if one.rule == "threshold_exceeded"]
    assert bool(found) is over
    if over:
        assert found[0].evidence["lag_messages"] == 80
        assert ("80 messages are unread" in found[0].summary) is (thresholds.messages == 79)
        assert ("50 s old" in found[0].summary) is (thresholds.age_s == 49)


def test_a_consumer_that_forgot_one_message_of_many_is_not_said_to_answer_nothing() -> None:
    forgetful = consumer(name="b1", in_flight=1, oldest_in_flight_s=20.0, expired=1, heard_at_ms=NOW - 30_000)
    found = quiet(view(consumers=(forgetful,), unread=1, acked_above=299, in_flight=1, acknowledged=SOME))
    assert [one.rule for one in found] == ["message_held"]
    hung = view(consumers=(consumer(expired=3),), unread=80, acked_above=5)
    assert quiet(hung)[0].rule == "consumer_expiring"
    aside = consumer(expired=3, standing="set_aside", standing_s=3.0)
    assert quiet(view(consumers=(aside,), unread=1, acked_above=299))[0].rule == "consumer_expiring"


def test_a_threshold_comes_after_the_cause_and_explains_nothing() -> None:
    facts = view(consumers=(consumer(),), thresholds=Thresholds(messages=1))
    assert [one.rule for one in quiet(facts)] == ["cursor_stuck", "threshold_exceeded"]


def test_a_cursor_that_waits_for_a_message_says_how_often_it_failed() -> None:
    """With few failures it is no poison yet: it may wait for its next attempt behind what the consumer holds."""
    at_cursor = replace(WORST, failures=2, reason="no such customer")
    [found] = quiet(view(consumers=(consumer(),), head_of_line=at_cursor))
    assert found.rule == "cursor_stuck"
    assert found.summary.endswith("from offset 20, which has failed 2 times")
    assert (found.evidence["failures"], found.untrusted) == (2, {"reason": "no such customer"})
    [other] = quiet(view(consumers=(consumer(),), head_of_line=replace(at_cursor, offset=21)))
    assert (other.evidence["failures"], other.untrusted) == (None, {})


def test_what_looks_like_the_newer_faults_and_is_none() -> None:
    read = {"unread": 0, "consumers": (consumer(),), "acknowledged": SOME}
    assert quiet(view(type="key-shared", unrouted=SOME, **read)) == [], (
        "a filter that takes some is meant to leave some"
    )
    jobs = replace(GONE, count=16, abrupt=0, fruitless=1)
    assert quiet(view(unread=0, departures=jobs, departure=replace(LEFT, unread=0))) == []
    once = replace(GONE, count=1, abrupt=1)
    assert quiet(view(departures=once, **read)) == []
    mended = consumer(connected_at_ms=NOW - 200_000)
    assert (
        quiet(view(departures=replace(GONE, since_ms=NOW - 400_000), **read | {"consumers": (mended,)})) == []
    )
    many = tuple(consumer(consumer_id=str(i)) for i in range(5))
    assert quiet(view(departures=GONE, **read | {"consumers": many})) == [], "of many, five are replaced"
    working = view(lag=YOUNG, consumers=(BUSY,), in_flight=1, acked_above=60, unread=20, acknowledged=SOME)
    assert quiet(working) == [], "later messages may be done sooner"


def test_what_looks_like_a_held_head_a_refusal_or_a_short_ack_timeout_and_is_none() -> None:
    here = {"consumers": (BUSY,), "in_flight": 1, "acknowledged": SOME, "lag": YOUNG, "unread": 20}
    assert quiet(view(acked_above=60, cursor_moved_ms=NOW - 20_000, **here)) == [], "it moved a moment ago"
    assert quiet(view(acked_above=60, cursor_moved_ms=NOW - 40_000, **here)) == [], (
        "a remark for the first minute"
    )
    standby = {"consumers": (BUSY,), "acknowledged": SOME, "lag": YOUNG, "unread": 20}
    assert quiet(view(refusals=(REFUSED,) * 16, **standby)) == [], "a second consumer stands by"
    others = tuple(replace(REFUSED, name=str(number)) for number in range(9))
    assert [one.rule for one in quiet(view(consumers=(HELD,), refusals=others))] != ["consumer_refused"]
    hung = view(consumers=(consumer(expired=3),), unanswered=SOME, answered_late=3, acknowledged=SOME)
    assert quiet(hung)[0].rule == "consumer_expiring"
    mute = consumer(expired=9, answered_at_ms=None)
    mixed = view(consumers=(consumer(), mute), unanswered=SOME, answered_late=50, acknowledged=SOME)
    assert quiet(mixed)[0].rule == "consumer_expiring"
    started = {"consumers": (consumer(),), "failing": 12, "failed": SOME, "lag": YOUNG}
    assert quiet(view(head_of_line=replace(WORST, failures=1), **started)) == [], "each failed once, as yet"
    assert quiet(view(head_of_line=WORST, acknowledged=SOME, **started))[0].rule == "poison_message"


def test_a_poison_message_is_passed_over_by_its_offset() -> None:
    """The proposal was the oldest message, which may be another one by the time that it is skipped."""
    one = view(consumers=(consumer(),), head_of_line=WORST, acknowledged=SOME)
    (found,) = [each for each in quiet(one) if each.rule == "poison_message"]
    (skip,) = [each for each in found.next if each.operation == "subscriptions.skip"]
    assert skip.arguments == {
        "topic": one.log,
        "subscription": one.subscription,
        "offsets": str(WORST.offset),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"consumers": WORKERS[:2]},  # which of two is the usual one?
        {
            "consumers": (replace(SLOW_WORKER, acked=400), *WORKERS[1:])
        },  # many at a time, each of which takes long
        {"consumers": (replace(SLOW_WORKER, handling_p50_ms=300), *WORKERS[1:])},
        {"consumers": (replace(SLOW_WORKER, in_flight=0), *WORKERS[1:])},  # it is sent nothing
        {"consumers": tuple(replace(one, acked=one.acked // 200) for one in WORKERS)},
        {"type": "key-shared", "consumers": (replace(SLOW_WORKER, handling_from_taken=False), *WORKERS[1:])},
        {"type": "failover"},
        {"lag": READ, "unread": 0},
    ],
)
def test_workers_that_differ_by_less_or_have_nothing_late_are_no_fault(changes: dict[str, Any]) -> None:
    facts = {"consumers": WORKERS, "lag": AGED, "in_flight": 21, "unread": 40, "acknowledged": SOME} | changes
    assert "worker_slow" not in [one.rule for one in quiet(view(**facts))]


def test_a_job_that_comes_and_goes_is_no_fault_until_its_mail_is_old() -> None:
    visited = replace(LEFT, unread=0)
    assert quiet(view(departure=visited, lag=YOUNG)) == []
    assert [one.rule for one in quiet(view(departure=visited))] == ["no_consumers"]


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, False),
        ({"at_ms": NOW - 130_000}, False),
        ({"at_ms": NOW - 151_000}, True),  # more than 1.5 times the usual 100 s
        ({"at_ms": NOW - 1_000_000}, True),  # it stays for 900 s, as a service that is deployed each day
        ({"unread": 30}, True),
    ],
)
def test_a_job_that_comes_as_seldom_as_before_is_expected(changes: dict[str, Any], late: bool) -> None:
    """A job of each night was an alert each night."""
    last = replace(LEFT, **{"unread": 0, "at_ms": NOW - 90_000} | changes)
    before = [
        replace(last, at_ms=last.at_ms - ago, back_at_ms=last.at_ms - ago + absence)
        for ago, absence in ((2_000_000, 80_000), (1_000_000, 100_000))
    ]
    found = quiet(view(departure=last, visits=(*before, last)))
    assert [one.rule for one in found] == (["no_consumers"] if late else [])
    found = quiet(view(departure=last, visits=(before[1], last)))
    assert [one.rule for one in found] == ["no_consumers"], "two visits show no habit"


def test_a_consumer_that_came_back_is_not_slow_for_the_time_when_nobody_read() -> None:
    """A worker was deployed anew, away for 20 s: what waited is in its hands when the next look comes."""
    pace = judged(heads=[40 + 5 * i for i in range(60)], cursors=[5 * i for i in range(60)], age_s=20)
    assert pace.status is LagStatus.CATCHING_UP
    facts = {"lag": pace, "settled": LagStatus.SLOW, "unread": 40, "in_flight": 40, "acknowledged": SOME}
    here = {"in_flight": 40, "oldest_in_flight_s": 0.5}
    assert quiet(view(consumers=(consumer(connected_at_ms=NOW - 4000, **here),), **facts)) == []
    assert [one.rule for one in quiet(view(consumers=(consumer(**here),), **facts))] == ["consumer_slow"]


@pytest.mark.parametrize(
    ("type_of", "operation"), [("shared", "cluster.what_if"), ("exclusive", "topics.describe")]
)
def test_more_consumers_are_computed_where_they_can_share(type_of: str, operation: str) -> None:
    """A subscription that is shared was told to become shared."""
    slow = view(lag=FALLING, unread=2950, consumers=(consumer(),), acknowledged=SOME, type=type_of)
    [found] = [each for each in quiet(slow) if each.rule == "consumer_slow"]
    assert found.next[-1].operation == operation


def test_late_is_measured_by_age_and_not_by_the_number_of_messages() -> None:
    fresh = judged(heads=[100_000] * 60, cursors=[0] * 60, age_s=3)
    assert (
        quiet(view(lag=fresh, unread=100_000, consumers=(replace(HELD, heard_at_ms=NOW),), in_flight=80))
        == []
    )


def test_ack_timeouts_are_no_poison_and_one_slow_message_is_no_death() -> None:
    timed_out = replace(WORST, reason="ack timeout", failures=9)
    assert quiet(view(lag=FALLING, head_of_line=timed_out, consumers=(consumer(),), unread=1)) == []
    busy = consumer(in_flight=1, oldest_in_flight_s=30.0, heard_at_ms=NOW - 30_000)
    assert quiet(view(consumers=(busy,), in_flight=1, acknowledged=SOME, lag=YOUNG)) == []


def test_what_the_policy_takes_away_is_a_remark() -> None:
    [found] = check_view(
        view(
            consumers=(consumer(),),
            head_of_line=WORST,
            poison_policy="dead_letter",
            acknowledged=SOME,
            lag=YOUNG,
        ),
        OPTIONS,
    )
    assert (found.rule, found.severity) == ("poison_message", Severity.INFO)


def test_a_dispatch_limit_is_named_as_the_cause() -> None:
    rate = FALLING.consume_rate
    assert rate is not None
    found = check_view(
        view(
            lag=FALLING,
            unread=2950,
            consumers=(consumer(),),
            acknowledged=SOME,
            dispatch_rate_limit=int(rate),
        ),
        OPTIONS,
    )[0]
    assert found.evidence["dispatch_rate_limit"] == int(rate)
    assert found.next[0].operation == "topics.set_policies"


def test_a_cursor_that_is_back_where_it_was_is_a_remark() -> None:
    rewind = Rewind(at_ms=NOW - 9, from_offset=15, to_offset=5)
    found = check_view(view(unread=0, consumers=(consumer(),), rewind=rewind), OPTIONS)
    assert [(one.rule, one.severity) for one in found] == [("cursor_rewound", Severity.INFO)]


def topic_view(**changes: Any) -> TopicView:
    facts: dict[str, Any] = {
        "topic": "/default/t",
        "log": "/default/t",
        "partition": None,
        "now_ms": NOW,
        "production": flow(),
        "producers": 1,
        "departure": None,
    }
    return TopicView(**facts | changes)


def test_refusals_are_found_and_counted() -> None:
    counts = {"RATE_LIMITED": Count(total=9, in_window=4, last_ms=NOW), "PAYLOAD_INVALID": SOME}
    messages = {"RATE_LIMITED": Count(total=90, in_window=40, last_ms=NOW), "PAYLOAD_INVALID": SOME}
    found = check_view(topic_view(refused=counts, refused_messages=messages, max_publish_rate=5), OPTIONS)
    assert [one.rule for one in found] == ["schema_rejections", "publish_throttled"]
    assert found[1].evidence["refused_publishes"] == 9
    assert (
        found[1].evidence["refused_publishes_in_window"],
        found[1].evidence["refused_messages_in_window"],
    ) == (4, 40)
    old = {code: replace(count, in_window=0) for code, count in counts.items()}
    assert check_view(topic_view(refused=old), OPTIONS) == ()


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"producers": 1}, Severity.WARNING),
        ({"producers": 0, "departure": replace(LEFT, abrupt=True)}, Severity.WARNING),
        ({"producers": 0, "departure": LEFT}, Severity.INFO),  # a job that is done
    ],
)
def test_a_flow_that_stops_is_found(changes: dict[str, Any], severity: Severity) -> None:
    stopped = flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 400_000)
    [found] = check_view(topic_view(production=stopped, **changes), OPTIONS)
    assert (found.rule, found.severity, found.evidence["steady_messages"]) == (
        "producer_stopped",
        severity,
        800,
    )


@pytest.mark.parametrize(
    ("code", "rule", "limits"),
    [
        ("MESSAGE_TOO_LARGE", "publish_too_large", {"max_message_size": 9}),
        ("BATCH_TOO_LARGE", "publish_too_large", {}),
        ("LIMIT_REACHED", "producer_limit", {"max_producers": 1}),
        ("RATE_LIMITED", "publish_throttled", {"max_publish_rate": 5}),
        ("SCHEMA_MISMATCH", "schema_rejections", {"schema_subject": "s"}),
    ],
)
def test_why_publishes_are_refused_is_told_apart(code: str, rule: str, limits: dict[str, Any]) -> None:
    facts = topic_view(refused={code: SOME}, refused_messages={code: SOME}, **limits)
    [found] = check_view(facts, OPTIONS)
    assert (found.rule, found.severity, found.evidence["refused_publishes"]) == (rule, Severity.WARNING, 50)


def test_traffic_slowed_by_a_quota_is_reported_with_the_quota_holder() -> None:
    slowed = {"namespace shop: bytes_in_per_s": 3.0, "principal user:ann: bytes_out_per_s": 4.0}
    [found] = check_view(topic_view(slowed=slowed), OPTIONS)
    assert (found.rule, found.evidence["quotas"]) == (
        "publish_over_quota",
        ["namespace shop: bytes_in_per_s"],
    )
    assert "was throttled by quota namespace shop: bytes_in_per_s" in found.summary
    [found] = check_view(topic_view(refused={"QUOTA_EXCEEDED": SOME}), OPTIONS)
    assert (found.rule, found.evidence["refused_publishes_in_window"]) == (
        "publish_over_quota",
        SOME.in_window,
    )
    told = {each.rule: each for each in check_view(view(slowed=slowed), OPTIONS)}
    assert told["delivery_over_quota"].evidence["quotas"] == ["principal user:ann: bytes_out_per_s"]
    assert not {"publish_over_quota", "delivery_over_quota"} & {
        one.rule for one in check_view(view(), OPTIONS)
    }


AGAIN = Repetition(messages=40, first_offset=10, again_offset=70, producers=("p",))
FITS = PublishClock(producer="p", batches=9, behind_s=0.01, spread_s=0.2)
OFF = PublishClock(producer="old", batches=9, behind_s=-300.0, spread_s=0.4)


def test_messages_that_come_again_and_a_producer_with_another_clock_are_told() -> None:
    [again, off] = check_view(
        topic_view(tail=Tail(messages=500, repetition=AGAIN, clocks=(FITS, OFF))), OPTIONS
    )
    assert (again.rule, again.severity, again.evidence["again_offset"]) == (
        "repeated_publishes",
        Severity.WARNING,
        70,
    )
    assert (off.rule, off.severity, off.evidence["behind_s"]) == (
        "publish_time_off",
        Severity.WARNING,
        -300.0,
    )
    assert "300 s ahead of the append times" in off.summary
    [alone] = check_view(topic_view(tail=Tail(messages=500, clocks=(OFF,))), OPTIONS)
    assert alone.severity is Severity.INFO, "it may be this broker's clock"


@pytest.mark.parametrize(
    "clocks",
    [
        (FITS,),
        (replace(OFF, producer="other"), OFF),  # it is this broker's clock
        (FITS, replace(OFF, behind_s=300.0, spread_s=200.0)),  # it waited for the broker, and catches up
        (FITS, replace(OFF, behind_s=50.0)),
        (),
    ],
)
def test_publish_times_that_fit_or_fit_nobody_are_no_fault_of_a_producer(
    clocks: tuple[PublishClock, ...],
) -> None:
    assert check_view(topic_view(tail=Tail(messages=500, clocks=clocks)), OPTIONS) == ()


def test_two_refusals_of_one_topic_are_both_named_each_with_its_own_count() -> None:
    counts = {"MESSAGE_TOO_LARGE": Count(total=9, in_window=4, last_ms=NOW), "QUOTA_EXCEEDED": SOME}
    found = check_view(
        topic_view(
            refused=counts, refused_messages=counts, max_message_size=9,
            refused_by={"namespace shop: stored_bytes": 2.0},
        ),
        OPTIONS,
    )  # fmt: skip
    assert [(one.rule, one.evidence["refused_publishes_in_window"]) for one in found] == [
        ("publish_too_large", 4),
        ("publish_over_quota", 50),
    ]
    assert "refused 50 publishes for quota namespace shop: stored_bytes" in found[1].summary
    assert "bring more than they may" not in found[1].summary, "no producer is too fast"
    assert found[1].evidence["quotas"] == ["namespace shop: stored_bytes"]


def test_a_burst_is_told_though_nobody_is_late_for_it() -> None:
    [found] = check_view(topic_view(production=BURST), OPTIONS)
    assert (found.rule, found.severity, found.evidence["burst_messages"]) == (
        "topic_burst",
        Severity.INFO,
        890,
    )


def test_what_the_broker_writes_itself_has_no_producer_that_could_stop() -> None:
    """Seen: an alert of `producer_stopped` on /system/audit once the administrator had gone."""
    stopped = flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 400_000)
    written = topic_view(production=stopped, producers=0, producer_seen=False, topic="/system/audit")
    assert check_view(written, OPTIONS) == ()


def test_a_burst_that_ends_and_a_flow_that_pauses_are_no_stop() -> None:
    burst = flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 110_000)
    assert check_view(topic_view(production=burst), OPTIONS) == ()
    pausing = flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 400_000, longest_gap_s=40.0)
    assert check_view(topic_view(production=pausing), OPTIONS) == ()


BROKER = BrokerView(
    broker_id="1",
    now_ms=NOW,
    memory_only=False,
    disk_free_bytes=90 << 30,
    disk_total_bytes=100 << 30,
    disk_guard_bytes=1 << 30,
    disk_refuses=False,
    disk_filling=None,
    journal_error=None,
    journal_error_since_ms=None,
    store_error=None,
    store_error_since_ms=None,
    store_url=None,
    tier_backlog_bytes=0,
    tier_errors=NONE,
    tier_off=None,
)


QUIET = Pressure(window_s=300.0)
NOISY = replace(
    QUIET, bytes_in=3 << 30, busiest="/default/loud", busiest_bytes=(3 << 30) - 9, others=2, busy=0.9
)


@pytest.mark.parametrize(
    "seen",
    [
        replace(QUIET, syncs=90_000, slow_syncs=4),  # of many, a few
        replace(QUIET, syncs=2, slow_syncs=2),
        replace(QUIET, syncs=90_000, slow_waits=4),
        replace(QUIET, syncs=2, slow_waits=2),
        replace(QUIET, opened=300, open_now=200),  # they stay
        replace(QUIET, opened=50, open_now=0),
        replace(NOISY, others=0),  # alone
        replace(NOISY, busiest_bytes=1 << 30),
        replace(NOISY, bytes_in=9000, busiest_bytes=8999),
    ],
)
def test_pressure_without_effect_is_no_finding(seen: Pressure) -> None:
    assert check_view(replace(BROKER, pressure=seen), OPTIONS) == ()


def test_a_loud_topic_is_a_remark_while_there_is_room_for_all() -> None:
    [found] = check_view(replace(BROKER, pressure=replace(NOISY, busy=0.3)), OPTIONS)
    assert (found.rule, found.severity) == ("noisy_neighbour", Severity.INFO)


DAY_MS = 86_400_000
LOST = BadObjectView(
    topic="/default/t",
    path="file:///x/o",
    start=10,
    end=20,
    state="missing",
    since_ms=NOW - 1,
    by_reader=False,
    ahead_of=("s",),
)


def lasting(days: float, *, life_days: float = 365) -> Credential:
    until_ms = BROKER.now_ms + int(days * DAY_MS)
    return Credential(kind="token", name="a1", from_ms=until_ms - int(life_days * DAY_MS), until_ms=until_ms)


def test_a_credential_that_lives_for_hours_is_not_near_its_end_all_the_time() -> None:
    healthy = (lasting(0.5, life_days=1), lasting(31))
    assert not check_view(replace(BROKER, credentials=healthy), OPTIONS)
    [found] = check_view(replace(BROKER, credentials=(*healthy, lasting(0.2, life_days=1))), OPTIONS)
    assert [each["left_days"] for each in found.evidence["credentials"]] == [0.2]
    assert "expires in 4.8 hours" in found.summary
    [found] = check_view(replace(BROKER, credentials=(lasting(0.01, life_days=1),)), OPTIONS)
    assert "expires in 14 minutes" in found.summary


LATE = LateStoreView(topics=2, error="no route to the bucket", since_ms=BROKER.now_ms - 90_000)


def test_lone_broker_that_started_without_the_store_says_what_waits_and_since_when() -> None:
    [found] = check_view(replace(BROKER, late_store=LATE, store_error="no route to the bucket"), OPTIONS)
    assert found.summary.startswith(
        "the broker started without the object store 90 s ago, and 2 stored topics wait for it: nothing is lost"
    )
    assert (found.evidence["since_s"], found.evidence["waiting"]) == (90.0, 2)


AILING: list[tuple[str, Severity, dict[str, Any]]] = [
    ("journal_read_only", Severity.CRITICAL, {"journal_error": "EIO"}),
    ("disk_nearly_full", Severity.WARNING, {"disk_free_bytes": 3 << 29}),
    (
        "disk_nearly_full",
        Severity.WARNING,
        {"disk_free_bytes": 20 << 30, "disk_filling": Filling(bytes_per_s=1e6, seen_s=3600)},
    ),
    ("disk_nearly_full", Severity.CRITICAL, {"disk_free_bytes": 1 << 29, "disk_refuses": True}),
    ("object_store_unreachable", Severity.WARNING, {"store_error": "refused"}),
    ("object_store_unreachable", Severity.WARNING, {"late_store": LATE}),
    (
        "metadata_unreachable",
        Severity.CRITICAL,
        {"metadata_error": "etcd does not answer", "metadata_since_ms": 1},
    ),
    (
        "metadata_full",
        Severity.CRITICAL,
        {"metadata_error": "no space", "metadata_full": True, "metadata_since_ms": 1},
    ),
    (
        "metadata_set_aside",
        Severity.CRITICAL,
        {"quarantined": (QuarantinedKey(key="/registry/topics/default/t", why="no JSON", mend="restore"),)},
    ),
    (
        "clock_stepped",
        Severity.WARNING,
        {"clock": "the machine's clock stepped by +9.0 s", "clock_steps": 1},
    ),
    (
        "clocks_apart",
        Severity.WARNING,
        {"clocks_apart": "the clock of this broker is 90 s ahead of broker 2", "clock_ahead_s": 90.0},
    ),
    ("credential_expires", Severity.INFO, {"credentials": (lasting(20),)}),
    ("credential_expires", Severity.WARNING, {"credentials": (lasting(400), lasting(6.5))}),
    ("credential_expires", Severity.CRITICAL, {"credentials": (lasting(0.9),)}),
    ("credential_expires", Severity.CRITICAL, {"credentials": (lasting(-3),)}),
    (
        "changes_burst",
        Severity.WARNING,
        {"refused_changes": (RefusedChanges("robot", "principal user:robot: changes_per_h", 3.0),)},
    ),
    ("disk_sync_slow", Severity.WARNING, {"pressure": replace(QUIET, syncs=40, slow_syncs=3)}),
    ("object_damaged", Severity.CRITICAL, {"bad_objects": (LOST,), "objects_checked": 9}),
    ("sync_helper_slow", Severity.WARNING, {"pressure": replace(QUIET, syncs=40, slow_waits=3)}),
    (
        "disk_sync_slow",
        Severity.WARNING,
        {"pressure": replace(QUIET, syncs=40, slow_syncs=3, slow_waits=3)},
    ),
    ("reconnect_storm", Severity.WARNING, {"pressure": replace(QUIET, opened=300, open_now=4)}),
    ("noisy_neighbour", Severity.WARNING, {"pressure": NOISY}),
    ("undo_given_up", Severity.WARNING, {"given_up": {"c1": 1 << 60}}),
]


@pytest.mark.parametrize(("rule", "severity", "changes"), AILING)
def test_what_ails_the_broker_itself(rule: str, severity: Severity, changes: dict[str, Any]) -> None:
    [found] = check_view(replace(BROKER, **changes), OPTIONS)
    assert (found.rule, found.severity) == (rule, severity)


def test_a_healthy_broker_says_nothing() -> None:
    assert check_view(BROKER, OPTIONS) == ()
    assert check_view(replace(BROKER, disk_filling=Filling(bytes_per_s=1.0, seen_s=3600)), OPTIONS) == ()
    a_copy = Filling(bytes_per_s=7.6e6, seen_s=120)
    assert check_view(replace(BROKER, disk_free_bytes=20 << 30, disk_filling=a_copy), OPTIONS) == ()
    assert check_view(view(unread=0, consumers=(consumer(),)), OPTIONS) == ()


def test_answers_are_bounded_and_ranked_and_silence_without_a_look_is_unknown() -> None:
    many = [one for _ in range(80) for one in check_view(view(dead_lettered=SOME), OPTIONS)]
    critical = check_view(replace(BROKER, journal_error="EIO"), OPTIONS)
    answer = diagnose([*many, *critical], subject={}, as_of_ms=NOW)
    assert answer.findings[0].rule == "journal_read_only"
    assert (len(answer.findings), answer.omitted, answer.verdict) == (100, 61, Verdict.FAILING)
    assert answer.counts == {"no_consumers": 80, "dead_letters_growing": 80, "journal_read_only": 1}
    assert ranked(reversed(answer.findings))[0].rule == "journal_read_only"
    assert diagnose([], subject={}, as_of_ms=NOW).verdict is Verdict.HEALTHY
    assert diagnose([], subject={}, as_of_ms=NOW, seen=False).verdict is Verdict.UNKNOWN


def test_the_rules_are_declared_and_the_windows_are_what_they_seem() -> None:
    assert len(RULES) == 67
    assert (FALLING.status, STANDING.status) == (LagStatus.FALLING_BEHIND, LagStatus.STUCK)
    for rule in RULES.values():
        assert rule.evidence
        assert rule.unobservable


def test_a_step_of_both_rates_is_told_with_its_moment_and_a_burst_is_no_step() -> None:
    found = check_view(view(lag=STEPPED, unread=1900, consumers=(consumer(),), acknowledged=SOME), OPTIONS)[0]
    told = found.evidence
    assert (told["produced_before"], told["produced_since"]) == (2.0, 200.0)
    assert (told["consumed_before"], told["consumed_since"]) == (2.0, 0.6)
    assert told["seconds_ago"] == 50
    times = [5000 * i for i in range(40)]
    assert rate_step(times, [10 * i for i in range(40)]) is None
    assert rate_step(times, [10 * i + (5000 if i > 30 else 0) for i in range(40)]) is None, "a burst"
    assert rate_step(times, [10 * i + (900 * (i - 35) if i > 35 else 0) for i in range(40)]) is not None
    over = [10 * i + 900 * min(4, max(0, i - 30)) for i in range(40)]
    assert rate_step(times, over) is None, "it does not last"
    slower = [100 * i if i < 15 else 1500 + 30 * min(i - 15, 13) for i in range(40)]
    assert rate_step(times[:28], slower[:28]) is not None
    assert rate_step(times, slower) is None, "nothing came for a minute"


@given(st.lists(st.integers(0, 400), max_size=70))
def test_a_step_is_found_or_not_but_never_fails(rises: list[int]) -> None:
    values = list(itertools.accumulate(rises, initial=0))
    found = rate_step([1000 * i for i in range(len(values))], values)
    assert found is None or found.times >= 3 or found.times <= 1 / 3


def test_producers_that_only_become_more_are_told_and_a_deployment_is_not() -> None:
    grown = topic_view(producers=80, sessions=(1, 20, 40, 60))
    assert [one.rule for one in check_view(grown, OPTIONS)] == ["sessions_growing"]
    assert check_view(topic_view(producers=80, sessions=(1, 79)), OPTIONS) == (), "all at once"
    assert check_view(topic_view(producers=80, sessions=(1, 60, 20, 40, 60, 70)), OPTIONS) == (), "some left"
    assert check_view(topic_view(producers=20, sessions=(1, 5, 10, 15)), OPTIONS) == (), "not many"


def test_a_disk_that_fills_leads_to_the_topics_that_hold_most() -> None:
    [found] = check_view(replace(BROKER, disk_free_bytes=3 << 29), OPTIONS)
    [call] = [call for call in found.next if call.operation == "topics.list"]
    assert call.arguments == {"sort": "-bytes", "top": 10}
