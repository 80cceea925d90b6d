"""Publish the dead letters of all subscriptions. The originals are done only when the copies are durable.

One worker of the broker carries out the orders in turn. It waits only for reads and for the creation of a
topic, never for the journal: commits are reported as they come. An order that fails goes back to the
subscription, which repeats it after its policy's delay. The topic that takes copies records their originals
in the journal beside them, so that a repeated order, after any broker's crash, is not copied again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

from pydanube_core.batch import read_producer_part
from pydanube_core.batch.select import Cutter
from pydanube_core.errors import ClusterError, DispatchMismatch, Unavailable
from pydanube_core.names import TopicName

from pydanube_broker.journal.records import RecordKind
from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.copies import Wanted, dead_letter_batches, reason_of
from pydanube_broker.subscription.cursor import CursorDelta, encode_delta
from pydanube_broker.subscription.effects import DeadLetter
from pydanube_broker.subscription.ranges import Range, subtract
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy
from pydanube_broker.topics.log_state import ORIGIN, encode_cursor_body
from pydanube_broker.topics.reading import read_once
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.delivery")

READ_BYTES: Final = 1 << 20
# Offsets whose copies go to the same one of several partitions, regardless of how a repeated order groups
# them
_BLOCK: Final = 256
MAX_TOGETHER: Final = 4096  # orders of one subscription that are carried out together


class Origin(Protocol):
    """The subscription whose messages are dead letters."""

    name: str
    subscription_id: int
    topic: Topic
    closed: ClusterError | None
    policy: SubscriptionPolicy

    @property
    def worker_threads(self) -> WorkerThreads:
        """Return the limiter of threads that read the log."""

    def dead_lettered(self, generation: int, ranges: Sequence[Range]) -> None:
        """Note that the copies of these messages are on stable storage, or that nothing is left to copy."""

    def dead_letter_failed(self, generation: int, ranges: Sequence[Range], why: str) -> bool:
        """Note that these messages could not be copied. The order is repeated later.

        Return whether the reason is new, and to be logged.
        """


#: called without an error when copies are on stable storage, else with the reason why this is uncertain
Done = Callable[[ClusterError | None], None]


class Originals(NamedTuple):
    """Messages of one subscription whose copies are in a batch, in their order.

    A subscription's id is never reused. In another generation the subscription has begun elsewhere, and a
    message may fail again.
    """

    subscription_id: int
    generation: int
    ranges: Sequence[Range]


class Target(Protocol):
    """A concrete topic that takes copies, owned by any broker."""

    name: str
    stores: bool

    @property
    def in_store(self) -> bool:
        """Return whether the topic is as durable as the object store."""

    def take(self, data: bytes, originals: Originals, done: Done) -> None:
        """Append a batch, without copies that the topic has already. `done` is called once, later.

        Raises:
            ClusterError: the batch is not taken, and `done` is not called.
        """


class LocalTarget:
    """A target that this broker serves."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.name = topic.name
        self.stores = topic.stores

    @property
    def in_store(self) -> bool:
        return self._topic.in_store

    def take(self, data: bytes, originals: Originals, done: Done) -> None:
        topic, (number, generation, ranges) = self._topic, originals
        missing = subtract(ranges, topic.state.copies(number, generation))
        for some, batch in _parts(data, ranges, missing):
            topic.append(batch, read_producer_part(batch, verify=False), limited=False)
            delta = CursorDelta(generation=generation, floor=0, acknowledged=tuple(some))
            topic.state.note_copied(number, delta)
            topic.append_record(RecordKind.CURSOR, encode_cursor_body(number | ORIGIN, encode_delta(delta)))
        topic.when_safe(topic.position, done)


def _parts(
    data: bytes, ranges: Sequence[Range], missing: Sequence[Range]
) -> Iterator[tuple[Sequence[Range], bytes]]:
    """Cut the missing messages out of a batch that has those of `ranges`: usually all of them, or none."""
    if missing == ranges:
        yield ranges, data
        return
    cutter = Cutter(data)
    begin = 0  # index of the first message of a range
    for start, end in ranges:
        for low, high in missing:
            if start <= low < end:
                at = begin + low - start
                yield [(low, high)], cutter.slice(at, at + high - low).batch
        begin += end - start


class DeadLetterPublisher:
    """See the module.

    Args:
        topics: returns the concrete topics of a dead-letter topic, which is created if it does not exist. For letters of
            a stored topic it becomes a stored one.
        start: runs a task of the broker.
        broker_url: for the attribute `x-original-broker-addr`.
    """

    def __init__(
        self,
        topics: Callable[[TopicName, bool], Awaitable[Sequence[Target]]],
        start: Callable[[Coroutine[Any, Any, None]], None],
        broker_url: Callable[[], str],
    ) -> None:
        self._topics = topics
        self._start = start
        self._broker_url = broker_url
        self._orders: deque[tuple[Origin, DeadLetter]] = deque()
        self._working = False

    def submit(self, origin: Origin, effect: DeadLetter) -> None:
        """Take an order. The queue is bounded, because an order is not repeated before it is answered."""
        self._orders.append((origin, effect))
        if not self._working:
            self._working = True
            self._start(self._work())

    async def _work(self) -> None:
        try:
            while self._orders:
                origin, effect = self._orders.popleft()
                effects = [effect]
                # Messages that a consumer gives back one by one are often of one batch, which is read once
                # for all of them.
                while self._orders and len(effects) < MAX_TOGETHER:
                    if (following := self._orders[0])[0] is not origin:
                        break
                    if following[1].generation != effect.generation:
                        break
                    effects.append(self._orders.popleft()[1])
                if origin.closed is None:
                    await self._carry_out(origin, effect.generation, effects)
        finally:
            self._working = False

    async def _carry_out(self, origin: Origin, generation: int, effects: Sequence[DeadLetter]) -> None:
        target = origin.policy.target(origin.topic.options.topic, origin.name)
        left = sorted(
            (
                Wanted(start, end, attributes)
                for effect in effects
                for attributes in (self._origin(origin, effect),)
                for start, end in effect.ranges
            ),
            key=lambda one: one.start,
        )
        try:
            topics = await self._topics(target, origin.topic.in_store)
            if not all(topic.stores for topic in topics):
                raise DispatchMismatch(
                    f"the dead-letter topic {target} is non_reliable and would lose them: name a reliable one",
                    field="dead_letter_topic",
                    value=str(target),
                )
            if origin.topic.in_store and not all(topic.in_store for topic in topics):
                # The original is acknowledged once its copy is as safe, so the order is repeated.
                raise Unavailable(
                    f"{target} is not stored in the object store yet, as {origin.topic.name} is"
                )
            while left:
                await self._copy(origin, generation, topics, left)
        except Exception as error:
            if not isinstance(error, ClusterError):
                log.exception("dead_letter_failed")
            self._failed(origin, generation, [(one.start, one.end) for one in left], target, error)

    async def _copy(
        self, origin: Origin, generation: int, topics: Sequence[Target], left: list[Wanted]
    ) -> None:
        """Append copies of the first range and of others in the same batches, and remove those from `left`.

        Messages that are no longer in the log are done already.
        """
        first = left[0]
        batches = await read_once(origin.topic, first.start, first.end, READ_BYTES, origin.worker_threads)
        if batches is None:
            return
        if not batches:
            origin.dead_lettered(generation, [(first.start, first.end)])
            del left[0]
        for batch in batches:
            done = 0
            for some in [left] if len(topics) == 1 else _blocks(left, batch):
                for ranges, data in dead_letter_batches(batch, some):
                    topic = topics[ranges[0][0] // _BLOCK % len(topics)]
                    # offsets without a message belong to the message behind them
                    end = ranges[-1][1]
                    await self._append(origin, generation, topic, data, ranges, _between(left, done, end))
                    done = end
            origin.dead_lettered(generation, _between(left, done, batch.end))
            left[:] = [one._replace(start=max(one.start, batch.end)) for one in left if one.end > batch.end]

    async def _append(
        self,
        origin: Origin,
        generation: int,
        topic: Target,
        data: bytes,
        ranges: Sequence[Range],
        covered: list[Range],
    ) -> None:
        def done(error: ClusterError | None) -> None:
            if error is None:
                # On stable storage by now: the copies and everything before them in the dead-letter topic.
                origin.dead_lettered(generation, covered)
            else:
                self._failed(origin, generation, covered, topic.name, error)

        topic.take(data, Originals(origin.subscription_id, generation, ranges), done)
        await asyncio.sleep(0)  # let other tasks run during a long order

    def _origin(self, origin: Origin, effect: DeadLetter) -> dict[str, str]:
        return {
            "x-original-topic": origin.topic.name,
            "x-original-subscription": origin.name,
            "x-original-broker-addr": self._broker_url(),
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": str(effect.delivery_count),
            "x-failure-reason": reason_of(effect.reason),
        }

    @staticmethod
    def _failed(
        origin: Origin, generation: int, ranges: Sequence[Range], target: TopicName | str, error: Exception
    ) -> None:
        why = f"the dead-letter topic {target} does not take it: {error}"
        if not origin.dead_letter_failed(generation, ranges, why):
            return
        log.warning(
            "dead_letter_refused",
            extra={
                "topic": origin.topic.name,
                "subscription": origin.name,
                "dead_letter_topic": str(target),
                "ranges": list(ranges)[:8],
                "error": str(error),
            },
        )


def _blocks(wanted: Sequence[Wanted], batch: CachedBatch) -> Iterator[list[Wanted]]:
    """Split the ranges wanted of a batch at block boundaries, and yield those of each block together."""
    pieces: list[Wanted] = []
    for one in wanted:
        at, end = max(one.start, batch.base), min(one.end, batch.end)
        while at < end:
            upto = min(end, (at // _BLOCK + 1) * _BLOCK)
            pieces.append(one._replace(start=at, end=upto))
            at = upto
    for _, block in groupby(pieces, key=lambda one: one.start // _BLOCK):
        yield list(block)


def _between(wanted: Sequence[Wanted], low: int, high: int) -> list[Range]:
    """Return the parts of these ranges that lie in `[low, high)`."""
    return [(max(one.start, low), min(one.end, high)) for one in wanted if one.start < high and one.end > low]
