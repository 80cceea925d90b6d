"""The producer: one window over the lanes of all partitions.

`send_nowait` is the hot path: two list appends and a handle. It is flat on purpose. Unusual cases (keys, attributes,
several partitions, a full window, a closed producer) branch off to slower code.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate, repeat
from typing import Any, Final, Self

from pydanube_core.batch import BATCH_TARGET_BYTES, MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, parse_codec
from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    DeadlineExceeded,
    InvalidArgument,
)

from pydanube.arguments import with_null, with_timing
from pydanube.facts import ClientEventKind, Receipt, SchemaRef, SendSummary
from pydanube.keywords import keywords_named
from pydanube.message import Message
from pydanube.options import ClientSide, ProducerOptions
from pydanube.payloads.serialising import payload_of, serialiser
from pydanube.payloads.shapes import Value
from pydanube.routing import Router, Routing, encode_key
from pydanube.sending.columns import chunks_of, columns_of
from pydanube.sending.lane_options import LaneCounters, LaneOptions
from pydanube.sending.ledger import Ledger
from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES, OutBatch, PackedMessages, PendingSend, Session
from pydanube.sending.publish_lane import PublishLane
from pydanube.sending.slices import add_slices
from pydanube.sending.unstored import unstored
from pydanube.sending.window import LARGEST_BYTES, Payload, Window
from pydanube.statistics import ProducerStatistics
from pydanube.tasks import TaskOwner
from pydanube.tracing import Carried
from pydanube.wire.transport import copy_of

LEAVE_S: Final = 5.0  # maximum time to leave the block after an exception
#: seconds after the first partition is open. The producer then opens without the partitions whose owner has not answered
OTHERS_S: Final = 2.0

assert BATCH_TARGET_BYTES // MESSAGE_OVERHEAD_BYTES <= MAX_BATCH_MESSAGES


class Producer:
    """Publishes to one topic. Made by `client.producer(…)`, used as `async with`.

    Order: messages of one partition are stored in the order of the send calls. Leaving the block flushes. Leaving it
    by an exception waits at most 5 s and drops messages that are not stored by then.

    While the owner of a partition does not answer, messages without a key go to the other partitions. So do such
    messages that waited for this owner and were never written. Messages with a key or `partition=`, messages that may
    be stored already, and all messages of a producer whose access mode is not shared wait for their owner.

    The window: at most `window_messages` and `window_bytes` are handed over and unanswered. `send` waits for room,
    in turn, and `send_nowait` raises `WindowFull`. A message larger than the whole window passes when it is empty.
    """

    def __init__(
        self, topic: str, options: ProducerOptions, side: ClientSide, closed: Callable[[Producer], None]
    ) -> None:
        self._topic = topic
        self._options = options
        self._side = side
        self._closed = closed
        self._routing = Routing.parse(options.routing)
        self._codec = parse_codec(options.compression)
        self._window = Window(topic, options.window_messages, options.window_bytes)
        self._lanes: list[PublishLane] = []
        self._stored_before: tuple[int, ...] = ()
        self.receipts_may_wait = False  # no caller waits for its receipts. Set before it is opened
        self._only: PublishLane | None = None
        self._router = Router(self._routing, 1)
        self._turn = -1  # index of the lane that messages without a key go to
        # The batch of that lane that these messages fill. None once it is sent
        self._filled: OutBatch | None = None
        # Whether messages without a key may go to any partition. A producer that reopens a name continues by the number
        # of its messages in each partition, so its messages must not change partitions.
        self._any_order = options.access_mode == "shared"
        self._by_batch = self._any_order and self._routing is Routing.KEY
        self._down: set[int] = set()  # lanes whose owner does not answer
        self._tasks = TaskOwner()
        self._counters = LaneCounters()
        self._taken_messages = 0  # answered so far, kept for the statistics
        self._taken_bytes = 0
        self._tracing = side.tracing
        self._serialise: Callable[[Any], bytes] | None = None  # if it has a schema
        self._unseen: deque[OutBatch] = deque(maxlen=1024)  # failed and not awaited yet

    # -- the block -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the producer on every partition.

        Raises:
            ClusterError: the topic is unavailable, or the broker was not reached within the client's `Retry`.
        """
        try:
            self._topic, partitions = await self._side.prepare()
            self._router = Router(self._routing, len(partitions))
            self._lanes = [self._lane(index, concrete, len(partitions)) for index, concrete in partitions]
            for lane in self._lanes:
                self._tasks.start(lane.run(), name=f"publish {self._topic}", ended=lane.task_ended)
            await self._open()
            session = self._session
            if self._options.schema is not None and session is not None and session.schema[0]:
                self._serialise = serialiser(await self._side.schema(SchemaRef(*session.schema)))
        except BaseException:
            await self._tasks.aclose()
            self._closed(self)
            raise
        self._stored_before = tuple(
            0 if lane.session is None else lane.session.next_sequence for lane in self._lanes
        )
        plain = len(self._lanes) == 1 and self._routing is not Routing.EXPLICIT
        self._only = self._lanes[0] if plain and self._tracing is None else None
        largest = min(lane.max_message_bytes for lane in self._lanes if lane.session is not None)
        self._window.open(self._topic, largest or MAX_BATCH_BYTES)
        return self

    async def _open(self) -> None:
        """Wait until every partition is open, or until some are and the others do not answer."""
        opened = [lane.opened for lane in self._lanes]
        if self._any_order:
            await asyncio.wait(opened, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(opened, return_when=asyncio.FIRST_EXCEPTION, timeout=OTHERS_S)
            first = next((lane for lane in self._lanes if lane.session is not None), None)
            for at, lane in enumerate(self._lanes):
                if first is not None and not lane.opened.done():
                    lane.open_later(first)
                    self._down.add(at)
        for each in opened:
            await each

    @property
    def _session(self) -> Session | None:
        """Return the session of the first partition that has one."""
        return next((lane.session for lane in self._lanes if lane.session is not None), None)

    def _lane(self, index: int | None, concrete: str, partitions: int) -> PublishLane:
        at = index or 0

        def down(is_down: bool) -> None:
            if is_down:
                self._down.add(at)
            else:
                self._down.discard(at)

        def reroute(batch: OutBatch) -> bool:
            if not self._any_order or len(self._down) == len(self._lanes):
                return False
            self._advance_turn()
            self._lanes[self._turn].take_over(batch)
            self._filled = None
            return True

        def emit(kind: ClientEventKind, url: str, attempt: int, reason: str) -> None:
            self._side.emit(kind, "producer", concrete, url, attempt, reason)

        return PublishLane(
            LaneOptions(
                topic=self._topic,
                partition=index,
                concrete_topic=concrete,
                producer=self._options.among(partitions),
                codec=self._codec,
                retry=self._side.retry,
                locate=self._side.locate,
                pause=self._side.pause,
                released=self._release,
                died=self._window.shut_down,
                emit=emit,
                down=down,
                reroute=reroute,
                counters=self._counters,
                receipts_may_wait=self.receipts_may_wait,
            )
        )

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
            else:
                try:
                    async with asyncio.timeout(LEAVE_S):
                        await self.flush()
                except (ClusterError, TimeoutError):
                    pass  # the block's own exception is the one to show
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close immediately. Messages that are not stored yet fail with `ClosedResource`."""
        self._window.shut_down(ClosedResource(f"the producer on {self._topic} is closed", topic=self._topic))
        await self._tasks.aclose()
        self._closed(self)

    @property
    def topic(self) -> str:
        """Return the topic's full name, `/namespace/topic`."""
        return self._topic

    @property
    def name(self) -> str:
        """The producer's name, chosen by the broker if none was given."""
        session = self._session
        return session.producer_name if session else self._options.name or ""

    @property
    def partitions(self) -> int | None:
        """The topic's number of partitions, None for a topic without."""
        return (
            None if len(self._lanes) == 1 and self._lanes[0].gathering.partition is None else len(self._lanes)
        )

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that the topic accepts. 0 outside the producer's block."""
        return self._window.max_message_bytes

    @property
    def stored_before(self) -> tuple[int, ...]:
        """For each partition, the number of its messages by this producer when it was opened.

        0, except for a producer with `access_mode` exclusive or named that reopens its name.
        """
        return self._stored_before

    def unstored(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the messages after `stored_before`. `messages` are all ever sent under this name, in the same order.

        Raises `InvalidArgument` if one has no key and the topic has partitions.
        """
        return unstored(messages, self._stored_before, self._routing, topic=self._topic)

    # -- sending ---------------------------------------------------------------------------------------------

    def send_nowait(
        self,
        payload: Payload | Value | None,
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        partition: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> PendingSend:
        """Hand a message over and immediately return an awaitable of its `Receipt`.

        It leaves by the end of this loop tick, or when a batch in flight is answered. Keywords as for `send`.

        Raises:
            WindowFull, MessageTooLarge, ClusterError: nothing was accepted. Await `flush()` for room. `send` waits for
            it.
        """
        if delay_ms is not None or ttl_ms is not None:
            attributes = with_timing(attributes, delay_ms, ttl_ms, self._options.dispatch_strategy)
        lane = self._only
        if lane is None or attributes is not None or type(payload) is not bytes:
            return self._send_any(payload, key, attributes, partition)
        window = self._window
        size = len(payload)
        if size > window.max_message_bytes or partition:
            return self._send_any(payload, key, attributes, partition)
        size += MESSAGE_OVERHEAD_BYTES
        if key is not None:
            encoded = encode_key(key)
            size += len(encoded)
            if size > LARGEST_BYTES:
                return self._send_any(payload, key, attributes, partition)
        free_messages = window.free_messages - 1
        free_bytes = window.free_bytes - size
        if free_messages < 0 or free_bytes < 0:
            window.reserve(1, size)
        else:
            window.free_messages = free_messages
            window.free_bytes = free_bytes
        batch = lane.gathering
        total = batch.bytes + size
        if total > lane.limit_bytes and batch.bytes:
            batch = lane.seal()
            total = size
        batch.bytes = total
        payloads = batch.payloads
        index = len(payloads)
        if key is not None:
            batch.add_keys((encoded,))
        payloads.append(payload)
        if not index:
            lane.first_message()
        handle = PendingSend()
        handle._batch = batch
        handle._index = index
        return handle

    @keywords_named
    async def send(
        self,
        payload: Payload | Value | None,
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> Receipt:
        """Publish a message and wait until it is stored as durably as the topic promises.

        With `timeout_s` it waits that long, and then raises `DeadlineExceeded`, whose `details["outcome"]` is
        `not_stored` (it waited for room in the window) or `unknown` (it was handed over and may still be stored).
        None: as long as the client's `Retry` allows. Subscriptions deliver it `delay_ms` after it was stored, and no
        longer after `ttl_ms`.

        If cancelled while it waits for room in the window, it has no effect. If cancelled later (by a deadline, for
        example), the message has been handed over and will be stored. Sending it again would store it twice.

        With a `schema=` the payload may be a value: a dict, a dataclass, a pydantic model, a Protobuf message. A value
        that does not fit is refused before anything is sent. Bytes are sent unchanged. None is a null payload, which
        marks the key as deleted and is not checked against the schema.

        Raises:
            PayloadInvalid: the value does not fit the schema at `details["path"]`.
            ClusterError: not stored, or with `details["outcome"] == "unknown"`, possibly stored.
        """
        if delay_ms is not None or ttl_ms is not None:
            attributes = with_timing(attributes, delay_ms, ttl_ms, self._options.dispatch_strategy)
        if payload is None:
            payload, attributes = b"", with_null(attributes, key)
        if self._tracing is not None and not isinstance(attributes, Carried):
            return await self._tracing.send(self, payload, key, attributes, partition, timeout_s)
        if timeout_s is not None:
            return await self._send_within(timeout_s, payload, key, attributes, partition)
        if type(payload) is not bytes:
            payload = payload_of(payload, self._serialise)
        window = self._window
        if (
            window.free_messages <= 0
            or window.free_bytes < len(payload) + MESSAGE_OVERHEAD_BYTES
            or window.waiting
        ):
            handle = await self._send_in_turn(payload, key, attributes, partition)
        else:
            if key is None and attributes is None and type(payload) is bytes and self._only is not None:
                alone = None if partition else self._only.send_alone(payload)
                if alone is not None:
                    window.free_messages -= 1
                    window.free_bytes -= alone.bytes
                    await alone.waiter()
                    return alone.receipt(0)
            handle = self.send_nowait(payload, key=key, attributes=attributes, partition=partition)
        batch = handle._batch
        await batch.waiter()  # never answered already: nothing has been sent in this turn of the loop
        return batch.receipt(handle._index)

    @keywords_named
    async def send_many(
        self,
        messages: Iterable[Payload | Message | Value | None],
        *,
        keys: Iterable[str | None] | None = None,
        attributes: Iterable[Mapping[str, str] | None] | None = None,
        partition: int | None = None,
    ) -> SendSummary:
        """Publish payloads or messages, in order, as fast as the window permits. Return when all are stored.

        Args:
            messages: consumed lazily, so that it may be larger than memory. A `Message` brings its key and attributes.
                A binary or text column of Arrow is sent as it is, without an object per message, and so are its keys.
            keys: one per payload, consumed along with them. This saves the object per message of `Message.new`. More
                keys than messages are allowed (`itertools.cycle`).
            attributes: one mapping or None per payload, consumed along with them. They are not copied, so leave them
                unchanged until this returns.
            partition: of all messages, as for `send`.

        Raises:
            InvalidArgument: fewer keys or attributes than messages, or one of them for a `Message`. Earlier messages are
                stored.
            ClusterError: of the first message that failed. Messages before and after it may be stored. Its attribute
                `acknowledged` is the `SendSummary` of the stored ones, `details["acknowledged"]` their count.
        """
        ledger = Ledger()
        explicit = self._routing is Routing.EXPLICIT and partition is None
        by_slice = not explicit and self._tracing is None
        window = self._window
        roomy = window.messages >= MAX_BATCH_MESSAGES and window.bytes >= self._options.batch_bytes
        try:
            lane = None if partition is None else self._lanes[self._router.pick(None, partition)]
            whole = (lane or self._only) if roomy and self._tracing is None else None
            for chunk, own_keys, own in chunks_of(messages, keys, attributes, topic=self._topic, whole=whole):
                if isinstance(chunk, PackedMessages):
                    assert whole is not None
                    await window.room(len(chunk), chunk.bytes)
                    batch = whole.add_packed(chunk)
                    batch.bound = lane is not None
                    ledger.note(batch, len(chunk))
                    ledger.collect()
                    continue
                columns = columns_of(chunk, own_keys, own) if by_slice and window.shut is None else None
                if columns is None:  # added singly, so that the wrong entry raises
                    for entry, key, each in zip(
                        chunk, own_keys or repeat(None), own or repeat(None), strict=False
                    ):
                        await self._add(entry, ledger, key, each, partition)
                elif lane is not None:
                    await add_slices(lane, *columns, own, window=window, ledger=ledger)
                else:
                    await self._spread(*columns, own, ledger)
                ledger.collect()
                await asyncio.sleep(0)
            await ledger.rest()
        except ClusterError as error:
            raise await ledger.failed(error, self._durability) from error
        return ledger.summary(self._durability)

    async def flush(self) -> None:
        """Send gathered messages without lingering, and wait until all messages handed over so far are answered.

        Raises:
            ClusterError: the first failure that was not awaited yet.
        """
        for batch in [batch for lane in self._lanes for batch in lane.hurry()]:
            await batch.wait()
        failed = [batch for batch in self._unseen if not batch.error_seen]
        self._unseen.clear()
        if failed:
            for batch in failed:
                batch.error_seen = True
            assert failed[0].error is not None
            raise copy_of(failed[0].error, messages=sum(map(len, failed)))

    def statistics(self) -> ProducerStatistics:
        """Return the messages sent, answered and retried so far, and those that wait."""
        waiting = [b for lane in self._lanes for b in lane.unanswered()]
        waiting_messages, waiting_bytes = sum(map(len, waiting)), sum(b.bytes for b in waiting)
        return ProducerStatistics(
            sent_messages=self._taken_messages + waiting_messages,
            sent_bytes=self._taken_bytes + waiting_bytes,
            waiting_messages=waiting_messages,
            waiting_bytes=waiting_bytes,
            blocked_senders=len(self._window.blocked),
            **asdict(self._counters),
        )

    @property
    def labels(self) -> tuple[str, str, str]:
        """Role, topic and subscription: the labels of its counters."""
        return "producer", self._topic, ""

    # -- the slower paths ------------------------------------------------------------------------------------

    @property
    def _durability(self) -> str:
        session = self._session
        return session.durability if session else ""

    def _send_any(
        self,
        payload: Payload | Value | None,
        key: str | None,
        attributes: Mapping[str, str] | None,
        partition: int | None,
    ) -> PendingSend:
        if payload is None:
            payload, attributes = b"", with_null(attributes, key)
        payload = payload_of(payload, self._serialise)
        if self._tracing is not None:
            attributes = self._tracing.created(self._topic, key, attributes)
        window = self._window
        size = window.measure(payload, key, attributes)
        if window.shut is not None:
            raise copy_of(window.shut)
        free = self._by_batch and key is None and partition is None
        down = self._down if self._any_order else ()
        lane = None if free else self._lanes[self._router.pick(key, partition, down=down)]
        window.reserve(1, size)
        if lane is None:
            lane = self._next_lane(size)
        encoded = None if key is None else encode_key(key)
        alone = lane.send_alone(bytes(payload), encoded, attributes)
        if alone is not None:
            alone.bytes = size
            self._filled = None
            return PendingSend.of(alone, 0)
        batch = lane.gathering
        if batch.bytes + size > lane.limit_bytes and batch.bytes:
            batch = lane.seal()
        batch.bytes += size
        if not free and (partition is not None or self._routing is not Routing.ROUND_ROBIN):
            batch.bound = True
        if not batch.payloads:
            lane.first_message()
        return batch.add(bytes(payload), encoded, attributes)

    async def _send_within(
        self,
        timeout_s: float,
        payload: Payload | Value,
        key: str | None,
        attributes: Mapping[str, str] | None,
        partition: int | None,
    ) -> Receipt:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 1e9:
            raise InvalidArgument(
                f"timeout_s is a number above 0, got {timeout_s!r}", field="timeout_s", value=repr(timeout_s)
            )
        payload = payload_of(payload, self._serialise)
        outcome = "not_stored"
        try:
            async with asyncio.timeout(timeout_s):
                handle = await self._send_in_turn(payload, key, attributes, partition)
                outcome = "unknown"
                await handle._batch.waiter()
                return handle._batch.receipt(handle._index)
        except TimeoutError:
            what = "had no room for it" if outcome == "not_stored" else "has no answer. It may be stored yet"
            raise DeadlineExceeded(
                f"{self._topic}: after {timeout_s:g} s the producer {what}",
                topic=self._topic, outcome=outcome, timeout_s=timeout_s,
            ) from None  # fmt: skip

    async def _add(
        self,
        entry: Payload | Message | Value | None,
        ledger: Ledger,
        key: str | None,
        attributes: Mapping[str, str] | None,
        partition: int | None,
    ) -> None:
        if isinstance(entry, Message):
            if key is not None or attributes is not None:
                field = "attributes" if key is None else "keys"
                raise InvalidArgument(
                    f"{self._topic}: a Message brings its key and attributes, `{field}` gives others",
                    field=field,
                    value=key,
                )
            payload = payload_of(entry.payload, self._serialise)
            key, attributes = entry.key, entry.attributes or None
        elif entry is None:
            payload, attributes = b"", with_null(attributes, key)
        else:
            payload = payload_of(entry, self._serialise)
        ledger.note((await self._send_in_turn(payload, key, attributes, partition))._batch, 1)

    async def _send_in_turn(
        self, payload: Payload, key: str | None, attributes: Mapping[str, str] | None, partition: int | None
    ) -> PendingSend:
        """Hand a message over when there is room, after earlier waiters."""
        if self._tracing is not None:
            attributes = self._tracing.created(self._topic, key, attributes)  # its context takes room too
        window = self._window
        size = window.measure(payload, key, attributes)
        await window.room(1, size)
        window.free_messages += 1  # `_send_any` takes it again before any other task runs
        window.free_bytes += size
        try:
            return self._send_any(payload, key, attributes, partition)
        finally:
            window.pass_on()  # if the message was refused, its room is for the next waiter

    def _next_lane(self, size: int) -> PublishLane:
        """Return the lane of a message without a key: the last one until its batch has left or is full, then the next.

        Lanes whose owner does not answer are left out, unless none answers.

        A batch costs both sides as much as some hundred messages. If each message went to the next lane, a burst over a
        thousand partitions would be a thousand batches.
        """
        lane = self._lanes[self._turn]
        batch = lane.gathering
        down = self._turn in self._down and len(self._down) < len(self._lanes)
        if batch is self._filled and not down:
            if not batch.bytes or batch.bytes + size <= lane.limit_bytes:
                return lane
            lane.seal()
        self._advance_turn()
        lane = self._lanes[self._turn]
        self._filled = lane.gathering
        return lane

    def _advance_turn(self) -> None:
        """Go to the next lane whose owner answers, or to the next one if none answers."""
        count = len(self._lanes)
        turns = [(self._turn + 1 + at) % count for at in range(count if self._down else 1)]
        self._turn = next((turn for turn in turns if turn not in self._down), turns[0])

    async def _spread(
        self,
        payloads: list[bytes],
        keys: list[bytes | None] | None,
        attributes: list[Mapping[str, str] | None] | None,
        ledger: Ledger,
    ) -> None:
        if self._only is not None:
            await add_slices(self._only, payloads, keys, attributes, window=self._window, ledger=ledger)
            return
        free: list[int] = []
        down = self._down if self._any_order else ()
        by_partition = self._router.spread(
            keys, len(payloads), free=free if self._by_batch else None, down=down
        )
        bound = [bool(part) and self._routing is Routing.KEY for part in by_partition]
        for index, part in self._assign_free(payloads, free):
            by_partition[index] += part
        for lane, part, stays in zip(self._lanes, by_partition, bound, strict=True):
            if not part:
                continue
            if free and keys is not None:
                part.sort()  # within a partition, the order of the calls
            of_part = None if keys is None else [keys[at] for at in part]
            around = None if attributes is None else [attributes[at] for at in part]
            of_lane = [payloads[at] for at in part]
            await add_slices(lane, of_lane, of_part, around, window=self._window, ledger=ledger, bound=stays)

    def _assign_free(self, payloads: list[bytes], free: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Give messages without a required partition to lanes, a batch each. Yield lanes and indices of payloads."""
        ends = list(accumulate(len(payloads[at]) + MESSAGE_OVERHEAD_BYTES for at in free))
        start = before = 0
        while start < len(free):
            lane = self._next_lane(ends[start] - before)
            end = max(start + 1, bisect_right(ends, before + lane.limit_bytes - lane.gathering.bytes))
            yield self._turn, free[start:end]
            start, before = end, ends[end - 1]
            if start < len(free):
                self._filled = None  # that batch will be full

    def _release(self, batch: OutBatch) -> None:
        """Return the room of an answered batch to the window."""
        self._taken_messages += batch.count  # an answered batch has its count
        self._taken_bytes += batch.bytes
        if batch.error is not None:
            self._unseen.append(batch)
        self._window.give_back(batch.count, batch.bytes)
