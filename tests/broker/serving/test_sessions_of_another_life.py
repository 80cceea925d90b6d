"""A number that was given out twice is two sessions: nothing that was acknowledged is taken for what another sent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube import Client, connect
from pydanube.sending.publish_lane import PublishLane
from pydanube_broker.broker import Broker
from pydanube_broker.journal import RecordKind
from pydanube_broker.services.publish import PublishStream
from pydanube_core.batch import encode_batch
from pydanube_core.errors import ClusterError, DiskFull
from pydanube_core.frames import PUBLISH_BATCH_FIELD, write_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.broker.delivery.test_what_is_confirmed_is_kept import Reply
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/t")


async def stored(client: Client) -> list[bytes]:
    found: list[bytes] = []
    async with client.reader("t", start="earliest") as reader:
        while batch := await reader.receive(max_messages=1000, max_wait_s=0.3):
            found += [bytes(message.payload) for message in batch]
    return found


async def test_producers_of_before_a_restored_backup_lose_nothing_to_those_of_after_it(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_and_send, there = PublishLane.connect_and_send, anyio.Event()

    async def away(lane: PublishLane) -> None:
        if lane.session is not None and lane.session.producer_name == "first":
            await there.wait()
        await connect_and_send(lane)

    monkeypatch.setattr(PublishLane, "connect_and_send", away)
    data = tmp_path / "data"
    async with opened() as broker:
        await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
        port = int(broker.broker_url.rpartition(":")[2])
    shutil.copytree(data, tmp_path / "backup")
    acknowledged: list[bytes] = []
    async with connect(f"http://127.0.0.1:{port}") as early, connect(f"http://127.0.0.1:{port}") as late:
        async with opened(server__grpc_port=port):
            first = await early.producer("t", name="first").__aenter__()
            await first.send(b"lost with the disk")
        shutil.rmtree(data)
        shutil.move(tmp_path / "backup", data)
        async with opened(server__grpc_port=port) as broker:
            second = await late.producer("t", name="second").__aenter__()
            for producer, name, number in [
                (second, "b", 0),
                *((p, n, i) for i in range(1, 6) for p, n in ((first, "a"), (second, "b"))),
            ]:
                text = f"{name}{number}".encode()
                if producer is first:
                    there.set()
                receipt = await producer.send(text)
                assert not receipt.duplicate, text
                acknowledged.append(text)
            assert await stored(late) == acknowledged
            await first.aclose()
            await second.aclose()


async def raw(broker: Broker, **request: Any) -> tuple[PublishStream, Reply]:
    reply = Reply()
    stream = PublishStream(reply, broker, lambda stream: None)  # type: ignore[arg-type]
    stream.on_message(
        pb.PublishRequest(open=pb.OpenProducer(topic="/default/t", **request)).SerializeToString()
    )
    await until(lambda: reply.sent)
    return stream, reply


def error_of(reply: Reply) -> str:
    return ClusterError.from_json(reply.sent[-1].failure.error.decode()).code


async def test_a_session_of_a_topic_that_was_made_anew_is_unknown(broker: Broker) -> None:
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    old, reply = await raw(broker)
    session = reply.sent[0].opened
    old.on_close()
    await broker.registry.delete(NAME)
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    other, reply = await raw(broker)
    newer = reply.sent[0].opened
    batch = encode_batch([b"x"] * 5, producer_id=newer.producer_id, producer_epoch=1, first_sequence=0)
    other.on_message(write_bytes_field(PUBLISH_BATCH_FIELD, [batch]))
    await until(lambda: len(reply.sent) == 2)
    assert (session.producer_id, session.producer_epoch) == (newer.producer_id, newer.producer_epoch)
    known = {"producer_id": session.producer_id, "producer_epoch": 1}
    for claim, refusal in (
        ({"producer_token": session.producer_token, "topic_id": session.topic_id}, "NAME_REUSED"),
        ({"producer_token": session.producer_token, "topic_id": newer.topic_id}, "PRODUCER_UNKNOWN"),
        ({"producer_token": newer.producer_token}, "NAME_REUSED"),
        ({}, "NAME_REUSED"),
    ):
        _, reply = await raw(broker, **known, **claim)
        assert error_of(reply) == refusal
    _, reply = await raw(broker, **known, producer_token=newer.producer_token, topic_id=newer.topic_id)
    assert reply.sent[0].opened.next_sequence == 5
    other.on_close()


@pytest.mark.parametrize("failure", ["no room", "gone before it was open"])
async def test_an_exclusive_producer_goes_on_when_another_of_its_name_fails_to_open(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str
) -> None:
    async with opened() as broker, connect(broker.broker_url) as client:
        await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
        async with client.producer("t", name="p", access_mode="exclusive") as producer:
            await producer.send(b"1")
            append = broker.journal.append

            def full(kind: RecordKind, topic_id: int, body: Any) -> int:
                if kind is RecordKind.SESSION:
                    raise DiskFull("no room", field="data.dir", value="")
                return append(kind, topic_id, body)

            if failure == "no room":
                monkeypatch.setattr(broker.journal, "append", full)
                _, reply = await raw(broker, producer_name="p", access_mode="exclusive")
                assert error_of(reply) == "DISK_FULL"
                monkeypatch.setattr(broker.journal, "append", append)
            else:
                reply = Reply()
                stream = PublishStream(reply, broker, lambda stream: None)  # type: ignore[arg-type]
                request = pb.OpenProducer(topic="/default/t", producer_name="p", access_mode="exclusive")
                records: list[RecordKind] = []

                def gone(kind: RecordKind, topic_id: int, body: Any) -> int:
                    records.append(kind)
                    stream.on_close()
                    return append(kind, topic_id, body)

                monkeypatch.setattr(broker.journal, "append", gone)
                stream.on_message(pb.PublishRequest(open=request).SerializeToString())
                await until(lambda: len(records) == 2)  # the second says who has it
                assert reply.sent == []
            receipt = await producer.send(b"2")
            assert receipt.offset == 1
            # A restart knows it as well.
            await anyio.lowlevel.checkpoint()
            shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*.new"))
            async with opened(data__dir=str(tmp_path / "copy")) as other:
                (topic,) = other.registry.topics
                (session,) = topic.state.producers.sessions()
                assert session.epoch == 1
