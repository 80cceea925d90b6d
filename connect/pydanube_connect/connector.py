"""The base classes of connectors.

A connector is a class with a `Settings` model and one method that moves records. Everything else is the runner's:
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

#: characters of one previewed record
PREVIEW_CHARS = 2_000


class Guarantee(StrEnum):
    """The delivery guarantee of a connector as it is configured.

    `exactly_once`: every record has its effect once. `idempotent`: a record may be written again, which changes
    nothing. `at_least_once`: a record may be written again, and both copies are seen.
    """

    EXACTLY_ONCE = "exactly_once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at_least_once"


class Settings(BaseModel):
    """Base of a connector's settings: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


class Connector(Generic[S]):
    """What sources and sinks have in common.

    Attributes:
        settings_model: the model of the table `[settings]`: the type argument of the base class.
    """

    settings_model: ClassVar[type[Settings]] = Settings

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Settings):
                    cls.settings_model = argument

    def __init__(self, settings: S, *, name: str) -> None:
        """Take the settings; connect to nothing.

        Raises:
            InvalidArgument: the settings contradict each other.
        """
        self.settings = settings
        self.name = name

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee with these settings."""
        return Guarantee.AT_LEAST_ONCE

    async def open(self) -> None:
        """Connect to the other system. Called before the first batch and after each failure."""

    async def close(self) -> None:
        """Disconnect. Called after each failure too, and where `open` has failed."""

    async def check(self) -> list[str]:
        """Look at the other system without changing it; return what was found, a sentence each.

        Raises:
            ClusterError: the connector could not run; the message has the remedy.
        """
        await self.open()
        return []


class Sink(Connector[S]):
    """Writes records of topics to another system.

    Attributes:
        decodes: whether `record.value` is wanted. Records that cannot be decoded are then refused before `write`.
    """

    decodes: ClassVar[bool] = True

    async def write(self, batch: Batch) -> None:
        """Write a batch; when it returns, the other system has all records on stable storage.

        A sink that is `exactly_once` stores `batch.ends` with the records in one transaction, and only where it holds
        `batch.starts` so far.

        Raises:
            RetryLater: the other system cannot take it now.
            Refused: some records can never be written.
            Exception: anything else is retried too.
        """
        raise NotImplementedError

    async def positions(self, places: Collection[Place]) -> Mapping[Place, int]:
        """Return the next offset of each place that the other system holds a position of; for `exactly_once`."""
        return {}

    def preview(self, batch: Batch) -> list[str]:
        """Return the records as they would be written, a text each."""
        return [json.dumps(record.value, ensure_ascii=False, default=str)[:PREVIEW_CHARS] for record in batch]


class SchemaOffer:
    """A schema that a source knows for one of its topics."""

    __slots__ = ("definition", "kind", "subject")

    def __init__(self, subject: str, kind: str, definition: str | bytes) -> None:
        self.subject = subject
        self.kind = kind  # avro, json_schema, protobuf
        self.definition = definition


class Source(Connector[S]):
    """Reads records of another system, which are published to topics.

    Attributes:
        deterministic: read again from a position, it gives the same records in the same order. With positions the
            connector is then `exactly_once`.
    """

    deterministic: ClassVar[bool] = False

    async def start(self, positions: Mapping[str, str]) -> None:
        """Continue from these positions, by shard; called once after each `open`. A shard without one is new."""

    async def read(self) -> Batch | None:
        """Return the next records, waiting about a second at most; None where there are none now."""
        raise NotImplementedError

    async def stored(self, batch: Batch) -> None:
        """All records of a batch are durable in their topics: acknowledge them to the other system.

        Called in the order of `read`. For batches with a position it is called later, for the newest of each shard only.
        """

    def schema(self, topic: str) -> SchemaOffer | None:
        """Return the schema of what is published to a topic, where the source knows it."""
        return None

    async def sample(self, count: int) -> AsyncIterator[Batch]:
        """Yield batches with about `count` records for a dry run, and change nothing in the other system."""
        await self.open()
        await self.start({})
        while count > 0 and (batch := await self.read()) is not None:
            count -= len(batch)
            yield batch

    def preview(self, batch: Batch) -> list[str]:
        """Return the records as they would be published, a text each."""
        return [
            f"{record.topic or ''} key={record.key} {_shown(record.value)}"[:PREVIEW_CHARS].strip()
            for record in batch
        ]


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str)
