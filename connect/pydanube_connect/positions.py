"""Store the positions of a source in its own topic, `connect-NAME-positions`, beside the topic that it writes to.

Each message is the whole state: the position of each shard, and the number of records of each partition that were
stored before it. The last message counts. After a crash between two states, the session of the named producer completes
the state (`Producer.stored_before`): records that the session holds beyond the state's count are read again and not
published again. The generation is part of the producers' names, so that the sessions after a reset are empty.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pydanube import Client, Producer, TopicNotFound
from pydanube_core.errors import AlreadyExists, CorruptObject, InvalidArgument

MOST_POSITION_CHARS: Final = 1_024
#: bytes of former states to keep. A limit of bytes never deletes the newest message.
_RETENTION_BYTES: Final = 16 << 20


class Positions:
    """The state of one source. Call `open` before the first batch."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self.topic = topic
        self.generation = ""
        self.by_shard: dict[str, str] = {}
        self.counts: dict[str, dict[str, list[int]]] = {}  # shard → topic → records of each partition
        self._producer: Producer | None = None
        self._changed = False

    async def open(self) -> None:
        """Read the last state. A source without one begins a generation, which is durable when this returns."""
        try:
            described = await self._client.admin.topics.describe(self.topic)
            last = (described.next_offset or 0) - 1
        except TopicNotFound:
            with suppress(AlreadyExists):  # another worker created it concurrently
                await self._client.admin.topics.create(
                    self.topic, policies={"retention_bytes": _RETENTION_BYTES}
                )
            last = -1
        if last >= 0:
            async with self._client.reader(self.topic, start=f"offset:{last}", stop="head") as reader:
                async for message in reader:
                    self._take(message.payload)
        self._producer = self._client.producer(self.topic)
        await self._producer.__aenter__()
        if not self.generation:
            self.generation = secrets.token_hex(4)
            self._changed = True
            await self.save()

    def _take(self, payload: bytes) -> None:
        try:
            state = json.loads(payload)
            self.generation, self.by_shard, self.counts = (
                state["generation"],
                state["positions"],
                state["counts"],
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CorruptObject(
                f"{self.topic} holds a message that is no state of a source. Only its connector may write there: delete "
                "the topic to read the source from its beginning.",
                topic=self.topic,
            ) from None

    def note(self, shard: str, position: str) -> None:
        """Set the position of a shard. All records before it are stored."""
        if len(position) > MOST_POSITION_CHARS:
            raise InvalidArgument(
                f"a position has {MOST_POSITION_CHARS} characters at most, got {len(position)}",
                field="position",
                value=position[:100],
            )
        self.by_shard[shard] = position
        self._changed = True

    def stored(self, shard: str, topic: str, held: Mapping[int, int], partitions: int) -> list[int]:
        """Return the counts of a shard's records by partition. The caller raises them as it publishes records.

        `held` is the number of records in the session of the producer, by partition. If it is less than the count of
        the state, the session was lost and no records can be recognised.
        """
        topics = self.counts.setdefault(shard, {})
        known = topics.get(topic, [])
        if len(known) != partitions:  # another number of partitions means another session
            known = [0] * partitions if not known else [held[at] for at in range(partitions)]
        topics[topic] = [min(count, held[at]) for at, count in enumerate(known)]
        return topics[topic]

    async def save(self) -> None:
        """Store the state durably if it has changed."""
        if not self._changed:
            return
        assert self._producer is not None
        self._changed = False
        state = {"generation": self.generation, "positions": self.by_shard, "counts": self.counts}
        await self._producer.send(json.dumps(state, separators=(",", ":")).encode())

    async def close(self) -> None:
        """Close the producer without storing the state."""
        if self._producer is not None:
            await self._producer.aclose()
            self._producer = None
