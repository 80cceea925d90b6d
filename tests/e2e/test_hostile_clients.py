"""Clients that are broken or mean, against a real broker: typed refusals, a healthy broker, nobody else disturbed.

Everything here speaks gRPC by hand. Beside each attack a good client publishes and reads; at the end the broker's
memory is bounded and its log has no stack trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
import struct
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import psutil
import pytest
from pydanube import Retry, connect
from pydanube_core.batch import MAX_BATCH_BYTES, PRODUCER_PART_BYTES, Codec, encode_batch
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.frames import PUBLISH_BATCH_FIELD, write_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.services import OPS, STREAM

from tests.support.broker_process import BrokerProcess
from tests.support.grpc_services import METHODS
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
SEED = 20_260_131
#: what a refused client may be told; UNKNOWN and INTERNAL would be our defects
TYPED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
}
RSS_LIMIT_BYTES = 450 << 20

Test = Callable[..., Awaitable[None]]


@asynccontextmanager
async def good_client(broker: BrokerProcess) -> AsyncIterator[None]:
    """A good client that is busy beside the block: each message it sends comes back to it, in order."""
    topic = f"neighbour-{uuid.uuid4().hex}"
    sent = 0
    retry = Retry(max_elapsed_s=0)  # not one connection of it may be lost
    async with (
        connect(broker.url, retry=retry) as client,
        client.producer(topic) as producer,
        client.consumer(topic, "s") as consumer,
        anyio.create_task_group() as tasks,
    ):
        stop, worked_on = anyio.Event(), anyio.Event()
        goal: int | None = None

        async def work() -> None:
            nonlocal sent
            while not stop.is_set():
                await producer.send(str(sent).encode())
                message = await anext(aiter(consumer))
                assert message.payload == str(sent).encode()
                await message.ack()
                sent += 1
                if goal is not None and sent >= goal:
                    worked_on.set()
            await consumer.flush_acks()

        tasks.start_soon(work)
        yield
        goal = sent + 3
        await worked_on.wait()  # it still works after the attack
        stop.set()
    assert broker.rss_bytes() < RSS_LIMIT_BYTES
    broker.check_log()


def beside_a_good_client(test: Test) -> Test:
    """The test, while a good client works beside it. Not a fixture: the test fails as soon as the good client does."""

    @functools.wraps(test)
    async def both(broker: BrokerProcess, **arguments: Any) -> None:
        async with good_client(broker):
            await test(broker=broker, **arguments)

    return both


@asynccontextmanager
async def channel(url: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(
        urlsplit(url).netloc,
        options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
    ) as opened:
        yield opened


class Talk:
    """One bidirectional stream, by hand."""

    def __init__(self, on: grpc.aio.Channel, method: str) -> None:
        self.call = on.stream_stream(STREAM[method].path)()
        self._response = STREAM[method].response

    async def write(self, *messages: bytes | Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else message.SerializeToString()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                await self.call.write(data)

    async def read(self) -> Any:
        """The next response; None at the end of the stream, whatever its status."""
        try:
            data = await self.call.read()
        except grpc.aio.AioRpcError:
            return None
        return None if data is grpc.aio.EOF else self._response.FromString(data)

    async def until(self, kind: str) -> Any:
        """The next response of that kind; fails at the end of the stream."""
        while (response := await self.read()) is not None:
            if response.WhichOneof("kind") == kind:
                return getattr(response, kind)
        raise AssertionError(f"the stream ended with {await self.status()} instead of {kind}")

    async def drain(self, what: object = None) -> list[Any]:
        """Everything up to the end of the stream, which must come."""
        found: list[Any] = []
        try:
            with anyio.fail_after(60):
                while (response := await self.read()) is not None:
                    found.append(response)
        except TimeoutError:
            raise AssertionError(f"the stream does not end ({what}); it said {found}") from None
        return found

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended; the status is one of the typed ones and its text begins with the code."""
        code, text = await self.call.code(), await self.call.details()
        if text == "Internal error from Core":
            return code, text  # grpcio's own words in this process for a write on a stream that has ended
        assert code in TYPED, (code, text)
        if code is not grpc.StatusCode.OK:
            trailing = dict(await self.call.trailing_metadata() or ())
            error = json.loads(trailing["danube-error-bin"])
            assert text.startswith(f"{error['code']}: "), text
        return code, text.partition(":")[0]

    async def done(self) -> None:
        await self.call.done_writing()

    def cancel(self) -> None:
        self.call.cancel()


def junk(rng: random.Random) -> bytes:
    """Bytes that are nothing, or nearly something."""
    match rng.randrange(6):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.randrange(1, 2000))
        case 2:  # the tag of a batch and a wrong length
            return bytes((PUBLISH_BATCH_FIELD << 3 | 2,)) + rng.randbytes(rng.randrange(1, 40))
        case 3:  # a real message with bits flipped
            data = bytearray(
                pb.PublishRequest(open=pb.OpenProducer(topic="t", create=True)).SerializeToString()
            )
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data)
        case 4:
            data = bytearray(
                pb.ConsumeRequest(open=pb.OpenConsumer(topic="t", subscription="s")).SerializeToString()
            )
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data)
        case _:
            return b"\xff" * rng.randrange(1, 50)


# -- bytes that are nothing ----------------------------------------------------------------------------------


@beside_a_good_client
@pytest.mark.parametrize("method", ["Publish", "Consume"])
async def test_random_bytes_on_a_stream_end_it_with_a_typed_error(broker: BrokerProcess, method: str) -> None:
    rng = random.Random(SEED)
    async with channel(broker.url) as on:
        for _ in range(150):
            talk = Talk(on, method)
            await talk.write(*(junk(rng) for _ in range(rng.randrange(1, 4))))
            if rng.random() < 0.5:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await talk.done()
                await talk.drain()
                await talk.status()
            else:
                talk.cancel()


@beside_a_good_client
async def test_random_bytes_on_every_call_of_both_ports_get_a_typed_error(broker: BrokerProcess) -> None:
    rng = random.Random(SEED)
    unary = [method for method in METHODS.values() if method.kind.value in ("unary_unary", "unary_stream")]
    assert {STREAM["Resolve"].path, OPS["Call"].path} <= {method.path for method in unary}
    async with channel(broker.url) as on, channel(broker.admin) as admin:
        for method in unary:
            for port in (on, admin):
                for _ in range(4):
                    call = getattr(port, method.kind.value)(method.path)(junk(rng), timeout=60)
                    try:
                        if method.kind.value == "unary_unary":
                            await call
                        else:
                            async for _answer in call:
                                call.cancel()
                    except (grpc.aio.AioRpcError, asyncio.CancelledError):
                        pass
                    code = await call.code()
                    assert code in TYPED | {grpc.StatusCode.CANCELLED}, (
                        method.path,
                        code,
                        await call.details(),
                    )


@beside_a_good_client
async def test_a_topic_of_four_billion_partitions_is_refused(broker: BrokerProcess) -> None:
    async with channel(broker.url) as on:
        resolve = on.unary_unary(STREAM["Resolve"].path)
        for name, partitions in (
            ("huge", 2**32 - 1),
            ("huge", 100_000),
            ("x" * 5000, 1),
            ("\u0000", 0),
            ("", 0),
        ):
            request = pb.ResolveRequest(topic=name, create=True, partitions=partitions)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await resolve(request.SerializeToString())
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()


# -- batches -------------------------------------------------------------------------------------------------


@dataclass
class Publisher:
    """An opened publish stream."""

    talk: Talk
    opened: Any
    sequence: int = 0

    @classmethod
    async def open(cls, on: grpc.aio.Channel, topic: str) -> Publisher:
        talk = Talk(on, "Publish")
        await talk.write(pb.PublishRequest(open=pb.OpenProducer(topic=topic, create=True)))
        return cls(talk, await talk.until("opened"))

    def batch(self, payloads: Sequence[bytes], **options: Any) -> bytes:
        return encode_batch(
            list(payloads),
            producer_id=self.opened.producer_id,
            producer_epoch=self.opened.producer_epoch,
            first_sequence=self.sequence,
            publish_time_ms=1_767_225_600_000,
            **options,
        )

    async def send(self, batch: bytes) -> Any:
        """The answer to a batch: a receipt or a failure."""
        await self.talk.write(write_bytes_field(PUBLISH_BATCH_FIELD, [batch]))
        response = await self.talk.read()
        assert response is not None, await self.talk.status()
        return getattr(response, response.WhichOneof("kind"))

    async def refused(self, batch: bytes) -> dict[str, Any]:
        failure = await self.send(batch)
        assert isinstance(failure, pb.Failure), f"it was accepted: {failure}"
        error: dict[str, Any] = json.loads(failure.error)
        assert error["code"] in {
            "INVALID_ARGUMENT", "CHECKSUM_MISMATCH", "BATCH_TOO_LARGE", "MESSAGE_TOO_LARGE", "PRODUCER_UNKNOWN",
            "PRODUCER_FENCED", "OUT_OF_SEQUENCE",
        }, error  # fmt: skip
        return error

    async def accepted(self) -> int:
        receipt = await self.send(self.batch([b"good"]))
        assert isinstance(receipt, pb.Receipt), receipt
        self.sequence += 1
        return int(receipt.base_offset)


def resummed(batch: bytes | bytearray) -> bytes:
    """The same bytes with a checksum that holds."""
    data = bytearray(batch)
    at = PRODUCER_PART_BYTES - 4
    data[at:PRODUCER_PART_BYTES] = bytes(4)
    crc = crc32(memoryview(data)[PRODUCER_PART_BYTES:], crc32(memoryview(data)[:at]))
    data[at:PRODUCER_PART_BYTES] = struct.pack("<I", crc)
    return bytes(data)


def test_resummed_is_how_the_codec_sums() -> None:
    batch = encode_batch([b"a", b"bc"], producer_id=1)
    assert resummed(batch) == batch


def hostile(publisher: Publisher, rng: random.Random) -> Iterator[bytes]:
    """Batches whose checksum holds and whose content does not."""
    columns = {
        "keys": [b"k", None, b""],
        "attributes": [{"a": "b"}, None, {}],
        "sequences": [publisher.sequence, publisher.sequence + 1, publisher.sequence + 2],
    }
    plain = publisher.batch([b"one", b"two" * 50, b""])
    rich = publisher.batch([b"one", b"two" * 50, b""], **columns)
    extremes = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFF0, 4)
    for source in (plain, rich):
        for at in range(PRODUCER_PART_BYTES, min(len(source), PRODUCER_PART_BYTES + 120), 4):
            data = bytearray(source)
            (old,) = struct.unpack_from("<I", data, at)
            value = rng.choice(extremes)
            if value != old:
                struct.pack_into("<I", data, at, value)
                yield resummed(data)
    count_at, columns_at, raw_at, stored_at = 8 + 0, 12, 16, 20
    assert PRODUCER_PART.unpack_from(plain)[4] == struct.unpack_from("<I", plain, count_at)[0] == 3
    for at in (count_at, columns_at, raw_at, stored_at):
        for value in (0, 1, 2**16 + 1, 2**31, 2**32 - 1):
            data = bytearray(plain)
            if struct.unpack_from("<I", data, at)[0] != value:
                struct.pack_into("<I", data, at, value)
                yield resummed(data)
    for cut in (1, 8, PRODUCER_PART_BYTES - 1, len(plain) // 2):
        yield resummed(bytes(plain[:-cut]).ljust(PRODUCER_PART_BYTES, b"\0"))
    yield b""
    yield b"D"
    yield resummed(plain + b"more")
    # bombs: a lot in a little, declared as it is, and declared as less
    for codec in (Codec.ZSTD, Codec.LZ4):
        bomb = bytearray(publisher.batch([bytes(3_900_000)] * 4, codec=codec))
        (raw,) = struct.unpack_from("<I", bomb, raw_at)
        for lie in (raw - 1, 10, 2**31 - 1, 2**32 - 1):
            struct.pack_into("<I", bomb, raw_at, lie)
            yield resummed(bomb)


@beside_a_good_client
async def test_hostile_batches_with_a_valid_checksum_are_refused_one_by_one(broker: BrokerProcess) -> None:
    rng = random.Random(SEED)
    async with channel(broker.url) as on:
        publisher = await Publisher.open(on, "hostile")
        assert await publisher.accepted() == 0
        refusals, offset = 0, 0
        for batch in hostile(publisher, rng):
            answer = await publisher.send(batch)
            if isinstance(answer, pb.Receipt):
                # some changes are legal: other payload bytes, other keys. What was taken must be readable.
                # The same sequence again is answered with the place of its first time.
                if not answer.duplicate:
                    publisher.sequence += answer.count
                    offset += answer.count
                continue
            refusals += 1
            code = json.loads(answer.error)["code"]
            assert code in {
                "INVALID_ARGUMENT", "CHECKSUM_MISMATCH", "BATCH_TOO_LARGE", "MESSAGE_TOO_LARGE",
                "PRODUCER_UNKNOWN", "OUT_OF_SEQUENCE",
            }, answer.error  # fmt: skip
        assert refusals > 60
        last = await publisher.accepted()
        assert last == offset + 1
    async with connect(broker.url) as client, client.reader("hostile", stop="head") as reader:
        messages = [message async for message in reader]
    assert [message.offset for message in messages] == list(range(last + 1))
    assert messages[-1].payload == b"good"


@beside_a_good_client
async def test_a_batch_or_a_frame_beyond_all_limits_is_refused(broker: BrokerProcess) -> None:
    async with channel(broker.url) as on:
        publisher = await Publisher.open(on, "too-large")
        large = await publisher.refused(b"DBat" + bytes(MAX_BATCH_BYTES + 1))
        assert large["code"] in {"BATCH_TOO_LARGE", "INVALID_ARGUMENT"}
        assert await publisher.accepted() == 0
        # beyond what the server reads at all: its own limit ends that stream, and only that
        talk = Talk(on, "Publish")
        await talk.write(bytes(70 << 20))
        await talk.drain()
        assert await talk.call.code() in {
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.INVALID_ARGUMENT,
        }
        assert await publisher.accepted() == 1


@beside_a_good_client
async def test_another_producer_s_id_epochs_and_sequences_are_refused(broker: BrokerProcess) -> None:
    async with channel(broker.url) as on:
        publisher = await Publisher.open(on, "sessions")
        assert await publisher.accepted() == 0
        identity = {"publish_time_ms": 1_767_225_600_000}
        own, epoch = publisher.opened.producer_id, publisher.opened.producer_epoch
        for producer_id, producer_epoch, sequence in (
            (0, 0, 1),
            (own + 1000, epoch, 0),
            (2**64 - 1, epoch, 1),
            (own, epoch + 1, 1),
            (own, 2**32 - 1, 1),
            (own, epoch, 2),
            (own, epoch, 2**63 - 1),
        ):
            foreign = encode_batch(
                [b"x"],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                first_sequence=sequence,
                **identity,
            )
            await publisher.refused(foreign)
        # the same batch again is the same place, not another
        again = await publisher.send(
            encode_batch([b"good"], producer_id=own, producer_epoch=epoch, first_sequence=0, **identity)
        )
        assert (again.base_offset, again.duplicate) == (0, True)
        assert await publisher.accepted() == 1


# -- wrong order ---------------------------------------------------------------------------------------------


@beside_a_good_client
async def test_messages_in_the_wrong_order_end_the_stream(broker: BrokerProcess) -> None:
    opening = pb.PublishRequest(open=pb.OpenProducer(topic="order", create=True))
    consume = pb.ConsumeRequest(open=pb.OpenConsumer(topic="order", subscription="s"))
    batch = write_bytes_field(PUBLISH_BATCH_FIELD, [encode_batch([b"x"], producer_id=1)])
    async with channel(broker.url) as on:
        publisher = await Publisher.open(on, "order")
        for method, messages in (
            ("Publish", [batch]),
            ("Publish", [opening, opening]),
            ("Publish", [pb.PublishRequest()]),
            ("Consume", [pb.ConsumeRequest(credit=pb.Credit(messages=1, bytes=1))]),
            ("Consume", [pb.ConsumeRequest(ack=pb.Ack(session=1, ranges=[0, 1]))]),
            ("Consume", [consume, consume]),
            ("Consume", [pb.ConsumeRequest()]),
            ("Consume", [pb.ConsumeRequest(seek=pb.Seek(position="earliest", request=1))]),
        ):
            talk = Talk(on, method)
            await talk.write(*messages)
            await talk.drain()
            assert (await talk.status())[0] is grpc.StatusCode.INVALID_ARGUMENT, (method, messages)
        assert await publisher.accepted() == 0


@beside_a_good_client
async def test_half_closed_and_cancelled_streams_leave_nothing_behind(broker: BrokerProcess) -> None:
    async with channel(broker.url) as on:
        publisher = await Publisher.open(on, "halves")
        await publisher.accepted()
        for round_number in range(60):
            talks = [Talk(on, "Publish"), Talk(on, "Consume"), Talk(on, "Consume")]
            await talks[0].write(pb.PublishRequest(open=pb.OpenProducer(topic="halves")))
            await talks[1].write(
                pb.ConsumeRequest(
                    open=pb.OpenConsumer(
                        topic="halves", subscription="s", credit_messages=9, credit_bytes=9999
                    )
                )
            )
            await talks[2].write(
                pb.ConsumeRequest(open=pb.OpenConsumer(topic="halves", credit_messages=9, credit_bytes=9999))
            )
            for talk in talks:
                if round_number % 3 == 0:
                    await talk.done()
                    await talk.drain()
                    assert (await talk.status())[0] in {
                        grpc.StatusCode.OK,
                        grpc.StatusCode.PERMISSION_DENIED,  # CONSUMER_BUSY: the one before is still leaving
                    }
                elif round_number % 3 == 1:
                    await talk.read()
                    talk.cancel()
                else:
                    talk.cancel()
        await publisher.talk.done()
        await publisher.talk.drain()
        assert (await publisher.talk.status())[0] is grpc.StatusCode.OK
        while True:
            described = await anyio.to_thread.run_sync(
                lambda: broker.json_command("topics", "describe", "halves")
            )
            if (described["producers"], described["consumers"]) == (0, 0):
                break


# -- consumers -----------------------------------------------------------------------------------------------


async def _opened(on: grpc.aio.Channel, topic: str, subscription: str, **options: Any) -> tuple[Talk, Any]:
    talk = Talk(on, "Consume")
    await talk.write(
        pb.ConsumeRequest(open=pb.OpenConsumer(topic=topic, subscription=subscription, **options))
    )
    return talk, await talk.until("opened")


BIG = 2**64 - 1


@beside_a_good_client
async def test_absurd_answers_of_a_consumer_do_not_move_its_cursor(broker: BrokerProcess) -> None:
    async with connect(broker.url) as client, client.producer("absurd") as producer:
        await producer.send_many([b"%d" % i for i in range(100)])
    pairs = [
        [0, 101], [50, 40], [5, 5], [0], [100, 200], [BIG - 1, BIG], [0, BIG], [90, 95, 20, 10], [3, 4, 3, 4, 3],
    ]  # fmt: skip
    async with channel(broker.url) as on:
        for kind in ("ack", "nack", "extend", "terminate"):
            for ranges in pairs:
                for wrong_session in (False, True):
                    talk, opened = await _opened(
                        on, "absurd", "s", credit_messages=10, credit_bytes=1 << 20, consumer_name="mean"
                    )
                    await talk.until("delivery")
                    session = BIG if wrong_session else opened.session
                    match kind:
                        case "ack":
                            message = pb.ConsumeRequest(ack=pb.Ack(session=session, ranges=ranges, confirm=7))
                        case "nack":
                            message = pb.ConsumeRequest(
                                nack=pb.Nack(session=session, ranges=ranges, delay_ms=BIG, reason="x" * 5000)
                            )
                        case "extend":
                            message = pb.ConsumeRequest(
                                extend=pb.Extend(session=session, ranges=ranges, ms=BIG)
                            )
                        case _:
                            message = pb.ConsumeRequest(
                                terminate=pb.Terminate(session=session, ranges=ranges)
                            )
                    await talk.write(message)
                    await talk.done()
                    await talk.drain()
                    await talk.status()
    lag = (
        await anyio.to_thread.run_sync(
            lambda: broker.json_command("subscriptions", "lag", "--topic", "absurd")
        )
    )["items"][0]
    # Acks of what was delivered, in ranges that are right, may count: [3, 4) was one of them. No more than that.
    assert lag["next_unacked"] == 0, lag
    assert lag["lag_messages"] >= 99 - 10, lag
    async with connect(broker.url) as client, client.consumer("absurd", "good") as consumer:
        with anyio.fail_after(60):
            got: list[int] = []
            while len(got) < 100:
                got += [message.offset for message in await consumer.receive()]
        assert got == list(range(100))


@beside_a_good_client
async def test_an_ack_of_what_was_never_delivered_is_named(broker: BrokerProcess) -> None:
    async with connect(broker.url) as client, client.producer("undelivered") as producer:
        await producer.send_many([b"x"] * 100)
    async with channel(broker.url) as on:
        talk, opened = await _opened(on, "undelivered", "s", credit_messages=10, credit_bytes=1 << 20)
        await talk.until("delivery")
        await talk.write(pb.ConsumeRequest(ack=pb.Ack(session=opened.session, ranges=[0, 50], confirm=1)))
        await talk.drain()
        assert (await talk.status())[1] == "NOT_DELIVERED"


@beside_a_good_client
@pytest.mark.parametrize("subscription", ["", "s"])
async def test_absurd_credit_and_positions(broker: BrokerProcess, subscription: str) -> None:
    topic = f"credit-{subscription}"
    async with connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many([bytes(1000)] * 2000)
    async with channel(broker.url) as on:
        # No end of credit, and nobody reads: what the broker holds for this connection is bounded.
        deaf = [
            await _opened(
                on, topic, f"{subscription}{i}" if subscription else "", credit_messages=BIG, credit_bytes=BIG
            )
            for i in range(20)
        ]
        for talk, _ in deaf:
            await talk.write(pb.ConsumeRequest(credit=pb.Credit(messages=BIG, bytes=BIG)))
            await talk.write(pb.ConsumeRequest(credit=pb.Credit(messages=0, bytes=0)))
        for position in ("", "yesterday", "offset:-1", f"offset:{BIG}", "offset:99999", "time:", "x" * 4000):
            talk, _ = await _opened(on, topic, "seeker" if subscription else "")
            await talk.write(pb.ConsumeRequest(seek=pb.Seek(position=position, request=3)))
            with anyio.fail_after(60):
                answer = await talk.until("confirmed")  # a refusal changes nothing, and the stream lives on
            assert (answer.confirm, json.loads(answer.error)["code"]) == (3, "INVALID_ARGUMENT"), position
            await talk.write(
                pb.ConsumeRequest(seek=pb.Seek(position=position))
            )  # nobody waits for its answer
            await talk.drain(position)
            assert (await talk.status())[0] is grpc.StatusCode.INVALID_ARGUMENT, position
        for wrong in (
            {"start": "nonsense"}, {"topic": "no such name!"}, {"subscription": "a\u0000b"}, {"type": "exklusiv"},
            {"consumer_name": "x" * 10_000}, {"stop": "nonsense"} if not subscription else {"type": "?"},
        ):  # fmt: skip
            fields = {"topic": topic, "subscription": subscription and "wrong", **wrong}
            if "type" in wrong and not subscription:
                fields["subscription"] = "wrong"
            talk = Talk(on, "Consume")
            await talk.write(pb.ConsumeRequest(open=pb.OpenConsumer(**fields)))
            await talk.drain(wrong)
            assert (await talk.status())[0] is grpc.StatusCode.INVALID_ARGUMENT, wrong
        for talk, _ in deaf:
            talk.cancel()


# -- connections ---------------------------------------------------------------------------------------------


@beside_a_good_client
async def test_a_thousand_connections_opened_and_dropped(broker: BrokerProcess) -> None:
    rng = random.Random(SEED)
    process = psutil.Process(broker.pid)
    before_fds, before_rss = process.num_fds(), broker.rss_bytes()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    for port in (urlsplit(url).port for url in (broker.url, broker.admin, broker.metrics, broker.http)):
        held = []
        for i in range(250):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), timeout=30)
                sock.sendall((b"", preface, rng.randbytes(500), b"GET / HTTP/1.1\r\nHost: x\r\n")[i % 4])
                held.append(sock)
        for sock in held:
            if rng.random() < 0.5:  # reset instead of a polite end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        await anyio.lowlevel.checkpoint()
    await until(lambda: process.num_fds() <= before_fds + 20)  # another process's state
    assert broker.rss_bytes() < before_rss + (100 << 20)


async def publish_and_wait_for_the_end(url: str, clients: int) -> None:
    """Send a batch from each of `clients` connections, print a line, and wait for SIGKILL: the program of the test below."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(urlsplit(url).netloc, options=options) for _ in range(clients)]
    publishers = [await Publisher.open(on, "vanishing") for on in channels]
    for publisher in publishers:
        batch = publisher.batch([b"x" * 500] * 50)
        await publisher.talk.write(write_bytes_field(PUBLISH_BATCH_FIELD, [batch]))
    print("sent", flush=True)
    await anyio.sleep_forever()


@beside_a_good_client
async def test_two_hundred_clients_that_vanish_in_the_middle(broker: BrokerProcess) -> None:
    """In a process that is killed: a channel of grpcio 1.85 that is closed under an open call keeps its connection."""
    process = psutil.Process(broker.pid)
    before_fds = process.num_fds()
    name = publish_and_wait_for_the_end.__name__
    program = f"import anyio; from {__name__} import {name}; anyio.run({name}, {broker.url!r}, 20)"
    for _ in range(10):
        async with await anyio.open_process(
            [sys.executable, "-c", program], cwd=ROOT, stderr=None
        ) as clients:
            assert clients.stdout is not None
            assert (await clients.stdout.receive()).startswith(b"sent")
            clients.kill()
    await until(lambda: process.num_fds() <= before_fds + 20)  # another process's state
    async with connect(broker.url) as client, client.reader("vanishing", stop="head") as reader:
        offsets = [message.offset async for message in reader]
    assert offsets == list(range(len(offsets)))
