"""What is sent is what is received: every road out, with every combination of key, attributes, times and compression."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube import Message
from pydanube.options import Compression
from pydanube.producer import Producer
from pydanube.testing import InMemoryCluster
from pydanube_core.batch.timing import DELAY_MS, TTL_MS

ROADS = ("send", "send in time", "send_nowait", "send_many", "send_many with keys", "send_many of columns")
NUMBERS = count()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@dataclass(frozen=True)
class Sent:
    """A message and how it leaves; the roads that take no times leave without them."""

    road: str
    payload: bytes
    key: str | None
    attributes: dict[str, str] = field(hash=False)
    delay_ms: int | None
    ttl_ms: int | None

    @property
    def timing(self) -> dict[str, int]:
        given = {"delay_ms": self.delay_ms, "ttl_ms": self.ttl_ms}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def expected(self) -> tuple[bytes, str | None, dict[str, str]]:
        names = {"delay_ms": DELAY_MS, "ttl_ms": TTL_MS}
        timed = {names[name]: str(value) for name, value in self.timing.items()}
        match self.road:
            case "send_many with keys" | "send_many of columns":
                return self.payload, self.key, {}
            case "send_nowait":
                return self.payload, self.key, self.attributes
            case _:
                return self.payload, self.key, self.attributes | timed


MESSAGES = st.lists(
    st.builds(
        Sent,
        st.sampled_from(ROADS),
        st.binary(max_size=40) | st.just(b"a" * 5000),
        st.none() | TEXT,
        st.dictionaries(TEXT, TEXT, max_size=3),
        st.none() | st.sampled_from([0, 1, 3_600_000]),
        st.none() | st.sampled_from([1, 3_600_000]),
    ),
    min_size=1,
    max_size=24,
)


async def leave(producer: Producer, sent: list[Sent]) -> None:
    """Runs of one road go out together, as far as it has more than one at a time."""
    for road, run in groupby(sent, key=lambda one: one.road):
        several = list(run)
        match road:
            case "send_many":
                await producer.send_many(
                    Message.new(one.payload, key=one.key, attributes=one.attributes, **one.timing)
                    for one in several
                )
            case "send_many with keys":
                await producer.send_many([one.payload for one in several], keys=[one.key for one in several])
            case "send_many of columns":
                await producer.send_many(
                    pa.array([b"of others", *(one.payload for one in several)])[1:],
                    keys=pa.chunked_array([[one.key] for one in several], pa.string()),
                )
            case "send_nowait":
                for one in several:
                    producer.send_nowait(one.payload, key=one.key, attributes=one.attributes)
            case _:
                limit: dict[str, Any] = {"timeout_s": 60.0} if road == "send in time" else {}
                waiting = [
                    producer.send(one.payload, key=one.key, attributes=one.attributes, **one.timing, **limit)
                    for one in several
                ]
                await asyncio.gather(*waiting)
    await producer.flush()


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as cluster:
        yield cluster


@settings(max_examples=15, deadline=None, derandomize=True)
@given(sent=MESSAGES, compression=st.sampled_from(get_args(Compression)), partitions=st.sampled_from([1, 3]))
def test_every_message_arrives_as_it_was_sent(
    shared_cluster: InMemoryCluster, sent: list[Sent], compression: Compression, partitions: int
) -> None:
    async def there_and_back() -> None:
        topic = f"/default/t{next(NUMBERS)}"
        async with shared_cluster.connect() as client:
            async with client.producer(topic, compression=compression, partitions=partitions) as producer:
                await leave(producer, sent)
            got: dict[int | None, list[Any]] = {}
            async with client.reader(topic, start="earliest", stop="latest") as reader:
                async for message in reader:
                    got.setdefault(message.partition, []).append(
                        (message.payload, message.key, dict(message.attributes))
                    )
        arrived = [one for part in got.values() for one in part]
        expected = [one.expected for one in sent]
        if partitions == 1:
            assert arrived == expected
        else:
            assert sorted(map(repr, arrived)) == sorted(map(repr, expected))

    asyncio.run(there_and_back())
