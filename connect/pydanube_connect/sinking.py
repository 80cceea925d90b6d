"""Run a sink: read its topics with a subscription, decode, shape, write, acknowledge.

One task gathers and decodes the next batch while another task writes the current one. Memory is bounded by the
consumer's credit and three batches: one in gathering, one waiting, one in writing.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, repeat
from typing import Any, Final

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydanube import Batch as Piece
from pydanube import Client, Consumer, TopicNotFound
from pydanube_core.batch.nulls import NULL
from pydanube_core.batch.timing import DELAY_MS
from pydanube_core.errors import ClusterError, InvalidArgument, PayloadInvalid
from pydanube_core.names import TopicName

from pydanube_connect.connector import Sink
from pydanube_connect.dead_letters import DeadLetters
from pydanube_connect.file import Declared
from pydanube_connect.records import Batch, Delivered, Place, Record, Refused
from pydanube_connect.retrying import Stopping, alone
from pydanube_connect.shaping import shaper
from pydanube_connect.statistics import State, Statistics
from pydanube_connect.values import Readers, json_values
from pydanube_connect.writing import Writer

#: seconds (7 days), the maximum for which unacknowledged messages are kept while the target is unavailable
_KEPT_S: Final = 7 * 86_400.0
_REHEARSED: Final = 10  # records that `--check` tries
_LOOK_S: Final = 30.0  # seconds between looks for partitions that were added to those of a part
_QUIET_S: Final = 0.5  # seconds without a message before `--once` checks whether messages are left

log = logging.getLogger("pydanube.connect")


@dataclass(slots=True)
class _Gathered:
    """A batch on its way to the sink."""

    pieces: list[Piece] = field(default_factory=list)
    records: Delivered = field(default_factory=Delivered)
    refused: list[tuple[Record, str]] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    since: float = field(default_factory=time.monotonic)


class SinkRunner:
    """Runs one sink until `stop` is set. With `once`, it also ends when its subscription has no messages left."""

    def __init__(self, declared: Declared, client: Client, *, stop: anyio.Event, once: bool = False) -> None:
        self.declared = declared
        self._client = client
        self._stop = stop
        self._once = once
        self.sink: Sink[Any] = declared.make()
        self._shape = shaper(declared.shape, path=declared.path)
        self._readers = Readers(client)
        self._unanswered = 0  # batches gathered and not acknowledged
        self._own: dict[str, Place] = {}  # of a part: its partitions, by their topic's name
        self._rest: Piece | None = None  # the rest of a delivery that did not fit into its batch
        self.statistics = Statistics(
            connector=declared.name,
            part=declared.part,
            kind="sink",
            type=declared.connector,
            guarantee=str(self.sink.guarantee),
        )

    async def run(self) -> None:
        """Move records.

        Raises:
            ClusterError: the connector cannot continue. Unacknowledged messages are delivered again.
        """
        declared = self.declared
        async with DeadLetters(self._client, declared.subscription) as letters:

            async def dead(refused: Sequence[tuple[Record, str]]) -> None:
                by_topic: dict[str, list[tuple[Record, str]]] = {}
                for record, reason in refused:
                    topic = record.place.topic if record.place is not None else declared.topics[0]
                    by_topic.setdefault(topic, []).append((record, reason))
                for topic, some in by_topic.items():
                    await letters.publish(topic, some)

            writer = Writer(declared, self.sink, self.statistics, dead, self._stop)
            try:
                await writer.open()
                while await self._find_own():
                    self._rest = None
                    async with self._consumer() as consumer:
                        await self._go_back(consumer, writer)
                        await self._move(consumer, writer)
                    if self.declared.part is None or self._stop.is_set():
                        break
            except Stopping:
                pass
            except TopicNotFound as error:
                raise self._no_topic(error) from error
            finally:
                self.statistics.state = State.STOPPED
                await writer.close()

    def _no_topic(self, error: TopicNotFound) -> TopicNotFound:
        topic = error.details.get("topic") or ", ".join(self.declared.topics)
        return TopicNotFound(
            f"{self.declared.path}: topic {topic} does not exist, and a sink makes none. Create it: danube topics create "
            f"{topic}",
            topic=topic,
        )

    async def _find_own(self) -> bool:
        """Find the partitions of this part, and wait until there is one. Return False if the connector was stopped."""
        while not self._stop.is_set():
            self._own = await self._own_places()
            if self._own or self.declared.part is None:
                return True
            with anyio.move_on_after(_LOOK_S):
                await self._stop.wait()
        return False

    async def _own_places(self) -> dict[str, Place]:
        """Return the partitions that this part reads, by their topic's name. Empty if the sink reads all."""
        if self.declared.part is None:
            return {}
        places: dict[str, Place] = {}
        for topic in self.declared.topics:
            count = (await self._client.admin.topics.describe(topic)).partitions
            if count is None:
                places[topic] = Place(topic, None)
            for number in range(count or 0):
                places[str(TopicName.parse(topic).part(number))] = Place(topic, number)
        own = list(places.items())[self.declared.part :: self.declared.delivery.workers]
        return dict(own)

    async def _look_again(self, consumer: Consumer) -> None:
        """End this consumer when its part has other partitions, because some were added."""
        while self.declared.part is not None:
            await anyio.sleep(_LOOK_S)
            with suppress(ClusterError):
                if await self._own_places() != self._own:
                    consumer.drain()
                    return

    def _consumer(self) -> Consumer:
        declared = self.declared
        topics = tuple(self._own) or declared.topics
        return self._client.consumer(
            topics[0] if len(topics) == 1 else list(topics),
            declared.subscription,
            type="failover",  # one reader of each partition, in the order of offsets
            start=declared.delivery.start,
            max_extend_s=_KEPT_S,
        )

    async def _move(self, consumer: Consumer, writer: Writer) -> None:
        try:
            await self._move_together(consumer, writer)
        except BaseExceptionGroup as group:
            raise alone(group) from None

    async def _move_together(self, consumer: Consumer, writer: Writer) -> None:
        send, receive = anyio.create_memory_object_stream[_Gathered](1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain_when_stopped, consumer)
            tasks.start_soon(self._look_again, consumer)
            tasks.start_soon(self._gather, consumer, send)
            async with receive:
                async for gathered in receive:
                    await self._write(gathered, writer)
            tasks.cancel_scope.cancel()

    async def _drain_when_stopped(self, consumer: Consumer) -> None:
        await self._stop.wait()
        consumer.drain()

    # -- gathering -------------------------------------------------------------------------------------------

    async def _gather(self, consumer: Consumer, send: MemoryObjectSendStream[_Gathered]) -> None:
        deliveries, take = anyio.create_memory_object_stream[Piece](0)
        async with anyio.create_task_group() as tasks, send, take:
            tasks.start_soon(_hand_on, consumer, deliveries)
            while True:
                gathered = _Gathered()
                more = await self._fill(gathered, take)
                if gathered.messages:
                    self._unanswered += 1
                    await send.send(gathered)
                elif self._once and more and not self._unanswered and await self._nothing_left():
                    more = False
                if not more:
                    break
            tasks.cancel_scope.cancel()

    async def _fill(self, gathered: _Gathered, take: MemoryObjectReceiveStream[Piece]) -> bool:
        """Gather a batch. Return False if no delivery will follow."""
        terms = self.declared.delivery
        while gathered.messages < terms.batch_size and gathered.bytes < terms.batch_bytes:
            piece, self._rest = self._rest, None
            if piece is None:
                wait_s = _QUIET_S
                if gathered.messages:
                    wait_s = gathered.since + terms.batch_age - time.monotonic()
                try:
                    with anyio.move_on_after(max(0.0, wait_s)):
                        piece = await take.receive()
                except anyio.EndOfStream:
                    return False
                if piece is None:
                    break
            if not gathered.messages:
                gathered.since = time.monotonic()
            piece, self._rest = _cut(
                piece, terms.batch_size - gathered.messages, terms.batch_bytes - gathered.bytes
            )
            await self._decode(piece, gathered)
            await anyio.lowlevel.checkpoint()
        return True

    async def _go_back(self, consumer: Consumer, writer: Writer) -> None:
        """Seek back if the target's position of a place is behind the subscription's.

        This happens after the target was restored from a backup. Offsets that do not arrive after the seek are no longer
        in the topic.
        """
        for (topic, partition), start in consumer.starts.items():
            place = self._own.get(topic) or Place(topic, partition)
            position = await writer.position(place)
            if position is None or position >= start:
                continue
            log.warning(
                "connector_seeks",
                extra={"connector": self.declared.name, "place": str(place), "to": position},
            )
            one_of = (
                topic if len(consumer.starts) > 1 and len(self._own or self.declared.topics) > 1 else None
            )
            try:
                await consumer.seek(f"offset:{position}", partition=partition, topic=one_of)
            except InvalidArgument:  # the topic no longer holds the offset
                await consumer.seek("earliest", partition=partition, topic=one_of)

    async def _decode(self, piece: Piece, gathered: _Gathered) -> None:
        place = self._own.get(piece.topic) or Place(piece.topic, piece.partition)
        offsets = piece.offsets
        gathered.pieces.append(piece)
        gathered.messages += len(piece)
        gathered.bytes += sum(map(len, piece.payloads))
        gathered.ends[place] = max(offsets[-1] + 1, gathered.ends.get(place, 0))
        schemas = piece.schemas
        await self._readers.prepare(schemas)
        attributes = piece.attributes
        special = any(attributes) and any(NULL in each or DELAY_MS in each for each in attributes)
        if self.sink.decodes and self._shape is None and not special and self._readers.only_json(schemas):
            values = json_values(piece.payloads)
            if values is not None:
                gathered.records.add(values, partial(_records, piece, place, values), place, offsets[0])
                return
        records = _records(piece, place, repeat(None))
        gathered.records.delayed |= special
        if self.sink.decodes or self._shape is not None:
            records = self._with_values(records, schemas, gathered)
        if self._shape is not None:
            records, refusals = self._shape(records)
            for refused in refusals:
                gathered.refused += [(record, refused.reason) for record in refused.records or ()]
        gathered.records.add([record.value for record in records], lambda: records, place, offsets[0])

    def _with_values(
        self, records: list[Record], schemas: Sequence[Any], gathered: _Gathered
    ) -> list[Record]:
        kept: list[Record] = []
        for record, schema in zip(records, schemas, strict=True):
            if record.attributes and NULL in record.attributes:
                kept.append(record)
                continue
            try:
                record.value = self._readers.of(schema)(record.payload)
                kept.append(record)
            except ClusterError as error:
                gathered.refused.append((record, error.message))
        return kept

    async def _nothing_left(self) -> bool:
        left = 0
        for topic in self.declared.topics:
            described = await self._client.admin.subscriptions.describe(topic, self.declared.subscription)
            left += described.lag_messages
        return not left

    # -- writing ---------------------------------------------------------------------------------------------

    async def _write(self, gathered: _Gathered, writer: Writer) -> None:
        if gathered.refused:
            await writer.refuse(gathered.refused)
        await writer.write(Batch(gathered.records, ends=gathered.ends))
        for piece in gathered.pieces:
            await piece.ack()
        self._unanswered -= 1
        self.statistics.positions |= {str(place): str(end) for place, end in gathered.ends.items()}


def _records(piece: Piece, place: Place, values: Iterable[Any]) -> list[Record]:
    time = piece.append_time
    columns = zip(values, piece.keys, piece.attributes, piece.offsets, piece.payloads, strict=False)
    return [
        Record(value, key, attributes, None, place, offset, time, payload)
        for value, key, attributes, offset, payload in columns
    ]


async def _hand_on(consumer: Consumer, deliveries: MemoryObjectSendStream[Piece]) -> None:
    async with deliveries:
        async for delivered in consumer.batches():
            await deliveries.send(delivered)


def _cut(piece: Piece, messages: int, bytes_left: int) -> tuple[Piece, Piece | None]:
    """Split a piece into the part that fits into a batch, at least one message, and the rest."""
    end = min(len(piece), max(1, messages))
    sizes = list(accumulate(map(len, piece.payloads[:end])))
    if sizes[-1] > bytes_left:
        end = max(1, bisect_right(sizes, bytes_left))
    if end == len(piece):
        return piece, None
    return piece.part(0, end), piece.part(end, len(piece))


async def dry_run(declared: Declared, client: Client, count: int) -> AsyncIterator[str]:
    """Yield the first records of a sink's topics as it would write them. No message is acknowledged or written."""
    sink = declared.make()
    async for gathered in _first(declared, client, count):
        for record, reason in gathered.refused:
            yield f"{record.place} offset {record.offset} refused: {reason}"
        for text in sink.preview(Batch(gathered.records, ends=gathered.ends)):
            yield text


async def rehearse(declared: Declared, sink: Sink[Any], client: Client) -> list[str]:
    """Find out whether the sink could write its next records, where they are among the first of its topics.

    Raises:
        PayloadInvalid: a record would be refused, and that would stop the connector.
    """
    found: list[tuple[str, str]] = []
    await sink.rehearse(Batch([]))
    async for gathered in _first(declared, client, _REHEARSED):
        known = await sink.positions(list(gathered.ends))
        found += [(f"{record.place} offset {record.offset}", reason) for record, reason in gathered.refused]
        left = [each for each in gathered.records if each.place and each.offset >= known.get(each.place, 0)]
        try:
            await sink.rehearse(Batch(left, ends=gathered.ends))
        except Refused as refused:
            record = (refused.records or left)[0]
            found.append((f"{record.place} offset {record.offset}", refused.reason))
    if found and declared.delivery.on_error == "stop":
        where, why = found[0]
        raise PayloadInvalid(
            f"{declared.path}: the record {where} would be refused: {why.rstrip('.')}. Correct the producer or the target, or "
            'set on_error = "dead_letter" in [delivery].', field="payload", value=None,
        )  # fmt: skip
    return [f"the record {where} would become a dead letter: {why}" for where, why in found]


async def _first(declared: Declared, client: Client, count: int) -> AsyncIterator[_Gathered]:
    """Yield the first records of a sink's topics, decoded and shaped. Nothing is acknowledged."""
    runner = SinkRunner(declared, client, stop=anyio.Event(), once=True)
    left = count
    for topic in declared.topics:
        if left <= 0:
            return
        async with client.reader(topic, start=declared.delivery.start, stop="head") as reader:
            async for delivered in reader.batches():
                gathered = _Gathered()
                await runner._decode(delivered.part(0, min(left, len(delivered))), gathered)
                left -= gathered.messages
                yield gathered
                if left <= 0:
                    break
