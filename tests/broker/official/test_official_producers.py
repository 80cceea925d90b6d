"""`danube.ProducerService` on the wire: docs/research/data-plane.md#7-producers."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import grpc
import psutil
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.services.official import grouping
from pydanube_broker.services.official.ids import producer_id
from pydanube_core.errors import ClusterError
from pydanube_core.generated import danube_pb2 as pb

from tests.broker.official.conftest import Brokers
from tests.broker.official.raw_client import NON_RELIABLE, RELIABLE, SHARED, RawClient, code_of
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Reply:
    """Notes what a hot call is answered."""

    def __init__(self) -> None:
        self.answers: list[int] = []

    def send(self, message: bytes) -> None:
        self.answers.append(pb.MessageResponse.FromString(message).request_id)

    def fail(self, error: ClusterError) -> None:
        raise error


Code = grpc.StatusCode


async def test_id_of_a_producer_fits_java_and_is_the_same_for_the_same_name(client: RawClient) -> None:
    first = await client.create_producer("/default/t", "p")
    assert 1 <= first < 1 << 63
    assert await client.create_producer("/default/t", "p") == first
    assert await client.create_producer("/default/t", "q") != first
    assert await client.create_producer("/default/u", "p") != first


async def test_many_producers_create_one_topic_in_the_same_instant(client: RawClient) -> None:
    ids: list[int] = []

    async def create(number: int) -> None:
        ids.append(await client.create_producer("/default/t", f"p{number}"))

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(create, number)
    assert len(set(ids)) == 12


async def test_partitions_are_made_side_by_side_and_listed_by_index(client: RawClient) -> None:
    async with anyio.create_task_group() as group:
        for index in (10, 2, 0, 1):
            group.start_soon(client.create_producer, f"/default/t-part-{index}", f"p-{index}")
    assert await client.partitions("/default/t") == [f"/default/t-part-{i}" for i in (0, 1, 2, 10)]
    assert await client.partitions("/default/t-part-2") == ["/default/t-part-2"]
    assert await code_of(client.lookup("/default/t")) is Code.NOT_FOUND


async def test_plain_topic_and_partitions_of_one_name_exclude_each_other(client: RawClient) -> None:
    await client.create_producer("/default/plain")
    assert await code_of(client.create_producer("/default/plain-part-0")) is Code.ALREADY_EXISTS
    await client.create_producer("/default/parted-part-0")
    assert await code_of(client.create_producer("/default/parted")) is Code.ALREADY_EXISTS


async def test_row_29_a_name_that_begins_like_another_is_free(client: RawClient) -> None:
    await client.create_producer("/default/orders-eu")
    await client.create_producer("/default/orders-part-eu")
    await client.create_producer("/default/orders")
    assert await client.partitions("/default/order") == []


@pytest.mark.parametrize(
    "name",
    ["orders", "default/orders", "a/b/c", "//", "/default/", "/default/a b", "/default/a.b", "", "/a/b/c"],
)
async def test_names_that_are_none_are_refused_by_every_call(client: RawClient, name: str) -> None:
    assert await code_of(client.create_producer(name)) is Code.INVALID_ARGUMENT
    assert await code_of(client.subscribe(name)) is Code.INVALID_ARGUMENT
    assert await code_of(client.lookup(name)) is Code.INVALID_ARGUMENT
    assert await code_of(client.partitions(name)) is Code.INVALID_ARGUMENT


async def test_strategy_of_a_topic_holds(client: RawClient) -> None:
    await client.create_producer("/default/t", strategy=RELIABLE)
    assert await code_of(client.create_producer("/default/t", "q", NON_RELIABLE)) is Code.FAILED_PRECONDITION
    assert await code_of(client.create_producer("/default/new", "q", 7)) is Code.INVALID_ARGUMENT


async def test_topics_are_not_made_where_the_setting_says_so(brokers: Brokers) -> None:
    broker = await brokers.restart(topics__auto_create=False)
    async with RawClient(broker.broker_url) as client:
        assert await code_of(client.create_producer("/default/t")) is Code.NOT_FOUND
        assert await code_of(client.create_producer("/nowhere/t")) is Code.NOT_FOUND


async def test_request_id_is_echoed_and_every_field_is_delivered_as_published(client: RawClient) -> None:
    producer = await client.create_producer("/default/t", "näme")
    stream = await client.consume("/default/t")
    sent = [
        {"attributes": {"a": "1", "ü": ""}, "schema_id": 7, "schema_version": 3, "routing_key": "k"},
        {"routing_key": "", "publish_time": 0},
        {"request_id": 0},
        {"request_id": 1 << 62},
    ]
    for fields in sent:
        echoed = await client.send("/default/t", producer, b"\x00\xff", "näme", **fields)
        assert "request_id" not in fields or echoed == fields["request_id"]
    messages = [await stream.next() for _ in sent]
    assert [m.msg_id.topic_offset for m in messages] == [0, 1, 2, 3]
    for message, fields in zip(messages, sent, strict=True):
        assert message.payload == b"\x00\xff"
        assert (message.producer_name, message.msg_id.producer_id) == ("näme", producer)
        assert message.msg_id.topic_name == "/default/t"
        assert message.publish_time == fields.get("publish_time", 1_700_000_000_000)
        assert dict(message.attributes) == fields.get("attributes", {})
        for field in ("schema_id", "schema_version", "routing_key"):
            assert message.HasField(field) == (field in fields)
            assert getattr(message, field) == fields.get(field, type(getattr(message, field))())
    assert messages[3].request_id == 1 << 62


async def test_messages_of_one_turn_become_one_batch_and_keep_their_order(
    client: RawClient, broker: Broker
) -> None:
    names = [f"p{i}" for i in range(4)]
    ids = {name: await client.create_producer("/default/t", name) for name in names}
    stream = await client.consume("/default/t", type=SHARED)
    messages = [
        client.message("/default/t", ids[name], f"{name}:{number}".encode(), name, request_id=number)
        for number in range(50)
        for name in names
    ]
    # Handed over in one turn of the loop: how many arrive together over a connection is the server runtime's affair.
    replies = [Reply() for _ in messages]
    for message, reply in zip(messages, replies, strict=True):
        broker.official.hot["/danube.ProducerService/SendMessage"](message.SerializeToString(), reply)
    received = [await stream.next() for _ in messages]
    assert [reply.answers for reply in replies] == [[message.request_id] for message in messages]
    for name in names:
        own = [message for message in received if message.producer_name == name]
        assert [message.request_id for message in own] == list(range(50))
        assert {message.msg_id.producer_id for message in own} == {ids[name]}
        assert [message.payload for message in own] == [f"{name}:{n}".encode() for n in range(50)]
    [topic] = broker.registry.topics
    batches = topic.read(0, 200, 1 << 20)
    assert batches is not None
    assert sum(batch.count for batch in batches) == 200
    assert [batch.count for batch in batches] == [200]


async def test_the_next_group_is_on_its_way_to_the_disk_before_the_last_is_answered(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.create_producer("/default/t")
    send = broker.official.hot["/danube.ProducerService/SendMessage"]
    first, answered = Reply(), list[int]()
    others = [Reply() for _ in range(grouping.MOST_EXPECTED)]  # more do not wait for the first's next message
    SyncGate(monkeypatch, held=False, asked=lambda: answered.append(len(first.answers)))
    for number, reply in enumerate((first, *others)):
        message = client.message("/default/t", producer, b"%d" % number, request_id=number)
        send(message.SerializeToString(), reply)
        if reply is first:
            while not answered:
                await anyio.lowlevel.checkpoint()
    await until(lambda: all(reply.answers for reply in others))
    assert first.answers == [0]
    assert answered[:2] == [0, 0], "the second sync is asked for before the first group hears of its own"


async def test_groups_that_one_sync_commits_are_answered_in_their_order(
    client: RawClient, broker: Broker
) -> None:
    producer = await client.create_producer("/default/t")
    send = broker.official.hot["/danube.ProducerService/SendMessage"]
    answered: list[int] = []
    replies = [Reply() for _ in range(4)]
    for number, reply in enumerate(replies):
        reply.answers = answered
        # publish times that do not fit into one batch
        message = client.message(
            "/default/t", producer, b"", request_id=number, publish_time=1 + number % 2 * 10**12
        )
        send(message.SerializeToString(), reply)
    with anyio.fail_after(30):
        await until(lambda: len(answered) >= len(replies))
    assert answered == [0, 1, 2, 3]
    [topic] = broker.registry.topics
    assert len(topic.read(0, 10, 1 << 20) or ()) == 4


async def test_messages_that_come_while_the_disk_works_become_one_batch(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns of their own: it is the commit of the first that ends their gathering."""
    producer = await client.create_producer("/default/t")
    send = broker.official.hot["/danube.ProducerService/SendMessage"]
    replies = [Reply() for _ in range(6)]
    with SyncGate(monkeypatch) as gate:  # the disk takes its time
        for number, reply in enumerate(replies):
            message = client.message("/default/t", producer, b"%d" % number, request_id=number)
            send(message.SerializeToString(), reply)
            await anyio.sleep(0.01)  # the loop turns
        assert not any(reply.answers for reply in replies)
        await until(lambda: gate.requests)
    await until(lambda: all(reply.answers for reply in replies))
    stream = await client.consume("/default/t", type=SHARED)
    await client.send("/default/t", producer, b"last")  # committed behind all of them
    assert await stream.next()
    assert [reply.answers for reply in replies] == [[number] for number in range(6)]
    [topic] = broker.registry.topics
    batches = topic.read(0, 7, 1 << 20)
    assert batches is not None
    assert [batch.count for batch in batches] == [1, 5, 1]


async def test_few_producers_that_send_again_share_each_sync(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came while the disk worked waits for those that have just been answered, else they would take turns."""
    producer = await client.create_producer("/default/t")
    send = broker.official.hot["/danube.ProducerService/SendMessage"]
    replies = [Reply() for _ in range(4)]
    monkeypatch.setattr(grouping, "COMPANY_S", (3_600.0, 3_600.0))

    def publish(number: int) -> None:
        message = client.message("/default/t", producer, b"%d" % number, request_id=number)
        send(message.SerializeToString(), replies[number])

    with SyncGate(monkeypatch) as gate:
        publish(0)
        await until(lambda: gate.requests)
        publish(1)
        publish(2)
    await until(lambda: replies[0].answers)
    publish(3)
    await until(lambda: replies[3].answers)
    [topic] = broker.registry.topics
    assert [batch.count for batch in topic.read(0, 4, 1 << 20) or ()] == [1, 3]


async def test_a_producer_that_sends_no_more_holds_up_the_others_for_a_moment_only(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.create_producer("/default/t")
    send = broker.official.hot["/danube.ProducerService/SendMessage"]
    replies = [Reply() for _ in range(3)]
    with SyncGate(monkeypatch) as gate:
        for number, reply in enumerate(replies):
            message = client.message("/default/t", producer, b"%d" % number, request_id=number)
            send(message.SerializeToString(), reply)
            await until(lambda: gate.requests)
    await until(lambda: all(reply.answers for reply in replies))
    [topic] = broker.registry.topics
    assert [batch.count for batch in topic.read(0, 3, 1 << 20) or ()] == [1, 2]


async def test_a_refused_message_does_not_fail_its_neighbours(client: RawClient) -> None:
    producer = await client.create_producer("/default/t")
    codes: dict[int, Code] = {}

    async def send(number: int, payload: bytes, **fields: int) -> None:
        codes[number] = await code_of(client.send("/default/t", producer, payload, **fields))

    async with anyio.create_task_group() as group:
        for number in range(20):
            match number:
                case 5:
                    group.start_soon(send, number, bytes(4_000_001))
                case 11:
                    group.start_soon(lambda: send(11, b"x", request_id=1 << 63))
                case 13:
                    group.start_soon(lambda: send(13, b"x", publish_time=1 << 62))
                case 17:  # far from the others' times: a batch of its own, not a failure
                    group.start_soon(lambda: send(17, b"x", publish_time=1))
                case _:
                    group.start_soon(send, number, b"x")
    assert {number for number, code in codes.items() if code is Code.INVALID_ARGUMENT} == {5, 11, 13}
    assert sum(code is Code.OK for code in codes.values()) == 17


async def test_the_same_message_twice_is_stored_twice(client: RawClient, broker: Broker) -> None:
    producer = await client.create_producer("/default/t")
    for _ in range(2):
        await client.send("/default/t", producer, b"x", request_id=1)
    [topic] = broker.registry.topics
    assert topic.commit == 2


async def test_oversize_is_invalid_argument_not_a_status_that_clients_retry(client: RawClient) -> None:
    producer = await client.create_producer("/default/t")
    await client.send("/default/t", producer, bytes(4_000_000))
    for payload in (bytes(4_000_001), bytes(8 << 20)):
        assert await code_of(client.send("/default/t", producer, payload)) is Code.INVALID_ARGUMENT
    attributes = {str(i): "x" * 1000 for i in range(4200)}
    assert (
        await code_of(client.send("/default/t", producer, b"", attributes=attributes))
        is Code.INVALID_ARGUMENT
    )


async def test_largest_message_is_delivered_within_the_clients_limit(client: RawClient) -> None:
    producer = await client.create_producer("/default/t")
    stream = await client.consume("/default/t")
    attributes = {"a": "x" * 90_000}
    await client.send("/default/t", producer, bytes(4_000_000), attributes=attributes)
    message = await stream.next()
    assert len(message.payload) == 4_000_000
    assert dict(message.attributes) == attributes


async def test_message_without_msg_id_is_invalid(client: RawClient) -> None:
    message = pb.StreamMessage(payload=b"x")
    assert await code_of(client.call("ProducerService/SendMessage", message)) is Code.INVALID_ARGUMENT


async def test_unknown_producer_is_unavailable_so_that_clients_create_it_again(client: RawClient) -> None:
    producer = await client.create_producer("/default/t")
    for number in (producer + 1, 0, (1 << 64) - 1):
        assert await code_of(client.send("/default/t", number, b"x")) is Code.UNAVAILABLE
    assert await code_of(client.send("/default/nowhere", producer, b"x")) is Code.NOT_FOUND


async def test_old_id_is_accepted_after_a_restart(brokers: Brokers) -> None:
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer("/default/t")
        await client.send("/default/t", producer, b"1")
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        assert await client.health(0, producer) == "OK"
        await client.send("/default/t", producer, b"2")
        await client.send("/default/t", producer, b"3", "")  # known by its id alone
        assert await client.create_producer("/default/t") == producer
    [topic] = broker.registry.topics
    assert topic.commit == 3


async def test_draining_broker_is_unavailable(client: RawClient, broker: Broker) -> None:
    producer = await client.create_producer("/default/t")
    broker.health.draining = True
    assert await code_of(client.send("/default/t", producer, b"x")) is Code.UNAVAILABLE
    assert await code_of(client.create_producer("/default/t")) is Code.UNAVAILABLE
    assert await code_of(client.subscribe("/default/t")) is Code.UNAVAILABLE
    broker.health.draining = False


async def test_full_disk_is_internal_so_that_clients_tell_their_user(brokers: Brokers) -> None:
    async with RawClient(brokers.broker.broker_url) as client:
        producer = await client.create_producer("/default/t")
    broker = await brokers.restart(data__min_free_bytes=1 << 60)
    async with RawClient(broker.broker_url) as client:
        assert await code_of(client.send("/default/t", producer, b"x")) is Code.INTERNAL
        assert await code_of(client.create_producer("/default/t")) is Code.INTERNAL
        await client.subscribe("/default/t")  # consumers can go on


async def test_read_only_journal_is_internal(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    brokers = Brokers(tmp_path)
    broker = await brokers.start()
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer("/default/t")
        await client.send("/default/t", producer, b"x")
        for child in set(psutil.Process().children(recursive=True)) - before:
            if any("sync_program" in word for word in child.cmdline()):
                child.send_signal(signal.SIGKILL)  # its death counts as a failed sync

        async def read_only() -> bool:
            return broker.journal.read_only is not None

        await until(read_only)
        assert await code_of(client.send("/default/t", producer, b"x")) is Code.INTERNAL
    await brokers.stop()


async def test_bytes_that_are_no_request_are_invalid(broker: Broker) -> None:
    async with grpc.aio.insecure_channel(broker.broker_url.removeprefix("http://")) as channel:
        for path in ("ProducerService/SendMessage", "ConsumerService/Subscribe", "ConsumerService/Ack"):
            call = channel.unary_unary(f"/danube.{path}")
            assert await code_of(call(b"\xff\xff\xff")) is Code.INVALID_ARGUMENT
        stream = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stream.read()
        assert failure.value.code() is Code.INVALID_ARGUMENT


async def test_exclusive_producer_has_the_topic_for_itself(client: RawClient) -> None:
    """Only Java can ask for it; the original takes the word and does nothing."""
    exclusive = pb.ProducerAccessMode.Exclusive
    holder = await client.create_producer("/default/t", "a", producer_access_mode=exclusive)
    assert await code_of(client.create_producer("/default/t", "b")) is Code.PERMISSION_DENIED
    assert await client.create_producer("/default/t", "a", producer_access_mode=exclusive) == holder
    await client.send("/default/t", holder, b"x", "a")
    await client.create_producer("/default/u", "b")
    assert (
        await code_of(client.create_producer("/default/u", "a", producer_access_mode=exclusive))
        is Code.PERMISSION_DENIED
    )


async def test_a_producer_that_was_not_let_in_cannot_send_by_an_id_it_computed(client: RawClient) -> None:
    """Ids derive from names, so that clients may go on with theirs after a restart: the id alone opens nothing."""
    exclusive = pb.ProducerAccessMode.Exclusive
    holder = await client.create_producer("/default/t", "a", producer_access_mode=exclusive)
    for name in ("b", "c"):
        number = producer_id("/default/t", name)
        assert await code_of(client.send("/default/t", number, b"x", name)) is Code.PERMISSION_DENIED
    await client.send("/default/t", holder, b"x", "a")


async def test_a_producer_of_an_earlier_life_comes_back_as_the_gate_allows(brokers: Brokers) -> None:
    exclusive = pb.ProducerAccessMode.Exclusive
    async with RawClient(brokers.broker.broker_url) as client:
        ids = {name: await client.create_producer("/default/t", name) for name in ("a", "b")}
    broker = await brokers.restart(policies__max_producers_per_topic=1)
    async with RawClient(broker.broker_url) as client:
        await client.send("/default/t", ids["a"], b"1", "a")
        assert await code_of(client.send("/default/t", ids["b"], b"x", "b")) is Code.RESOURCE_EXHAUSTED
    broker = await brokers.restart()
    async with RawClient(broker.broker_url) as client:
        await client.create_producer("/default/t", "new", producer_access_mode=exclusive)
        for name, number in ids.items():
            assert await code_of(client.send("/default/t", number, b"x", name)) is Code.PERMISSION_DENIED
    [topic] = broker.registry.topics
    assert topic.commit == 1


async def test_limits_of_the_topic_hold_for_official_producers(brokers: Brokers) -> None:
    broker = await brokers.restart(policies__max_producers_per_topic=2, policies__max_publish_rate=5)
    async with RawClient(broker.broker_url) as client:
        producer = await client.create_producer("/default/t", "a")
        await client.create_producer("/default/t", "b")
        await client.create_producer("/default/t", "a")  # it is there already
        assert await code_of(client.create_producer("/default/t", "c")) is Code.RESOURCE_EXHAUSTED
        uninvited = producer_id("/default/t", "c")
        assert await code_of(client.send("/default/t", uninvited, b"x", "c")) is Code.RESOURCE_EXHAUSTED
        assert broker.registry.topics[0].producers_connected == 2
        codes = [await code_of(client.send("/default/t", producer, b"x", "a")) for _ in range(20)]
        assert Code.OK in codes
        assert Code.RESOURCE_EXHAUSTED in codes


async def test_non_reliable_topic_passes_on_to_who_is_there(client: RawClient) -> None:
    """What all official clients make unless told otherwise."""
    producer = await client.create_producer("/default/t", strategy=NON_RELIABLE)
    await client.send("/default/t", producer, b"nobody is there")
    first = await client.consume("/default/t", "a", type=SHARED)
    second = await client.consume("/default/t", "b")
    for number in range(5):
        await client.send("/default/t", producer, str(number).encode())
    for subscription, stream in (("a", first), ("b", second)):
        messages = [await stream.next() for _ in range(5)]
        assert [message.payload for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert {message.msg_id.topic_name for message in messages} == {"/default/t"}
        assert {message.msg_id.topic_offset for message in messages} == {
            0
        }  # nothing is kept, nothing has a place
        await client.ack(messages[0], subscription)
        await client.ack(messages[0], "unknown")
        await client.nack(messages[1], subscription)
