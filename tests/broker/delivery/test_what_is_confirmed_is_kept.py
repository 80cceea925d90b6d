"""Confirmed means on stable storage, also where a record found no room at first or an answer was given before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.journal import RecordKind
from pydanube_broker.rpc.caller import Caller, Peer
from pydanube_broker.services.publish import PublishStream
from pydanube_core.batch import encode_batch
from pydanube_core.errors import ClusterError, DiskFull
from pydanube_core.frames import PUBLISH_BATCH_FIELD, write_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.broker.delivery.waiting import facts_of
from tests.support.messages import fill, numbers, take
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(15)]


class NoRoom:
    """The journal has no room for cursors until `heal`."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self._append = broker.journal.append
        self._journal = broker.journal
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(broker.journal, "append", self._full)

    def _full(self, kind: RecordKind, topic_id: int, body: Any) -> int:
        if kind is not RecordKind.CURSOR:
            return self._append(kind, topic_id, body)
        self.refused += 1
        raise DiskFull("no room", field="data.dir", value="")

    def heal(self) -> None:
        self._monkeypatch.setattr(self._journal, "append", self._append)


@pytest.mark.parametrize("move", ["ack", "seek"])
async def test_a_cursor_that_found_no_room_is_written_before_it_is_confirmed(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    async with opened() as broker, connect(broker.broker_url) as client:
        await fill(client, "t", numbers(10))
        async with client.consumer("t", "s") as consumer:
            messages = await take(consumer, 10)
            full = NoRoom(broker, monkeypatch)
            if move == "ack":
                for message in messages:
                    await message.ack()
                await until(lambda: full.refused)
                full.heal()
                await consumer.flush_acks()
            else:
                with pytest.raises(DiskFull):
                    await broker.port.seek_subscription("t", "s", "offset:7")
                full.heal()
                topic = broker.registry.find(TopicName.parse("/default/t"))
                assert topic is not None
                pump = topic.subscriptions["s"]
                await until(lambda: not pump.dirty)  # it is tried again by itself
                durable: list[Any] = []
                pump.confirm(durable.append)
                await until(lambda: durable)
        # What a crash leaves, but for a segment that is being made.
        shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*.new"))
        async with opened(data__dir=str(tmp_path / "copy")) as other:
            facts = await facts_of(other, "t", "s")
        assert facts.state.next_unacked == (10 if move == "ack" else 7)


class Reply:
    """The broker's way to a client that publishes."""

    writable = True
    caller = Caller(peer=Peer(address="ipv4:127.0.0.1:1"))
    identity = None

    def __init__(self) -> None:
        self.sent: list[pb.PublishResponse] = []

    def send(self, data: bytes) -> None:
        self.sent.append(pb.PublishResponse.FromString(data))

    def end(self, error: Exception | None = None) -> None:
        pass

    def goes_elsewhere(self, error: ClusterError) -> bool:
        """There is no other broker."""
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def test_a_duplicate_is_answered_when_it_is_durable_however_old_it_is(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, "t", numbers(1))
    reply = Reply()
    stream = PublishStream(reply, broker, lambda stream: None)
    stream.on_message(pb.PublishRequest(open=pb.OpenProducer(topic="/default/t")).SerializeToString())
    await until(lambda: reply.sent)
    producer_id = reply.sent.pop().opened.producer_id
    batches = [
        write_bytes_field(
            PUBLISH_BATCH_FIELD,
            [encode_batch([b"x"], producer_id=producer_id, producer_epoch=1, first_sequence=number)],
        )
        for number in range(10)
    ]
    gate = SyncGate(monkeypatch)
    for batch in [*batches, batches[0]]:
        stream.on_message(batch)
    await until(lambda: gate.requests)
    await anyio.sleep(0.02)  # an answer would be there by now
    assert reply.sent == []
    gate.let_go()
    await until(lambda: len(reply.sent) == 11)
    assert [response.receipt.duplicate for response in reply.sent] == [False] * 10 + [True]
    topic = broker.registry.find(TopicName.parse("/default/t"))
    assert topic is not None
    assert topic.commit == 11
    stream.on_close()
