"""Run a source: read, shape, encode, publish, store the position, acknowledge to the other system.

A session lasts until the next failure. After a failure everything is closed and opened again, and the source continues
from its stored positions. A deterministic source with positions is exactly once: the runner recognises by their number
the records that the session of the named producer already holds, and does not publish them again (`positions.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final
from zlib import crc32

import anyio
from pydanube import Client, Producer, ProducerOptions, TopicNotFound
from pydanube.routing import Router, Routing, bytes_beside_payload
from pydanube.sending.window import LARGEST_BYTES
from pydanube_core.batch.nulls import NULL
from pydanube_core.errors import InvalidArgument, PayloadInvalid, Unavailable
from pydanube_core.names import TopicName

from pydanube_connect.connector import Guarantee, Source
from pydanube_connect.dead_letters import DeadLetters, letters_of
from pydanube_connect.file import Declared
from pydanube_connect.positions import Positions
from pydanube_connect.records import Batch, Record, Refused
from pydanube_connect.retrying import Attempts, Stopping, alone
from pydanube_connect.shaping import shaper
from pydanube_connect.statistics import State, Statistics
from pydanube_connect.values import Writer, json_payload, json_value, writer

STATE_EVERY_S: Final = 1.0
_HELD_EVERY_S: Final = 10.0  # seconds between looks at what the other system keeps
_MOST_LETTER_BYTES: Final = 1_000_000
#: of a record. A message has 4 MiB at most, and a character up to 4 bytes
_MOST_ATTRIBUTE_CHARS: Final = 500_000
# A producer's name has at most 256 characters, of which the connector's name takes 100
_NAMEABLE: Final = re.compile(r"[\w.:-]{1,140}", re.ASCII)


@dataclass(slots=True)
class _Columns:
    """Records of a batch for one lane, in order."""

    payloads: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    attributes: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, payload: bytes, key: str | None, attributes: Mapping[str, str]) -> None:
        self.payloads.append(payload)
        self.keys.append(key)
        self.attributes.append(attributes)

    def after(self, count: int) -> _Columns:
        """Return the records behind the first `count`."""
        return _Columns(self.payloads[count:], self.keys[count:], self.attributes[count:]) if count else self

    def fit(self, most_bytes: int) -> bool:
        """Return whether each record surely fits into a message whose payload has `most_bytes` at most.

        From the largest of each kind in the batch, at 4 bytes a character: measuring each record costs more than reading it.
        """
        payload = max(map(len, self.payloads))
        key = max((len(each) for each in self.keys if each), default=0)
        names = max(map(len, chain.from_iterable(self.attributes)), default=0)
        texts = max(map(len, chain.from_iterable([each.values() for each in self.attributes])), default=0)
        chars = (names + texts) * max(map(len, self.attributes), default=0)
        # Twelve times: an attribute has eight bytes more than its characters, of which it has at least one.
        size = payload + 4 * key + 12 * chars
        return payload <= most_bytes and chars <= _MOST_ATTRIBUTE_CHARS and size <= LARGEST_BYTES


@dataclass(slots=True, kw_only=True)
class _Lane:
    """The producer of one shard for one topic."""

    producer: Producer
    encode: Writer | None  # None: the topic has no schema, and bytes are published unchanged
    partitions: int  # above 1, the connector chooses the partition where repeated records are recognised
    router: Router
    #: records by partition, including skipped ones. None: repeated records are not recognised
    counts: list[int] | None
    held: tuple[int, ...]  # records that the producer's session holds, by partition

    def columns(self, records: Sequence[Record]) -> tuple[_Columns, list[tuple[Record, str]]]:
        """Encode the records. Return their columns, and apart the records that no topic can store with the reasons."""
        most = self.producer.max_message_bytes
        found = _Columns([one.value for one in records])
        if self.encode is None and {*map(type, found.payloads)} == {bytes}:
            found.keys = [one.key for one in records]
            found.attributes = [one.attributes for one in records]
            if found.fit(most):
                return found, []
        found = _Columns()
        refused: list[tuple[Record, str]] = []
        encode = self.encode or writer(None)
        for record in records:
            value, attributes = record.value, record.attributes
            if value is None:
                attributes = {**attributes, NULL: "true"}
            try:
                payload = b"" if value is None else encode(value)
            except PayloadInvalid as error:
                refused.append((record, error.message))
                continue
            if len(payload) > most:
                refused.append((record, f"the record has {len(payload)} bytes, and the topic takes {most}"))
            elif sum(map(len, attributes.values())) > _MOST_ATTRIBUTE_CHARS:
                refused.append(
                    (
                        record,
                        f"the attributes of the record have more than {_MOST_ATTRIBUTE_CHARS} characters",
                    )
                )
            elif (size := len(payload) + bytes_beside_payload(record.key, attributes)) > LARGEST_BYTES:
                why = f"the record has {size} bytes with its key and attributes, and a message at most {LARGEST_BYTES}"
                refused.append((record, why))
            else:
                found.add(payload, record.key, attributes)
        return found, refused

    def new(self, columns: _Columns, shard: int) -> list[tuple[int | None, _Columns]]:
        """Return the records that the topic does not hold yet, by partition. None: the producer chooses the partition.

        The partition and the number of a record are the same on every read.
        """
        if self.counts is None:
            return [(None, columns)]
        if self.partitions == 1:
            before = self.counts[0]
            self.counts[0] += len(columns.payloads)
            return [(None, columns.after(max(0, self.held[0] - before)))]
        parts: dict[int | None, _Columns] = {}
        for payload, key, attributes in zip(columns.payloads, columns.keys, columns.attributes, strict=True):
            at = shard % self.partitions if key is None else self.router.pick(key, None)
            self.counts[at] += 1
            if self.counts[at] > self.held[at]:
                parts.setdefault(at, _Columns()).add(payload, key, attributes)
        return [*parts.items()]

    async def send(self, columns: _Columns, partition: int | None) -> None:
        """Publish the records. They are durable when this returns."""
        await self.producer.send_many(
            columns.payloads, keys=columns.keys, attributes=columns.attributes, partition=partition
        )


class SourceRunner:
    """Runs one source until `stop` is set. With `once`, it also ends when the source has no records."""

    def __init__(self, declared: Declared, client: Client, *, stop: anyio.Event, once: bool = False) -> None:
        self.declared = declared
        self._client = client
        self._stop = stop
        self._once = once
        self.source: Source[Any] = declared.make()
        self._shape = shaper(declared.shape, path=declared.path)
        self.statistics = Statistics(
            connector=declared.name, kind="source", type=declared.connector, guarantee=self._guarantee()
        )
        self._attempts = Attempts(declared, self.statistics, stop)
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._positions: Positions | None = None
        self._unconfirmed: dict[str, Batch] = {}  # newest batch by shard, without a stored position
        self._saved_at = self._looked_at = 0.0

    @property
    def _exact(self) -> bool:
        # The user's function may return different records on a second read
        return self.source.deterministic and self.declared.shape.function is None

    def _guarantee(self) -> str:
        return str(Guarantee.EXACTLY_ONCE if self._exact else self.source.guarantee)

    async def run(self) -> None:
        """Move records.

        Raises:
            ClusterError: the connector cannot continue. The next run starts at the stored positions.
        """
        try:
            while True:
                try:
                    await self._session()
                    return
                except Exception as failure:
                    await self._attempts.again(failure)
        except Stopping:
            pass
        finally:
            self.statistics.state = State.STOPPED

    async def _session(self) -> None:
        self._lanes.clear()
        self._unconfirmed.clear()
        async with AsyncExitStack() as stack:
            letters = await stack.enter_async_context(
                DeadLetters(self._client, f"connect-{self.declared.name}")
            )
            stack.push_async_callback(self._close)
            with anyio.fail_after(self.declared.delivery.attempt_timeout):
                await self.source.open()
            self.statistics.guarantee = self._guarantee()
            if self.source.deterministic:
                self._positions = Positions(self._client, self._state_topic())
                await self._positions.open()
                stack.push_async_callback(self._positions.close)
            await self.source.start(self._positions.by_shard if self._positions is not None else {})
            self.statistics.state = State.RUNNING
            while not self._stop.is_set():
                with anyio.fail_after(self.declared.delivery.attempt_timeout):
                    batch = await self.source.read()
                if batch is None:
                    await self._confirm()
                    if self._once:
                        break
                    continue
                await self._publish(batch, stack, letters)
                self._attempts.succeeded()
                # An empty batch is the first position of a shard. It is stored before the shard's first record.
                if not len(batch) or time.monotonic() - self._saved_at >= STATE_EVERY_S:
                    await self._confirm()
            await self._confirm()

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await self.source.close()

    def _state_topic(self) -> str:
        namespace = TopicName.parse(self.declared.topics[0]).namespace if self.declared.topics else "default"
        return f"/{namespace}/connect-{self.declared.name}-positions"

    # -- publishing ------------------------------------------------------------------------------------------

    async def _publish(self, batch: Batch, stack: AsyncExitStack, letters: DeadLetters) -> None:
        records: Sequence[Record] = batch.records
        if self._shape is not None:
            records, undecoded = _decoded(records)
            records, refusals = self._shape(records)
            for refused in (*undecoded, *refusals):
                await self._refuse([(record, refused.reason) for record in refused.records or ()], letters)
        sends: list[tuple[_Lane, int | None, _Columns]] = []
        shard = crc32(batch.shard.encode())
        for lane, some in await self._by_lane(batch.shard, records, stack):
            columns, unfit = lane.columns(some)
            if unfit:
                await self._refuse(unfit, letters)
            new = lane.new(columns, shard)
            sends += [(lane, at, part) for at, part in new if part.payloads]
            self.statistics.repeated += len(columns.payloads) - sum(len(part.payloads) for _, part in new)
        try:
            async with anyio.create_task_group() as tasks:
                for lane, at, part in sends:
                    tasks.start_soon(lane.send, part, at)
        except BaseExceptionGroup as group:
            raise alone(group) from None
        # From here every record of the batch is durable, in its topic or in the dead-letter topic
        self.statistics.wrote(sum(len(part.payloads) for _, _, part in sends))
        if batch.position is None or self._positions is None:
            await self.source.stored(batch)
            return
        self._positions.note(batch.shard, batch.position)
        self._unconfirmed[batch.shard] = batch
        self.statistics.positions[batch.shard or "position"] = batch.position

    async def _by_lane(
        self, shard: str, records: Sequence[Record], stack: AsyncExitStack
    ) -> list[tuple[_Lane, Sequence[Record]]]:
        """Return the records of each lane, in order. Two spellings of a topic are one lane."""
        lanes = {record.topic: record for record in records}
        opened = {
            name: await self._lane(shard, self._topic_of(record), stack) for name, record in lanes.items()
        }
        if len(opened) == 1:
            return [(lane, records) for lane in opened.values()]
        found: dict[int, tuple[_Lane, list[Record]]] = {id(lane): (lane, []) for lane in opened.values()}
        for record in records:
            found[id(opened[record.topic])][1].append(record)
        return [*found.values()]

    def _topic_of(self, record: Record) -> str:
        if record.topic is not None:
            return str(TopicName.parse(record.topic))
        if self.declared.topics:
            return self.declared.topics[0]
        raise InvalidArgument(
            f'{self.declared.path}: the records name no topic. Add topic = "…".',
            file=self.declared.path, field="topic", value=None,
        )  # fmt: skip

    async def _lane(self, shard: str, topic: str, stack: AsyncExitStack) -> _Lane:
        if (lane := self._lanes.get((shard, topic))) is not None:
            return lane
        target = self.declared.target
        if target is not None and target.durability is not None:
            await self._make(topic, target.durability, target.partitions)
        subject = target.schema_subject if target is not None else None
        offer = self.source.schema(topic)
        if offer is not None and subject is None:
            await self._client.schemas.register(offer.subject, offer.kind, offer.definition)
            subject = offer.subject
        options = ProducerOptions(
            partitions=None if target is None else target.partitions, schema=subject, window_messages=200_000
        )
        several = False
        if self._exact:
            assert self._positions is not None
            several = (await self._described(topic) or options.partitions or 0) > 1
            options = replace(
                options,
                name=f"connect-{self.declared.name}-{self._positions.generation}{_suffix(shard)}",
                access_mode="named",
                routing="explicit" if several else "key",
            )
        producer = await stack.enter_async_context(self._client.producer(topic, options))
        schema = await self._client.schemas.latest(subject) if subject is not None else None
        partitions = producer.partitions or 1
        counts = None
        if self._exact:
            assert self._positions is not None
            if several != (partitions > 1):
                raise Unavailable(f"{topic} was replaced while its producer was opened")
            held = dict(enumerate(producer.stored_before))
            counts = self._positions.stored(shard, topic, held, partitions)
        lane = self._lanes[shard, topic] = _Lane(
            producer=producer,
            encode=None if schema is None else writer(schema),
            partitions=partitions,
            router=Router(Routing.KEY, partitions),
            counts=counts,
            held=producer.stored_before,
        )
        return lane

    async def _described(self, topic: str) -> int | None:
        try:
            return (await self._client.admin.topics.describe(topic)).partitions
        except TopicNotFound:
            return None

    async def _make(self, topic: str, durability: Any, partitions: int | None) -> None:
        if await self._described(topic) is None:
            await self._client.admin.topics.create(topic, durability=durability, partitions=partitions)

    async def _refuse(self, refused: Sequence[tuple[Record, str]], letters: DeadLetters) -> None:
        topic = self._topic_of(refused[0][0])
        failed = f"cannot publish a record to {topic}"
        found = letters_of(self.declared, refused, failed, "the source or the schema")
        for each, _ in refused:
            if not each.payload:
                each.payload = each.value if isinstance(each.value, bytes) else _text_of(each.value)
            if len(each.payload) > _MOST_LETTER_BYTES:  # its topic has a limit too
                each.payload = each.payload[:_MOST_LETTER_BYTES]
            if sum(map(len, each.attributes.values())) > _MOST_ATTRIBUTE_CHARS:
                each.attributes = {name: text[:1_000] for name, text in each.attributes.items()}
        await letters.publish(topic, found)
        self.statistics.letters(len(found), found[0][1])

    async def _confirm(self) -> None:
        """Store the positions, then acknowledge the batches to the source."""
        self._saved_at = time.monotonic()
        if self._saved_at - self._looked_at >= _HELD_EVERY_S:
            self._looked_at = self._saved_at
            self.statistics.held_bytes = await self.source.held_bytes()
        if self._positions is None:
            return
        await self._positions.save()
        stored, self._unconfirmed = self._unconfirmed, {}
        for batch in stored.values():
            await self.source.stored(batch)


def _suffix(shard: str) -> str:
    """Return the part of a producer's name for a shard. A shard that no name can hold is replaced by its digest."""
    if not shard:
        return ""
    return (
        f"-{shard}"
        if _NAMEABLE.fullmatch(shard)
        else f"-{blake2b(shard.encode(), digest_size=12).hexdigest()}"
    )


def _text_of(value: Any) -> bytes:
    """Return the payload of a dead letter for a value that could not be encoded."""
    try:
        return json_payload(value)[:_MOST_LETTER_BYTES]
    except PayloadInvalid:
        return repr(value).encode()[:_MOST_LETTER_BYTES]


def _decoded(records: Sequence[Record]) -> tuple[list[Record], list[Refused]]:
    """Decode JSON payloads for a shape. Return the decoded records, and refusals of the invalid ones."""
    kept: list[Record] = []
    refusals: list[Refused] = []
    for record in records:
        try:
            if isinstance(record.value, bytes):
                record.value = json_value(record.value)
            kept.append(record)
        except PayloadInvalid as error:
            refusals.append(Refused([record], error.message))
    return kept, refusals
