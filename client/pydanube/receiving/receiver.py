"""The base of consumers and readers: one stream of messages over the lanes of all partitions and topics.

Deliveries queue up in the order of arrival, so each partition keeps its order and none starves. `async for` hands out
messages of the current delivery without suspending. Between deliveries it gives the loop one turn, so that reading,
acks and credit go on while the application is busy.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice, repeat
from operator import itemgetter, length_hint
from typing import Final, Self

from pydanube_core.errors import ClosedResource, ClusterError, DeadlineExceeded

from pydanube.arguments import check_number, check_whole
from pydanube.facts import ClientEventKind
from pydanube.keywords import keywords_named
from pydanube.message import Batch, Delivered, Lane, Message
from pydanube.options import ClientSide, ReceiverOptions, wire_position
from pydanube.receiving.consume_counters import ConsumeCounters
from pydanube.receiving.consume_lane import ConsumeLane
from pydanube.receiving.consume_options import ConsumeOptions
from pydanube.receiving.lane_choice import lanes_of, until_open
from pydanube.receiving.recalled import without
from pydanube.receiving.withheld import Behind, Key
from pydanube.statistics import ConsumerStatistics
from pydanube.tasks import TaskOwner, all_of
from pydanube.topic_watch import Partitions, TopicWatch
from pydanube.wire.transport import copy_of

_LEAVE_S: Final = 5.0
MOST_RETURNED: Final = 2_000  # messages of a nack. The broker takes 2 048 ranges
_NOTHING: Final[Iterator[Message]] = iter(())


class Receiver:
    """The base of consumers and readers, made by `client.consumer(…)` and `client.reader(…)`, used as `async with`.

    Iteration ends when the receiver is closed, or a reader reaches its stop. It raises the `ClusterError` that ended
    it for good: a fatal one, or a retryable one that lasted longer than the client's `Retry`. A lost connection does
    not end it. See `statistics()` and `client.events()`.
    """

    def __init__(
        self,
        options: ReceiverOptions,
        side: ClientSide,
        closed: Callable[[Receiver], None],
        watch: TopicWatch | None = None,
    ) -> None:
        self._options = options
        self._watch = watch  # None for a reader, whose partitions are fixed when it opens
        self._several = watch is not None and watch.several
        self._watch_error: ClusterError | None = None
        self._counters = ConsumeCounters()
        self._side = side
        self._closed_callback = closed
        self._topic = options.topic
        self._subscription = options.subscription
        self._tasks = TaskOwner()
        self._lanes: list[ConsumeLane] = []
        self._ready: deque[Delivered] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._open = False
        self._entered = False
        self._paused = self._drained = False
        # The messages of the delivery being handed out. The iterator of offsets under it gives the number left.
        self._current: Iterator[Message] = _NOTHING
        self._offsets: Iterator[int] = iter(())
        self._delivered: Delivered | None = None
        self._begun = 0  # deliveries whose handing out has begun

    # -- the block -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            watch = self._watch
            if watch is not None and watch.several:
                await self._open_lanes(await watch.first(), self._options)
            else:
                self._topic, partitions = await self._side.prepare()
                await self._open_lanes({self._topic: partitions}, self._options)
            # a single topic without partitions never gets any
            if watch is not None and (watch.several or self._lanes[0].partition is not None):
                self._tasks.start(self._follow(watch), name=f"topics of {self._topic}")
        except BaseException:
            await self._tasks.aclose()
            self._closed_callback(self)
            raise
        self._open = self._entered = True
        return self

    async def _open_lanes(self, topics: dict[str, Partitions], options: ReceiverOptions) -> None:
        """Add the missing lanes of these topics, and wait until they are open or failed."""
        there = {lane.concrete_topic for lane in self._lanes}
        added = [
            self._lane(topic, index, concrete, options)
            for topic, partitions in topics.items()
            for index, concrete in partitions
            if concrete not in there
        ]
        self._lanes = [*self._lanes, *added]
        self._share_credit()
        for lane in added:
            self._tasks.start(lane.run(), name=f"{options.role} {lane.topic}", ended=lane.task_ended)
        await until_open(added)

    async def _follow(self, watch: TopicWatch) -> None:
        """Add new topics and partitions, from their first message, whatever `start` is."""
        options = replace(self._options, start="earliest", start_given=False)
        try:
            while True:
                fresh = await watch.following(lambda: Counter(lane.topic for lane in self._lanes))
                if fresh:
                    await self._open_lanes(fresh, options)
        except ClusterError as error:
            self._watch_error = error
            self._wake(everyone=True)

    def _share_credit(self) -> None:
        lanes = max(1, len(self._lanes))
        for lane in self._lanes:
            lane.resize(
                max(1, self._options.credit_messages // lanes), max(1, self._options.credit_bytes // lanes)
            )

    def _lane(self, topic: str, index: int | None, concrete: str, options: ReceiverOptions) -> ConsumeLane:
        def emit(kind: ClientEventKind, url: str, attempt: int, reason: str) -> None:
            self._side.emit(kind, options.role, concrete, url, attempt, reason)

        lane = ConsumeLane(
            ConsumeOptions(
                topic=topic,
                partition=index,
                concrete_topic=concrete,
                receiver=options,
                may_leave=() if self._watch is None else self._watch.may_leave(index),
                credit_messages=1,  # resized to its share before it runs
                credit_bytes=1,
                retry=self._side.retry,
                locate=self._side.locate,
                pause=self._side.pause,
                ready=self._arrived,
                handed_out=self._handed_out,
                position=self._position,
                give_back=self._give_back,
                behind=self._give_back_behind,
                decode=self._side.decode,
                reply=self._side.reply,
                changed=self._changed,
                emit=emit,
                counters=self._counters,
            )
        )
        if self._paused:
            lane.hold_credit()
        return lane

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if not self._subscription:
                return
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self._confirm()
            except ClusterError:
                if kind is None and not any(lane.error for lane in self._lanes):
                    raise
            except TimeoutError as late:
                if kind is None:
                    raise DeadlineExceeded(
                        f"{self._topic}: the broker did not confirm the acks within {_LEAVE_S:g} s. Their messages "
                        "may come again",
                        topic=self._topic,
                        subscription=self._subscription,
                    ) from late
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close immediately. Waiting iterations end. Messages with unsent acknowledgements are delivered again."""
        self._open = False
        self._wake(everyone=True)
        await self._tasks.aclose()
        self._ready.clear()
        self._current = _NOTHING
        self._delivered = None
        self._closed_callback(self)

    @property
    def topic(self) -> str:
        """The topic's full name, `/ns/topic`. With several topics, the requested names or pattern."""
        return self._topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The full names of the topics that it currently receives from, sorted."""
        return tuple(sorted({lane.topic for lane in self._lanes}))

    @property
    def starts(self) -> dict[tuple[str, int | None], int]:
        """The first offset delivered, by topic and partition. Later than requested if those messages are gone."""
        return {(lane.topic, lane.partition): lane.start_offset for lane in self._lanes}

    @property
    def name(self) -> str:
        """The consumer's name, chosen by the broker if none was given."""
        return self._lanes[0].consumer_name if self._lanes else self._options.name

    # -- taking messages -------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        for message in self._current:
            return message
        while await self._next_delivery(yield_first=True):
            for message in self._current:
                return message
        raise StopAsyncIteration

    @keywords_named
    async def receive(
        self, max_messages: int = 100, max_bytes: int | None = None, max_wait_s: float = 1.0
    ) -> list[Message]:
        """Return the messages that have arrived, waiting up to `max_wait_s` for the first. [] if none arrives.

        Args:
            max_messages: maximum number of messages.
            max_bytes: maximum bytes of payload. The first message is returned whatever its size.
            max_wait_s: 0 takes only messages that have arrived.

        Returns [] also when a reader is at its stop. Cancelling loses nothing.
        """
        check_whole("max_messages", max_messages, 1)
        check_number("max_wait_s", max_wait_s, -math.inf, math.inf)
        self._check_usable()
        taken: list[Message] = []
        size = 0
        try:
            async with asyncio.timeout(max_wait_s if max_wait_s > 0 else None):
                while len(taken) < max_messages:
                    if max_bytes is None:
                        more = list(islice(self._current, max_messages - len(taken)))
                        taken += more
                        if more:
                            continue
                    else:
                        for message in self._current:
                            size += len(message.payload)
                            if taken and size > max_bytes:
                                self._put_back(message)
                                return taken
                            taken.append(message)
                            if len(taken) == max_messages:
                                return taken
                    if (self._paused or not self._ready) and (taken or max_wait_s <= 0):
                        self._finish_delivery()
                        self._raise_failure(taken)
                        break
                    if not await self._next_delivery(yield_first=not taken):
                        break
        except TimeoutError:
            pass
        return taken

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate by batch: the rest of each delivery, with columns as lists. The fast way to consume."""
        while True:
            left = length_hint(self._offsets)
            if not left:
                if not await self._next_delivery(yield_first=True):
                    return
                left = length_hint(self._offsets)
            delivered = self._delivered
            assert delivered is not None
            batch = Batch(delivered, len(delivered) - left)
            self._current = _NOTHING
            self._offsets = iter(())
            yield batch

    def pause(self) -> None:
        """Hand out nothing until `resume`: iterations wait, `receive` returns nothing.

        Messages already handed out may be acknowledged. Buffered messages stay and do not time out. The buffer grows by
        the outstanding credit at most, because none is granted. The connection and the place in the subscription are
        kept.
        """
        self._check_usable()
        self._paused = True
        for lane in self._lanes:
            lane.hold_credit()
        current, left = self._delivered, length_hint(self._offsets)
        if current is not None and left:
            rest = current.part(len(current) - left, len(current))
            current.keep(0, len(current) - left)
            self._current, self._offsets = _NOTHING, iter(())
            self._ready.appendleft(rest)
        self._finish_delivery()

    def resume(self) -> None:
        """Continue after `pause`, with the next message. Does nothing if not paused."""
        self._check_usable()
        self._paused = False
        for lane in self._lanes:
            lane.release_credit()
        self._wake(everyone=True)

    @property
    def paused(self) -> bool:
        """Whether `pause` was called without a `resume` since."""
        return self._paused

    async def seek(
        self, position: str | datetime, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Move to a position (`earliest`, `latest`, `offset:42`, `time:-15m` …), in every partition or in one.

        When it returns, the next message comes from there. Acks of messages received before have no effect.
        An offset means the same number in every partition.

        Args:
            position: the position, or a datetime with its time zone.
            partition: the one to move. None: all.
            topic: for a consumer of several, the one to move. None: all. Required with `partition`.

        Raises:
            InvalidArgument: a partition does not have that position. Nothing has moved, and the receiver goes on.
        """
        self._check_usable()
        absolute = wire_position(position, "position")
        # the broker computes relative times such as "15 minutes ago"
        where = position if isinstance(position, str) else absolute
        lanes = lanes_of(self._lanes, partition=partition, topic=topic)
        if len(lanes) > 1:
            await all_of(lane.seek(where, check=True) for lane in lanes)
        await all_of(lane.seek(where) for lane in lanes)
        self._changed()

    def statistics(self) -> ConsumerStatistics:
        """Return the messages received, acknowledged and given back so far, and those that wait."""
        totals = replace(self._counters)
        totals.acked_messages += sum(lane.answers.acks.acked for lane in self._lanes)
        buffered = length_hint(self._offsets) + sum(map(len, self._ready))
        return ConsumerStatistics(
            taken_messages=totals.received_messages - totals.stale_messages - buffered,
            buffered_messages=buffered,
            credit_messages=sum(lane.credit.messages for lane in self._lanes),
            credit_bytes=sum(lane.credit.bytes for lane in self._lanes),
            **asdict(totals),
        )

    @property
    def labels(self) -> tuple[str, str, str]:
        """Role, topic and subscription: the labels of its counters."""
        return self._options.role, self._topic, self._subscription

    # -- inside ----------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if not self._open:
            what = "closed" if self._entered else "used outside its block"
            raise ClosedResource(f"the {self._options.role} of {self._topic} is {what}", topic=self._topic)

    def _arrived(self, delivered: Delivered) -> None:
        self._ready.append(delivered)
        self._wake()

    def _handed_out(self, lane: Lane) -> int:
        """Return how many messages of the lane's current delivery were handed out and not reported to the lane yet."""
        delivered = self._delivered
        if delivered is None or delivered.lane is not lane:
            return 0
        return len(delivered) - length_hint(self._offsets) - delivered.taken

    def _position(self) -> tuple[int, int]:
        return self._begun, length_hint(self._offsets)

    def _give_back_behind(self, lane: Lane, nacked: Delivered, ranges: Sequence[int]) -> Behind:
        """Remove buffered messages that came behind the nacked ones of their key, and return them.

        O(buffer). At most `MOST_RETURNED` messages.
        """
        first: dict[bytes | str, int] = {}  # offset by key
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            low, high = nacked.index(start), nacked.index(end - 1) + 1
            for offset, key in zip(
                nacked.batch.offsets[low:high], nacked.batch.routing_keys(low, high), strict=True
            ):
                first.setdefault(key, offset)
        parts = [each for each in self._ready if each.lane is lane]
        current, left = self._delivered, length_hint(self._offsets)
        if current is not None and left and current.lane is lane:
            parts.insert(0, current.part(len(current) - left, len(current)))
        found: list[tuple[int, Key]] = []
        for part in parts:
            keys = part.batch.routing_keys(part.low, part.high)
            found += [
                (offset, key)
                for offset, key in zip(part.offsets, keys, strict=True)
                if key in first and offset > first[key]
            ]
        found.sort(key=itemgetter(0))
        del found[MOST_RETURNED:]
        wanted = [place for offset, _ in found for place in (offset, offset + 1)]
        back = self._give_back(lane, wanted) if wanted else []
        return Behind(back, first, [(key, offset) for offset, key in found])

    def _give_back(self, lane: Lane, ranges: Sequence[int]) -> list[int]:
        """Remove these offsets from the buffer unless they were handed out. Return the removed ones as flat ranges."""
        wanted = list(zip(ranges[::2], ranges[1::2], strict=True))
        back: list[int] = []
        kept: deque[Delivered] = deque()
        current, left = self._delivered, length_hint(self._offsets)
        if current is not None and left and current.lane is lane:
            rest = current.part(len(current) - left, len(current))
            pieces = without(rest, wanted, back)
            if pieces is not None:
                # The delivery ends with the messages handed out. The pieces after them become separate deliveries.
                current.keep(0, len(current) - left)
                self._current, self._offsets = _NOTHING, iter(())
                kept.extend(pieces)
                lane.returned(current, left - sum(map(len, pieces)))
        for delivered in self._ready:
            pieces = without(delivered, wanted, back) if delivered.lane is lane else None
            if pieces is None:
                kept.append(delivered)
                continue
            kept.extend(pieces)
            messages = len(delivered) - sum(map(len, pieces))
            if pieces:
                pieces[0].size_bytes = delivered.size_bytes
            else:
                delivered.keep(0, 0)
            lane.returned(delivered, messages)
        self._ready = kept
        return back

    def _changed(self) -> None:
        """Drop messages buffered in older sessions, after a lane ended, failed or changed its session."""
        gone = [lane for lane in self._lanes if lane.left]
        current = self._delivered
        if current is not None and not current.current:
            left = length_hint(self._offsets)
            self._current, self._offsets, self._delivered = _NOTHING, iter(()), None
            current.lane.taken(current, len(current) - left - current.taken)
            current.lane.drop(current)
        void = [delivered for delivered in self._ready if not delivered.current]
        self._ready = deque(delivered for delivered in self._ready if delivered.current)
        for delivered in void:
            delivered.lane.drop(delivered)
        if gone:
            self._counters.acked_messages += sum(lane.answers.acks.acked for lane in gone)
            self._lanes = [lane for lane in self._lanes if not lane.left]
            self._share_credit()
        self._wake(everyone=True)

    def _wake(self, *, everyone: bool = False) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if not everyone:
                    return

    def _finish_delivery(self) -> None:
        """Finish the current delivery: return its credit, and send gathered acks."""
        delivered = self._delivered
        if delivered is not None and not length_hint(self._offsets):
            self._delivered = None
            delivered.lane.taken(delivered, len(delivered) - delivered.taken, more=bool(self._ready))

    def _put_back(self, message: Message) -> None:
        """Undo taking the current delivery's latest message."""
        delivered = self._delivered
        assert delivered is not None
        self._begin(delivered, len(delivered) - length_hint(self._offsets) - 1)

    def _begin(self, delivered: Delivered, low: int) -> None:
        self._begun += 1
        self._delivered = delivered
        self._offsets = iter(delivered.offsets[low:])
        payloads = delivered.batch.payloads(delivered.low + low, delivered.high)
        self._current = map(Message, repeat(delivered), self._offsets, payloads)

    async def _next_delivery(self, *, yield_first: bool) -> bool:
        """Make the next delivery the current one. Return False at the end."""
        self._finish_delivery()
        if yield_first and self._ready:
            await asyncio.sleep(0)
        while True:
            if length_hint(self._offsets):
                self._wake()  # another task made this delivery current. Others may take from it, too
                return True
            if not self._open:
                if self._entered:
                    return False
                self._check_usable()
            if self._drained:
                return False
            if self._ready and not self._paused:
                self._begin(self._ready.popleft(), 0)
                if length_hint(self._offsets) > 1 or self._ready:
                    self._wake()  # other tasks may take the remaining messages
                return True
            self._raise_failure(())
            if not self._ready and not self._several and all(lane.ended for lane in self._lanes):
                return False
            self._waiters.append(waiter := asyncio.get_running_loop().create_future())
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # cancelled after it was woken, so another waiter is woken
                raise

    def _raise_failure(self, taken: object) -> None:
        if not taken:
            for lane in self._lanes:
                if lane.error is not None:
                    raise copy_of(lane.error)
            if self._watch_error is not None:
                raise copy_of(self._watch_error)

    async def _confirm(self) -> None:
        await all_of(lane.answers.confirm() for lane in self._lanes if lane.answers.unsettled)
