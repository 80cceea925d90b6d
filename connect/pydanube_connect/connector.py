"""The base classes of connectors.

A connector is a class with a `Settings` model and one method that moves records. The runner does everything else:
batches, retries, dead letters, positions, acknowledgements, statistics.

    class Settings(pydanube_connect.Settings):
        path: Path

    class FileSink(Sink[Settings]):
        async def write(self, batch: Batch) -> None:
            with self.settings.path.open("a") as file:
                file.writelines(json.dumps(record.value) + "\\n" for record in batch)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from pydanube_connect.records import Batch, Place

#: maximum characters of one previewed record
PREVIEW_CHARS = 2_000


class Guarantee(StrEnum):
    """The delivery guarantee of a connector with its settings.

    `exactly_once`: every record has its effect once. `idempotent`: a record may be written again, without a further
    effect. `at_least_once`: a record may be written again, and both copies are visible.
    """

    EXACTLY_ONCE = "exactly_once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at_least_once"


class Settings(BaseModel):
    """Base of a connector's settings. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


class Connector(Generic[S]):
    """Base class of sources and sinks.

    Attributes:
        settings_model: the model of the table `[settings]`, from the type argument of the base class.
    """

    settings_model: ClassVar[type[Settings]] = Settings

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Settings):
                    cls.settings_model = argument

    def __init__(self, settings: S, *, name: str) -> None:
        """Store the settings. Do not connect yet.

        Raises:
            InvalidArgument: the settings contradict each other.
        """
        self.settings = settings
        self.name = name

    @property
    def guarantee(self) -> Guarantee:
        """The delivery guarantee with these settings."""
        return Guarantee.AT_LEAST_ONCE

    async def open(self) -> None:
        """Connect to the other system. Called before the first batch and after each failure."""

    async def close(self) -> None:
        """Disconnect. Called after each failure too, even if `open` failed."""

    async def check(self) -> list[str]:
        """Inspect the other system without changing it. Return one sentence per finding.

        Raises:
            ClusterError: the connector could not run. The message contains the remedy.
        """
        await self.open()
        return []


class Sink(Connector[S]):
    """Writes records of topics to another system.

    Attributes:
        decodes: whether the sink uses `record.value`. If so, undecodable records are refused before `write`.
    """

    decodes: ClassVar[bool] = True

    async def write(self, batch: Batch) -> None:
        """Write a batch. When this returns, the other system has all records on stable storage.

        An `exactly_once` sink stores `batch.ends` with the records in one transaction. It does so only if the stored
        positions equal `batch.starts`.

        Raises:
            RetryLater: the other system cannot accept the batch now.
            Refused: some records can never be written.
            Exception: any other exception is retried too.
        """
        raise NotImplementedError

    async def positions(self, places: Collection[Place]) -> Mapping[Place, int]:
        """Return the next offset of each place that has a position in the other system. Only for `exactly_once`."""
        return {}

    async def rehearse(self, batch: Batch) -> None:
        """Find out whether the other system would take records, without changing it. Called after `check`.

        Raises:
            Refused: some records would be refused.
        """

    def preview(self, batch: Batch) -> list[str]:
        """Return one text per record, as it would be written."""
        return [json.dumps(record.value, ensure_ascii=False, default=str)[:PREVIEW_CHARS] for record in batch]


class SchemaOffer:
    """The schema that a source provides for one of its topics."""

    __slots__ = ("definition", "kind", "subject")

    def __init__(self, subject: str, kind: str, definition: str | bytes) -> None:
        self.subject = subject
        self.kind = kind  # avro, json_schema, protobuf
        self.definition = definition


class Source(Connector[S]):
    """Reads records of another system. The runner publishes them to topics.

    Attributes:
        deterministic: whether a second read from a position returns the same records in the same order. If so, the
            connector is `exactly_once` with positions. Read after `open`.
    """

    deterministic: bool = False

    async def start(self, positions: Mapping[str, str]) -> None:
        """Continue from these positions, by shard. Called once after each `open`. A shard without one is new."""

    async def read(self) -> Batch | None:
        """Return the next records, or None if no records arrive within about a second."""
        raise NotImplementedError

    async def stored(self, batch: Batch) -> None:
        """Acknowledge a batch to the other system. All its records are durable in their topics.

        Called in the order of `read`. For batches with a position, the call comes later and only for the newest batch
        of each shard.
        """

    def schema(self, topic: str) -> SchemaOffer | None:
        """Return the schema of the records for a topic, or None if the source provides none."""
        return None

    async def held_bytes(self) -> int | None:
        """Return the bytes that the other system keeps until they are read. None: unknown. Called every few seconds."""
        return None

    async def sample(self, count: int) -> AsyncIterator[Batch]:
        """Yield batches with about `count` records for a dry run, without changing the other system."""
        await self.open()
        await self.start({})
        while count > 0 and (batch := await self.read()) is not None:
            count -= len(batch)
            yield batch

    def preview(self, batch: Batch) -> list[str]:
        """Return one text per record, as it would be published."""
        return [
            f"{record.topic or ''} key={record.key} {_shown(record.value)}"[:PREVIEW_CHARS].strip()
            for record in batch
        ]


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str)
