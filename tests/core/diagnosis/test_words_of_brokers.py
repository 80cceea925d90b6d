"""Every sentence of a rule about topics, producers, brokers and the cluster is compared with the facts, as `test_words` does."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from pydanube_core.diagnosis.causes.topics import CLOCK_OFF_S, refusals
from pydanube_core.diagnosis.findings import BrokerRule, RuleArea, TopicRule
from pydanube_core.diagnosis.rules import RULES_OF
from pydanube_core.diagnosis.views import (
    BrokerView,
    ClusterView,
    Count,
    LinkView,
    Pressure,
    PublishClock,
    Tail,
    TakenOverView,
    TopicView,
)

from tests.core.diagnosis.test_cluster_rules import HOLDS, WELL, balance
from tests.core.diagnosis.test_rules import (
    AGAIN,
    AILING,
    BROKER,
    BURST,
    FITS,
    LEFT,
    NONE,
    NOW,
    OFF,
    OPTIONS,
    QUIET,
    SOME,
    flow,
    topic_view,
)
from tests.core.diagnosis.test_words import mixed, wrong_sentences

Match = re.Match[str]


def _n(match: Match, group: int = 1) -> float:
    return float(match[group])


def _refused(view: TopicView, *codes: str) -> int:
    return refusals(view.refused, codes).in_window


def _ago_s(view: TopicView | BrokerView, then_ms: int | None) -> float:
    return 1e9 if then_ms is None else (view.now_ms - then_ms) / 1000


def _near(one: float, other: float, by: float = 0.51) -> bool:
    return abs(one - other) <= by


def _clocks(view: TopicView) -> tuple[PublishClock, ...]:
    return () if view.tail is None else view.tail.clocks


N: Final = r"([\d.]+)"
_SIZE: Final = ("MESSAGE_TOO_LARGE", "BATCH_TOO_LARGE")
_SCHEMA: Final = ("SCHEMA_MISMATCH", "PAYLOAD_INVALID", "SCHEMA_NOT_FOUND")

#: sentence, or part of one → whether it is so
OF_TOPICS: Final[dict[str, Callable[[TopicView, Match], bool]]] = {
    # -- refusals
    r"no publish was refused for its size": lambda v, m: not _refused(v, *_SIZE),
    rf"refused {N} publish(?:es)? within \d+ s for their size": lambda v, m: _refused(v, *_SIZE) == _n(m),
    rf"its policy max_message_size is {N} bytes": lambda v, m: v.max_message_size == _n(m),
    r"no policy bounds it now": lambda v, m: not v.max_message_size,
    r"no producer was turned away": lambda v, m: not _refused(v, "LIMIT_REACHED"),
    rf"turned producers away {N} times?": lambda v, m: _refused(v, "LIMIT_REACHED") == _n(m),
    rf": {N} (?:is|are) connected, and": lambda v, m: v.producers == _n(m),
    rf"max_producers_per_topic is {N}": lambda v, m: v.max_producers == _n(m) > 0,
    r"no policy bounds their number now": lambda v, m: not v.max_producers,
    r"no publish was refused for its rate": lambda v, m: not _refused(v, "RATE_LIMITED"),
    rf"refused {N} publish(?:es)? within \d+ s: more": lambda v, m: _refused(v, "RATE_LIMITED") == _n(m),
    rf"more than {N} messages? a second came": lambda v, m: v.max_publish_rate == _n(m) > 0,
    r"its rate limit allowed, which was lifted": lambda v, m: not v.max_publish_rate,
    r"no message was found against its schema": lambda v, m: not _refused(v, *_SCHEMA) and not any(one.in_window for one in v.violations.values()),
    rf"refused {N} messages? that": lambda v, m: refusals(v.refused_messages, _SCHEMA).in_window == _n(m) and _refused(v, *_SCHEMA) > 0,
    rf"refused {N} producers? that": lambda v, m: not refusals(v.refused_messages, _SCHEMA).in_window and _refused(v, *_SCHEMA) == _n(m),
    rf"let through, and counted, {N} messages?": lambda v, m: not _refused(v, *_SCHEMA) and sum(one.in_window for one in v.violations.values()) == _n(m),
    r"not fit schema subject '(\w+)'": lambda v, m: v.schema_subject == m[1],
    # -- quotas
    r"no publish waited for a quota": lambda v, m: not any(quota.endswith("_in_per_s") for quota in v.slowed) and not _refused(v, "QUOTA_EXCEEDED"),
    r"was throttled by quota ([^;]+): its producers brought more": lambda v, m: all(
        quota in v.slowed and quota.endswith("_in_per_s") for quota in m[1].split(", ")
    ),
    rf"refused {N} publish(?:es)? for quota": lambda v, m: _refused(v, "QUOTA_EXCEEDED") == _n(m),
    r"as much is stored as may be": lambda v, m: any(quota.endswith("stored_bytes") for quota in v.refused_by),
    # -- flow
    r"nothing was published while the broker watched": lambda v, m: v.production.last_ms is None or v.production.steady_since_ms is None,
    r"no producer was here since": lambda v, m: not v.producer_seen,
    rf"messages came for {N} s in one stretch": lambda v, m: _near((v.production.last_ms - v.production.steady_since_ms) / 1000, _n(m)),  # type: ignore[operator]
    rf"the last message came {N} s ago": lambda v, m: _near(_ago_s(v, v.production.last_ms), _n(m)),
    r"publishes come and are refused": lambda v, m: any(one.in_window for one in v.refused.values()),
    rf"without a break longer than {N} s for {N} s, and none for {N} s": lambda v, m: _near(v.production.longest_gap_s, _n(m), 0.1)
    and _near(_ago_s(v, v.production.last_ms), _n(m, 3)),
    r"its producer left in good order": lambda v, m: not v.producers and v.departure is not None and not v.departure.abrupt,
    rf": {N} producers? (?:is|are) connected and silent": lambda v, m: v.producers == _n(m),
    r"the connection of producer '(\w+)' broke": lambda v, m: v.departure is not None and (v.departure.name, v.departure.abrupt) == (m[1], True),
    r": no producer is connected$": lambda v, m: not v.producers,
    rf"messages have come for {N} s: too short": lambda v, m: _near(v.production.window_s, _n(m)) and v.production.burst is None,
    r"no part of the last": lambda v, m: v.production.burst is None,
    rf"the most were {N} messages in": lambda v, m: max(v.production.segments) == _n(m),
    rf"{N} messages? more than usual": lambda v, m: v.production.burst is not None and v.production.burst.messages == _n(m),
    rf"{N} a second at the most, {N} usually": lambda v, m: v.production.burst is not None
    and _near(v.production.burst.peak_rate, _n(m))
    and _near(v.production.burst.typical_rate, _n(m, 2)),
    # -- sessions
    rf"^{N} producers? (?:is|are) connected, {N} at the window's start": lambda v, m: v.producers == _n(m) and (v.sessions or (v.producers,))[0] == _n(m, 2),
    rf"the number of producers rose to {N} in {N} looks?, or fell between": lambda v, m: v.producers == _n(m),
    rf"has {N} connected producers, {N} at the window's start, and their number never fell": lambda v, m: v.producers == _n(m)
    and v.sessions[0] == _n(m, 2)
    and list(v.sessions) == sorted(v.sessions),
    # -- the newest messages
    r"too few messages are at hand": lambda v, m: v.tail is None,
    rf"none of the newest {N} messages": lambda v, m: v.tail is not None and (v.tail.messages, v.tail.repetition) == (_n(m), None),
    rf"^{N} messages? of \S+ from offset {N} on are, in the same order, those from offset {N}": lambda v, m: v.tail is not None
    and v.tail.repetition is not None
    and (v.tail.repetition.messages, v.tail.repetition.again_offset, v.tail.repetition.first_offset) == (_n(m), _n(m, 2), _n(m, 3)),
    rf"both were written by {N} producers?": lambda v, m: v.tail is not None
    and v.tail.repetition is not None
    and len(v.tail.repetition.producers) == _n(m),
    r"too few batches are at hand": lambda v, m: not _clocks(v),
    rf"publish times are at most {N} s from the append times": lambda v, m: all(abs(one.behind_s) <= _n(m) + 0.1 for one in _clocks(v)),
    rf"^publish times are at most {N} s from the append times$": lambda v, m: all(abs(one.behind_s) <= CLOCK_OFF_S for one in _clocks(v)),
    rf"{N} producers differ from this broker's clock, and none fits": lambda v, m: all(abs(one.behind_s) > CLOCK_OFF_S for one in _clocks(v)),
    rf"publish times of a producer of \S+ are {N} s (behind|ahead of) the append": lambda v, m: any(
        _near(abs(one.behind_s), _n(m)) and (one.behind_s > 0) is (m[2] == "behind") for one in _clocks(v)
    ),
    rf"those of {N} other producers? fit": lambda v, m: sum(abs(one.behind_s) <= CLOCK_OFF_S for one in _clocks(v)) == _n(m),
}  # fmt: skip


def _cluster(v: BrokerView) -> ClusterView:
    assert v.cluster is not None
    return v.cluster


def _named(sentence: str) -> set[str]:
    """Return the ids that "broker 2" or "brokers 2, 3" names."""
    found = re.search(r"brokers? ((?:\w+, )*\w+)", sentence)
    return set() if found is None else set(re.findall(r"\d+", found[1]))


_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000}
_HALF = {"days": 0.06, "hours": 0.06, "minutes": 0.6}  # what rounding may take

OF_BROKERS: Final[dict[str, Callable[[BrokerView, Match], bool]]] = {
    # -- journal and disk
    r"the journal takes records": lambda v, m: v.journal_error is None,
    r"the journal failed and takes nothing more": lambda v, m: v.journal_error is not None,
    r"the broker keeps everything in memory": lambda v, m: v.memory_only,
    r"the data folder cannot be looked at": lambda v, m: None in (v.disk_free_bytes, v.disk_total_bytes, v.disk_guard_bytes),
    rf"{N} of {N} bytes are free": lambda v, m: (v.disk_free_bytes, v.disk_total_bytes) == (_n(m), _n(m, 2)),
    r"and publishing goes on down to": lambda v, m: not v.disk_refuses,
    r"publishing has stopped": lambda v, m: v.disk_refuses,
    r"publishing stops below": lambda v, m: not v.disk_refuses,
    # -- store, metadata
    r"there is no cold tier": lambda v, m: v.tier_off is not None,
    r"the last call to the object store did not fail": lambda v, m: v.store_error is None,
    rf"the object store cannot be reached: .*, {N} bytes by now": lambda v, m: v.store_error is not None and v.tier_backlog_bytes == _n(m),
    r"the metadata store answers$": lambda v, m: v.metadata_error is None,
    r"it answers: it is full|the metadata store is full and takes no change": lambda v, m: v.metadata_full,
    r"the metadata store does not answer or takes no writes": lambda v, m: v.metadata_error is not None and not v.metadata_full,
    r"the metadata store takes writes, or does not answer": lambda v, m: not v.metadata_full,
    r"all metadata could be read": lambda v, m: not v.quarantined,
    rf"{N} pieces? of metadata (?:is|are) quarantined": lambda v, m: len(v.quarantined) == _n(m),
    r"no deletion that could still be undone": lambda v, m: not any(until > v.now_ms for until in v.given_up.values()),
    rf"{N} deletions? cannot be undone any more": lambda v, m: sum(until > v.now_ms for until in v.given_up.values()) == _n(m),
    rf"{N} objects? (?:was|were) checked since the start, none of them bad": lambda v, m: v.objects_checked == _n(m) and not v.bad_objects,
    rf"an object of \S+ with offsets {N} to {N} is (\w+)": lambda v, m: any(
        (one.start, one.end - 1, one.state) == (_n(m), _n(m, 2), m[3]) for one in v.bad_objects
    ),
    rf", and {N} more": lambda v, m: len(v.bad_objects) - 1 == _n(m),
    # -- clocks, credentials, quotas
    rf"the machine's clock has not stepped lately \({N} times?": lambda v, m: v.clock is None and v.clock_steps == _n(m),
    r"the machine's clock stepped by": lambda v, m: v.clock is not None,
    r"the broker's clock agrees": lambda v, m: v.clocks_apart is None,
    r"the clock of this broker is": lambda v, m: v.clocks_apart is not None,
    rf"none of {N} credentials? with an end expires soon": lambda v, m: len(v.credentials) == _n(m),
    rf"the API token (\w+) expires in {N} (days|hours|minutes)": lambda v, m: any(
        one.name == m[1] and _near((one.until_ms - v.now_ms) / _UNIT_MS[m[3]], _n(m, 2), _HALF[m[3]]) for one in v.credentials
    ),
    rf"the API token (\w+) expired {N} (days|hours|minutes) ago": lambda v, m: any(
        _near((v.now_ms - one.until_ms) / _UNIT_MS[m[3]], _n(m, 2), _HALF[m[3]]) for one in v.credentials
    ),
    r"no change was refused for a quota": lambda v, m: not v.refused_changes,
    r"changes were refused for quota (.*): more": lambda v, m: m[1].split(", ") == sorted(one.quota for one in v.refused_changes),
    # -- pressure
    rf"^{N} syncs of the journal in the window|with {N} syncs in the window": lambda v, m: v.pressure.syncs == float(m[1] or m[2]),
    rf"the disk syncs slowly: {N} of {N} syncs": lambda v, m: (v.pressure.slow_syncs, v.pressure.syncs) == (_n(m), _n(m, 2)),
    r"the disk is slow: each sync waits": lambda v, m: v.pressure.slow_syncs >= 3,
    rf"it began with {N} of {N} more than 500 ms": lambda v, m: (v.pressure.slow_waits, v.pressure.syncs) == (_n(m), _n(m, 2)),
    rf"{N} connections were opened in the window, and {N} are open|clients opened {N} connections within \d+ s, and {N} are open": lambda v, m: (
        (v.pressure.opened, v.pressure.open_now) == (float(m[1] or m[3]), float(m[2] or m[4]))
    ),
    r"nothing was published in the window": lambda v, m: not v.pressure.bytes_in or v.pressure.window_s <= 0,
    rf"the busiest topic brought {N}% of {N} bytes, beside {N} other": lambda v, m: (v.pressure.bytes_in, v.pressure.others) == (_n(m, 2), _n(m, 3)),
    rf"(\S+) brought {N}% of all bytes of {N} s": lambda v, m: v.pressure.busiest == m[1] and _near(100 * v.pressure.busiest_bytes / v.pressure.bytes_in, _n(m, 2)),
    rf"{N} other topics? shares? the rest": lambda v, m: v.pressure.others == _n(m)
    and (v.pressure.busy >= 0.7 or v.pressure.late_ms >= 50 or v.pressure.slow_syncs >= 3),
    rf"{N} other topics? (?:has|have) room beside it yet": lambda v, m: v.pressure.others == _n(m) and v.pressure.busy < 0.7,
    rf"the broker started without the object store {N} s ago, and {N} stored topics? waits? for it": lambda v, m: v.late_store is not None
    and v.late_store.topics == _n(m, 2)
    and _near(_ago_s(v, v.late_store.since_ms), _n(m)),
    # -- links
    r"every mirror of this broker is copied": lambda v, m: not v.links,
    rf"the link (\w+) does not copy {N} topics?": lambda v, m: any((one.link, sum(one.states.values())) == (m[1], _n(m, 2)) for one in v.links),
    r"no mirror of this broker has a gap": lambda v, m: not v.mirror_gaps,
    rf"{N} mirrors? lacks? messages .*, (\S+) from {N} to {N}": lambda v, m: len(v.mirror_gaps) == _n(m)
    and v.mirror_gaps[m[2]] == (_n(m, 3), _n(m, 4)),
    # -- cluster
    r"the broker is alone": lambda v, m: v.cluster is None,
    r"every owner of a topic is registered": lambda v, m: not _cluster(v).absent,
    rf"{N} topics? waits? for (.*) not registered": lambda v, m: sum(_cluster(v).absent.values()) == _n(m) and _named(m[2]) == set(_cluster(v).absent),
    r"every broker that is registered answered": lambda v, m: not _cluster(v).silent,
    r"(brokers? .*) (?:is|are) registered and did not answer": lambda v, m: _named(m[1]) == set(_cluster(v).silent),
    r"^broker (\w+) leads": lambda v, m: _cluster(v).leader == m[1],
    r"metadata_unreachable explains it": lambda v, m: v.metadata_error is not None,
    r"no broker leads the cluster": lambda v, m: _cluster(v).leader is None,
    r"all brokers with a reported version": lambda v, m: len({one.software for one in _cluster(v).members if one.software}) < 2,
    rf"brokers run {N} versions": lambda v, m: len({one.software for one in _cluster(v).members if one.software}) == _n(m) >= 2,
    r"loads are judged by the broker that leads": lambda v, m: _cluster(v).balance is None,
    rf"the busiest broker uses {N}% of its processors": lambda v, m: _near(100 * (_cluster(v).balance.highest_before or 0), _n(m)),  # type: ignore[union-attr]
    r"^\w+: .*|^broker \w+ uses": lambda v, m: True,  # an assessment's own words, which its tests hold
    r"no partition carries far more": lambda v, m: _cluster(v).balance is None
    or not any("-part-" in topic for topic in _cluster(v).balance.hot_topics),  # type: ignore[union-attr]
    r"partition (\S+) carries far more": lambda v, m: m[1] in _cluster(v).balance.hot_topics,  # type: ignore[union-attr]
    rf"^{N} topics? (?:is|are) on (?:its|their) way, none for longer": lambda v, m: len(_cluster(v).moves) == _n(m)
    and all(_ago_s(v, one.begun_at_ms) < 180 for one in _cluster(v).moves),
    rf"^{N} topics? (?:is|are) on (?:its|their) way for too long; the first, (\S+), is (\w+) and waits for broker (\w+)": lambda v, m: sum(
        _ago_s(v, one.begun_at_ms) >= 180 for one in _cluster(v).moves
    )
    == _n(m)
    and any((one.topic, one.stage) == (m[2], m[3]) and m[4] in (one.source, one.target) for one in _cluster(v).moves),
    r"no move of the last hour was cancelled": lambda v, m: all(_ago_s(v, one.begun_at_ms) >= 3600 for one in _cluster(v).failed_moves),
    rf"^{N} topics? (?:was|were) not moved": lambda v, m: sum(_ago_s(v, one.begun_at_ms) < 3600 for one in _cluster(v).failed_moves) == _n(m),
    r"no topics of a lost broker are taken over": lambda v, m: all(one.why for one in _cluster(v).taken_over.values()),
    rf"others take over {N} topics? of (.*) lost": lambda v, m: sum(
        one.topics for one in _cluster(v).taken_over.values() if one.why is None
    )
    == _n(m)
    and _named(m[2]) == {broker for broker, one in _cluster(v).taken_over.items() if one.why is None},
    r"nothing holds up a take-over": lambda v, m: not any(one.why for one in _cluster(v).taken_over.values()),
    rf"{N} topics? of (.*) lost, cannot be taken over": lambda v, m: sum(
        one.topics for one in _cluster(v).taken_over.values() if one.why
    )
    == _n(m)
    and _named(m[2]) == {broker for broker, one in _cluster(v).taken_over.items() if one.why},
    r"the journal is not copied": lambda v, m: _cluster(v).copy is None,
    rf"the copy of the journal lacks nothing that is {N} s old": lambda v, m: _cluster(v).copy.behind_s < _n(m),  # type: ignore[union-attr]
    rf"{N} bytes of the journal are not in the object store, the oldest for {N} s": lambda v, m: _cluster(v).copy.behind_bytes == _n(m)  # type: ignore[union-attr]
    and _near(_cluster(v).copy.behind_s, _n(m, 2)),  # type: ignore[union-attr]
    r"the object store refused the last piece": lambda v, m: _cluster(v).copy.error is not None,  # type: ignore[union-attr]
    r"no other broker has continued the copy": lambda v, m: _cluster(v).copy is None or _cluster(v).copy.fence is None,  # type: ignore[union-attr]
    r"other brokers took topics of this one over": lambda v, m: _cluster(v).copy.fence is not None,  # type: ignore[union-attr]
    r"no drain with topics left is under way": lambda v, m: _cluster(v).draining_since_ms is None or not _cluster(v).left,
    rf"{N} topics? (?:is|are) still to leave, and {N} brokers? takes? them": lambda v, m: (_cluster(v).left, _cluster(v).takers) == (_n(m), _n(m, 2)),
    rf"the broker is to hand over {N} topics?": lambda v, m: _cluster(v).left == _n(m),
    r"and no other broker takes topics": lambda v, m: not _cluster(v).takers,
    r"no topic has made progress for 60 s and more": lambda v, m: _ago_s(v, max(_cluster(v).draining_since_ms or 0, _cluster(v).drain_moved_ms or 0)) >= 60,
    r"it has gone on for 180 s and more": lambda v, m: _ago_s(v, _cluster(v).draining_since_ms) >= 180,
    r"the object store is that of the cluster": lambda v, m: _cluster(v).store_refused is None,
    r"the broker's object store is not the cluster's": lambda v, m: _cluster(v).store_refused is not None,
}  # fmt: skip

_CODES: Final = (*_SIZE, *_SCHEMA, "LIMIT_REACHED", "RATE_LIMITED", "QUOTA_EXCEEDED")
TOPICS: Final = [
    topic_view(),
    topic_view(producers=0, departure=LEFT, production=flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 400_000)),
    topic_view(producers=0, departure=dataclasses.replace(LEFT, abrupt=True), production=flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 400_000)),
    topic_view(production=flow(last_ms=NOW - 100_000, steady_since_ms=NOW - 110_000), producer_seen=False),
    topic_view(production=BURST, producers=0),
    topic_view(production=flow(last_ms=None)),
    *(topic_view(refused={code: SOME}, refused_messages={code: SOME}) for code in _CODES),
    *(topic_view(refused={code: SOME}, refused_messages={code: NONE}) for code in _CODES),
    topic_view(violations={"PAYLOAD_INVALID": Count(total=7, in_window=7, last_ms=NOW)}, schema_subject="s"),
    topic_view(max_publish_rate=5, max_message_size=9, max_producers=1),
    topic_view(refused=dict.fromkeys(_CODES, SOME), refused_by={"namespace shop: stored_bytes": 2.0}),
    topic_view(slowed={"namespace shop: bytes_in_per_s": 3.0, "principal user:ann: bytes_out_per_s": 4.0}),
    topic_view(producers=90, sessions=(1, 20, 40, 60, 80)),
    topic_view(producers=90, sessions=(1, 90, 40, 60, 80)),
    topic_view(tail=Tail(messages=500, repetition=dataclasses.replace(AGAIN, producers=("p", "q")), clocks=(FITS, OFF))),
    topic_view(tail=Tail(messages=9, clocks=(dataclasses.replace(OFF, producer="other"), OFF, dataclasses.replace(OFF, behind_s=400.0, spread_s=300.0)))),
    topic_view(tail=Tail(messages=9, clocks=(dataclasses.replace(FITS, behind_s=300.0, spread_s=200.0),))),
    topic_view(tail=Tail(messages=9, clocks=(OFF,))),
]  # fmt: skip

_CLUSTERS: Final = [
    WELL,
    *(dataclasses.replace(WELL, **facts) for facts in HOLDS.values()),
    dataclasses.replace(WELL, balance=balance(60.0, *([1.0] * 20), partition=True)),
    dataclasses.replace(WELL, absent={"7": 1}, silent={"2": "x", "3": "y"}, draining_since_ms=NOW - 200_000, drain_moved_ms=NOW - 9, left=1),
    dataclasses.replace(WELL, draining_since_ms=NOW - 200_000, drain_moved_ms=NOW - 60_000, left=1),
    dataclasses.replace(
        WELL,
        taken_over={
            "2": TakenOverView(topics=3, why=None), "4": TakenOverView(topics=1, why=None), "3": TakenOverView(topics=1, why="x"),
        },
        draining_since_ms=NOW - 9,
    ),
]  # fmt: skip


def brokers() -> list[BrokerView]:
    chance = random.Random(3)
    pool = [BROKER, *(dataclasses.replace(BROKER, **changes) for _, _, changes in AILING)]
    pool += [
        dataclasses.replace(BROKER, memory_only=True, tier_off="no tier"),
        dataclasses.replace(BROKER, disk_guard_bytes=None, tier_backlog_bytes=77),
        dataclasses.replace(BROKER, links=(LinkView(link="l", states={"failed": 2}, topics=("/default/t",), why="x"),)),
        dataclasses.replace(BROKER, mirror_gaps={"/default/t": (3, 9)}, given_up={"c": 1, "d": NOW + 10**9}),
        dataclasses.replace(BROKER, pressure=Pressure(window_s=0.0)),
        dataclasses.replace(BROKER, pressure=dataclasses.replace(QUIET, bytes_in=9000, busiest="/default/t", busiest_bytes=10, others=1)),
    ]  # fmt: skip
    found = mixed(pool, 5, 1500)
    clusters: list[ClusterView | None] = [None, *mixed(_CLUSTERS, 7, 300)]
    return [dataclasses.replace(each, cluster=chance.choice(clusters)) for each in found]


def compiled(claims: Mapping[str, Any]) -> dict[re.Pattern[str], Any]:
    return {re.compile(pattern): claim for pattern, claim in claims.items()}


@pytest.mark.parametrize("rule", RULES_OF[RuleArea.TOPIC], ids=lambda rule: rule.name)
def test_every_sentence_about_topics_is_so(rule: TopicRule) -> None:
    views = mixed(TOPICS, len(rule.name), 1500)
    assert list(wrong_sentences(rule, views, compiled(OF_TOPICS))) == []
    assert {isinstance(rule.check(view, OPTIONS), str) for view in views} == {True, False}, "both are met"


@pytest.mark.parametrize("rule", RULES_OF[RuleArea.BROKER], ids=lambda rule: rule.name)
def test_every_sentence_about_brokers_is_so(rule: BrokerRule) -> None:
    views = brokers()
    assert list(wrong_sentences(rule, views, compiled(OF_BROKERS))) == []
    assert {isinstance(rule.check(view, OPTIONS), str) for view in views} == {True, False}, "both are met"
