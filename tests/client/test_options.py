"""Options as values: what is refused, and that keywords and fields are the same."""

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydanube import (
    ClosedResource,
    ConsumerOptions,
    InvalidArgument,
    InvalidName,
    ProducerOptions,
    ReaderOptions,
    Retry,
    TopicNotFound,
    connect,
)
from pydanube.options import ConsumerArguments, ProducerArguments, ReaderArguments
from pydanube.sync import connect as connect_sync
from pydanube.testing import InMemoryCluster


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (ProducerOptions, ProducerArguments),
        (ConsumerOptions, ConsumerArguments),
        (ReaderOptions, ReaderArguments),
    ],
)
def test_keywords_are_the_fields_with_their_types(options: type, arguments: type) -> None:
    fields = {field.name for field in dataclasses.fields(options)}
    hints = get_type_hints(options)
    assert get_type_hints(arguments) == {name: hints[name] for name in fields}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ProducerOptions(batch_bytes=10**9), "batch_bytes"),
        (lambda: ProducerOptions(window_messages=0), "window_messages"),
        (lambda: ProducerOptions(linger_ms=float("nan")), "linger_ms"),
        (lambda: ProducerOptions(routing="keys"), "routing"),  # type: ignore[arg-type]
        (lambda: ProducerOptions(partitions=True), "partitions"),
        (lambda: ProducerOptions(compression=None), "compression"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(type="shraed"), "type"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(credit_messages="many"), "credit_messages"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(ack_timeout_ms=0), "ack_timeout_ms"),
        (lambda: ConsumerOptions(create="yes"), "create"),  # type: ignore[arg-type]
        (lambda: ReaderOptions(credit_bytes=0), "credit_bytes"),
        (lambda: connect().consumer("a", "b", start="yesterday"), "start"),
        (lambda: connect().reader("a", stop="yesterday"), "stop"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.details["field"] == field
    assert field in caught.value.message


def test_keywords_stand_above_the_options_given() -> None:
    usual = ConsumerOptions(type="shared", name="a", credit_messages=5)
    client = connect()
    consumer = client.consumer("orders", "billing", usual, name="b")
    assert consumer.name == "b"
    assert client.consumer("orders", "billing", usual).name == "a"


def test_a_misspelt_choice_fails_type_checking_also_where_methods_are_derived(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pydanube import connect\nconnect().consumer('a', 'b', type='shared')\n"
        "connect().consumer('a', 'b', type='shraed')\n"
        "from typing import assert_type\n"
        "from pydanube.admin.generated.results import DeletedTopic\n"
        "from pydanube.sync import connect_admin\n"
        "with connect_admin() as admin:\n"
        "    assert_type(admin.topics.delete('a', plan_token='t'), DeletedTopic)\n"
        "    assert_type(admin.topics.plan_delete('a').apply(), DeletedTopic)\n"
        "    admin.topics.create('a', partition=3)\n"
        "    admin.topics.plan_create(5)\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    wrong = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert [line.partition("program.py:")[2].partition(":")[0] for line in wrong] == ["3", "10", "11"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: connect(5), "url"),  # type: ignore[arg-type]
        (lambda: connect(b"http://a:1"), "url"),  # type: ignore[arg-type]
        (lambda: connect(token=5), "token"),  # type: ignore[arg-type]
        (lambda: connect(retry=5), "retry"),  # type: ignore[arg-type]
        (lambda: connect().producer(None), "topic"),  # type: ignore[arg-type]
        (lambda: connect().producer("a", name=5), "name"),  # type: ignore[arg-type]
        (lambda: connect().consumer(5, "b"), "topic"),  # type: ignore[arg-type]
        (lambda: connect().consumer("a", None), "subscription"),  # type: ignore[arg-type]
        (lambda: connect().reader(None), "topic"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.details["field"] == field
    assert field in caught.value.message


@pytest.mark.anyio
@pytest.mark.parametrize("payload", [None, "text", 5])
async def test_a_payload_that_is_not_bytes_is_refused(memory: InMemoryCluster, payload: Any) -> None:
    async with memory.connect() as client, client.producer("orders") as producer:
        with pytest.raises(InvalidArgument) as waited:
            await producer.send(payload)
        with pytest.raises(InvalidArgument) as handed_over:
            producer.send_nowait(payload)
        with pytest.raises(InvalidArgument) as many:
            await producer.send_many([payload])
        assert [caught.value.details["field"] for caught in (waited, handed_over, many)] == ["payload"] * 3
        await producer.send(b"fits")


def test_a_name_with_dots_is_told_why_not() -> None:
    with pytest.raises(InvalidName, match=r"no dots.*'orders-v1'"):
        connect().producer("orders.v1")


@pytest.mark.anyio
async def test_a_consumer_makes_no_topic_where_producers_may_not() -> None:
    with InMemoryCluster(auto_create=False) as cluster:
        async with cluster.connect() as client:
            with pytest.raises(TopicNotFound):
                await client.consumer("orders", "s", create=True).__aenter__()


LONE = "\ud800"
HUGE = 10**400


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (ProducerOptions, "partitions", 1e308),
        (ProducerOptions, "partitions", 1 << 32),
        (ProducerOptions, "partitions", True),
        (ProducerOptions, "linger_ms", 1e308),
        (ProducerOptions, "linger_ms", float("nan")),
        (ProducerOptions, "linger_ms", HUGE),
        (ProducerOptions, "window_bytes", HUGE),
        (ProducerOptions, "schema", 5),
        (ProducerOptions, "schema", LONE),
        (ProducerOptions, "schema", ("s", 1 << 40)),
        (ProducerOptions, "compression", "x" * 1_000_000),
        (ConsumerOptions, "credit_messages", 1 << 64),
        (ConsumerOptions, "credit_bytes", 0.5),
        (ConsumerOptions, "ack_timeout_ms", 1e308),
        (ConsumerOptions, "start_must_apply", []),
        (ConsumerOptions, "key_filters", "a*"),
        (ConsumerOptions, "key_filters", None),
        (ConsumerOptions, "key_filters", [LONE]),
        (ConsumerOptions, "key_filters", ["a"] * 101),
        (ReaderOptions, "credit_messages", float("inf")),
        (Retry, "max_elapsed_s", "x"),
        (Retry, "initial_s", None),
    ],
)
def test_absurd_numbers_and_texts_are_refused_by_name(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        kind(**{field: value})
    assert refused.value.details["field"].endswith(field)
    assert len(refused.value.message) < 1000, "it quotes a part of what was given"


@pytest.fixture(scope="module")
def memory_of_all() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as cluster:
        yield cluster


async def _call(cluster: InMemoryCluster, what: str, value: Any) -> None:
    async with cluster.connect() as client:
        match what:
            case "partition" | "timeout_s":
                async with client.producer("t") as producer:
                    await producer.send(b"x", **{what: value})
            case "max_messages" | "max_wait_s" | "seek" | "delay_ms" | "reason" | "ms":
                async with client.producer("t") as producer:
                    await producer.send(b"x")
                async with client.consumer("t", "s") as consumer:
                    if what.startswith("max_"):
                        await consumer.receive(**{what: value})
                    if what == "seek":
                        await consumer.seek(value)
                    (message,) = await consumer.receive(max_messages=1, max_wait_s=60)
                    await (message.extend(value) if what == "ms" else message.nack(**{what: value}))
            case "start":
                async with client.reader("t", start=value):
                    pass
            case _:
                given = {"subject": "s", "schema_type": "string", "definition": ""} | {what: value}
                await client.schemas.register(**given)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("partition", 0.5), ("partition", "0"), ("timeout_s", HUGE), ("timeout_s", float("nan")),
        ("max_messages", HUGE), ("max_messages", "1"), ("max_wait_s", float("nan")), ("max_wait_s", "1"),
        ("seek", 5), ("seek", None), ("start", b"earliest"), ("delay_ms", 0.5), ("delay_ms", HUGE), ("delay_ms", -1),
        ("reason", LONE), ("ms", float("inf")), ("subject", 5), ("schema_type", LONE), ("definition", LONE),
        ("definition", 5), ("description", LONE), ("tags", [LONE]), ("tags", "tag"),
    ],
)  # fmt: skip
@pytest.mark.anyio
async def test_what_calls_are_given_is_refused_by_name_too(
    memory_of_all: InMemoryCluster, what: str, value: Any
) -> None:
    with pytest.raises(InvalidArgument):
        await _call(memory_of_all, what, value)


@pytest.mark.parametrize(
    ("call", "keyword", "meant"),
    [
        (lambda: connect().producer("t", compresion="lz4"), "compresion", "compression"),  # type: ignore[call-arg]
        (lambda: connect().consumer("t", "s", credit_message=5), "credit_message", "credit_messages"),  # type: ignore[call-arg]
        (lambda: connect().consumer("t", subscripton="s"), "subscripton", "subscription"),  # type: ignore[call-arg]
        (lambda: connect().reader("t", strat="latest"), "strat", "start"),  # type: ignore[call-arg]
        (lambda: connect().consumer("t", group_id="s"), "group_id", "subscription"),  # type: ignore[call-arg]
        (lambda: connect().handler("t", "s", concurrency=8), "concurrency", "workers"),  # type: ignore[call-arg]
        (lambda: connect(timeout=3), "timeout", "retry"),  # type: ignore[call-arg]
        (lambda: connect().producer("t").send(b"", delay=3), "delay", "delay_ms"),  # type: ignore[call-arg]
        (lambda: connect().producer("t").send(b"", headers={}), "headers", "attributes"),  # type: ignore[call-arg]
        (lambda: connect().producer("t").send_many([], key="k"), "key", "keys"),  # type: ignore[call-arg]
        (lambda: connect().consumer("t", "s").receive(timeout=1), "timeout", "max_wait_s"),  # type: ignore[call-arg]
        (lambda: connect().request("t", b"", timeout=1), "timeout", "timeout_s"),  # type: ignore[call-arg]
        (lambda: connect_sync(timeout=1), "timeout", "retry"),  # type: ignore[call-arg]
    ],
)
def test_a_keyword_that_is_none_names_the_one_that_is_meant(
    call: Callable[[], object], keyword: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=f"no keyword '{keyword}'; did you mean '{meant}'"):
        call()
    with pytest.raises(TypeError, match=r"producer\(\) has no keyword 'zzz'; there are name, partitions, "):
        connect().producer("t", zzz=1)  # type: ignore[call-arg]


async def test_what_a_stranger_writes_first_is_answered_in_words(danube_cluster: InMemoryCluster) -> None:
    async with danube_cluster.connect() as client:
        lag = client.admin.subscriptions.lag
        with pytest.raises(TypeError, match="no keyword 'topics'; did you mean 'topic'"):
            lag(topics="t")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"lag\(\) takes keywords only: topic=, subscription="):
            lag("t", "s")  # type: ignore[misc]
        assert (await lag()).items == []
        with pytest.raises(InvalidArgument, match="needs the name of its subscription"):
            client.consumer("t")
        with pytest.raises(InvalidArgument, match="function of"):
            client.handler("t", "s")("bill")  # type: ignore[type-var]
        async with client.producer("t") as producer:
            with pytest.raises(InvalidArgument, match=r"send\(\) sends one"):
                await producer.send_many(b"payload")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match=r"a key is text, got 7$"):
                await producer.send(b"", key=7)  # type: ignore[arg-type]

        def elsewhere() -> None:
            asyncio.run(client.admin.topics.list())

        with pytest.raises(ClosedResource, match="another event loop"):
            await asyncio.to_thread(elsewhere)


@pytest.mark.anyio
async def test_an_address_needs_no_scheme_and_a_time_may_be_a_datetime(memory: InMemoryCluster) -> None:
    async with connect(memory.url.removeprefix("http://")) as client:
        async with client.producer("t") as producer:
            await producer.send(b"before")
            receipt = await producer.send(b"at")
            while (at := (await producer.send(b"later")).append_time) == receipt.append_time:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        async with client.reader("t", start=at, stop="head") as reader:
            payloads = [message.payload async for message in reader]
            assert payloads == [b"later"]
        zone = timezone(timedelta(hours=5))
        async with client.reader("t", stop=receipt.append_time.astimezone(zone)) as reader:
            assert b"at" not in [message.payload async for message in reader]
        async with client.consumer("t", "s", start=at) as consumer:
            assert (await anext(consumer)).payload == b"later"
            await consumer.seek(at - timedelta(hours=1))
            assert (await anext(consumer)).payload == b"before"
            with pytest.raises(InvalidArgument, match="no time zone"):
                await consumer.seek(datetime(2026, 1, 31))
    with pytest.raises(InvalidArgument, match="no time zone") as refused:
        client.reader("t", start=datetime(2026, 1, 31))
    assert refused.value.details["field"] == "start"
