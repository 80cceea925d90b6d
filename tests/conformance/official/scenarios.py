"""What applications do with the official Python client, unmodified: `python scenarios.py NAME URL [ARGUMENT...]`.

Runs in a process of its own, which imports nothing of ours. A scenario raises where the broker is not what the client
needs. `say` and `go_on` are how a scenario and the test that started it take turns (a restart in between).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from danube import (
    CompatibilityMode,
    DanubeClient,
    DanubeClientBuilder,
    DanubeError,
    DispatchStrategy,
    SchemaType,
    SubType,
    UnrecoverableError,
)

RELIABLE, NON_RELIABLE = DispatchStrategy.RELIABLE, DispatchStrategy.NON_RELIABLE
PATIENCE_S = 60.0  # for what must come; the machine may be busy


class Transcript(logging.Handler):
    """The client says what went wrong in its receive loops only as warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


warnings = Transcript()
logging.getLogger("danube").addHandler(warnings)


def say(word: str) -> None:
    print(word, flush=True)


async def go_on() -> None:
    """Wait until the test says so."""
    line = await asyncio.to_thread(sys.stdin.readline)
    assert line, "the test is gone"


async def connect(url: str) -> DanubeClient:
    """With `OFFICIAL_CA` and `OFFICIAL_TOKEN`: over TLS, with a token."""
    builder = DanubeClientBuilder().service_url(url)
    if ca := os.environ.get("OFFICIAL_CA"):
        builder = builder.with_tls(ca).with_token(os.environ["OFFICIAL_TOKEN"])
    return await builder.build()


async def producer(
    client: DanubeClient,
    topic: str,
    name: str = "p",
    strategy: DispatchStrategy = RELIABLE,
    partitions: int = 0,
    subject: str | None = None,
) -> Any:
    builder = client.new_producer().with_topic(topic).with_name(name).with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    if subject is not None:
        builder = builder.with_schema_subject(subject)
    made = builder.build()
    await made.create()
    return made


async def consumer(
    client: DanubeClient,
    topic: str,
    kind: SubType,
    name: str = "c",
    subscription: str = "s",
    filters: list[str] | None = None,
) -> tuple[Any, asyncio.Queue[Any]]:
    builder = (
        client.new_consumer()
        .with_topic(topic)
        .with_consumer_name(name)
        .with_subscription(subscription)
        .with_subscription_type(kind)
    )
    if filters:
        builder = builder.with_key_filters(filters)
    made = builder.build()
    await made.subscribe()
    return made, await made.receive()


async def take(inbox: asyncio.Queue[Any], count: int) -> list[Any]:
    return [await asyncio.wait_for(inbox.get(), PATIENCE_S) for _ in range(count)]


async def take_and_ack(made: Any, inbox: asyncio.Queue[Any], count: int) -> list[bytes]:
    messages = await take(inbox, count)
    for message in messages:
        await made.ack(message)
    return [message.payload for message in messages]


async def refused(awaitable: Awaitable[Any]) -> grpc.StatusCode:
    """The status that reached the application."""
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError("it was not refused")


def numbered(count: int) -> list[bytes]:
    return [f"m{number}".encode() for number in range(count)]


# -- one topic -------------------------------------------------------------------------------------------------


async def reliable(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
    ids = [await p.send(payload, {"n": payload.decode()}) for payload in numbered(20)]
    assert ids == list(range(ids[0], ids[0] + 20)), ids  # the echoed request ids
    messages = await take(inbox, 20)
    assert [message.payload for message in messages] == numbered(20)
    assert [dict(message.attributes) for message in messages] == [{"n": f"m{n}"} for n in range(20)]
    assert [message.msg_id.topic_offset for message in messages] == list(range(20))
    for message in messages:
        await c.ack(message)
    await c.close()
    # what was acknowledged stays away
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
    await p.send(b"last")
    assert await take_and_ack(c, inbox, 1) == [b"last"]
    await c.close()
    await p.close()


async def non_reliable(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic, strategy=NON_RELIABLE)
    consumers = [
        await consumer(client, topic, kind, subscription=kind.name)
        for kind in (SubType.EXCLUSIVE, SubType.SHARED, SubType.FAILOVER, SubType.KEY_SHARED)
    ]
    await attached(p, consumers)
    for payload in numbered(50):
        await p.send(payload)
    for c, inbox in consumers:
        assert await take_and_ack(c, inbox, 50) == numbered(50)
        await c.close()


async def attached(p: Any, consumers: list[tuple[Any, asyncio.Queue[Any]]]) -> None:
    """Wait until every consumer's stream is open: on a non-reliable topic what comes before is nobody's."""
    for _, inbox in consumers:
        while True:
            await p.send(b"are you there?")
            try:
                await asyncio.wait_for(inbox.get(), 0.5)
            except TimeoutError:
                continue
            break
    for _, inbox in consumers:
        await asyncio.sleep(0.5)
        while not inbox.empty():
            inbox.get_nowait()


async def exclusive(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE, "first")
    assert (
        await refused(consumer(client, topic, SubType.EXCLUSIVE, "second"))
        is grpc.StatusCode.PERMISSION_DENIED
    )
    for payload in numbered(5):
        await p.send(payload)
    assert await take_and_ack(c, inbox, 5) == numbered(5)
    await c.close()
    await p.send(b"later")
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE, "second")
    assert await take_and_ack(c, inbox, 1) == [b"later"]
    await c.close()


async def shared(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    consumers = [await consumer(client, topic, SubType.SHARED, f"c{i}") for i in range(3)]
    for payload in numbered(30):
        await p.send(payload)
    parts = [await take_and_ack(c, inbox, 10) for c, inbox in consumers]
    assert sorted(payload for part in parts for payload in part) == sorted(numbered(30))
    for c, _ in consumers:
        await c.close()


async def failover(url: str, topic: str) -> None:
    """docs/research/behaviours.md#row-36: the standby gets the rest at once when the active consumer is gone."""
    client, other = await connect(url), await connect(url)
    p = await producer(client, topic)
    active, active_inbox = await consumer(client, topic, SubType.FAILOVER, "active")
    standby, standby_inbox = await consumer(other, topic, SubType.FAILOVER, "standby")
    for payload in numbered(6):
        await p.send(payload)
    messages = await take(active_inbox, 6)
    for message in messages[:4]:
        await active.ack(message)
    assert standby_inbox.empty()
    await active.close()
    assert await take_and_ack(standby, standby_inbox, 2) == numbered(6)[4:]
    await p.send(b"new")
    assert await take_and_ack(standby, standby_inbox, 1) == [b"new"]
    await standby.close()


async def key_shared(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    consumers = [await consumer(client, topic, SubType.KEY_SHARED, f"c{i}") for i in range(3)]
    owner: dict[str, int] = {}
    seen: dict[str, list[int]] = {}

    async def work(index: int) -> None:
        made, inbox = consumers[index]
        while True:
            message = await inbox.get()
            assert owner.setdefault(message.routing_key, index) == index, "a key moved"
            seen.setdefault(message.routing_key, []).append(int(message.payload))
            await made.ack(message)

    workers = [asyncio.create_task(work(index)) for index in range(3)]
    for number in range(20):
        for key in range(9):
            await p.send_with_key(str(number).encode(), {}, f"key-{key}")
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while sum(map(len, seen.values())) < 180:
        assert asyncio.get_running_loop().time() < deadline, seen
        await asyncio.sleep(0.05)
    assert seen == {f"key-{key}": list(range(20)) for key in range(9)}
    for worker in workers:
        worker.cancel()
    for made, _ in consumers:
        await made.close()


async def key_filters(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    eu, eu_inbox = await consumer(client, topic, SubType.KEY_SHARED, "eu", filters=["eu-*"])
    us, us_inbox = await consumer(client, topic, SubType.KEY_SHARED, "us", filters=["us-?"])
    for number in range(5):
        for key in ("eu-west", "us-1", "us-22"):
            await p.send_with_key(f"{key} {number}".encode(), {}, key)
    for number in range(5):  # each acknowledged before the next: a key may have one in flight
        assert await take_and_ack(eu, eu_inbox, 1) == [f"eu-west {number}".encode()]
        assert await take_and_ack(us, us_inbox, 1) == [f"us-1 {number}".encode()]
    await eu.close()
    await us.close()


async def partitions(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic, partitions=3)
    c, inbox = await consumer(client, topic, SubType.SHARED)
    for payload in numbered(30):
        await p.send(payload)
    messages = await take(inbox, 30)
    assert sorted(message.payload for message in messages) == sorted(numbered(30))
    assert {message.msg_id.topic_name for message in messages} == {f"{topic}-part-{i}" for i in range(3)}
    for message in messages:
        await c.ack(message)
    # the client's own choice of partition by key: order-1 -> 0 of 3, user-42 -> 0 of 3
    await p.send_with_key(b"keyed", {}, "order-1")
    [keyed] = await take(inbox, 1)
    assert keyed.msg_id.topic_name == f"{topic}-part-0"
    await c.ack(keyed)
    # one partition alone
    one, one_inbox = await consumer(client, f"{topic}-part-1", SubType.EXCLUSIVE, subscription="one")
    for payload in numbered(3):
        await p.send(payload)
    assert len(await take_and_ack(one, one_inbox, 1)) == 1
    try:
        await producer(client, topic, "plain")
    except UnrecoverableError:  # what the client makes of ALREADY_EXISTS
        pass
    else:
        raise AssertionError("a plain topic beside its partitions")
    await c.close()
    await one.close()


# -- what fails ------------------------------------------------------------------------------------------------


async def mistakes(url: str, topic: str) -> None:
    """Each reaches the application at once, with a status and a text; none is retried for ever."""
    client = await connect(url)
    p = await producer(client, topic)
    code = grpc.StatusCode
    assert await refused(p.send(bytes(4_000_001))) is code.INVALID_ARGUMENT
    assert await refused(p.send(bytes(20_000_000))) is code.INVALID_ARGUMENT
    assert await p.send(b"and it goes on") > 0
    assert await refused(producer(client, topic, strategy=NON_RELIABLE)) is code.FAILED_PRECONDITION
    assert await refused(producer(client, "/default/not a name")) is code.INVALID_ARGUMENT
    try:
        await producer(client, topic + "-part-0")
    except UnrecoverableError:
        pass
    else:
        raise AssertionError("a partition of a plain topic")
    try:
        await consumer(client, "/default/nowhere", SubType.SHARED)
    except DanubeError:  # "no partitions found"
        pass
    else:
        raise AssertionError("a consumer made a topic")


async def takeover(url: str, topic: str) -> None:
    """Two processes with one consumer name: they take turns slowly, and nothing is lost."""
    first, second = await connect(url), await connect(url)
    p = await producer(first, topic)
    a, a_inbox = await consumer(first, topic, SubType.EXCLUSIVE)
    b, b_inbox = await consumer(second, topic, SubType.EXCLUSIVE)
    seen: set[bytes] = set()

    async def work(made: Any, inbox: asyncio.Queue[Any]) -> None:
        while True:
            message = await inbox.get()
            seen.add(message.payload)
            await made.ack(message)

    workers = [asyncio.create_task(work(a, a_inbox)), asyncio.create_task(work(b, b_inbox))]
    for payload in numbered(100):
        await p.send(payload)
        await asyncio.sleep(0.02)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while len(seen) < 100:
        assert asyncio.get_running_loop().time() < deadline, len(seen)
        await asyncio.sleep(0.05)
    fights = sum("another stream took the place" in line for line in warnings.lines)
    assert fights < 20, f"{fights} takeovers in a few seconds"
    for worker in workers:
        worker.cancel()
    await a.close()
    await b.close()


async def nack(url: str, topic: str) -> None:
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
    await p.send(b"a")
    await p.send(b"b")
    first, second = await take(inbox, 2)
    clock = asyncio.get_running_loop().time
    begun = clock()
    await c.nack(first, delay_ms=2000, reason="not now")
    await c.ack(second)
    [again] = await take(inbox, 1)
    assert again.payload == b"a"
    assert clock() - begun >= 2.0
    await c.nack(again)  # second failure: 2 s by the policy
    [again] = await take(inbox, 1)
    assert again.payload == b"a"
    await c.ack(again)
    await c.close()


async def nack_key_shared(url: str, topic: str) -> None:
    """docs/research/behaviours.md#row-35: it comes after its delay (default 1 s), not never."""
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.KEY_SHARED)
    await p.send_with_key(b"a", {}, "k")
    [message] = await take(inbox, 1)
    clock = asyncio.get_running_loop().time
    begun = clock()
    await c.nack(message)
    [again] = await take(inbox, 1)
    assert again.payload == b"a"
    assert 1.0 <= clock() - begun < 10.0, clock() - begun
    await c.ack(again)
    await c.close()


async def ack_timeout(url: str, topic: str) -> None:
    """The broker runs with an ack timeout of 1 s."""
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.SHARED)
    await p.send(b"a")
    first, again = await take(inbox, 2)
    assert first.payload == again.payload == b"a"
    await c.ack(again)
    await c.close()


async def dead_letter(url: str, topic: str) -> None:
    """The test sets a policy of one redelivery and a dead-letter topic when this says `subscribed`."""
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.SHARED)
    say("subscribed")
    await go_on()
    dead, dead_inbox = await consumer(client, f"{topic}-dead", SubType.EXCLUSIVE)
    await p.send(b"poison", {"kind": "order"})
    for _ in range(2):
        [message] = await take(inbox, 1)
        await c.nack(message, reason="cannot parse")
    [letter] = await take(dead_inbox, 1)
    assert letter.payload == b"poison"
    attributes = dict(letter.attributes)
    assert attributes["kind"] == "order", attributes
    assert attributes["x-original-topic"] == topic, attributes
    assert attributes["x-original-subscription"] == "s", attributes
    assert attributes["x-original-topic-offset"] == "0", attributes
    assert attributes["x-failure-reason"] == "cannot parse", attributes
    await dead.ack(letter)
    await p.send(b"healthy")
    assert await take_and_ack(c, inbox, 1) == [b"healthy"]
    await c.close()
    await dead.close()


# -- the broker goes and comes -----------------------------------------------------------------------------------


async def restart(url: str, topic: str) -> None:
    """The broker is killed and comes back on its data; neither producer nor consumer is made anew by the application."""
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
    for payload in numbered(10):
        await p.send(payload)
    messages = await take(inbox, 10)
    for message in messages[:6]:
        await c.ack(message)
    say("kill")
    await go_on()
    await send_through(p, b"after")
    seen: list[bytes] = []
    while b"after" not in seen:
        [message] = await take(inbox, 1)
        seen.append(message.payload)
        await c.ack(message)
    # acknowledged ones may come again, since an acknowledgement is durable 100 ms later; none may be missing
    assert set(numbered(10)[6:]) <= set(seen), seen
    offsets = [message.msg_id.topic_offset for message in messages]
    assert offsets == list(range(10))
    await c.close()
    await p.close()


async def slow_reader(url: str, topic: str, count_text: str, producers_text: str) -> None:
    """docs/research/behaviours.md#row-32: many producers, one exclusive consumer that reads slower than they write."""
    count, producers = int(count_text), int(producers_text)
    client = await connect(url)
    made = [await producer(client, topic, f"p{i}") for i in range(producers)]
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)

    async def write(index: int) -> None:
        for number in range(index, count, producers):
            await made[index].send(str(number).encode())

    async def read() -> list[int]:
        seen = []
        while len(seen) < count:
            [message] = await take(inbox, 1)
            seen.append(int(message.payload))
            if len(seen) % 500 == 0:
                await asyncio.sleep(0.05)
            await c.ack(message)
        return seen

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(index) for index in range(producers)))
    seen = await reading
    assert sorted(seen) == list(range(count))
    for index in range(producers):
        own = [number for number in seen if number % producers == index]
        assert own == sorted(own), "first deliveries of one producer are in order"
    await c.close()


async def moved(url: str, topic: str, count_text: str, producers_text: str) -> None:
    """Many producers, one consumer, a topic that goes from broker to broker: no call fails, nothing is missed or comes twice."""
    count, producers = int(count_text), int(producers_text)
    client = await connect(url)
    made = [await producer(client, topic, f"p{i}") for i in range(producers)]
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)

    async def write(index: int) -> None:
        for number in range(index, count, producers):
            await made[index].send(str(number).encode())

    async def read() -> None:
        seen = list[int]()
        while len(seen) < count:
            [message] = await take(inbox, 1)
            seen.append(int(message.payload))
            await c.ack(message)
        assert sorted(seen) == list(range(count)), "what the client held over a move came again"
        for index in range(producers):
            own = [number for number in seen if number % producers == index]
            assert own == sorted(own), "messages of one producer are in order"

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(index) for index in range(producers)))
    await reading
    await c.close()


async def send_through(p: Any, payload: bytes) -> None:
    """Send as an application does after an outage: gRPC refuses for a while what it could not connect to."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            await p.send(payload)
            return
        except grpc.aio.AioRpcError as error:
            late = asyncio.get_running_loop().time() > deadline
            if late or error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


async def lost(url: str, topic: str) -> None:
    """The topic's owner is killed and its disk deleted under load. `url`: of another broker.

    This client looks a topic up at its last owner only, which is gone, so the application makes both sides anew.
    """
    client = await connect(url)
    failures = (grpc.aio.AioRpcError, DanubeError, LookupError, TimeoutError)
    sent: list[bytes] = []
    seen: list[bytes] = []
    made: Any = None

    async def write(count: int) -> None:
        nonlocal made
        for _ in range(count):
            payload = str(len(sent)).encode()
            while True:  # until the test's own deadline
                try:
                    made = made or await producer(client, topic)
                    await made.send(payload)
                    break
                except failures:
                    made = None
                    await asyncio.sleep(0.5)
            sent.append(payload)  # acknowledged

    async def read() -> None:
        while True:
            try:
                c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
                while True:
                    message = await asyncio.wait_for(inbox.get(), 10.0)
                    seen.append(message.payload)
                    await c.ack(message)
            except failures:
                await asyncio.sleep(0.5)

    reading = asyncio.create_task(read())
    await write(100)
    say("kill")
    await go_on()
    await write(100)
    say("again")
    while not set(sent) <= set(seen):
        assert not reading.done(), reading
        await asyncio.sleep(0.1)
    reading.cancel()
    # what was under way when the owner died may be there twice: this client does not number its sends
    assert list(dict.fromkeys(seen)) == sorted(set(seen), key=int), "first deliveries in order"


async def deleted_topic(url: str, topic: str) -> None:
    """Its consumer is told, subscribes anew once, and goes on where somebody made the topic again."""
    client = await connect(url)
    p = await producer(client, topic)
    c, inbox = await consumer(client, topic, SubType.SHARED)
    await p.send(b"before")
    assert await take_and_ack(c, inbox, 1) == [b"before"]
    say("delete")
    await go_on()
    p = await producer(client, topic, "again")
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    got: list[Any] = []
    while not got:
        assert asyncio.get_running_loop().time() < deadline, warnings.lines
        await p.send(b"after")
        try:
            got.append(await asyncio.wait_for(inbox.get(), 0.5))
        except TimeoutError:
            continue
    assert got[0].payload == b"after"
    await c.ack(got[0])
    assert len(warnings.lines) < 20, warnings.lines
    await c.close()


# -- schemas -----------------------------------------------------------------------------------------------------

PERSON = json.dumps(
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
).encode()


async def schemas(url: str, topic: str) -> None:
    client = await connect(url)
    registry = client.schema()
    subject = topic.rpartition("/")[2]
    schema_id = (
        await registry.register_schema(subject)
        .with_type(SchemaType.JSON_SCHEMA)
        .with_schema_data(PERSON)
        .execute()
    )
    again = (
        await registry.register_schema(subject)
        .with_type(SchemaType.JSON_SCHEMA)
        .with_schema_data(PERSON)
        .execute()
    )
    assert schema_id == again > 0
    p = await producer(client, topic, subject=subject)
    c, inbox = await consumer(client, topic, SubType.EXCLUSIVE)
    await p.send(b'{"name": "x"}')
    [message] = await take(inbox, 1)
    assert (message.schema_id, message.schema_version) == (schema_id, 1)
    info = await registry.get_schema_by_id(message.schema_id)
    assert info.subject == subject
    assert json.loads(info.schema_definition) == json.loads(PERSON)
    await c.ack(message)
    assert await registry.list_versions(subject) == [1]
    assert (await registry.set_compatibility_mode(subject, CompatibilityMode.FULL))[0]
    assert (await registry.configure_topic_schema(topic, subject, "enforce", True))[0]
    assert await p.send(b'{"name": "y"}')
    assert await refused(p.send(b'{"name": 1}')) is grpc.StatusCode.INVALID_ARGUMENT
    plain = await producer(client, topic, "plain")
    assert await refused(plain.send(b'{"name": "z"}')) is grpc.StatusCode.INVALID_ARGUMENT
    assert await take_and_ack(c, inbox, 1) == [b'{"name": "y"}']
    await c.close()


async def second_subject(url: str, topic: str) -> None:
    """docs/research/behaviours.md#row-33: a producer with another subject is refused, also a moment after the first one."""
    client = await connect(url)
    registry = client.schema()
    for subject in (topic.rpartition("/")[2] + "-a", topic.rpartition("/")[2] + "-b"):
        await (
            registry.register_schema(subject)
            .with_type(SchemaType.STRING)
            .with_schema_data(b"string")
            .execute()
        )
    base = topic.rpartition("/")[2]
    first, second = await asyncio.gather(
        producer(client, topic, "a", subject=base + "-a"),
        producer(client, topic, "b", subject=base + "-b"),
        return_exceptions=True,
    )
    failures = [outcome for outcome in (first, second) if isinstance(outcome, BaseException)]
    assert len(failures) == 1, (first, second)
    assert isinstance(failures[0], grpc.aio.AioRpcError)
    assert failures[0].code() is grpc.StatusCode.FAILED_PRECONDITION


async def protobuf_enforced(url: str, topic: str) -> None:
    """docs/research/behaviours.md#row-27: enforcing a Protobuf subject refuses what does not parse; the broker lives on."""
    client = await connect(url)
    registry = client.schema()
    subject = topic.rpartition("/")[2]
    text = b'syntax = "proto3"; message Person { string name = 1; int32 age = 2; }'
    await registry.register_schema(subject).with_type(SchemaType.PROTOBUF).with_schema_data(text).execute()
    p = await producer(client, topic, subject=subject)
    assert (await registry.configure_topic_schema(topic, subject, "enforce", True))[0]
    assert await p.send(b"\x0a\x03Bob\x10\x20") > 0
    assert await refused(p.send(b"\x0a\xffBob")) is grpc.StatusCode.INVALID_ARGUMENT
    assert await p.send(b"\x0a\x03Bob\x10\x20") > 0


async def mirrored(source: str, here: str, topic: str) -> None:
    """Write a topic of one cluster and read its mirror in another one. After the fail-over, go on with the same names there."""
    there, client = await connect(source), await connect(here)
    p = await producer(there, topic, "shop")
    c, inbox = await consumer(there, topic, SubType.SHARED, subscription="billing")
    payloads = [b"message %d" % number for number in range(20)]
    for each in payloads:
        await p.send(each)
    assert await take_and_ack(c, inbox, 5) == payloads[:5]
    say("sent")
    await go_on()  # it is mirrored
    mine, copies = await consumer(client, topic, SubType.EXCLUSIVE, "reader", "mine")
    say("reading")
    for each in payloads[:3]:  # subscriptions begin with what comes from then on
        await p.send(each)
    assert await take_and_ack(mine, copies, 3) == payloads[:3]
    assert await refused(producer(client, topic, "early")) is grpc.StatusCode.FAILED_PRECONDITION, "a mirror"
    say("read")
    await go_on()  # it is failed over
    p = await producer(client, topic, "shop")
    c, inbox = await consumer(client, topic, SubType.SHARED, subscription="billing")
    assert await p.send(b"goes on") > 0
    # Once at least: what was acknowledged in the last second before the fail-over may come again.
    rest = [*payloads[5:], *payloads[:3], b"goes on"]
    got: list[bytes] = []
    while got[-len(rest) :] != rest:
        got += await take_and_ack(c, inbox, 1)
    assert await take_and_ack(mine, copies, 1) == [b"goes on"]


SCENARIOS: dict[str, Callable[..., Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        reliable, non_reliable, exclusive, shared, failover, key_shared, key_filters, partitions, mistakes, takeover,
        nack, nack_key_shared, ack_timeout, dead_letter, restart, slow_reader, deleted_topic, schemas, second_subject,
        protobuf_enforced, moved, lost, mirrored,
    )
}  # fmt: skip


async def main() -> None:
    """Run scenarios, several as `a,b`, with their arguments; each has a topic of its own name in the folder `topic`, as `/default/`."""
    names, url, topic, *arguments = sys.argv[1:]
    for name in names.split(","):
        await SCENARIOS[name](url, topic + name if topic.endswith("/") else topic, *arguments)
    say("ok")


if __name__ == "__main__":
    asyncio.run(main())
