"""Whoever sleeps in the SDK until somebody wakes him, against a model: nobody sleeps beside what he waits for.

Random calls, answers, refusals and cancellations; then the loop turns until nothing moves, and each sleeper must have a
reason. What is under test is the producer's window and lane, the receiver, and the queue of control messages; the stream
below them is one that the test answers by hand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube.options import ClientSide, ProducerOptions, ReceiverOptions
from pydanube.producer import Producer
from pydanube.receiving.control import ControlQueue
from pydanube.receiving.credit import CreditAccount
from pydanube.receiving.receiver import Receiver
from pydanube.retry import Retry
from pydanube.sending.publish_lane import MAX_IN_FLIGHT
from pydanube_core.batch import ProducerPart, read_producer_part
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb

MODEL = settings(max_examples=40, deadline=None, derandomize=True)
Steps = list[tuple[str, int]]


def steps(*names: str) -> st.SearchStrategy[Steps]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 7)), max_size=40)


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


class Sleepers:
    """Tasks, in their order."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    @property
    def left(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]

    def cancel(self, number: int) -> None:
        if left := self.left:
            left[number % len(left)].cancel()

    async def outcomes(self) -> list[Any]:
        """Of all of them; a failure that is none of the SDK's own is raised."""
        found = await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 5)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, ClusterError | asyncio.CancelledError):
                raise one
        return found


class HandStream:
    """A stream whose other side is the test; it takes what is written unless it is `full`."""

    url = "http://test"

    def __init__(self) -> None:
        self.take: Callable[[bytes], bool] | None = None
        self.full = False
        self.written = b""
        self.unanswered: deque[ProducerPart] = deque()  # a producer's batches
        self._publishes = False
        self._room: asyncio.Future[None] | None = None

    async def write(self, message: bytes) -> None:
        self.written += message
        if self.full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        self._took(message)

    def _took(self, message: bytes) -> None:
        batch = read_bytes_field(PUBLISH_BATCH_FIELD, message) if self._publishes else None
        if batch is not None:
            self.unanswered.append(read_producer_part(batch))

    def answer(self) -> None:
        """Give the receipt of the oldest batch, if there is one."""
        if self.unanswered:
            batch = self.unanswered.popleft()
            receipt = pb.Receipt(first_sequence=batch.first_sequence, count=batch.count, base_offset=1)
            assert self.take is not None
            self.take(pb.PublishResponse(receipt=receipt).SerializeToString())

    def ease(self) -> None:
        self.full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def write_at_once(self, message: bytes) -> bool:
        if not self.full:
            self.written += message
            self._took(message)
        return not self.full

    async def read(self) -> bytes:
        opened = pb.ProducerOpened(producer_id=1, durability="fsynced", max_message_bytes=1000)
        return pb.PublishResponse(opened=opened).SerializeToString()

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        self.take = take
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...

    async def publish(self) -> HandStream:
        self._publishes = True
        return self


def side(stream: HandStream) -> ClientSide:
    async def prepare() -> tuple[str, list[tuple[int | None, str]]]:
        return "/default/t", [(None, "/default/t")]

    async def locate(_: str) -> Any:
        return stream

    nothing = cast(Any, None)
    return ClientSide(
        prepare=prepare,
        locate=locate,
        emit=lambda *_: None,
        retry=Retry(),
        schema=nothing,
        decode=nothing,
        reply=nothing,
    )


async def order_kept() -> None:
    """Room for two comes back while one sender waits; another one sends before the first runs again."""
    stream, sleepers = HandStream(), Sleepers()
    producer = Producer("/default/t", ProducerOptions(window_messages=2), side(stream), lambda _: None)
    await producer.__aenter__()
    summary = asyncio.get_running_loop().create_task(producer.send_many([b"0", b"1"]))
    await settle()
    sleepers.start(producer.send(b"waited"))
    await settle()
    sleepers.start(producer.send(b"came later"))  # runs before the one that is woken now
    stream.answer()
    await settle()
    summary.cancel()
    for task in sleepers.tasks:
        task.cancel()
    await sleepers.outcomes()
    assert stream.written.index(b"waited") < stream.written.index(b"came later")


def test_a_sender_that_waited_goes_before_one_that_comes_when_it_is_woken() -> None:
    asyncio.run(order_kept())


async def run_producer(todo: Steps) -> None:
    stream, sleepers = HandStream(), Sleepers()
    options = ProducerOptions(window_messages=4, window_bytes=1000)
    producer = Producer("/default/t", options, side(stream), lambda _: None)
    await producer.__aenter__()
    window = producer._window

    async def several(count: int) -> None:
        await producer.send_many([b"x" * 10] * count)

    async def nobody_sleeps_for_nothing() -> None:
        await settle()
        blocked = [one for one in window.blocked if not one[0].done()]
        assert not blocked or not window.fits(*blocked[0][1:]), "there is room for the first who waits"
        unwritten = producer.statistics().waiting_messages > sum(batch.count for batch in stream.unanswered)
        assert not unwritten or stream.full or len(stream.unanswered) >= MAX_IN_FLIGHT, "the lane sleeps"

    for what, number in todo:
        match what:
            case "send":
                sleepers.start(producer.send(b"x" * (1 + 90 * number)))
            case "refused":  # by what is looked at after there is room
                sleepers.start(producer.send(b"x" * 90, partition=7))
            case "refused in time":
                sleepers.start(producer.send(b"x" * 90, partition=7, timeout_s=1000))
            case "in time":
                sleepers.start(producer.send(b"x" * 90, timeout_s=1000))
            case "several":
                sleepers.start(several(number + 1))
            case "cancel":
                sleepers.cancel(number)
            case "answer":
                stream.answer()
            case "full":
                stream.full = True
            case "ease":
                stream.ease()
            case "turn":
                await nobody_sleeps_for_nothing()
    stream.ease()
    for _ in range(400):
        await nobody_sleeps_for_nothing()
        if not sleepers.left and not producer.statistics().waiting_messages:
            break
        stream.answer()
    await sleepers.outcomes()
    assert (window.free_messages, window.free_bytes) == (4, 1000), "room was lost"
    await producer.aclose()


@given(
    steps(
        "send", "refused", "refused in time", "in time", "several", "cancel", "answer", "full", "ease", "turn"
    )
)
@MODEL
def test_no_sender_sleeps_beside_room_and_no_lane_beside_messages(todo: Steps) -> None:
    asyncio.run(run_producer(todo))


@pytest.mark.parametrize("timeout_s", [None, 1000.0])
def test_a_sender_that_is_refused_after_it_waited_leaves_its_turn_to_the_next(
    timeout_s: float | None,
) -> None:
    refused = "refused" if timeout_s is None else "refused in time"
    full = [("send", 2)] * 4
    asyncio.run(
        run_producer([*full, ("turn", 0), (refused, 0), ("send", 1), ("turn", 0), ("answer", 0), ("turn", 0)])
    )


class Delivery:
    """As `Delivered`, of messages that are numbers."""

    current, size_bytes = True, 0

    def __init__(self, lane: Any, first: int, count: int) -> None:
        self.lane, self.batch, self.taken = lane, self, 0
        self.offsets = range(first, first + count)
        self.low, self.high = 0, count

    def __len__(self) -> int:
        return len(self.offsets)

    def payloads(self, low: int, high: int) -> list[bytes]:
        return [b""] * (high - low)

    def part(self, start: int, end: int) -> Delivery:
        return Delivery(self.lane, self.offsets[start], end - start)

    def keep(self, start: int, end: int) -> None:
        self.offsets = self.offsets[start:end]


class Lane:
    """What a receiver asks of a lane."""

    error = None
    left = ended = False
    credit = CreditAccount(1, 1)
    answers = SimpleNamespace(acks=SimpleNamespace(acked=0))

    def taken(self, delivered: Any, messages: int, *, more: bool = False) -> None:
        delivered.taken += messages

    def hold_credit(self) -> None: ...

    def release_credit(self) -> None: ...


async def run_receiver(todo: Steps) -> None:
    options = ReceiverOptions(
        topic="/default/t", start="earliest", start_given=False, credit_messages=10, credit_bytes=10
    )
    receiver = Receiver(options, side(HandStream()), lambda _: None)
    lane, sleepers, sent = Lane(), Sleepers(), 0
    receiver._lanes, receiver._open, receiver._entered = [cast(Any, lane)], True, True
    seen: list[int] = []

    async def one() -> None:
        seen.append((await anext(aiter(receiver))).offset)

    async def some(count: int) -> None:
        seen.extend(message.offset for message in await receiver.receive(count))

    async def small() -> None:
        seen.extend(message.offset for message in await receiver.receive(3, max_bytes=1))

    for what, number in [*todo, ("resume", 0), ("turn", 0)]:
        match what:
            case "one":
                sleepers.start(one())
            case "some":
                sleepers.start(some(number + 1))
            case "small":
                sleepers.start(small())
            case "deliver":
                receiver._arrived(cast(Any, Delivery(lane, sent, number + 1)))
                sent += number + 1
            case "cancel":
                sleepers.cancel(number)
            case "pause":
                receiver.pause()
            case "resume":
                receiver.resume()
            case "turn":
                await settle()
                there = receiver.statistics().buffered_messages
                assert not sleepers.left or not there or receiver.paused, "a task sleeps beside messages"
    for task in sleepers.left:
        task.cancel()
    await sleepers.outcomes()
    assert len(set(seen)) == len(seen), "one message for two tasks"


@given(steps("one", "some", "small", "deliver", "cancel", "pause", "resume", "turn"))
@MODEL
def test_no_task_sleeps_beside_messages_of_its_consumer(todo: Steps) -> None:
    asyncio.run(run_receiver(todo))


def test_what_one_task_leaves_of_a_delivery_goes_to_the_next_that_waits() -> None:
    asyncio.run(run_receiver([("one", 0), ("one", 0), ("one", 0), ("turn", 0), ("deliver", 2), ("turn", 0)]))


async def run_control(todo: Steps) -> None:
    queue, sleepers, stream = ControlQueue(), Sleepers(), HandStream()
    over = False
    queue.connected = True
    message = pb.ConsumeRequest(credit=pb.Credit(messages=1))
    writer = asyncio.get_running_loop().create_task(queue.write_out(cast(Any, stream), lambda: over))
    asked: list[int] = []
    for what, number in todo:
        match what:
            case "written":
                sleepers.start(queue.written(message))
            case "ask":
                asked.append(queue.new_request())
                sleepers.start(queue.send_and_wait(asked[-1], message))
            case "answer" if asked:
                queue.answered(asked.pop(number % len(asked)), None)
            case "cancel":
                sleepers.cancel(number)
            case "full":
                stream.full = True
            case "ease":
                stream.ease()
            case "turn":
                await settle()
                assert not queue._outbox or stream.full, "the writer sleeps beside what is to be written"
    over = True
    stream.ease()
    queue.nudge()
    await asyncio.wait_for(writer, 5)
    queue.lost(Unavailable("the connection was lost"))
    await sleepers.outcomes()
    assert not queue._requests


@given(steps("written", "ask", "answer", "cancel", "full", "ease", "turn"))
@MODEL
def test_whoever_waits_for_the_writer_or_an_answer_is_told_when_the_stream_is_lost(todo: Steps) -> None:
    asyncio.run(run_control(todo))
