"""Readings of stored messages keep their bounds, and a producer's session that could not be stored is given up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.topics import gate, stored_messages
from pydanube_broker.topics.gate import Published
from pydanube_broker.topics.producers import Producers
from pydanube_broker.topics.stored_messages import messages_between, payloads_between
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import PermissionDenied, Unavailable

pytestmark = pytest.mark.anyio


def expected(sizes: list[int], start: int, end: int, max_messages: int, max_bytes: int) -> list[int]:
    """Return the offsets of a reading: always the first, then as many as fit."""
    found: list[int] = []
    for offset in range(start, min(end, len(sizes))):
        if found and (
            len(found) >= max_messages or sum(sizes[each] for each in [*found, offset]) > max_bytes
        ):
            break
        found.append(offset)
    return found


class Batch:
    """A batch from an offset on, with messages of these sizes."""

    append_time_ms = 0

    def __init__(self, base: int, sizes: list[int]) -> None:
        self._base = base
        self._sizes = sizes

    def offsets(self) -> range:
        return range(self._base, self._base + len(self._sizes))

    @property
    def end(self) -> int:
        return self._base + len(self._sizes)

    def payloads(self) -> list[bytes]:
        return [bytes(size) for size in self._sizes]

    def columns(self) -> Any:
        return SimpleNamespace(
            offsets=list(self.offsets()), payloads=self.payloads(), keys=None, attributes=None,
            publish_times_ms=[0] * len(self._sizes), producer=lambda i: (0, "p"), schema=lambda i: (0, 0),
        )  # fmt: skip


@given(
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    start=st.integers(0, 6),
    count=st.integers(0, 12),
    max_messages=st.integers(1, 6),
    max_bytes=st.integers(0, 20),
)
def test_a_reading_has_its_first_message_and_then_as_many_as_fit_its_bounds(
    batches: list[list[int]], start: int, count: int, max_messages: int, max_bytes: int
) -> None:
    sizes = [size for batch in batches for size in batch]
    end = start + count
    near: list[Any] = []
    base = 0
    for batch in batches:
        near.append(Batch(base, batch))
        base += len(batch)

    async def between(topic: Any, start: int, stop: int, *_: Any) -> AsyncIterator[Batch]:
        for batch in near:
            if batch.offsets().start < stop and start < batch.end:
                yield batch

    topic: Any = SimpleNamespace(name="t", start_offset=0, commit=base)
    bounds: dict[str, Any] = {
        "start": start, "end": end, "max_messages": max_messages, "max_bytes": max_bytes, "worker_threads": None,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_messages, "batches_between", between)
        patch.setattr(stored_messages, "DecodedBatch", Batch.columns)
        patch.setattr(stored_messages, "view_of", lambda batch: batch)
        found = [message.offset for message in ended(messages_between(topic, **bounds))]
        payloads = ended(payloads_between(topic, **bounds))
    assert found == expected(sizes, start, end, max_messages, max_bytes)
    assert payloads == [(offset, bytes(sizes[offset])) for offset in found]


def ended(reading: Any) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        reading.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Opening:
    """A topic on a journal that stores a session, or fails."""

    name = "/default/t"

    def __init__(self, error: Unavailable | None, *, is_system: bool = False) -> None:
        self.is_system = is_system
        self.error = error
        self.state = SimpleNamespace(producers=Producers())
        self.appended: list[bytes] = []

    def check_open(self) -> None: ...

    def append_record(self, kind: Any, body: bytes) -> int:
        self.appended.append(body)
        return 64

    def when_safe(self, position: int, told: Callable[[Unavailable | None], None]) -> None:
        assert position == 64
        told(self.error)


async def test_an_exclusive_producer_whose_session_was_not_stored_leaves_the_former_one_in_place() -> None:
    topic: Any = Opening(None)
    first = await Topic.open_producer(topic, "p", exclusive=True)
    topic.state.producers.open(first)
    before = [(each.epoch, each.token, each.promised) for each in topic.state.producers.sessions()]
    topic.error = Unavailable("the disk failed", retry_after_ms=1)
    with pytest.raises(Unavailable):
        await Topic.open_producer(topic, "p", exclusive=True)
    after = [(each.epoch, each.token, each.promised) for each in topic.state.producers.sessions()]
    assert after == before
    topic.error = None
    assert (await Topic.open_producer(topic, "p", exclusive=True)).epoch > first.epoch


async def test_no_client_opens_a_producer_of_a_topic_of_the_system() -> None:
    topic: Any = Opening(None, is_system=True)
    with pytest.raises(PermissionDenied):
        await Topic.open_producer(topic, "p")
    assert topic.appended == []


def test_the_rate_of_a_producer_is_of_the_time_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr(gate, "monotonic_ms", lambda: now_ms)
    published = Published()
    published.count(10, 1000)
    now_ms += 30_000
    assert published.per_s() == (0.333, 33.3)
