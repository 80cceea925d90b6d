"""What a call to another broker costs, and what its caller is told, if that broker is slow or stands still."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hpack import Encoder
from pydanube_admin import peers as module
from pydanube_admin.cluster_wide_port import ASKED
from pydanube_admin.peers import Peers
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, TopicNotFound, Unavailable
from pydanube_core.facts import BrokerAddress
from pydanube_core.generated.danube_ops_pb2 import CallResponse
from pydanube_core.http2.codes import PREFACE, FrameType
from pydanube_core.ops_call import call_request
from pydanube_core.port_marks import is_read

from tests.broker.rpc.http2_peer import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FrameReader,
    data,
    frame,
    message,
    settings,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
KEEPALIVE_S = 0.3  # of reads in these tests. A change waits twice as long
FOREVER = 3600.0


class SlowBroker:
    """Speaks HTTP/2, and answers each call with `answer`. It stands still before its greeting and before its answers."""

    url = ""
    answer = CallResponse(result=b"{}")
    greets_after_s = 0.0
    answers_after_s = 0.0
    calls = 0
    connections = 0
    ends = False  # the connection, with the next answer
    hangs_up = False  # once it has the request
    status = "200"  # of HTTP, as a proxy sets it
    body: bytes | None = None  # instead of `answer`

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (ConnectionError, EOFError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, encoder = FrameReader(), Encoder()
        await anyio.sleep(self.greets_after_s)
        writer.write(settings())
        await reader.readexactly(len(PREFACE))
        while piece := await reader.read(1 << 16):
            for each in frames.feed(piece):
                if each.kind == FrameType.SETTINGS and not each.flags & ACK:
                    writer.write(settings(ack=True))
                elif each.end:
                    self.calls += 1
                    if self.hangs_up:
                        return
                    await anyio.sleep(self.answers_after_s)
                    head = encoder.encode([(":status", self.status), ("content-type", "application/grpc")])
                    trailers = encoder.encode([("grpc-status", "0")])
                    if self.ends:
                        last = each.stream_id.to_bytes(4, "big")
                        writer.write(frame(FrameType.GOAWAY, 0, 0, last + bytes(4)))
                    body = self.body or message(self.answer.SerializeToString())
                    writer.write(frame(FrameType.HEADERS, END_HEADERS, each.stream_id, head))
                    writer.write(data(each.stream_id, body))
                    writer.write(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, each.stream_id, trailers))


@asynccontextmanager
async def slow_broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SlowBroker, Peers]]:
    monkeypatch.setattr(module, "KEEPALIVE_S", KEEPALIVE_S)
    monkeypatch.setattr(module, "CHANGES_KEEPALIVE_S", 2 * KEEPALIVE_S)
    broker = SlowBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    port = SimpleNamespace(
        sealed=lambda broker_id, request: request,
        clock_differs=lambda *_: False,
        peer_certificates=None,
        locks=None,
    )
    peers = Peers(cast(ClusterPort, port), frozenset())
    try:
        yield broker, peers
    finally:
        await peers.aclose()
        server.close()


async def called(peers: Peers, broker: SlowBroker, operation: str) -> dict[str, Any] | ClusterError:
    address = BrokerAddress(broker_id="7", broker_url=broker.url, admin_url=broker.url)
    try:
        return await peers.call(
            address, call_request(operation, {}, principal="", face="cli"), timeout_s=FOREVER
        )
    except ClusterError as error:
        return error


async def test_a_change_that_got_no_answer_is_not_said_to_be_repeatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other broker had made it: a replay that was repeated doubled messages."""
    async with slow_broker(monkeypatch) as (broker, peers):
        broker.answers_after_s = FOREVER
        change = await called(peers, broker, "topics.replay")
        assert isinstance(change, Unavailable)
        assert broker.calls == 1
        assert (change.details["outcome"], change.retryable) == ("unknown", False)
        assert "A change may have been made or not: look before you repeat it" in change.message
        read = await called(peers, broker, "topics.describe")
        assert isinstance(read, Unavailable)
        assert ("outcome" in read.details, read.retryable) == (False, True)


async def test_a_change_that_was_not_sent_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_broker(monkeypatch) as (broker, peers):
        broker.greets_after_s = FOREVER
        monkeypatch.setattr(module, "CONNECT_S", 0.3)
        refused = await called(peers, broker, "topics.replay")
        assert isinstance(refused, Unavailable)
        assert ("outcome" in refused.details, refused.retryable) == (False, True)
        assert (broker.connections, broker.calls) == (1, 0)


async def test_a_change_is_waited_for_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_broker(monkeypatch) as (broker, peers):
        broker.answers_after_s = 3 * KEEPALIVE_S
        assert isinstance(await called(peers, broker, "topics.describe"), Unavailable)
        assert await called(peers, broker, "topics.replay") == {}


async def test_a_slow_broker_is_reached_again_after_it_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each short attempt failed, and hid it for another second."""
    async with slow_broker(monkeypatch) as (broker, peers):
        monkeypatch.setattr(module, "CONNECT_S", 1.0)
        monkeypatch.setattr(module, "AGAIN_CONNECT_S", 0.3)
        monkeypatch.setattr(module, "AGAIN_S", 0.05)
        broker.greets_after_s = FOREVER
        assert isinstance(await called(peers, broker, "topics.describe"), Unavailable)
        broker.greets_after_s = 0.7

        async def answers() -> bool:
            return await called(peers, broker, "topics.describe") == {}

        with anyio.fail_after(20):
            await until(answers)


async def test_a_refusal_by_a_broker_that_hung_shows_that_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_broker(monkeypatch) as (broker, peers):
        monkeypatch.setattr(module, "CONNECT_S", 1.0)
        monkeypatch.setattr(module, "AGAIN_CONNECT_S", 0.3)
        monkeypatch.setattr(module, "AGAIN_S", 0.0)
        broker.greets_after_s = FOREVER
        assert isinstance(await called(peers, broker, "topics.describe"), Unavailable)
        broker.greets_after_s, broker.ends = 0.0, True
        broker.answer = CallResponse(error=TopicNotFound("no such topic").to_json().encode())
        assert isinstance(await called(peers, broker, "topics.describe"), TopicNotFound)
        broker.greets_after_s = 0.6
        assert isinstance(await called(peers, broker, "topics.describe"), TopicNotFound)


def test_each_method_that_brokers_call_is_declared_as_a_read_or_counts_as_a_change() -> None:
    """A new one is a change until it is marked with `reads`: then add it to neither list."""
    assert {name for name in ASKED if not is_read(ClusterPort, name)} == {
        *("acknowledge", "redeliver", "withdraw", "place_cursors", "seek_subscription", "skip_messages"),
        *("create_subscription", "delete_subscription", "purge_subscription", "set_failure_policy"),
        *(
            "hold_unused",
            "release_unused",
            "truncate_topic",
            "seal_mirror",
            "replay_topic",
            "publish_message",
        ),
        *("set_durability", "set_topic_policies", "disconnect"),
        *("flush_objects", "compact_objects", "collect_objects", "export_objects"),
    }
    assert all(inspect.isfunction(getattr(ClusterPort, name)) for name in ASKED)


async def test_a_change_without_a_mark_that_is_given_up_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that a later version adds, and forgets to declare."""

    async def forget(self: Any, topic: str) -> None: ...

    monkeypatch.setattr(ClusterPort, "forget", forget, raising=False)
    async with slow_broker(monkeypatch) as (broker, peers):
        monkeypatch.setattr(module, "CHANGES_KEEPALIVE_S", 0.2)
        broker.answers_after_s = FOREVER
        address = BrokerAddress(broker_id="2", broker_url="", admin_url=broker.url)
        with pytest.raises(Unavailable) as caught:
            await peers.ask(address, "forget", {"topic": "t"})
    assert (caught.value.details["outcome"], caught.value.retryable) == ("unknown", False)
    assert [each["operation"] for each in caught.value.next] == ["changes.list", "audit.query"]
