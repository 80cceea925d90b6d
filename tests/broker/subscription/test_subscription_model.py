"""Every subscription type against a reference that thinks in single messages.

The reference keeps one record a message and no masks, ranges or heaps. It predicts exactly what is open, in flight,
waiting, blocked and how often each message was delivered; what the core chooses to send is checked against the
promises: nothing lost (when the core says there is nothing to send, the reference agrees), nothing after its ack,
order by type, credit and window kept, counts exact, state unchanged on error.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydanube_broker.subscription import subscription as subscription_module
from pydanube_broker.subscription.answers import refresh_every_ms
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.consumer import Standing
from pydanube_broker.subscription.cursor import (
    CursorSnapshot,
    apply_deltas,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
)
from pydanube_broker.subscription.effects import Blocked, DeadLetter, Dropped, Effect, Expired
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import Plan, Selection
from pydanube_broker.subscription.policy import FailurePolicy, PoisonPolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.subscription.window import Reopened
from pydanube_core.errors import Conflict, ConsumerBusy, NotDelivered

from tests.broker.subscription.invariants import check, runs, take_changes
from tests.broker.subscription.recording_window import RecordingWindow
from tests.broker.subscription.states import CONSUMER_MOVES, MESSAGE_MOVES, ConsumerState

KEYS = ("a1", "b1", "c")
SLOT = {"a1": 7, "b1": 7, "c": 65_535}  # a1 and b1 share a slot
SPAN = 24


@dataclass
class Sent:
    """A message in flight, by the reference."""

    consumer_id: int
    deadline_ms: int | None
    sent_at_ms: int = 0
    taken: bool = True  # the application has it, as far as is known


@dataclass
class Peer:
    """A consumer, by the reference."""

    name: str
    session: int
    credit: int
    timeout_ms: int
    window: bool
    filters: tuple[str, ...]
    paused: bool = False
    refresh_at_ms: int = 0
    state: ConsumerState = ConsumerState.ACTIVE
    since_ms: int = 0  # set aside
    trial_at_ms: int | None = None
    trials: int = 0
    answered: bool = False  # since something was last sent or late
    answered_at_ms: int = -1
    reports: bool = False
    single: bool = False
    max_extend_ms: int = 0
    buffer: list[int] = field(
        default_factory=list
    )  # sent in this session and not taken, in the order of sending
    expired: int = 0  # since its last answer
    sent: int = 0
    took: int = 0  # in this session
    took_at_ms: int = -1

    def begin_session(self, session: int) -> None:
        self.session, self.took = session, 0
        self.buffer.clear()

    def date_answers(self, now_ms: int) -> None:
        if self.answered:
            self.answered, self.answered_at_ms, self.expired = False, now_ms, 0


@dataclass
class Durable:
    """What a crash goes back to."""

    cursor: CursorSnapshot
    done: set[int] = field(default_factory=set)
    returned: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)


class DeliveryMachine(RuleBasedStateMachine):
    kind: ClassVar[SubscriptionType]
    singles: ClassVar[tuple[bool, ...]] = (False,)
    ordered: ClassVar[tuple[bool | None, ...]] = (None, True)
    filters: ClassVar[tuple[tuple[str, ...], ...]] = ((),)
    reports: ClassVar[bool] = False  # whether some consumers say what their applications take

    @initialize(
        start=st.integers(0, 3),
        policy=st.builds(
            FailurePolicy,
            max_redelivery_count=st.integers(0, 2),
            ack_timeout_ms=st.sampled_from((0, 40)),
            base_redelivery_delay_ms=st.sampled_from((0, 10)),
            max_redelivery_delay_ms=st.sampled_from((30, 100)),
            poison_policy=st.sampled_from(PoisonPolicy),
            jitter=st.just(0.0),
        ),
        data=st.data(),
    )
    def begin(self, start: int, policy: FailurePolicy, data: st.DataObject) -> None:
        self.now = 0
        self.log: dict[int, str] = {}  # offset -> key; holes are absent
        self.gone: set[int] = set()  # removed from the log after they were read; nobody was told
        self.end = start
        self.policy = policy
        self.ordered_retry = data.draw(st.sampled_from(self.ordered))
        self.sub = Subscription(
            self.kind,
            cursor=CursorSnapshot(floor=start),
            end=start,
            policy=policy,
            span_messages=SPAN,
            ordered_retry=self.ordered_retry,
        )
        if self.ordered_retry is None:
            self.ordered_retry = self.kind is SubscriptionType.KEY_SHARED
        self.peers: dict[int, Peer] = {}
        self.states: dict[int, ConsumerState] = {}
        self.ahead: set[int] = set()  # done before anybody read it: not counted in the window
        self.ids = 0
        self.cursor = self.sub.snapshot()
        self.forget()
        self.done: set[int] = set(range(start))
        self.durable = Durable(cursor=self.cursor, done=set(self.done))
        self.totals: Counter[str] = Counter()  # since the begin or the crash
        self.append(data.draw(st.lists(st.sampled_from(KEYS), max_size=12)))
        for name in "wx"[: data.draw(st.integers(0, 2))]:
            self.attach(name, data.draw(st.integers(1, 12)), False, None, data)

    def forget(self) -> None:
        self.flight: dict[int, Sent] = {}
        self.waiting: dict[int, int] = {}
        self.ready: set[int] = set()
        self.blocked: set[int] = set()
        self.terminated: set[int] = set()
        self.dying: set[int] = set()
        self.again_at: dict[int, int] = {}  # dead letters to be asked for again
        self.dying_failures: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.first_sent = -1
        self.came_from: dict[int, int] = {}  # failed with that consumer, and not sent since

    # -- the reference --------------------------------------------------------------------------------------------

    def state_maps(self) -> list[Any]:
        return [self.flight, self.waiting, self.ready, self.blocked, self.dying]

    def seen(self, offset: int) -> bool:
        return any(offset in states for states in self.state_maps())

    def finish(self, offset: int) -> None:
        if offset in self.flight:
            self.land(offset)
        self.waiting.pop(offset, None)
        self.again_at.pop(offset, None)
        for states in (self.ready, self.blocked, self.dying):
            states.discard(offset)
        self.returned.pop(offset, None)
        self.failures.pop(offset, None)
        self.dying_failures.pop(offset, None)
        self.came_from.pop(offset, None)
        self.done.add(offset)

    def land(self, offset: int) -> None:
        peer = self.peers.get(self.flight.pop(offset).consumer_id)
        if peer is not None and peer.window:
            peer.credit += 1

    # -- consumers that let everything expire --------------------------------------------------------------------

    def rich(self, consumer_id: int) -> bool:
        peer = self.peers[consumer_id]
        may = peer.state is ConsumerState.ACTIVE or (
            peer.state is ConsumerState.ON_TRIAL and not self.holds(consumer_id)
        )
        return may and peer.credit > 0 and not peer.paused

    def holds(self, consumer_id: int) -> int:
        return sum(sent.consumer_id == consumer_id for sent in self.flight.values())

    def aside(self, consumer_id: int) -> bool:
        return self.peers[consumer_id].state is ConsumerState.SET_ASIDE

    def stands_in(self, one: int, other: int) -> bool:
        """Whether a consumer takes all that another takes."""
        if one == other or not (self.peers[one].credit or self.holds(one)):
            return False
        return self.peers[one].filters in ((), self.peers[other].filters)

    def may_set_aside(self, consumer_id: int) -> bool:
        exclusive = self.kind is SubscriptionType.EXCLUSIVE
        return not exclusive and any(self.stands_in(one, consumer_id) for one in self.peers)

    def set_aside(self, consumer_id: int) -> None:
        peer = self.peers[consumer_id]
        peer.state, peer.since_ms = ConsumerState.SET_ASIDE, self.now
        if self.kind is not SubscriptionType.FAILOVER:
            peer.trial_at_ms = self.now + peer.timeout_ms * 4 * 2 ** min(peer.trials, 4)
            peer.trials += 1
        self.settle(but=consumer_id)
        if self.kind is not SubscriptionType.SHARED:
            self.release(consumer_id)
            session = self.sub.session_of(consumer_id)
            assert session is not None
            assert session > peer.session
            peer.begin_session(session)

    def settle(self, but: int | None = None) -> None:
        """Nobody is set aside for whom nobody stands in."""
        aside = [one for one in self.peers if self.aside(one) and one != but]
        for one in sorted(aside, key=lambda one: self.peers[one].since_ms):
            if not any(self.stands_in(o, one) and not self.aside(o) for o in self.peers):
                self.take_back(one)

    def take_back(self, consumer_id: int, state: ConsumerState = ConsumerState.ACTIVE) -> None:
        peer = self.peers[consumer_id]
        peer.state, peer.trial_at_ms = state, None
        if self.kind is SubscriptionType.FAILOVER:
            self.peers[consumer_id] = self.peers.pop(consumer_id)

    def answers(self, consumer_id: int) -> None:
        peer = self.peers[consumer_id]
        peer.answered = True
        if peer.state is not ConsumerState.ACTIVE:
            peer.trials = 0
            self.take_back(consumer_id)

    def fail(
        self, offset: int, *, requested_ms: int = 0, terminated: bool = False, at_once: bool = False
    ) -> str | None:
        """The message failed: its new state, and what effect that must have."""
        if not terminated:
            self.came_from[offset] = self.flight[offset].consumer_id
        self.land(offset)
        self.returned[offset] = self.returned.get(offset, 0) + 1
        self.failures[offset] = self.failures.get(offset, 0) + 1
        if terminated:
            self.terminated.add(offset)
        else:
            self.terminated.discard(offset)
        if terminated or self.failures[offset] > self.policy.max_redelivery_count:
            return self.exhaust(offset)
        base = self.policy.base_redelivery_delay_ms * 2 ** (self.failures[offset] - 1)
        delay = min(max(base, requested_ms), self.policy.max_redelivery_delay_ms)
        if delay and not at_once:
            self.waiting[offset] = self.now + delay
        else:
            self.ready.add(offset)
        return None

    def exhaust(self, offset: int) -> str:
        match self.policy.poison_policy:
            case PoisonPolicy.BLOCK:
                self.blocked.add(offset)
            case PoisonPolicy.DROP:
                self.totals["dropped"] += 1
                self.finish(offset)
            case PoisonPolicy.DEAD_LETTER:
                self.dying.add(offset)
        return self.policy.poison_policy.value

    def check_effects(self, effects: list[Effect], expected: dict[str, set[int]]) -> None:
        found: dict[str, set[int]] = {}
        names = {Blocked: "block", Dropped: "drop", DeadLetter: "dead_letter", Expired: "expired"}
        for effect in effects:
            name = names.get(type(effect))  # type: ignore[arg-type]
            if name is None:
                continue
            assert isinstance(effect, Blocked | Dropped | DeadLetter | Expired)
            offsets = {o for s, e in effect.ranges for o in range(s, e)}
            assert not offsets & found.get(name, set()), "an effect was reported twice"
            found.setdefault(name, set()).update(offsets)
            if isinstance(effect, Blocked | DeadLetter):
                assert all(self.returned[o] == effect.delivery_count for o in offsets)
        assert found == {name: offsets for name, offsets in expected.items() if offsets}

    def accepts(self, peer: Peer, key: str) -> bool:
        return not peer.filters or any(fnmatchcase(key, f) for f in peer.filters)

    def unit(self, offset: int) -> int:
        return SLOT[self.log[offset]]

    def stops(self) -> set[int]:
        return self.blocked | (set(self.waiting) if self.ordered_retry else set())

    def next_offset(self) -> int:
        return self.sub.statistics(self.now).next_offset

    def unseen(self) -> list[int]:
        return [o for o in self.log if o >= self.next_offset() and o not in self.done]

    def closed(self, offset: int) -> bool:
        cursor = self.sub.snapshot()
        return offset < cursor.floor or any(s <= offset < e for s, e in cursor.acknowledged)

    def window_used(self) -> int:
        """Messages between floor and next, the acknowledged ones among them too.

        Messages acknowledged before a restart, or removed from the log before they were read, are not counted.
        """
        return sum(
            1 for o in self.log if self.sub.floor <= o < self.next_offset() and o not in self.uncounted()
        )

    def uncounted(self) -> set[int]:
        return {o for o in self.done if o in self.ahead}

    def sendable(self) -> set[int]:
        """Messages that the core may not leave lying when it says that there is nothing to send."""
        stops = self.stops()
        if not any(map(self.rich, self.peers)):
            return set()
        first = next(one for one in self.peers if not self.aside(one))
        if self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER) and not self.rich(first):
            return set()
        barrier = min(stops, default=1 << 60)
        found = {o for o in self.ready if o < barrier}
        if not stops and self.window_used() < SPAN:
            found |= set(self.unseen())
        return found

    # -- what happens ---------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from((*KEYS, None)), min_size=1, max_size=12))
    def publish(self, keys: list[str | None]) -> None:
        self.append(keys)

    def append(self, keys: list[str | None]) -> None:
        for key in keys:
            if key is not None:
                self.log[self.end] = key
            self.end += 1
        self.sub.grew(self.end)

    @rule(
        name=st.sampled_from("wxyz"),
        credit=st.integers(0, 12),
        window=st.booleans(),
        timeout=st.sampled_from((None, 0, 15)),
        data=st.data(),
    )
    def join(self, name: str, credit: int, window: bool, timeout: int | None, data: st.DataObject) -> None:
        self.attach(name, credit, window, timeout, data)

    def attach(self, name: str, credit: int, window: bool, timeout: int | None, data: st.DataObject) -> None:
        self.ids += 1
        window = window and credit > 0
        filters = data.draw(st.sampled_from(self.filters))
        single = data.draw(st.sampled_from(self.singles))
        reports = self.reports and not single and data.draw(st.booleans())
        max_extend_ms = data.draw(st.sampled_from((0, 60))) if reports else 0
        options = {"window_messages": credit} if window else {"credit_messages": credit, "credit_bytes": None}
        if self.kind is SubscriptionType.EXCLUSIVE and self.peers:
            (holder,) = self.peers.values()
            if holder.name != name:
                before = (self.sub.statistics(self.now), self.sub.snapshot())
                with pytest.raises(ConsumerBusy):
                    self.sub.join(self.ids, name, self.now, ConsumerTerms())
                assert (self.sub.statistics(self.now), self.sub.snapshot()) == before
                return
        self.sub.join(
            self.ids,
            name,
            self.now,
            ConsumerTerms(
                ack_timeout_ms=timeout,
                single=single,
                key_filters=filters,
                reports=reports,
                max_extend_ms=max_extend_ms,
                **options,  # type: ignore[arg-type]
            ),
        )
        session = self.sub.session_of(self.ids)
        assert session is not None
        assert session > max((p.session for p in self.peers.values()), default=0)
        peer = Peer(
            name=name,
            session=session,
            credit=credit,
            timeout_ms=self.policy.ack_timeout_ms if timeout is None else timeout,
            window=window,
            filters=filters,
            reports=reports,
            single=single,
            max_extend_ms=max_extend_ms,
        )
        taken = [cid for cid, p in self.peers.items() if p.name == name]
        for cid in taken:
            if self.kind is SubscriptionType.FAILOVER and self.aside(cid):
                self.take_back(cid)  # its place is behind whoever took over
            self.release(cid)
        # A take-over keeps its predecessor's place in the line.
        self.peers = {
            (self.ids if cid in taken else cid): (peer if cid in taken else p)
            for cid, p in self.peers.items()
        }
        if not taken:
            self.peers[self.ids] = peer
        self.settle()

    def release(self, consumer_id: int) -> None:
        for offset in [o for o, s in self.flight.items() if s.consumer_id == consumer_id]:
            self.land(offset)
            self.returned[offset] = self.returned.get(offset, 0) + 1
            self.ready.add(offset)

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
        self.sub.leave(consumer_id, self.now)
        self.release(consumer_id)
        del self.peers[consumer_id]
        self.settle()

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), messages=st.integers(1, 15))
    def grant(self, data: st.DataObject, messages: int) -> None:
        consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
        if not self.peers[consumer_id].window:
            self.sub.members.grant(consumer_id, messages, 0)
            self.peers[consumer_id].credit += messages

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def pump(self, data: st.DataObject) -> None:
        """Send until the core has nothing more, in readings of any size."""
        for _ in range(300):
            bound = data.draw(st.sampled_from((None, None, 1, 3)))
            plan = self.sub.sending.next_plan(max_messages=bound)
            if plan is None:
                left = self.sendable()
                assert not left, (
                    f"nothing is sent although {sorted(left)} may be: {self.sub.statistics(self.now)}"
                )
                return
            assert bound is None or plan.max_messages <= bound
            self.answer(plan, data.draw(st.sampled_from((1, 2, 5, 100))))
            check(self.sub)
        raise AssertionError("the core never comes to an end")

    def answer(self, plan: Plan, at_most: int) -> None:
        wanted = [o for s, e in plan.ranges for o in range(s, e)]
        there = [o for o in wanted if o in self.log and o not in self.gone]
        taken = there[: min(plan.max_messages, at_most)]
        next_offset = there[len(taken)] if len(there) > len(taken) else plan.end_limit
        ranges: Sequence[tuple[int, int]] = runs(taken)
        if type(plan.ranges) is ChunkMasks and taken == [o for o in wanted if o < next_offset]:
            ranges = ChunkMasks(plan.ranges.below(next_offset))  # as the sender picks them
        if plan.consumer_id is not None:
            assert self.sub.sending.sent(plan, ranges, len(taken), next_offset, self.now)
            if taken:
                assert not self.sub.sending.sent(plan, ranges, len(taken), next_offset, self.now), (
                    "sent twice"
                )
            assert self.peers[plan.consumer_id].session == plan.session
            for offset in set(wanted) - set(taken):
                if offset < next_offset and not plan.fresh:
                    self.finish(offset)
            self.delivered(plan, plan.consumer_id, taken)
        else:
            self.route(plan, taken, ranges, next_offset)

    def route(
        self, plan: Plan, taken: list[int], ranges: Sequence[tuple[int, int]], next_offset: int
    ) -> None:
        selections = self.sub.sending.routed(plan, ranges, next_offset, self.now, sizes=[1] * len(taken))
        assert selections is not None
        chosen = [(taken[i], s) for s in selections for i in s.indices]
        assert len({o for o, _ in chosen}) == len(chosen), "one message for two consumers"
        for selection in selections:
            assert self.peers[selection.consumer_id].session == selection.session
            assert selection.delivery_count == plan.delivery_count
        self.spread(plan, taken, selections)

    def spread(self, plan: Plan, taken: list[int], selections: list[Selection]) -> None:
        """Strict round robin: consecutive messages go to consecutive consumers that have credit."""
        target = {taken[i]: s.consumer_id for s in selections for i in s.indices}
        assert sorted(target) == taken[: len(target)], "a message was left out"
        for offset in sorted(target):
            self.delivered(plan, target[offset], [offset])

    def delivered(self, plan: Plan, consumer_id: int, offsets: list[int]) -> None:
        peer = self.peers[consumer_id]
        assert len(offsets) <= peer.credit, "more than the credit"
        assert not (offsets and peer.paused), "sent to a paused consumer"
        if offsets:
            assert self.rich(consumer_id), (
                "sent to one that is set aside, or to one on trial that holds a message"
            )
            assert peer.state is ConsumerState.ACTIVE or len(offsets) == 1
            peer.date_answers(self.now)
        others = any(
            self.rich(one) and self.peers[one].state is ConsumerState.ACTIVE and one != consumer_id
            for one in self.peers
        )
        peer.credit -= len(offsets)
        peer.sent += len(offsets)
        if self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            first = next(one for one in self.peers if not self.aside(one))
            assert consumer_id == first, "only the first consumer is active"
        assert offsets == sorted(offsets)
        stops = self.stops()
        for offset in offsets:
            assert offset not in self.done, "delivered after its ack"
            assert plan.delivery_count == self.returned.get(offset, 0) + 1
            if self.kind is not SubscriptionType.KEY_SHARED:
                assert offset < min(stops, default=1 << 60), "sent although an earlier message stops it"
            if plan.fresh:
                assert not self.seen(offset)
                if self.kind is not SubscriptionType.KEY_SHARED:
                    assert offset > self.first_sent, "first deliveries out of order"
                    assert not self.ready, "something new before what came back"
                    self.first_sent = offset
            else:
                assert offset in self.ready
                in_order = not any(o < offset for o in self.ready)
                assert in_order or self.kind is SubscriptionType.KEY_SHARED, (offset, self.ready, plan)
                if self.kind is SubscriptionType.SHARED and offset == offsets[0] and others:
                    assert self.came_from.get(offset) != consumer_id, "not offered to another one first"
                    assert peer.state is ConsumerState.ACTIVE, "came again to one on trial"
                self.ready.discard(offset)
            self.came_from.pop(offset, None)
            deadline = self.now + peer.timeout_ms if peer.timeout_ms else None
            self.flight[offset] = Sent(consumer_id, deadline, self.now, taken=not peer.reports)
            if peer.reports:
                peer.buffer.append(offset)

    # -- answers --------------------------------------------------------------------------------------------------

    def some_ranges(self, data: st.DataObject) -> list[tuple[int, int]]:
        low = max(0, self.sub.floor - 2)
        high = max(self.next_offset() + 1, low + 1)
        offsets = data.draw(st.lists(st.integers(low, high), min_size=1, max_size=4))
        lengths = data.draw(st.lists(st.integers(1, 6), min_size=len(offsets), max_size=len(offsets)))
        return [(o, o + n) for o, n in zip(offsets, lengths, strict=True)]

    def sound_ranges(self, consumer_id: int, data: st.DataObject) -> list[tuple[int, int]]:
        """Ranges of what the consumer holds, most of the time."""
        held = sorted(o for o, s in self.flight.items() if s.consumer_id == consumer_id)
        if held and data.draw(st.integers(0, 5)):
            return runs(sorted(data.draw(st.sets(st.sampled_from(held), min_size=1))))
        return self.some_ranges(data)

    def refused(self, consumer_id: int, ranges: list[tuple[int, int]]) -> bool:
        for offset in {o for s, e in ranges for o in range(s, e)}:
            if offset >= self.next_offset():
                if not self.closed(offset):
                    return True
            elif offset in self.log and offset not in self.done:
                sent = self.flight.get(offset)
                if (sent is None or sent.consumer_id != consumer_id) and not self.returned.get(offset):
                    return True
        return False

    def answering(self, data: st.DataObject) -> tuple[int, Peer, list[tuple[int, int]]]:
        consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
        return consumer_id, self.peers[consumer_id], self.sound_ranges(consumer_id, data)

    def held(self, consumer_id: int, ranges: list[tuple[int, int]]) -> list[int]:
        return sorted(
            {
                o
                for s, e in ranges
                for o in range(s, e)
                if o in self.flight and self.flight[o].consumer_id == consumer_id
            }
        )

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        consumer_id, peer, ranges = self.answering(data)
        refused = self.refused(consumer_id, ranges)
        expected = {o for s, e in ranges for o in range(s, e) if self.seen(o)}
        masks: list[tuple[int, int]] = []
        if data.draw(st.booleans()):
            ranges, masks = [], [(o, 1) for s, e in ranges for o in range(s, e)]
        if refused:
            before = (self.sub.statistics(self.now), self.sub.snapshot())
            with pytest.raises(NotDelivered):
                self.sub.answers.ack(consumer_id, peer.session, ranges, masks)
            assert (self.sub.statistics(self.now), self.sub.snapshot()) == before
            return
        self.answers(consumer_id)
        assert self.sub.answers.ack(consumer_id, peer.session, ranges, masks) == len(expected)
        self.totals["acknowledged"] += len(expected)
        for offset in expected:
            self.finish(offset)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), asked=st.sampled_from((0, 0, 25, 1000)), terminate=st.booleans())
    def nack(self, data: st.DataObject, asked: int, terminate: bool) -> None:
        consumer_id, peer, ranges = self.answering(data)
        if self.refused(consumer_id, ranges):
            before = (self.sub.statistics(self.now), self.sub.snapshot())
            with pytest.raises(NotDelivered):
                self.sub.answers.nack(consumer_id, peer.session, ranges, self.now)
            assert (self.sub.statistics(self.now), self.sub.snapshot()) == before
            return
        if terminate:
            effects = self.sub.answers.terminate(consumer_id, peer.session, ranges, self.now)
        else:
            effects = self.sub.answers.nack(consumer_id, peer.session, ranges, self.now, delay_ms=asked)
        self.answers(consumer_id)
        expected: dict[str, set[int]] = {}
        for offset in self.held(consumer_id, ranges):
            outcome = self.fail(offset, requested_ms=asked, terminated=terminate)
            if outcome is not None:
                expected.setdefault(outcome, set()).add(offset)
        self.check_effects(effects, expected)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), longer=st.integers(1, 60))
    def extend(self, data: st.DataObject, longer: int) -> None:
        consumer_id, peer, ranges = self.answering(data)
        if self.refused(consumer_id, ranges):
            return
        self.answers(consumer_id)
        held = [o for o in self.held(consumer_id, ranges) if self.flight[o].deadline_ms is not None]
        assert self.sub.answers.extend(consumer_id, peer.session, ranges, longer, self.now) == len(held)
        for offset in held:
            self.flight[offset].deadline_ms = self.now + longer

    def answer_late(self, data: st.DataObject) -> None:
        """Answers of another session change nothing."""
        if not self.peers:
            return
        consumer_id, peer, ranges = self.answering(data)
        before = self.sub.snapshot()
        stale = self.sub.statistics(self.now).stale_answers
        assert self.sub.answers.ack(consumer_id, peer.session - 1, ranges) == 0
        assert self.sub.answers.nack(self.ids + 100, peer.session, ranges, self.now) == []
        assert self.sub.snapshot() == before
        assert self.sub.statistics(self.now).stale_answers == stale + 2

    def answer_without_name(self, data: st.DataObject) -> None:
        """Clients that name no consumer: whatever was ever sent may be answered, the rest is ignored."""
        ranges = self.some_ranges(data)
        offsets = sorted({o for s, e in ranges for o in range(s, e)})
        answered = {self.flight[o].consumer_id: o + 1 for o in offsets if o in self.flight}
        for one in answered:
            self.answers(one)
        if data.draw(st.booleans()):
            expected = [o for o in offsets if o in self.flight or (self.seen(o) and self.returned.get(o))]
            assert self.sub.answers.ack_delivered(ranges, self.now) == len(expected)
            self.totals["acknowledged"] += len(expected)
            for offset in expected:
                late = self.came_from.get(offset)
                if late in self.peers and late not in answered:
                    self.answers(late)
            for offset in expected:
                self.finish(offset)
            self.refresh(answered)
            return
        effects = self.sub.answers.nack_delivered(ranges, self.now)
        outcomes: dict[str, set[int]] = {}
        for offset in offsets:
            if offset in self.flight and (outcome := self.fail(offset)) is not None:
                outcomes.setdefault(outcome, set()).add(offset)
        self.refresh(answered)
        self.check_effects(effects, outcomes)

    def refresh(self, answered: dict[int, int]) -> None:
        """What a consumer holds behind its answer has its whole time again."""
        for consumer_id, offset in answered.items():
            peer = self.peers[consumer_id]
            if not peer.timeout_ms or self.now < peer.refresh_at_ms:
                continue
            peer.refresh_at_ms = self.now + refresh_every_ms(peer.timeout_ms)
            for at, sent in self.flight.items():
                if at >= offset and sent.consumer_id == consumer_id and sent.deadline_ms is not None:
                    sent.deadline_ms = max(sent.deadline_ms, self.now + peer.timeout_ms)

    def pause_or_resume(self, data: st.DataObject) -> None:
        if self.peers:
            consumer_id = data.draw(st.sampled_from(sorted(self.peers)))
            peer = self.peers[consumer_id]
            peer.paused = not peer.paused
            (self.sub.members.pause if peer.paused else self.sub.members.resume)(consumer_id)

    @rule(step=st.sampled_from((1, 10, 40, 200)))
    def time_passes(self, step: int) -> None:
        self.now += step
        effects = self.sub.tick(self.now)
        for one, peer in self.peers.items():
            if peer.trial_at_ms is not None and peer.trial_at_ms <= self.now:
                self.take_back(one, ConsumerState.ON_TRIAL)
        late = [o for o, s in self.flight.items() if (s.deadline_ms or 1 << 60) <= self.now]
        silent: dict[int, bool] = {}
        for sent in [self.flight[o] for o in late]:
            self.peers[sent.consumer_id].date_answers(self.now)
            if sent.sent_at_ms >= self.peers[sent.consumer_id].answered_at_ms:
                silent[sent.consumer_id] = self.aside(sent.consumer_id) or self.may_set_aside(
                    sent.consumer_id
                )
        expected: dict[str, set[int]] = {}
        for offset in [o for o, due in self.waiting.items() if due <= self.now]:
            del self.waiting[offset]
            self.ready.add(offset)
        for one in (self.flight[o].consumer_id for o in late):
            self.peers[one].expired += one in silent
        for offset in [o for o in late if not self.flight[o].taken]:
            late.remove(offset)
            self.not_heard_of(offset, others=silent.get(self.flight[offset].consumer_id, True))
        asked_again = [o for o, due in self.again_at.items() if due <= self.now]
        for offset in late:
            expected.setdefault("expired", set()).add(offset)
            self.totals["expired"] += 1
            outcome = self.fail(offset, at_once=silent.get(self.flight[offset].consumer_id, False))
            if outcome is not None:
                expected.setdefault(outcome, set()).add(offset)
        for offset in asked_again:
            del self.again_at[offset]
            self.dying.discard(offset)
            expected.setdefault(self.exhaust(offset), set()).add(offset)
        for one in [one for one in self.peers if one in silent]:
            if not self.aside(one) and self.may_set_aside(one):
                self.set_aside(one)
        self.check_effects(effects, expected)
        deadline = self.sub.next_deadline_ms()
        assert deadline is None or deadline > self.now

    def not_heard_of(self, offset: int, *, others: bool) -> None:
        """What waited in the buffer of a consumer that says nothing comes back, and has not failed."""
        self.came_from[offset] = self.flight[offset].consumer_id
        self.land(offset)
        self.returned[offset] = self.returned.get(offset, 0) + 1
        base = self.policy.base_redelivery_delay_ms * 2 ** (self.returned[offset] - 1)
        delay = min(base, self.policy.max_redelivery_delay_ms)
        if delay and not others:
            self.waiting[offset] = self.now + delay
        else:
            self.ready.add(offset)

    # -- consumers that report what their application takes ------------------------------------------------------

    def reporting(self) -> list[int]:
        return sorted(one for one, peer in self.peers.items() if peer.reports)

    @precondition(lambda self: self.reporting())
    @rule(data=st.data(), how=st.sampled_from(("takes", "busy", "hangs")))
    def report(self, data: st.DataObject, how: str) -> None:
        one = data.draw(st.sampled_from(self.reporting()))
        if how == "hangs":
            self.everybody_is_ready_for_more(data)
            self.append(list(KEYS))
            self.pump(data)
            self.lives_and_takes_nothing(one)
            return
        self.taken(one, data.draw(st.integers(0, len(self.peers[one].buffer))), busy=how == "busy")

    def taken(self, one: int, count: int, *, busy: bool = False) -> None:
        peer = self.peers[one]
        peer.took += count
        session = peer.session
        effects = self.sub.answers.taken(one, session, peer.took, self.now, busy=busy)
        self.check_effects(effects, {})
        peer.date_answers(self.now)
        if count or busy:
            peer.took_at_ms = self.now
        handed_out, peer.buffer = peer.buffer[:count], peer.buffer[count:]
        for offset in handed_out:
            sent = self.flight.get(offset)
            if sent is not None and sent.consumer_id == one and not sent.taken:
                deadline = self.now + peer.timeout_ms if peer.timeout_ms else None
                self.flight[offset] = Sent(one, deadline, self.now, taken=True)
        if not peer.timeout_ms or self.now < peer.refresh_at_ms:
            return
        peer.refresh_at_ms = self.now + refresh_every_ms(peer.timeout_ms)
        if peer.state is not ConsumerState.ACTIVE:
            return
        held = [sent for sent in self.flight.values() if sent.consumer_id == one]
        for sent in held:
            kept_ms = peer.timeout_ms
            if sent.taken:
                kept_ms = min(kept_ms, sent.sent_at_ms + peer.max_extend_ms - self.now)
            if sent.deadline_ms is not None:
                sent.deadline_ms = max(sent.deadline_ms, self.now + kept_ms)
        if self.takes_nothing(one, peer.timeout_ms):
            self.set_aside(one)

    def takes_nothing(self, one: int, timeout_ms: int) -> bool:
        """Whether others wait for what lies in a buffer whose owner takes nothing."""
        if self.kind not in (SubscriptionType.KEY_SHARED, SubscriptionType.FAILOVER):
            return False
        peer = self.peers[one]
        held = [sent for sent in self.flight.values() if sent.consumer_id == one]
        if not held or any(sent.taken for sent in held) or not self.may_set_aside(one):
            return False
        since = max(peer.took_at_ms, peer.answered_at_ms, min(sent.sent_at_ms for sent in held))
        return peer.state is ConsumerState.ACTIVE and since + timeout_ms <= self.now

    def everybody_is_ready_for_more(self, data: st.DataObject) -> None:
        """There are two consumers at least, that have answered all and have credit."""
        if len(self.peers) < 2:
            taken = {peer.name for peer in self.peers.values()}
            self.attach("w" if "z" in taken else "z", 5, False, None, data)
        for one, peer in list(self.peers.items()):
            held = sorted(o for o, sent in self.flight.items() if sent.consumer_id == one)
            if held:
                self.answers(one)
                self.totals["acknowledged"] += self.sub.answers.ack(one, peer.session, runs(held))
                for offset in held:
                    self.finish(offset)
            if not peer.window:
                self.sub.members.grant(one, 5, 0)
                peer.credit += 5

    def lives_and_takes_nothing(self, one: int) -> None:
        """It is heard of often, as from a timer. Nobody waits for its buffer longer than the timeout and a pause between reports."""
        timeout_ms = self.peers[one].timeout_ms
        for _ in range(timeout_ms // 10 + 2):
            self.time_passes(10)
            self.taken(one, 0)
            self.agrees()
        if timeout_ms:
            facts = {consumer.consumer_id: consumer for consumer in self.sub.statistics(self.now).consumers}
            waits = all(not sent.taken for sent in self.flight.values() if sent.consumer_id == one)
            keeps = facts[one].in_flight and facts[one].standing is Standing.ANSWERING and waits
            serial = self.kind in (SubscriptionType.KEY_SHARED, SubscriptionType.FAILOVER)
            assert not (serial and keeps and self.may_set_aside(one)), (
                "it keeps for ever what it does not take"
            )

    @precondition(lambda self: len(self.peers) > 1)
    @rule(data=st.data(), step=st.sampled_from((40, 200, 1000)), comes_back=st.booleans())
    def hang(self, data: st.DataObject, step: int, comes_back: bool) -> None:
        """One consumer answers nothing, the others everything; perhaps it answers when it is tried again."""
        hung = data.draw(st.sampled_from(sorted(self.peers)))
        for _ in range(3):  # it is set aside, tried, and fails or comes back
            self.append(list(KEYS))
            self.pump(data)
            self.agrees()
            for one, peer in list(self.peers.items()):
                held = sorted(o for o, sent in self.flight.items() if sent.consumer_id == one)
                if held and (one != hung or (comes_back and peer.state is ConsumerState.ON_TRIAL)):
                    self.answers(one)
                    self.totals["acknowledged"] += self.sub.answers.ack(one, peer.session, runs(held))
                    for offset in held:
                        self.finish(offset)
            self.agrees()
            self.time_passes(step)
            self.agrees()

    @precondition(lambda self: self.dying)
    @rule(data=st.data(), durable=st.booleans(), stale=st.booleans())
    def dead_letter_answer(self, data: st.DataObject, durable: bool, stale: bool) -> None:
        offsets = sorted(data.draw(st.sets(st.sampled_from(sorted(self.dying)), min_size=1)))
        generation = self.sub.window.generation - stale
        if durable:
            count = self.sub.failures.dead_lettered(generation, runs(offsets))
            assert count == (0 if stale else len(offsets))
        else:
            self.sub.failures.dead_letter_failed(generation, runs(offsets), self.now)
        if stale:
            return
        for offset in offsets:
            if durable:
                self.totals["dead_lettered"] += 1
                self.finish(offset)
            else:
                self.dying_failures[offset] = self.dying_failures.get(offset, 0) + 1
                base = self.policy.base_redelivery_delay_ms * 2 ** (self.dying_failures[offset] - 1)
                self.again_at[offset] = self.now + min(base, self.policy.max_redelivery_delay_ms)

    @rule(data=st.data())
    def rarely(self, data: st.DataObject) -> None:
        """What seldom happens is one rule, so that examples go deep into what often does."""
        rare = (
            self.commit,
            self.crash,
            self.change_policy,
            self.seek,
            self.skip,
            self.redeliver,
            self.trim,
            self.compact,
            self.answer_late,
            self.answer_without_name,
            self.pause_or_resume,
        )
        data.draw(st.sampled_from(rare))(data)

    # -- administration -------------------------------------------------------------------------------------------

    def change_policy(self, data: st.DataObject) -> None:
        poison, most = data.draw(st.sampled_from(PoisonPolicy)), data.draw(st.integers(0, 3))
        self.policy = replace(self.policy, poison_policy=poison, max_redelivery_count=most)
        effects = self.sub.failures.set_policy(self.policy)
        expected: dict[str, set[int]] = {}
        for offset in sorted(self.blocked):
            self.blocked.discard(offset)
            if offset in self.terminated or self.failures[offset] > most:
                expected.setdefault(self.exhaust(offset), set()).add(offset)
            else:
                self.ready.add(offset)
        self.check_effects(effects, expected)

    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.sub.seek(offset, self.now)
        for peer_id, peer in self.peers.items():
            session = self.sub.session_of(peer_id)
            assert session is not None
            assert session > peer.session
            peer.begin_session(session)
            if peer.window:
                peer.credit += sum(s.consumer_id == peer_id for s in self.flight.values())
        self.forget_gone()
        self.forget()
        self.done = set(range(offset))
        self.ahead = set()

    def skip(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 10))
        candidates = [o for o in range(self.sub.floor, self.end) if not self.closed(o)][:count]
        next_offset = self.next_offset()
        found = self.sub.skip(count)
        assert (found is None) == (not candidates)
        for offset in candidates:
            self.finish(offset)
            if offset >= next_offset:
                self.ahead.add(offset)

    def redeliver(self, data: st.DataObject) -> None:
        """Acknowledged messages are delivered again; everything else goes on."""
        candidates = sorted(o for o in self.log if o in self.done and o not in self.gone)
        if not candidates:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(candidates), min_size=1, max_size=4)))
        messages = [
            Reopened(offset=o, deliveries=data.draw(st.integers(1, 3)), slot=self.unit(o)) for o in chosen
        ]
        before, next_offset, generation = self.sub.floor, self.next_offset(), self.sub.window.generation
        if self.dying:
            with pytest.raises(Conflict):
                self.sub.redeliver(messages)
            return
        again = set(self.sub.redeliver(messages))
        unsent = self.sub.not_sent_since(messages)
        assert set(unsent) == again
        assert self.sub.window.generation == generation + bool(again)
        for each in messages:
            if each.offset not in again:
                assert self.window_used() + len(chosen) > SPAN
                continue
            self.done.discard(each.offset)
            self.ahead.discard(each.offset)
            self.returned[each.offset] = each.deliveries
            if each.offset < next_offset:
                self.ready.add(each.offset)
        self.ahead |= {o for o in self.done if self.sub.floor <= o < before}

    def trim(self, data: st.DataObject) -> None:
        """Retention: the log forgets its beginning."""
        end = data.draw(st.integers(0, self.end))
        if end == 0:
            return
        next_offset = self.next_offset()
        open_before = sum(self.seen(o) for o in range(end))
        assert self.sub.skipped(0, end) == open_before
        for offset in range(end):
            self.log.pop(offset, None)
            self.finish(offset)
            if offset >= next_offset:
                self.ahead.add(offset)

    def compact(self, data: st.DataObject) -> None:
        """The log loses a message without telling; whoever reads there finds a hole."""
        candidates = [o for o in self.log if o >= self.sub.floor and o not in self.done]
        if candidates:
            offset = data.draw(st.sampled_from(candidates))
            if offset >= self.next_offset():
                del self.log[offset]
            else:
                self.gone.add(offset)

    def forget_gone(self) -> None:
        for offset in self.gone:
            self.log.pop(offset, None)
        self.gone.clear()

    def commit(self, data: st.DataObject) -> None:
        """Cursors become durable: deltas add up to the snapshot, through bytes and back."""
        delta = take_changes(self.sub)
        if delta is not None:
            self.cursor = apply_deltas(self.cursor, (decode_delta(encode_delta(delta)),))
        assert self.cursor == self.sub.snapshot()
        assert decode_snapshot(encode_snapshot(self.cursor)) == self.cursor
        self.durable = deepcopy(
            Durable(cursor=self.cursor, done=self.done, returned=self.returned, failures=self.failures)
        )

    def crash(self, data: st.DataObject) -> None:
        """The broker dies and comes back with the last durable cursor; consumers are gone."""
        saved = deepcopy(self.durable)
        self.totals.clear()
        session = max((p.session for p in self.peers.values()), default=0)
        self.sub = Subscription.restore(
            self.kind,
            saved.cursor,
            end=self.end,
            policy=self.policy,
            span_messages=SPAN,
            ordered_retry=self.ordered_retry,
            sessions=itertools.count(session + 1),
        )
        self.cursor = saved.cursor
        self.peers.clear()
        self.forget_gone()
        self.forget()
        self.done = saved.done
        self.returned, self.failures = saved.returned, saved.failures
        self.ahead = set(self.done)
        start = min(self.log, default=self.end)
        if start > 0:  # the log's start is known before anybody reads
            self.sub.skipped(0, start)
            for offset in range(start):
                self.finish(offset)
                self.ahead.add(offset)

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "sub"):
            return
        check(self.sub)
        self.moves_are_in_the_tables()
        facts = self.sub.statistics(self.now)
        assert facts.in_flight == len(self.flight)
        assert facts.pending_retries == len(self.waiting)
        assert facts.ready == len(self.ready)
        for name in ("acknowledged", "dead_lettered", "dropped", "expired"):
            assert getattr(facts, name) == self.totals[name], name
        assert (facts.blocked_by.offset if facts.blocked_by else None) == min(self.blocked, default=None)
        self.looks_in_time()
        cursor = self.sub.snapshot()
        closed = set(range(cursor.floor)).union(*(range(s, e) for s, e in cursor.acknowledged), ())
        for offset in self.log:
            assert (offset in closed) == (offset in self.done), f"offset {offset}"
        counts = {o: (a.deliveries, a.failures) for a in cursor.attempts for o in range(a.start, a.end)}
        assert counts == {
            o: (n, self.failures.get(o, 0))
            for o, n in self.returned.items()
            if o in self.log or o >= facts.next_offset  # a hole is known when it is read
        }
        assert self.window_used() <= SPAN
        for consumer in facts.consumers:
            peer = self.peers[consumer.consumer_id]
            assert (consumer.name, consumer.credit_messages) == (peer.name, peer.credit)
            assert consumer.in_flight == sum(
                s.consumer_id == consumer.consumer_id for s in self.flight.values()
            )
            assert consumer.delivered == peer.sent
            assert consumer.expired == (0 if peer.answered else peer.expired)

    def looks_in_time(self) -> None:
        """The next tick comes no later than the first thing that is due."""
        due = [*self.waiting.values(), *self.again_at.values()]
        due += [sent.deadline_ms for sent in self.flight.values() if sent.deadline_ms is not None]
        due += [peer.trial_at_ms for peer in self.peers.values() if peer.trial_at_ms is not None]
        deadline = self.sub.next_deadline_ms()
        assert not due or (deadline is not None and deadline <= min(due))

    def moves_are_in_the_tables(self) -> None:
        states = {
            consumer.consumer_id: {
                Standing.ANSWERING: ConsumerState.ACTIVE if consumer.active else ConsumerState.STANDBY,
                Standing.SET_ASIDE: ConsumerState.SET_ASIDE,
                Standing.ON_TRIAL: ConsumerState.ON_TRIAL,
            }[consumer.standing]
            for consumer in self.sub.statistics(self.now).consumers
        }
        for consumer_id, state in states.items():
            expected = self.peers[consumer_id].state
            assert state is expected or (state, expected) == (ConsumerState.STANDBY, ConsumerState.ACTIVE)
        assert not states or set(states.values()) != {ConsumerState.SET_ASIDE}, "nobody is left"
        for consumer_id in states.keys() | self.states.keys():
            before = self.states.get(consumer_id, ConsumerState.ABSENT)
            after = states.get(consumer_id, ConsumerState.ABSENT)
            if before is not after:
                assert (before, after) in CONSUMER_MOVES, (before, after)
                CONSUMER_MOVES_SEEN.add((before, after))
        self.states = states


CONSUMER_MOVES_SEEN: set[tuple[ConsumerState, ConsumerState]] = set()


class ExclusiveMachine(DeliveryMachine):
    kind = SubscriptionType.EXCLUSIVE


class FailoverMachine(DeliveryMachine):
    kind = SubscriptionType.FAILOVER


class SharedSlicesMachine(DeliveryMachine):
    kind = SubscriptionType.SHARED
    singles = (False, False, True)


class SharedRoundRobinMachine(DeliveryMachine):
    kind = SubscriptionType.SHARED
    singles = (True,)


class KeySharedMachine(DeliveryMachine):
    """Order and ownership by key, besides all the rest."""

    kind = SubscriptionType.KEY_SHARED
    singles = (False, True)
    ordered = (None, None, False)

    def route(
        self, plan: Plan, taken: list[int], ranges: Sequence[tuple[int, int]], next_offset: int
    ) -> None:
        keys = [self.log[o] for o in taken]
        selections = self.sub.sending.routed(
            plan,
            ranges,
            next_offset,
            self.now,
            slots=[SLOT[k] for k in keys],
            keys=keys if self.sub.needs_keys else None,
            sizes=[1] * len(taken),
        )
        assert selections is not None
        if not plan.fresh:
            assert self.sub.sending.routed(plan, ranges, next_offset, self.now) is None, "learnt twice"
            assert not selections
            assert self.sub.needs_keys
            for offset in {o for s, e in plan.ranges for o in range(s, e)} - set(taken):
                if offset < next_offset:
                    self.finish(offset)
            return
        chosen: set[int] = set()
        for selection in selections:
            offsets = [taken[i] for i in selection.indices]
            assert not chosen & set(offsets), "one message for two consumers"
            chosen |= set(offsets)
            assert self.peers[selection.consumer_id].session == selection.session
            assert selection.delivery_count == plan.delivery_count
            self.delivered(plan, selection.consumer_id, offsets)
        for offset in taken:
            if offset in chosen:
                continue
            if any(self.accepts(p, self.log[offset]) for p in self.peers.values()):
                self.ready.add(offset)
            else:
                self.finish(offset)
        for offset in chosen:
            self.check_key(offset)

    def delivered(self, plan: Plan, consumer_id: int, offsets: list[int]) -> None:
        super().delivered(plan, consumer_id, offsets)
        if not plan.fresh:
            for offset in offsets:
                self.check_key(offset)

    def check_key(self, offset: int) -> None:
        """The message just sent may go: its key's order and its consumer are kept."""
        key, consumer_id = self.log[offset], self.flight[offset].consumer_id
        assert self.accepts(self.peers[consumer_id], key), "the consumer's filters refuse the key"
        slot_is_unit = not any(p.filters for p in self.peers.values())
        for other, other_key in self.log.items():
            if other == offset or not (other_key == key or (slot_is_unit and SLOT[other_key] == SLOT[key])):
                continue
            if other in self.flight:
                assert self.flight[other].consumer_id == consumer_id, "one key with two consumers"
                assert not self.peers[consumer_id].single, "two unanswered messages of a key"
            if other < offset and other_key == key:
                assert other not in self.ready, "overtaken by a later message of its key"
                assert other not in self.stops(), "sent behind a message that stops its key"
                assert self.seen(other) or other in self.done

    def sendable(self) -> set[int]:
        found: set[int] = set()
        taking = [one for one in self.peers if not self.aside(one)]
        if any(map(self.rich, taking)) and self.window_used() < SPAN:
            found |= set(self.unseen())
        if all(map(self.rich, taking)):
            flying = {self.unit(o) for o in self.flight}
            answered_first = {
                SLOT[self.log[o]] for o, sent in self.flight.items() if self.peers[sent.consumer_id].single
            }
            stopped = {self.unit(o): o for o in sorted(self.stops(), reverse=True)}
            for offset in self.ready - self.gone:
                unit = self.unit(offset)
                if unit in flying or SLOT[self.log[offset]] in answered_first:
                    continue
                if stopped.get(unit, 1 << 60) < offset:
                    continue
                firsts = [o for o in self.ready if o < offset and self.unit(o) == unit]
                acceptable = any(self.accepts(self.peers[one], self.log[offset]) for one in taking)
                if not firsts and acceptable:
                    found.add(offset)
        return found


class KeySharedFiltersMachine(KeySharedMachine):
    filters = ((), ("a*",), ("b?", "c"), ("a1", "b1"), ("*",), ("?1",))


class ReportingFailoverMachine(FailoverMachine):
    reports = True


class ReportingSharedMachine(SharedSlicesMachine):
    reports = True


class ReportingKeySharedMachine(KeySharedFiltersMachine):
    reports = True


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription_module, "Window", RecordingWindow)
        yield


QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),  # explaining a failure takes minutes here
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def _case(machine: type[DeliveryMachine]) -> Any:
    case = machine.TestCase
    case.settings = QUICK
    return case


TestExclusive = _case(ExclusiveMachine)
TestFailover = _case(FailoverMachine)
TestSharedSlices = _case(SharedSlicesMachine)
TestSharedRoundRobin = _case(SharedRoundRobinMachine)
TestKeyShared = _case(KeySharedMachine)
TestKeySharedFilters = _case(KeySharedFiltersMachine)
TestReportingFailover = _case(ReportingFailoverMachine)
TestReportingShared = _case(ReportingSharedMachine)
TestReportingKeyShared = _case(ReportingKeySharedMachine)


def judged_again() -> None:
    """What only a change of the policy does, which is rare in the random histories."""
    block = FailurePolicy(max_redelivery_count=0, poison_policy=PoisonPolicy.BLOCK, jitter=0.0)
    copy = replace(block, poison_policy=PoisonPolicy.DEAD_LETTER)
    sub = Subscription(
        SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=1, policy=block, span_messages=SPAN
    )
    sub.join(1, "w", 0, ConsumerTerms(credit_messages=9, credit_bytes=None))
    plan = sub.sending.next_plan()
    assert plan is not None
    assert sub.sending.sent(plan, [(0, 1)], 1, 1, 0)
    session = sub.session_of(1)
    assert session is not None
    sub.answers.nack(1, session, [(0, 1)], 0)
    sub.failures.set_policy(block)
    now = 0
    for _ in range(2):
        (order,) = sub.failures.set_policy(copy)
        assert isinstance(order, DeadLetter)
        sub.failures.dead_letter_failed(order.generation, [(0, 1)], now)
        sub.failures.set_policy(block)
        now += 10 * block.max_redelivery_delay_ms
        sub.tick(now)  # it is time to ask again, and the policy is to block now
        assert sub.statistics(now).blocked_by is not None
    sub.failures.set_policy(replace(block, max_redelivery_count=5))
    assert sub.statistics(now).ready == 1
    again = sub.sending.next_plan()
    assert again is not None
    assert sub.sending.sent(again, [(0, 1)], 1, 1, now)
    sub.answers.terminate(1, session, [(0, 1)], now)
    assert sub.skip(1) == (0, 1)


def skipped_while_it_waits() -> None:
    """Rare too: the message that is skipped waits for its retry."""
    sub = Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=1, span_messages=SPAN)
    sub.join(1, "w", 0, ConsumerTerms(credit_messages=9, credit_bytes=None))
    plan = sub.sending.next_plan()
    assert plan is not None
    assert sub.sending.sent(plan, [(0, 1)], 1, 1, 0)
    session = sub.session_of(1)
    assert session is not None
    sub.answers.nack(1, session, [(0, 1)], 0)
    assert sub.skip(1) == (0, 1)


def delivered_after_all() -> None:
    """Rare too: a message that was acknowledged before it was sent is to be delivered again."""
    sub = Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=3, span_messages=SPAN)
    sub.skipped(2, 3)
    assert sub.redeliver([Reopened(offset=2, deliveries=1)]) == [2]


def test_every_move_of_the_tables_happens() -> None:
    judged_again()
    skipped_while_it_waits()
    delivered_after_all()
    for machine in (FailoverMachine, SharedSlicesMachine, KeySharedFiltersMachine, ExclusiveMachine):
        if RecordingWindow.seen == MESSAGE_MOVES.keys() and CONSUMER_MOVES.keys() == CONSUMER_MOVES_SEEN:
            break  # the tests before this one have seen them all
        run_state_machine_as_test(machine, settings=settings(QUICK, max_examples=300))
    assert RecordingWindow.seen == MESSAGE_MOVES.keys()
    assert CONSUMER_MOVES.keys() == CONSUMER_MOVES_SEEN
