"""The outcome of each batch, by the broker's answers alone. The broker is played by hand, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydanube.options import ProducerOptions
from pydanube.retry import Retry
from pydanube.sending.lane_options import LaneOptions
from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES, OutBatch
from pydanube.sending.publish_lane import PublishLane
from pydanube_core.batch import Codec
from pydanube_core.batch.layout import UNKNOWN_OFFSET
from pydanube_core.errors import ClusterError, InvalidArgument, SchemaIncompatible, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb

OPENED = {"producer_id": 1, "producer_epoch": 1, "producer_token": 9, "topic_id": 7, "durability": "fsynced",
          "max_message_bytes": 1 << 20, "max_batch_messages": 1000}  # fmt: skip


@dataclass
class Broker:
    """Every stream that the lane opens, with the messages that it wrote there."""

    url: str = "http://test"
    streams: list[Played] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self) -> Played:
        self.streams.append(Played(self))
        self.came.set()
        return self.streams[-1]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.came.clear()
                await self.came.wait()

    async def stream(self, number: int) -> Played:
        """Return the n-th stream, once the lane has sent its open on it."""
        await self.until(lambda: len(self.streams) > number and self.streams[number].heard)
        return self.streams[number]


@dataclass
class Played:
    """One stream from the broker's side."""

    broker: Broker
    heard: list[bytes] = field(default_factory=list)
    said: asyncio.Queue[pb.PublishResponse | ClusterError] = field(default_factory=asyncio.Queue)
    url: str = "http://test"

    @property
    def opening(self) -> pb.OpenProducer:
        return pb.PublishRequest.FromString(self.heard[0]).open

    async def batches(self, count: int) -> None:
        """Wait until so many batches were written."""
        await self.broker.until(lambda: len(self.heard) > count)

    def open(self, **more: Any) -> None:
        self.said.put_nowait(pb.PublishResponse(opened=pb.ProducerOpened(**{**OPENED, **more})))

    def receipt(self, sequence: int, count: int, **more: Any) -> None:
        receipt = pb.Receipt(first_sequence=sequence, count=count, append_time_ms=1, **more)
        self.said.put_nowait(pb.PublishResponse(receipt=receipt))

    def refuse(self, sequence: int, error: ClusterError) -> None:
        failure = pb.Failure(error=error.to_json().encode(), first_sequence=sequence)
        self.said.put_nowait(pb.PublishResponse(failure=failure))

    def lose(self) -> None:
        self.said.put_nowait(Unavailable("the connection was lost", retry_after_ms=0))

    # -- the lane's side -------------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        self.heard.append(bytes(message))
        self.broker.came.set()

    async def read(self) -> bytes:
        said = await self.said.get()
        if isinstance(said, ClusterError):
            raise said
        return said.SerializeToString()

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        while take(await self.read()):
            pass
        return True

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Sent:
    """A lane with a broker that is played."""

    broker: Broker
    lane: PublishLane
    answered: list[OutBatch]
    reroute: list[OutBatch]

    def send(self, *payloads: bytes) -> OutBatch:
        batch = self.lane.gathering
        for payload in payloads:
            if not batch.payloads:
                self.lane.first_message()
            batch.add(payload, None, None)
        self.lane.seal()
        return batch

    async def outcome(self, batch: OutBatch) -> str:
        """Return `stored`, or the `outcome` of the error."""
        await self.broker.until(lambda: batch in self.answered)
        if batch.error is None:
            return "stored"
        return str(batch.error.details.get("outcome", "refused"))


@asynccontextmanager
async def sending(**retry: float) -> AsyncIterator[Sent]:
    broker, answered, reroute = Broker(), [], []

    def take(batch: OutBatch) -> bool:
        reroute.append(batch)
        return True

    async def locate(_: str) -> Any:
        return broker

    def released(batch: OutBatch) -> None:
        answered.append(batch)
        broker.came.set()

    lane = PublishLane(
        LaneOptions(
            topic="/default/t",
            partition=None,
            concrete_topic="/default/t",
            producer=ProducerOptions(),
            codec=Codec.NONE,
            retry=Retry(initial_s=0.001, **retry),
            locate=locate,
            released=released,
            died=lambda _: None,
            emit=lambda *_: None,
            reroute=take,
        )
    )
    running = asyncio.create_task(lane.run())
    try:
        yield Sent(broker, lane, answered, reroute)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_receipt_means_stored_and_says_where() -> None:
    async with sending() as sent:
        batch = sent.send(b"a", b"b")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.receipt(0, 2, base_offset=40)
        assert await sent.outcome(batch) == "stored"
        assert (batch.base_offset, batch.duplicate, batch.durability) == (40, False, "fsynced")


async def test_a_partition_that_does_not_open_is_not_waited_for_and_stores_once_it_does() -> None:
    async with sending() as other, sending() as late:
        (await other.broker.stream(0)).open(max_batch_messages=10)
        stream = await late.broker.stream(0)
        async with asyncio.timeout(60):
            await other.lane.opened
        assert not late.lane.opened.done()
        late.lane.open_later(other.lane)
        async with asyncio.timeout(60):
            await late.lane.opened
        assert late.lane.limit_bytes == other.lane.limit_bytes == 10 * MESSAGE_OVERHEAD_BYTES
        batch = late.send(b"a")
        stream.open()
        await stream.batches(1)
        stream.receipt(0, 1, base_offset=3)
        assert await late.outcome(batch) == "stored"


async def test_only_a_batch_that_was_never_sent_and_is_not_bound_goes_elsewhere() -> None:
    """Else a message that may be stored is stored twice, or a key's messages are in two partitions."""
    async with sending() as sent:
        written = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.lose()
        again = await sent.broker.stream(1)
        bound, loose, gathering = sent.send(b"b"), sent.send(b"c"), sent.lane.gathering
        bound.bound = True
        gathering.publish_time_ms = 1
        gathering.add(b"d", None, None)
        again.lose()
        last = await sent.broker.stream(2)
        last.open()
        await last.batches(2)
        assert sent.reroute == [loose, gathering]
        last.receipt(0, 1, base_offset=0)
        last.receipt(1, 1, base_offset=1)
        assert [await sent.outcome(batch) for batch in (written, bound)] == ["stored", "stored"]


async def test_a_batch_in_flight_when_the_outage_outlasts_the_retries_may_be_stored() -> None:
    async with sending(max_elapsed_s=0.0) as sent:
        written = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        waiting = sent.lane.gathering
        waiting.publish_time_ms, waiting.bound = 1, True
        waiting.add(b"never written", None, None)
        stream.lose()
        assert await sent.outcome(written) == "unknown"
        assert await sent.outcome(waiting) == "not_stored"


@pytest.mark.parametrize("code", ["PRODUCER_UNKNOWN", "OUT_OF_SEQUENCE", "PRODUCER_FENCED"])
async def test_a_session_that_the_broker_does_not_go_on_with_leaves_its_batches_unknown(code: str) -> None:
    async with sending() as sent:
        batch = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.refuse(0, ClusterError.from_dict({"code": code, "message": "no", "details": {}}))
        assert await sent.outcome(batch) == "unknown"


@pytest.mark.parametrize("harm", ["topic_id", "producer_id", "producer_epoch", "producer_token"])
async def test_a_session_that_comes_back_as_another_takes_none_of_its_batches(harm: str) -> None:
    """Another topic under the same name, another producer: it would answer for batches that it does not hold."""
    async with sending() as sent:
        batch = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.lose()
        again = await sent.broker.stream(1)
        opening = again.opening
        assert (opening.producer_id, opening.producer_epoch) == (1, 1)
        assert (opening.producer_token, opening.topic_id) == (9, 7)
        again.open(**{harm: 99})
        assert await sent.outcome(batch) == "unknown"
        assert len(again.heard) == 1, "nothing of the former session was written to the other one"
        fresh = await sent.broker.stream(2)
        assert fresh.opening.producer_id == 0


async def test_a_session_that_comes_back_as_itself_sends_the_same_bytes_again() -> None:
    async with sending() as sent:
        batches = [sent.send(b"a"), sent.send(b"b")]
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(2)
        stream.lose()
        again = await sent.broker.stream(1)
        again.open(next_sequence=1)
        await again.batches(2)
        assert again.heard[1:] == stream.heard[1:]
        again.receipt(0, 1, base_offset=0, duplicate=True)
        again.receipt(1, 1, base_offset=1)
        assert [await sent.outcome(batch) for batch in batches] == ["stored", "stored"]
        assert [batch.duplicate for batch in batches] == [True, False]


async def test_batches_behind_a_loss_go_on_in_a_new_session() -> None:
    """The next owner of a lost broker's topic may lack batches that were answered. Then it has no later one either."""
    async with sending(max_elapsed_s=3600.0) as sent:
        first = await sent.broker.stream(0)
        first.open()
        answered = sent.send(b"one")
        await first.batches(1)
        first.receipt(0, 1, base_offset=0)
        assert await sent.outcome(answered) == "stored"
        behind = sent.send(b"two"), sent.send(b"three")
        await first.batches(3)
        first.lose()
        second = await sent.broker.stream(1)
        assert second.opening.producer_id == 1
        second.open(next_sequence=0)
        third = await sent.broker.stream(2)
        assert third.opening.producer_id == 0, "a new session"
        assert len(second.heard) == 1, "nothing more was written to the old one"
        third.open(producer_id=2, next_sequence=0)
        await third.batches(2)
        third.receipt(0, 1, base_offset=1 << 32)
        third.receipt(1, 1, base_offset=(1 << 32) + 1)
        assert [await sent.outcome(each) for each in behind] == ["stored"] * 2


async def test_quiet_producer_opens_a_new_session_behind_a_loss() -> None:
    async with sending(max_elapsed_s=3600.0) as sent:
        first = await sent.broker.stream(0)
        first.open()
        answered = sent.send(b"one")
        await first.batches(1)
        first.receipt(0, 1, base_offset=0)
        assert await sent.outcome(answered) == "stored"
        first.lose()
        second = await sent.broker.stream(1)
        second.open(next_sequence=0)
        third = await sent.broker.stream(2)
        third.open(producer_id=2, next_sequence=0)
        more = sent.send(b"two")
        await third.batches(1)
        third.receipt(0, 1, base_offset=1 << 32)
        assert await sent.outcome(more) == "stored"


async def test_a_batch_that_the_log_holds_is_unknown_and_not_refused_whatever_the_broker_answers() -> None:
    """Its first answer was lost, and the log holds it: a refusal of the retry must not count as not stored."""
    async with sending() as sent:
        batch = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.lose()
        again = await sent.broker.stream(1)
        again.open(next_sequence=1)
        await again.batches(1)
        again.refuse(0, InvalidArgument("too large"))
        assert await sent.outcome(batch) == "unknown"


async def test_a_batch_that_was_stored_before_and_whose_place_is_forgotten_counts_as_stored() -> None:
    async with sending() as sent:
        batch = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.receipt(0, 1, base_offset=UNKNOWN_OFFSET, duplicate=True)
        assert await sent.outcome(batch) == "stored"
        assert batch.error is not None


async def test_a_refused_batch_fails_alone_and_those_behind_it_go_in_a_new_session() -> None:
    async with sending() as sent:
        refused, behind = sent.send(b"a"), sent.send(b"b")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(2)
        stream.refuse(0, SchemaIncompatible("it does not fit"))
        assert await sent.outcome(refused) == "refused"
        fresh = await sent.broker.stream(1)
        assert fresh.opening.producer_id == 0
        fresh.open(producer_id=2)
        await fresh.batches(1)
        fresh.receipt(0, 1, base_offset=5)
        assert await sent.outcome(behind) == "stored"


async def test_a_refused_batch_that_may_be_stored_keeps_those_behind_it_in_the_session() -> None:
    """The batch behind it was not refused for a gap: it may be stored, and is not sent as new."""
    async with sending() as sent:
        failed, behind = sent.send(b"a"), sent.send(b"b")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(2)
        error = SchemaIncompatible("the journal failed", outcome="unknown")
        stream.refuse(0, error)
        assert await sent.outcome(failed) == "unknown"
        stream.receipt(1, 1, base_offset=8)
        assert await sent.outcome(behind) == "stored"
        assert behind.base_offset == 8


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (5, 1)])
async def test_a_receipt_of_something_that_was_not_sent_stores_nothing(sequence: int, count: int) -> None:
    async with sending() as sent:
        batch = sent.send(b"a")
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(1)
        stream.receipt(sequence, count, base_offset=0)
        assert await sent.outcome(batch) in ("unknown", "refused")
        assert batch.base_offset < 0


async def test_no_more_batches_are_unanswered_than_the_broker_remembers() -> None:
    async with sending() as sent:
        batches = [sent.send(bytes([number])) for number in range(7)]
        stream = await sent.broker.stream(0)
        stream.open()
        await stream.batches(5)
        stream.receipt(0, 1, base_offset=0)
        assert await sent.outcome(batches[0]) == "stored"
        await stream.batches(6)
        assert len(stream.heard) == 1 + 6
