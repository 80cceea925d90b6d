"""`kafka-source`: read topics of Kafka from their beginning, their end, or where a consumer group stands.

Each partition of Kafka is a shard, its position the offset of the next record. Kafka returns the same records for the same offsets,
so the source is exactly once. A compacted topic is the exception: Kafka may remove records between two reads, so the records that
the topic holds already cannot be counted. With a compacted topic the source is at least once, and its position is what its own
consumer group has committed.

The first position of a partition is stored before its first record is published. Otherwise a second start could begin elsewhere.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self

import anyio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from pydantic import Field, SecretStr, field_validator, model_validator
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied, Unauthenticated

from pydanube_connect.connector import Guarantee, SchemaOffer, Settings, Source
from pydanube_connect.kafka.registry import SchemaRegistry
from pydanube_connect.records import Batch, Record, RetryLater

_ANSWER_S: Final = 10.0
WAIT_S: Final = 1.0  # seconds that one `read` waits for a record
# Seconds without a record or the end of each partition. Then the source connects again
_SILENT_S: Final = 30.0
_BATCH_RECORDS: Final = 20_000
_FETCHED_KB: Final = 32 * 1024  # what librdkafka holds before it stops fetching
DISCOVER_S: Final = 60.0  # seconds between looks for new partitions and topics
_OURS: Final = frozenset({
    "bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset",
    "isolation.level", "enable.partition.eof", "error_cb",
})  # fmt: skip
_DENIED: Final = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip
#: librdkafka would write a line to stderr for each attempt to connect, 20 per second
_QUIET: Final = {"log_level": 0}
_CREDENTIALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


class KafkaSettings(Settings):
    """Settings of `kafka-source`."""

    bootstrap: str = Field(min_length=1, description="host:port, more with commas")
    subscribe: list[str] = Field(default=[], max_length=1_000, description="topics of Kafka")
    pattern: str | None = Field(
        default=None, description="regular expression for whole names, in place of subscribe"
    )
    start: Literal["earliest", "latest", "group"] = Field(
        default="earliest", description="where a partition begins that has no position yet"
    )
    from_group: str | None = Field(
        default=None, description="with start = group: the group whose committed offsets are the beginning"
    )
    group: str | None = Field(
        default=None, description="group that shows the progress in Kafka. Unset: danube-NAME"
    )
    topic_prefix: str | None = Field(
        default=None, description="each topic of Kafka to a topic of its own, for example /default/"
    )
    schema_registry: str | None = Field(default=None, pattern=r"^https?://", description="of framed values")
    registry_username: str | None = Field(default=None)
    registry_password: SecretStr | None = Field(default=None)
    config: dict[str, str] = Field(
        default={}, description='more of librdkafka, such as "sasl.mechanism", "ssl.ca.location"'
    )

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"this is no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if bool(self.subscribe) == (self.pattern is not None):
            raise ValueError("give either subscribe or pattern")
        if (self.start == "group") != (self.from_group is not None):
            raise ValueError('start = "group" and from_group = "…" go together')
        if ours := sorted(_OURS & self.config.keys()):
            raise ValueError(f"config: {ours[0]} is set by the connector. Leave it out.")
        return self


class KafkaSource(Source[KafkaSettings]):
    """Publishes the records of Kafka's partitions."""

    def __init__(self, settings: KafkaSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._group = settings.group or f"danube-{name}"
        self._consumer: Consumer | None = None
        self._ready: deque[Batch] = deque()
        self._ended: dict[tuple[str, int], bool] = {}  # by partition: whether its end was reached
        self._failure: Exception | None = None
        self._unreachable: str | None = None  # why no broker of Kafka answers
        self._looked_at = 0.0
        self._heard_at = 0.0
        self._subjects: dict[str, str] = {}  # topic of ours → topic of Kafka
        registry = settings.schema_registry
        password = settings.registry_password.get_secret_value() if settings.registry_password else ""
        self._registry = SchemaRegistry(registry, settings.registry_username, password) if registry else None
        self.deterministic = True  # until a topic turns out to be compacted

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.deterministic else Guarantee.AT_LEAST_ONCE

    async def open(self) -> None:
        self._failure = None
        try:
            self._consumer = Consumer(self._settings(self._group))
        except KafkaException as error:
            raise InvalidArgument(
                f"settings.config: {error.args[0].str()}. Correct it.", field="settings.config", value=None
            ) from None
        partitions = await self._partitions()
        compacted = await anyio.to_thread.run_sync(self._compacted, sorted({one.topic for one in partitions}))
        self.deterministic = not compacted

    async def start(self, positions: Mapping[str, str]) -> None:
        self._ready.clear()
        self._ended.clear()
        await self._assign(await self._partitions(), positions)

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await anyio.to_thread.run_sync(consumer.close)

    async def check(self) -> list[str]:
        await self.open()
        partitions = await self._partitions()
        if self._registry is not None:
            await self._registry.check()
        names = sorted({one.topic for one in partitions})
        return [
            f"{len(partitions)} partitions of {', '.join(names[:10])} can be read, {self.guarantee.replace('_', ' ')}"
        ]

    def schema(self, topic: str) -> SchemaOffer | None:
        if self._registry is None:
            return None
        return self._registry.offer(self._subjects.get(topic, ""))

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(self) -> Batch | None:
        if self._ready:
            return self._ready.popleft()
        assert self._consumer is not None
        if time.monotonic() - self._looked_at > DISCOVER_S:
            partitions = await self._partitions()
            await self._assign(
                [one for one in partitions if (one.topic, one.partition) not in self._ended], {}
            )
            if self._ready:
                return self._ready.popleft()
        while True:
            messages = await anyio.to_thread.run_sync(self._fetched)
            if self._failure is not None:
                raise self._failure
            by_partition: dict[tuple[str, int], list[Message]] = {}
            for message in messages:
                place = (str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    by_partition.setdefault(place, []).append(message)
                    self._ended[place] = False
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._ended[place] = True
                else:
                    raise self._translated(error)
            for place, some in by_partition.items():
                records = self._records(*place, some)
                if self._registry is not None:
                    for record in records:
                        if record.value is not None:
                            record.value = await self._registry.value(place[0], record.value)
                offset = some[-1].offset()
                assert offset is not None
                self._ready.append(Batch(records, shard=_shard(*place), position=str(offset + 1)))
            if messages:
                self._heard_at = time.monotonic()
            if self._ready:
                return self._ready.popleft()
            if all(self._ended.values()):
                return None
            if time.monotonic() - self._heard_at > _SILENT_S:
                raise RetryLater(
                    reason=f"{self.settings.bootstrap} sends no records, nor the end of its partitions"
                )

    def _fetched(self) -> list[Message]:
        """Wait for one record, then return it with those that have arrived. `consume` alone would wait for all of them."""
        assert self._consumer is not None
        first = self._consumer.poll(WAIT_S)
        return [] if first is None else [first, *self._consumer.consume(_BATCH_RECORDS - 1, 0)]

    async def stored(self, batch: Batch) -> None:
        if self._consumer is None or batch.position is None:
            return
        topic, _, partition = batch.shard.rpartition(":")
        place = TopicPartition(topic, int(partition), int(batch.position))
        if self.deterministic:  # only shown in Kafka
            self._consumer.commit(offsets=[place], asynchronous=True)
            return
        try:
            await anyio.to_thread.run_sync(self._commit, place)
        except KafkaException as error:
            raise self._translated(error.args[0]) from None

    def _commit(self, place: TopicPartition) -> None:
        assert self._consumer is not None
        self._consumer.commit(offsets=[place], asynchronous=False)

    def _records(self, topic: str, partition: int, messages: Sequence[Message]) -> list[Record]:
        prefix = self.settings.topic_prefix
        target = None if prefix is None else prefix + re.sub(r"[^\w-]", "_", topic, flags=re.ASCII)
        if target is not None:
            self._note(target, topic)
        number = str(partition)
        found = []
        for message in messages:
            kind, at_ms = message.timestamp()
            attributes = {
                "kafka-topic": topic,
                "kafka-partition": number,
                "kafka-offset": str(message.offset()),
                "kafka-timestamp-ms": str(at_ms),
            }
            if not kind:
                del attributes["kafka-timestamp-ms"]
            if headers := message.headers():
                for header in headers:
                    _add(attributes, header[0], header[1])
            key: Any = message.key()
            if key is not None:
                try:
                    key = key.decode()
                except UnicodeDecodeError:
                    key, attributes["kafka-key-encoding"] = key.hex(), "hex"
            found.append(Record(message.value(), key, attributes, target))
        return found

    def _note(self, target: str, topic: str) -> None:
        known = self._subjects.setdefault(target, topic)
        if known != topic:
            raise InvalidArgument(
                f"the topics {known} and {topic} of Kafka would both be {target}. Move them by two connectors.",
                field="settings.topic_prefix", value=self.settings.topic_prefix,
            )  # fmt: skip

    # -- partitions ------------------------------------------------------------------------------------------

    def _settings(self, group: str) -> dict[str, Any]:
        return {
            **self.settings.config,
            "bootstrap.servers": self.settings.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # records that were deleted are an error, and are not skipped silently
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": _FETCHED_KB,
            "error_cb": self._heard_error,
            **_QUIET,
        }

    def _heard_error(self, error: KafkaError) -> None:
        if error.code() in _CREDENTIALS or error.code() in _DENIED:
            self._failure = self._translated(error)
        elif error.code() == KafkaError._TRANSPORT:
            self._unreachable = error.str()

    async def _partitions(self) -> list[TopicPartition]:
        """Return the partitions to read.

        Raises:
            InvalidArgument: a topic does not exist.
        """
        self._looked_at = time.monotonic()
        consumer = self._consumer
        assert consumer is not None
        try:
            found = (await anyio.to_thread.run_sync(lambda: consumer.list_topics(timeout=_ANSWER_S))).topics
        except KafkaException as error:
            consumer.poll(0)  # calls `error_cb` with the causes
            cause = (
                RetryLater(reason=f"Kafka cannot be reached: {self._unreachable}")
                if self._unreachable
                else None
            )
            raise self._failure or cause or self._translated(error.args[0]) from None
        self._unreachable = None
        if self.settings.pattern is not None:
            names = [
                name
                for name in found
                if re.fullmatch(self.settings.pattern, name) and not name.startswith("__")
            ]
        else:
            names = self.settings.subscribe
            if missing := [name for name in names if name not in found]:
                raise InvalidArgument(
                    f"Kafka at {self.settings.bootstrap} has no topic {missing[0]}, or its user may not see it. Correct "
                    "settings.subscribe.", field="settings.subscribe", value=missing[0],
                )  # fmt: skip
        return [
            TopicPartition(name, number)
            for name in sorted(names)
            for number in sorted(found[name].partitions)
        ]

    def _compacted(self, topics: Sequence[str]) -> bool:
        """Return whether Kafka may remove single records. True if the settings of a topic cannot be read."""
        admin = AdminClient({**self.settings.config, "bootstrap.servers": self.settings.bootstrap, **_QUIET})
        asked = (
            admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics])
            if topics
            else {}
        )
        try:
            found = [answer.result(_ANSWER_S)["cleanup.policy"].value for answer in asked.values()]
        except (KafkaException, KeyError, TimeoutError):
            return True
        return any("compact" in str(policy) for policy in found)

    async def _assign(self, partitions: Sequence[TopicPartition], positions: Mapping[str, str]) -> None:
        """Read these partitions too. A partition without a position gets one, and an empty batch that stores it."""
        consumer = self._consumer
        assert consumer is not None
        new = [one for one in partitions if _shard(one.topic, one.partition) not in positions]
        try:
            begun = await anyio.to_thread.run_sync(self._beginnings, new, bool(self._ended))
        except KafkaException as error:
            raise self._translated(error.args[0]) from None
        for one in partitions:
            shard = _shard(one.topic, one.partition)
            at = int(positions[shard]) if shard in positions else begun[shard]
            if shard not in positions:
                self._ready.append(Batch([], shard=shard, position=str(at)))
            self._ended[one.topic, one.partition] = False
            consumer.incremental_assign([TopicPartition(one.topic, one.partition, at)])
        self._heard_at = time.monotonic()

    def _beginnings(self, partitions: Sequence[TopicPartition], running: bool) -> dict[str, int]:
        """Return the first offset of each partition. Partitions that were added to a topic begin at their oldest record."""
        if not partitions:
            return {}
        own = {} if self.deterministic else self._committed(self._group, partitions)
        start = "earliest" if running else self.settings.start
        of_group = self._committed(str(self.settings.from_group), partitions) if start == "group" else {}
        found = {}
        for one in partitions:
            shard = _shard(one.topic, one.partition)
            assert self._consumer is not None
            low, high = self._consumer.get_watermark_offsets(one, timeout=_ANSWER_S) or (0, 0)
            found[shard] = own.get(shard, of_group.get(shard, high if start == "latest" else low))
        return found

    def _committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[str, int]:
        other = Consumer(self._settings(group))
        try:
            answer: Iterable[TopicPartition] = other.committed(list(partitions), timeout=_ANSWER_S)
            return {_shard(one.topic, one.partition): one.offset for one in answer if one.offset >= 0}
        finally:
            other.close()

    def _translated(self, error: KafkaError) -> ClusterError | RetryLater:
        text = f"Kafka at {self.settings.bootstrap}: {error.str()}"
        if error.code() in _CREDENTIALS:
            return Unauthenticated(f"{text}. Correct the credentials in settings.config.")
        if error.code() in _DENIED:
            return PermissionDenied(
                f"{text}. Grant the user Read and DescribeConfigs on the topics and the group."
            )
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return InvalidArgument(
                f"{text}. Kafka has deleted records that were not read. To go on with the oldest that are left, run the "
                "connector under another name.", field="settings.start", value=self.settings.start,
            )  # fmt: skip
        return RetryLater(reason=text)


def _shard(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"  # names of Kafka's topics have no colon


def _text(content: bytes | str) -> str | None:
    try:
        return content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError:
        return None


def _add(attributes: dict[str, str], name: str, content: Any) -> None:
    """Add a header. A second header of a name gets a number, one that is no text is written in hexadecimal."""
    text = "" if content is None else _text(content)
    if text is None:
        name, text = f"{name}-hex", bytes(content).hex()
    number = 2
    unique = name
    while unique in attributes:
        unique, number = f"{name}-{number}", number + 1
    attributes[unique] = text
