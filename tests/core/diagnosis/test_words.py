"""Every sentence of a rule about subscriptions is a claim: it is compared with the facts that the rule was given.

The facts are those of the tests of the rules, mixed at random, so that a rule meets what it was not written for. A sentence that no
claim knows fails: a new one needs its claim here.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest
from pydanube_core.diagnosis.findings import Severity, SubscriptionRule
from pydanube_core.diagnosis.rules import RULES_OF, RuleArea
from pydanube_core.diagnosis.views import SubscriptionView

from tests.core.diagnosis.test_rules import FALLING, FIRING, HUNG, HUNG_S, NOW, OPTIONS, consumer, view

Match = re.Match[str]
Claim = Callable[[SubscriptionView, Match], bool]


def _number(match: Match, group: int = 1) -> float:
    return float(match[group])


def _close(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= 0.51


def _ago_s(facts: SubscriptionView, then_ms: int | None) -> float | None:
    return None if then_ms is None else max(0, facts.now_ms - then_ms) / 1000


def _silent_s(facts: SubscriptionView, name: str) -> list[float | None]:
    return [_ago_s(facts, one.heard_at_ms) for one in facts.consumers if one.name == name]


def _acknowledged_s(facts: SubscriptionView) -> float | None:
    return _ago_s(facts, facts.acknowledged.last_ms)


def _pace_is(facts: SubscriptionView, match: Match) -> bool:
    pace = facts.lag.pace
    return (
        pace is not None
        and _close(pace.produced, _number(match))
        and _close(pace.consumed, _number(match, 2))
    )


N: Final = r"([\d.]+)"
#: sentence, or part of one → whether it is so
CLAIMS: Final[dict[str, Claim]] = {
    # -- what is unread
    r"nothing is unread": lambda v, m: v.unread == 0,
    rf"{N} messages? waits?\b": lambda v, m: v.unread == _number(m),
    rf"{N} messages? of \S+ waits? for subscription": lambda v, m: v.unread == _number(m),
    rf"{N} messages? (?:is|are) unread, and late": lambda v, m: v.unread == _number(m) and v.lag.age.age_s != 0,
    rf"the oldest of {N} unread messages is {N} s old": lambda v, m: v.unread == _number(m) and _close(v.lag.age.age_s, _number(m, 2)),
    rf"the oldest of {N} unread messages? of": lambda v, m: v.unread == _number(m),
    rf": {N} messages? behind, ": lambda v, m: v.unread == _number(m),
    r"the lag's status is (\w+)": lambda v, m: v.status.value == m[1],
    r"the oldest unread message is of unknown age": lambda v, m: v.lag.age.age_s is None,
    rf"the oldest unread message is {N} s old": lambda v, m: _close(v.lag.age.age_s, _number(m)),
    # -- the cursor
    rf"the cursor moved {N} s ago": lambda v, m: _close(_ago_s(v, v.cursor_moved_ms), _number(m)),
    r"the cursor was not seen to move": lambda v, m: v.cursor_moved_ms is None,
    r"the cursor of \S+ / \S+ does not move": lambda v, m: v.status.value == "STUCK",
    rf"waits at offset {N}|has waited at offset {N}|wait from offset {N}|waits from offset {N}": lambda v, m: v.state.oldest_unread
    == float(next(group for group in m.groups() if group)),
    rf"has waited at offset \d+ for {N} s": lambda v, m: (_ago_s(v, v.cursor_moved_ms) or 1e9) >= _number(m) - 1,
    rf"{N} messages? behind it (?:is|are) acknowledged": lambda v, m: v.state.acked_above == _number(m),
    rf"{N} messages? behind the cursor's (?:is|are) acknowledged": lambda v, m: v.state.acked_above == _number(m),
    r"no message behind the cursor's is acknowledged": lambda v, m: v.state.acked_above == 0,
    r"messages after the held ones are acknowledged": lambda v, m: v.state.acked_above > v.state.in_flight,
    rf"and {N} (?:is|are) held": lambda v, m: v.state.in_flight == _number(m),
    rf"was moved back from {N} to {N}": lambda v, m: v.rewind is not None
    and (v.rewind.from_offset, v.rewind.to_offset) == (_number(m), _number(m, 2)),
    r"the cursor was moved back, which explains": lambda v, m: v.rewind is not None and v.state.next_unacked < v.rewind.from_offset,
    r"the cursor has not gone back": lambda v, m: v.rewind is None or v.rewind.to_offset >= v.rewind.from_offset,
    r"the cursor was not moved forward": lambda v, m: v.moved_forward is None,
    # -- consumers
    r"no consumer is attached": lambda v, m: not v.consumers,
    rf"{N} consumers? (?:is|are) attached": lambda v, m: len(v.consumers) == _number(m),
    rf": {N} (?:is|are) attached": lambda v, m: len(v.consumers) == _number(m),
    rf"{N} consumers? reads?, too slowly": lambda v, m: len(v.consumers) == _number(m) and 0 <= (_acknowledged_s(v) or 0) < 30 and v.acknowledged.in_window > 0,
    r"no consumer has come since the broker took the topic on": lambda v, m: v.departure is None and not v.consumers,
    r"no consumer is attached; '(\w+)' left": lambda v, m: v.departure is not None and v.departure.name == m[1],
    r"no connection of a consumer broke": lambda v, m: v.departure is None or not v.departure.abrupt,
    r"the last consumer did not leave: its connection broke": lambda v, m: v.departure is not None and v.departure.abrupt,
    r"the connection of consumer '(\w+)' of .* broke, and none has come back": lambda v, m: v.departure is not None
    and (v.departure.name, v.departure.abrupt, v.consumers) == (m[1], True, ()),
    r"no consumer has gone lately": lambda v, m: v.departures is None,
    rf"{N} consumers? (?:has|have) gone lately, {N} of them": lambda v, m: v.departures is not None
    and (v.departures.count, v.departures.abrupt) == (_number(m), _number(m, 2)),
    rf"come and go: {N} went within {N} s, {N} of them": lambda v, m: v.departures is not None
    and (v.departures.count, v.departures.abrupt) == (_number(m), _number(m, 3)),
    r"consumers come and go|consumers break and come again": lambda v, m: v.departures is not None and v.departures.count >= 3,
    rf"those attached have stayed for {N} s": lambda v, m: all(_ago_s(v, one.connected_at_ms) >= _number(m) - 1 for one in v.consumers),  # type: ignore[operator]
    r"its consumers have just come": lambda v, m: all((_ago_s(v, one.connected_at_ms) or 0) < 30 for one in v.consumers),
    rf"consumer '(\w+)' of .* holds {N} messages?, had been answering, and has answered nothing for {N} s": lambda v, m: any(
        _close(each, _number(m, 3)) for each in _silent_s(v, m[1])
    ),
    rf"every consumer that holds messages was heard of within {N} s, or has never answered any": lambda v, m: all(
        one.answered_at_ms is None or (_ago_s(v, one.heard_at_ms) or 0) < _number(m) or not one.in_flight
        or one.oldest_in_flight_s is None or one.oldest_in_flight_s < _number(m)
        for one in v.consumers
    ),
    r"the consumer that holds messages used to answer and is silent": lambda v, m: any(
        one.in_flight and one.answered_at_ms is not None and (_ago_s(v, one.heard_at_ms) or 0) >= OPTIONS.stuck_after_s
        for one in v.consumers
    ),
    r"consumer '(\w+)' answers nothing": lambda v, m: any(
        one.name == m[1] and (one.answered_at_ms is None or one.standing != "answering") for one in v.consumers
    ),
    rf"consumer '(\w+)' of .* let {N} deliver\w+ expire": lambda v, m: any(
        (one.name, one.expired) == (m[1], _number(m, 2)) for one in v.consumers
    ),
    r"it is set aside": lambda v, m: any(one.standing != "answering" for one in v.consumers),
    r"because no other consumer takes them": lambda v, m: all(one.expired or one.standing != "answering" for one in v.consumers),
    r"it goes on being sent messages": lambda v, m: any(one.expired and one.standing == "answering" for one in v.consumers),
    r"no consumer let a delivery expire since it answered last, and none is set aside": lambda v, m: not any(
        one.expired or one.standing != "answering" for one in v.consumers
    ),
    r"consumer '(\w+)' has held a message longest": lambda v, m: m[1]
    in [one.name for one in v.consumers if one.in_flight and (one.oldest_in_flight_s or 0) == max(each.oldest_in_flight_s or 0 for each in v.consumers)],
    rf"holds? {N} messages?, and nothing was acknowledged for {N} s": lambda v, m: v.state.in_flight == _number(m)
    and (not v.acknowledged.in_window or _close(_acknowledged_s(v), _number(m, 2))),
    rf"messages have been held for {N} s, less than": lambda v, m: _close(
        max(one.oldest_in_flight_s or 0.0 for one in v.consumers), _number(m)
    )
    or not any(one.in_flight for one in v.consumers),
    rf"takes {N} s a message, the other {N} take {N} s: it acknowledged {N} lately and holds {N}": lambda v, m: len(v.consumers) - 1
    == _number(m, 2)
    and any((one.acked, one.in_flight) == (_number(m, 4), _number(m, 5)) for one in v.consumers),
    rf"the slowest consumer, '(\w+)', takes {N} ms a message, the others {N} ms": lambda v, m: m[1] in [one.name for one in v.consumers],
    rf"the slowest consumer, '(\w+)', acknowledged {N} messages": lambda v, m: (m[1], _number(m, 2)) in [(one.name, one.acked) for one in v.consumers],
    rf"the slowest consumer, '(\w+)', holds {N} messages": lambda v, m: (m[1], _number(m, 2)) in [(one.name, one.in_flight) for one in v.consumers],
    rf"the consumers acknowledged {N} messages? lately": lambda v, m: sum(one.acked for one in v.consumers) == _number(m),
    r"handling times include the wait": lambda v, m: any(not one.handling_from_taken for one in v.consumers),
    r"the subscription is ([\w-]+): ": lambda v, m: v.type == m[1],
    # -- answers
    r"nothing is in flight": lambda v, m: v.state.in_flight == 0,
    r"none was acknowledged or is held": lambda v, m: not v.acknowledged.in_window and not v.state.in_flight,
    r"(?:none|nothing) (?:was|is) acknowledged(?: in the last| for \d+ s|:)": lambda v, m: v.acknowledged.in_window == 0
    or (_acknowledged_s(v) or 0) >= (OPTIONS.patience_s if v.lag.pace is not None and v.lag.pace.stands else OPTIONS.stuck_after_s),
    rf"the last acknowledgement came {N} s ago": lambda v, m: _close(_acknowledged_s(v), _number(m)),
    rf"{N} other messages? (?:was|were) acknowledged in": lambda v, m: v.acknowledged.in_window == _number(m),
    r"\d+ deliver(?:y|ies) expired": lambda v, m: v.unanswered.in_window == float(m[0].split()[0]),
    rf"and {N} messages? (?:was|were) sent again": lambda v, m: v.redelivered.in_window == _number(m),
    rf"{N} messages? (?:was|were) acknowledged after they had expired, of {N} deliveries": lambda v, m: v.answered_late == _number(m)
    and v.unanswered.total == _number(m, 2),
    r"acknowledged after their ack timeout|expired messages are acknowledged later": lambda v, m: 2 * v.answered_late >= v.unanswered.total > 0,
    rf"only {N} of many expire": lambda v, m: v.unread == _number(m) < v.state.acked_above,
    # -- failures
    rf"{N} different messages? (?:was|were) given back as failed": lambda v, m: v.failing + v.dead_lettered.in_window + v.dropped.in_window
    == _number(m),
    rf"{N} different messages were given back once": lambda v, m: v.failing == _number(m) and (v.head_of_line is None or v.head_of_line.failures < 2),
    r"every message fails": lambda v, m: not v.acknowledged.in_window and v.failed.in_window >= 10,
    rf"the message at offset {N} of \S+ has failed {N} times?": lambda v, m: v.head_of_line is not None
    and (v.head_of_line.offset, v.head_of_line.failures) == (_number(m), _number(m, 2)),
    r"and blocks the subscription": lambda v, m: v.head_of_line is not None and v.head_of_line.blocked,
    r"no message has failed three times": lambda v, m: v.head_of_line is None,
    rf"the message that failed most, offset {N}, did so {N}": lambda v, m: v.head_of_line is not None
    and (v.head_of_line.offset, v.head_of_line.failures) == (_number(m), _number(m, 2)),
    rf"the message at offset {N} is given back as failed": lambda v, m: v.head_of_line is not None
    and v.head_of_line.offset == _number(m)
    and v.head_of_line.reason != "ack timeout",
    rf"offset {N} came back {N} times unanswered": lambda v, m: v.head_of_line is not None
    and (v.head_of_line.reason, v.head_of_line.failures) == ("ack timeout", _number(m, 2)),
    rf"offset {N} did not come back": lambda v, m: v.head_of_line is None or v.head_of_line.offset != _number(m),
    rf"{N} times? sent and not answered": lambda v, m: v.head_of_line is not None and v.head_of_line.deliveries == _number(m),
    rf"{N} messages? of \S+ (?:was|were) dead-lettered for": lambda v, m: v.dead_lettered.in_window == _number(m),
    rf"no message was dead-lettered in the last \d+ s \({N} since": lambda v, m: (v.dead_lettered.in_window, v.dead_lettered.total) == (0, _number(m)),
    rf"{N} messages? of \S+ (?:was|were) dropped for": lambda v, m: v.dropped.in_window == _number(m),
    rf"no message was dropped in the last \d+ s \({N} since": lambda v, m: (v.dropped.in_window, v.dropped.total) == (0, _number(m)),
    r"the poison policy is (\w+)": lambda v, m: v.poison_policy == m[1],
    r"consumer '(\w+)' of .* was refused \d+ times? within|'(\w+)' held it": lambda v, m: (m[1] or m[2])
    in [text for one in v.refusals for text in (one.name, one.holder)],
    r"no consumer was refused": lambda v, m: not v.refusals,
    rf"consumer '(\w+)' was refused {N} times?, fewer": lambda v, m: [one.name for one in v.refusals].count(m[1]) == _number(m, 2),
    # -- keys, rates, retention, quotas
    rf"one key holds {N} of {N} unread messages": lambda v, m: v.keys is not None and (v.keys.messages, v.keys.sampled) == (_number(m), _number(m, 2)),
    rf"the most frequent key has {N} of {N}": lambda v, m: v.keys is not None and (v.keys.messages, v.keys.sampled) == (_number(m), _number(m, 2)),
    r"one key holds most of the unread": lambda v, m: v.keys is not None and 2 * v.keys.messages >= v.keys.sampled,
    r"too few unread messages are at hand": lambda v, m: v.keys is None or v.keys.sampled < 20,
    rf"accept nothing: {N} messages? counts? as read": lambda v, m: v.unrouted.in_window == _number(m),
    r"no message was passed over": lambda v, m: v.unrouted.in_window == 0,
    rf"{N} messages? (?:was|were) passed over by key, and {N}": lambda v, m: (v.unrouted.in_window, v.acknowledged.in_window) == (_number(m), _number(m, 2)),
    r"a burst of messages explains|messages? more than usual within|messages above the usual": lambda v, m: v.production is not None
    and v.production.burst is not None,
    rf"'\w+' works on the {N} that": lambda v, m: v.unread == _number(m) and bool(v.consumers) and (_acknowledged_s(v) or 0) <= 30,
    r"no part of the last|messages have come for": lambda v, m: v.production is not None and v.production.burst is None,
    r"the growth of the log is not measured": lambda v, m: v.production is None,
    rf"{N} a second came and {N} were read in the last {N} s": lambda v, m: _pace_is(v, m) and _close(_ago_s(v, v.lag.pace.since_ms), _number(m, 3)),  # type: ignore[union-attr]
    rf"{N} a second came and none were read in the last {N} s": lambda v, m: v.lag.pace is not None
    and (v.lag.pace.stands, v.lag.pace.consumed) == (True, 0)
    and _close(_ago_s(v, v.lag.pace.since_ms), _number(m, 2)),
    rf"{N} a second came and {N} were read in the {N} s until {N} s ago, before": lambda v, m: _pace_is(v, m)
    and _close(_ago_s(v, v.lag.measured_until_ms), _number(m, 4)),
    r"rates not known": lambda v, m: v.lag.pace is None,
    r"its consumers hold messages and acknowledge none": lambda v, m: v.state.in_flight > 0 and (_acknowledged_s(v) or 1e9) >= 30,
    r"is held to \d+ messages? a second by its dispatch limit": lambda v, m: v.dispatch_rate_limit > 0,
    r"messages a second came until|neither the rate of production": lambda v, m: True,  # tested beside `rate_step`
    r"retention is about to take|retention has taken": lambda v, m: v.status.value in ("AT_RISK", "DATA_LOST"),
    r"retention takes nothing that is unread": lambda v, m: v.lag.retention_headroom_s is None,
    r"no threshold is set": lambda v, m: not v.thresholds.any,
    r"no delivery waited for a quota": lambda v, m: not v.slowed,
    r"message_held says it": lambda v, m: v.status.value == "STUCK" and v.state.acked_above > v.state.in_flight,
}  # fmt: skip
_COMPILED: Final = {re.compile(pattern): claim for pattern, claim in CLAIMS.items()}


def false_claims(facts: Any, sentence: str, compiled: Mapping[re.Pattern[str], Any] = _COMPILED) -> list[str]:
    """Return the claims of a sentence that are not so, or that it makes none that is known."""
    found = [(match, claim) for pattern, claim in compiled.items() if (match := pattern.search(sentence))]
    if not found:
        return ["no claim is known of this sentence"]
    return [match[0] for match, claim in found if not claim(facts, match)]


def mixed(pool: Sequence[Any], seed: int, count: int) -> list[Any]:
    """Return facts of the pool, with some of their values exchanged at random."""
    chance = random.Random(seed)
    kept = ("topic", "log", "partition", "subscription", "now_ms", "created_ms", "broker_id")
    names = [each.name for each in dataclasses.fields(pool[0]) if each.name not in kept]
    values = {name: [getattr(facts, name) for facts in pool] for name in names}
    found = []
    for _ in range(count):
        changes = {
            name: chance.choice(values[name]) for name in chance.sample(sorted(values), chance.randint(0, 6))
        }
        found.append(dataclasses.replace(chance.choice(pool), **changes))
    return found


def wrong_sentences(
    rule: Any, views: Sequence[Any], compiled: Mapping[re.Pattern[str], Any] = _COMPILED
) -> dict[str, Any]:
    """Return false claims of a rule with their sentences, and the facts of which they were made."""
    wrong: dict[str, Any] = {}
    for facts in views:
        outcome = rule.check(facts, OPTIONS)
        sentence = outcome if isinstance(outcome, str) else outcome.summary
        for claim in false_claims(facts, sentence, compiled):
            wrong.setdefault(re.sub(r"[\d.]+", "N", f"{claim} ← {sentence}"), facts)
    return wrong


BEFORE: Final = dataclasses.replace(FALLING, measured_until_ms=NOW - 7000)
POOL: Final = [facts for _, facts in FIRING] + [
    view(unread=0),
    view(lag=BEFORE, consumers=(consumer(),)),
    view(lag=HUNG, acknowledged=HUNG_S),
]


@pytest.mark.parametrize("rule", RULES_OF[RuleArea.SUBSCRIPTION], ids=lambda rule: rule.name)
def test_every_sentence_of_a_rule_is_so(rule: SubscriptionRule) -> None:
    wrong = wrong_sentences(rule, mixed(POOL, len(rule.name), 1500))
    assert list(wrong) == []


def test_a_false_sentence_is_seen() -> None:
    stands = view(cursor_moved_ms=None)
    assert false_claims(stands, "the lag's status is STUCK, and the cursor moved 3 s ago") == [
        "the cursor moved 3 s ago"
    ]
    assert false_claims(stands, "something else") == ["no claim is known of this sentence"]
    assert stands.lag.status.value == "STUCK"
    assert Severity.INFO < Severity.WARNING
