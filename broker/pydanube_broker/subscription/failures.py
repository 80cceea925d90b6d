"""Failed deliveries: retries, and messages whose redeliveries are exhausted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from pydanube_broker.subscription.chunk import ACK_TIMEOUT, Chunk, Flight, Poison, Timer, Wait
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.effects import Blocked, DeadLetter, Dropped, Effect, Expired
from pydanube_broker.subscription.policy import FailurePolicy, PoisonPolicy
from pydanube_broker.subscription.ranges import Range, normalise, ranges_of
from pydanube_broker.subscription.set_aside import SettingAside
from pydanube_broker.subscription.window import Window

MOST_REASONS: Final = 4  # kept per chunk, of which a diagnosis shows one


class Failures:
    """Applies one policy to one window. Reports messages exhausted in a call at the end of the call."""

    __slots__ = (
        "_aside", "_poisoned", "_window", "dead_lettered_messages", "dropped", "expired", "failed", "policy",
        "random",
    )  # fmt: skip

    def __init__(
        self, window: Window, policy: FailurePolicy, random: Callable[[], float], aside: SettingAside
    ) -> None:
        self._window = window
        self._aside = aside
        self.policy = policy
        self.random = random
        self._poisoned: list[tuple[Chunk, int, int, str]] = []
        self.dead_lettered_messages = 0
        self.dropped = 0
        self.expired = 0
        self.failed = 0  # given back, or not answered in time

    def fail(
        self,
        chunk: Chunk,
        mask: int,
        now_ms: int,
        requested_ms: int,
        reason: str,
        random: float,
        *,
        at_once: bool = False,
    ) -> None:
        """Count a failure of messages in no state. They wait for a retry, become ready, or are exhausted."""
        self.failed += mask.bit_count()
        _remember(chunk, mask, reason)
        for part, deliveries, failures in self._window.count_return(chunk, mask, failed=True):
            if self.policy.exhausted(failures):
                self.poison(chunk, part, deliveries, reason)
                continue
            delay = self.policy.delay_ms(failures, requested_ms=requested_ms, random=random)
            if delay and not at_once:
                self._window.wait(chunk, part, now_ms + delay, reason)
            else:
                self._window.make_ready(chunk, part)

    def poison(
        self,
        chunk: Chunk,
        mask: int,
        deliveries: int,
        reason: str,
        *,
        terminated: bool = False,
        attempts: int = 0,
    ) -> None:
        """Apply the poison policy to exhausted messages in no state."""
        match self.policy.poison_policy:
            case PoisonPolicy.BLOCK | PoisonPolicy.DEAD_LETTER as policy:
                poison = self._window.poison(
                    chunk, mask, reason, deliveries, blocked=policy is PoisonPolicy.BLOCK
                )
                poison.terminated = terminated
                poison.attempts = attempts
            case PoisonPolicy.DROP:
                self.dropped += mask.bit_count()
                self._window.close(chunk, mask)
            case _:
                assert_never(self.policy.poison_policy)
        self._poisoned.append((chunk, mask, deliveries, reason))

    def report(self) -> list[Effect]:
        """Return the effects for messages exhausted in this call, and raise the floor."""
        if not self._poisoned:
            return []
        self._window.raise_floor()
        groups: dict[tuple[int, str], list[Range]] = {}
        for chunk, mask, deliveries, reason in self._poisoned:
            groups.setdefault((deliveries, reason), []).extend(ranges_of(mask, chunk.start))
        self._poisoned.clear()
        effects: list[Effect] = []
        for (deliveries, reason), found in groups.items():
            ranges = tuple(normalise(found))
            match self.policy.poison_policy:
                case PoisonPolicy.BLOCK:
                    effects.append(Blocked(ranges=ranges, reason=reason, delivery_count=deliveries))
                case PoisonPolicy.DROP:
                    effects.append(Dropped(ranges=ranges, reason=reason, delivery_count=deliveries))
                case PoisonPolicy.DEAD_LETTER:
                    effects.append(
                        DeadLetter(
                            generation=self._window.generation,
                            ranges=ranges,
                            reason=reason,
                            delivery_count=deliveries,
                        )
                    )
                case _:
                    assert_never(self.policy.poison_policy)
        return effects

    def dead_lettered(self, generation: int, ranges: Sequence[Range]) -> int:
        """Acknowledge messages whose dead-letter copies are durable. Return how many.

        An older generation changes nothing.
        """
        if generation != self._window.generation:
            return 0
        done = 0
        for poison, mask in self._dying(ranges):
            self._window.close(poison.chunk, mask)
            done += mask.bit_count()
        self._window.raise_floor()
        self.dead_lettered_messages += done
        return done

    def dead_letter_failed(self, generation: int, ranges: Sequence[Range], now_ms: int) -> None:
        """Schedule another attempt at failed dead-letter copies, after the policy's delay for it."""
        if generation != self._window.generation:
            return
        for poison, mask in self._dying(ranges):
            attempts = poison.attempts + 1
            self._window.end_poison(poison, mask)
            again = self._window.poison(poison.chunk, mask, poison.reason, poison.deliveries, blocked=False)
            again.attempts = attempts
            again.terminated = poison.terminated
            delay = self.policy.delay_ms(attempts, requested_ms=0, random=self.random())
            self._window.timers.set(now_ms + delay, again)

    def _dying(self, ranges: Sequence[Range]) -> list[tuple[Poison, int]]:
        return [
            (poison, poison.mask & mask)
            for chunk, mask in self._window.chunks.locate(ranges).items()
            for poison in chunk.poisons
            if not poison.blocked and poison.mask & mask
        ]

    def exhausted_by(self, policy: FailurePolicy) -> int:
        """Return how many exhausted messages would be dropped or dead-lettered under a policy."""
        if policy.poison_policy is PoisonPolicy.BLOCK:
            return 0
        count = 0
        for chunk in self._window.chunks:
            for poison in chunk.poisons:
                # Being dead-lettered. The policy that holds at its next attempt decides.
                if not poison.blocked:
                    count += poison.mask.bit_count() if policy.poison_policy is PoisonPolicy.DROP else 0
                    continue
                for (_, failures), part in chunk.by_history(poison.mask):
                    if poison.terminated or policy.exhausted(failures):
                        count += part.bit_count()
        return count

    def set_policy(self, policy: FailurePolicy) -> list[Effect]:
        """Apply a policy, also to blocked messages. Return the effects, such as dead letters due now."""
        self.policy = policy
        for chunk in self._window.chunks.copy():
            for poison in chunk.poisons.copy():
                if not poison.blocked:
                    continue
                mask = poison.mask
                self._window.end_poison(poison, mask)
                for (deliveries, failures), part in chunk.by_history(mask):
                    if poison.terminated or policy.exhausted(failures):
                        self.poison(chunk, part, deliveries, poison.reason, terminated=poison.terminated)
                    else:
                        self._window.make_ready(chunk, part)
        return self.report()

    def tick(self, now_ms: int) -> list[Effect]:
        """Process due timers: expire deliveries, make retries ready, submit dead letters again. O(due)."""
        self._aside.due(now_ms)
        due = self._window.timers.due(now_ms)
        if not due:
            return []
        silent = self._silent(due, now_ms)
        expired: dict[int, list[Range]] = {}
        random: float | None = None
        for timer in due:
            mask = timer.mask
            if isinstance(timer, Flight) and timer.consumer in silent:
                timer.consumer.expired += mask.bit_count()
            match timer:
                case Flight() if not timer.taken:
                    timer.consumer.handling.expired += mask.bit_count()
                    # The consumer was silent for the whole timeout, so others get the messages that its
                    # application has not taken. They have not failed, but count as delivered, so that a late
                    # ack of this consumer is accepted.
                    self._window.end_flight(timer, mask)
                    timer.chunk.came_back(timer.consumer, mask)
                    for part, deliveries, _ in self._window.count_return(timer.chunk, mask, failed=False):
                        delay = 0
                        if not silent.get(timer.consumer, True):  # no other consumer can take it
                            delay = self.policy.delay_ms(deliveries, requested_ms=0, random=0.0)
                        if delay:
                            self._window.wait(timer.chunk, part, now_ms + delay, ACK_TIMEOUT)
                        else:
                            self._window.make_ready(timer.chunk, part)
                case Flight():
                    random = self.random() if random is None else random
                    found = expired.setdefault(timer.consumer.consumer_id, [])
                    found += ranges_of(mask, timer.chunk.start)
                    self.expired += mask.bit_count()
                    timer.consumer.handling.expired += mask.bit_count()
                    self._window.end_flight(timer, mask)
                    timer.chunk.came_back(timer.consumer, mask)
                    at_once = silent.get(timer.consumer, False)
                    self.fail(timer.chunk, mask, now_ms, 0, ACK_TIMEOUT, random, at_once=at_once)
                case Wait():
                    self._window.end_wait(timer, mask)
                    self._window.make_ready(timer.chunk, mask)
                case Poison():
                    self._window.end_poison(timer, mask)
                    self.poison(
                        timer.chunk,
                        mask,
                        timer.deliveries,
                        timer.reason,
                        terminated=timer.terminated,
                        attempts=timer.attempts,
                    )
                case _:
                    assert_never(timer)
        effects: list[Effect] = [
            Expired(consumer_id=consumer_id, ranges=tuple(normalise(ranges)))
            for consumer_id, ranges in expired.items()
        ]
        effects += self._aside.let_expire(silent, now_ms)
        return effects + self.report()

    def _silent(self, due: Sequence[Timer], now_ms: int) -> dict[Consumer, bool]:
        """Return the consumers that have answered nothing since they were sent messages that are due now.

        The value is whether other consumers can take these messages.
        """
        silent: dict[Consumer, bool] = {}
        for timer in due:
            if isinstance(timer, Flight) and timer.consumer not in silent:
                timer.consumer.date_answers(now_ms)
                if timer.sent_at_ms >= timer.consumer.answered_at_ms:
                    silent[timer.consumer] = timer.consumer.set_aside or self._aside.may_set_aside(
                        timer.consumer
                    )
        return silent


def _remember(chunk: Chunk, mask: int, reason: str) -> None:
    """Record why messages failed, also for after they are sent again."""
    kept = {other: left for other, others in chunk.reasons.items() if (left := others & ~mask & chunk.open)}
    kept[reason] = kept.pop(reason, 0) | mask
    while len(kept) > MOST_REASONS:
        del kept[next(iter(kept))]
    chunk.reasons = kept
