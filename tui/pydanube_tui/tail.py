"""The newest messages of a topic, read without a subscription, and kept in a ring.

The ring is bounded in messages and in bytes. Messages that leave it before they were on the screen are counted: a topic
that is faster than the screen loses messages in the view, never silently. Of a batch, at most the ring's size is
unpacked.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import ClusterError

from pydanube_tui.source import Caller, Items
from pydanube_tui.view import Answer, Moments

if TYPE_CHECKING:
    from pydanube import Batch, Client

RING_MESSAGES: Final = 1000
RING_BYTES: Final = 16 << 20
KEPT_BYTES: Final = 64 << 10  # of one payload
BATCH_MESSAGES: Final = 250  # of one batch. The view drops earlier ones
BEFORE: Final = 100  # messages that a tail begins with
FAR: Final = 100_000  # partitions further apart than this are begun by time
PACE_S: Final = 0.02  # between two batches: the keys come first
RETRY_S: Final = 1.0
CREDIT_BYTES: Final = 4 << 20


def start_of(described: Mapping[str, Any]) -> str:
    """Return the position for the last messages, from `topics.describe`."""
    parts = described.get("parts") or [described]
    starts = [max(part["start_offset"] or 0, (part["next_offset"] or 0) - BEFORE) for part in parts]
    return "time:-1m" if max(starts) - min(starts) > FAR else f"offset:{min(starts)}"


class Tail:
    """Reads a topic and keeps its last messages. Has the interface of a `Feed`.

    Args:
        position: start of reading. None: the last messages there are.
    """

    def __init__(self, caller: Caller, broker_url: str, topic: str, position: str | None) -> None:
        self.topic = topic
        self.series: dict[str, Moments] = {}
        self.times: Sequence[int] = ()
        self.still = 0
        self.answers: dict[str, Answer] = {}
        self.received = 0
        self.dropped = 0
        self.ring: deque[dict[str, Any]] = deque()
        self._bytes = 0
        self._last: dict[int | None, int] = {}  # of each partition, the newest offset that was read
        self._fresh = 0  # at the ring's end, not yet drawn
        self._caller = caller
        self._url = broker_url
        self._position = position
        self._goes = asyncio.Event()
        self._goes.set()
        self.failure: ClusterError | None = None  # for `refresh` to raise

    @property
    def following(self) -> bool:
        """Whether it goes on reading."""
        return self._goes.is_set()

    def follow(self, on: bool) -> None:
        """Continue or stop reading. When stopped, the broker sends up to the reader's credit, and nothing is lost."""
        if on:
            self._goes.set()
        else:
            self._goes.clear()

    async def refresh(self, _: int) -> None:
        """Return the present content of the ring as the answer.

        Raises:
            ClusterError: the reader was refused.
        """
        if self.failure is not None:
            raise self.failure
        self._fresh = 0
        items: Items = list(self.ring)
        facts = {"received": self.received, "dropped": self.dropped, "following": self.following}
        self.answers = {"messages": {"items": items, **facts}}

    async def read(self) -> None:
        """Read until cancelled. Errors are reported by `refresh`, and reading is tried again."""
        while True:
            try:
                await self._read()
            except ClusterError as error:
                self.failure = error
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        from pydanube import connect  # here: the first screen does not wait for the client of messages

        position = f"time:{self.ring[-1]['append_time']}" if self.ring else self._position
        if position is None:
            position = start_of(await self._caller.call("topics.describe", {"topic": self.topic}))
        async with (
            connect(self._url) as client,
            client.reader(self.topic, start=position, credit_bytes=CREDIT_BYTES) as reader,
        ):
            self.failure = None
            async for batch in reader.batches():
                await self._goes.wait()
                await self._take(client, batch)
                await asyncio.sleep(PACE_S if len(batch) > BATCH_MESSAGES else 0)

    async def _take(self, client: Client, batch: Batch) -> None:
        total = len(batch)
        self.received += total
        self.dropped += max(0, total - BATCH_MESSAGES)
        for message in batch.messages()[-BATCH_MESSAGES:]:
            if message.offset <= self._last.get(message.partition, -1):
                continue  # it was read before the connection was lost
            self._last[message.partition] = message.offset
            value: Any = None
            if message.schema is not None:
                try:
                    value = await client.schemas.decode(message)
                except ClusterError as error:
                    value = f"not decoded: {error.message}"
            self.put(item_of(message, value if isinstance(value, dict | list | str | int | float) else None))

    def put(self, item: dict[str, Any]) -> None:
        """Append a message. Messages dropped from the beginning without having been shown are counted."""
        self.ring.append(item)
        self._bytes += min(item["payload_bytes"], KEPT_BYTES)
        self._fresh += 1
        while len(self.ring) > RING_MESSAGES or self._bytes > RING_BYTES:
            gone = self.ring.popleft()
            self._bytes -= min(gone["payload_bytes"], KEPT_BYTES)
            if self._fresh > len(self.ring):
                self._fresh -= 1
                self.dropped += 1


def item_of(message: Any, value: Any) -> dict[str, Any]:
    """Return a message as an item of a row, with text of others under `untrusted`."""
    payload = bytes(message.payload)
    kept = payload[:KEPT_BYTES]
    untrusted: dict[str, Any] = {
        "key": message.key,
        "attributes": dict(message.attributes),
        "producer": message.producer,
    }
    try:
        untrusted["text"] = None if message.is_null else kept.decode()
    except UnicodeDecodeError:
        untrusted["base64"] = base64.b64encode(kept).decode()
    if value is not None:
        untrusted["value"] = value
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_time": message.append_time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "publish_time": message.publish_time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "schema_version": None if message.schema is None else message.schema.schema_version,
        "payload_bytes": len(payload),
        "truncated": len(payload) > KEPT_BYTES,
        "untrusted": untrusted,
    }
