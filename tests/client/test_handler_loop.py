"""The handler loop on a real broker: what a function returns from is done, what it raises comes again and dies in the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

import pytest
from pydanube import InvalidArgument, Message, Misuse, Retry, handler_loop
from pydanube.testing import InMemoryCluster

from tests.client.handled_topics import SOON, first_of, publish
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_what_fails_comes_again_and_is_a_dead_letter_in_the_end(memory: InMemoryCluster) -> None:
    counts: list[int] = []
    stop, good = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        if message.payload == b"poison":
            counts.append(message.delivery_count)
            raise ValueError("not a number")
        good.set()

    async with memory.connect() as client:
        await publish(client, "orders", b"poison", b"good")
        loop = asyncio.create_task(client.run(handler, "orders", "billing", retries=2, stop=stop, **SOON))
        dead = await first_of(client, "orders-dlq-billing")
        await good.wait()
        stop.set()
        await loop
        assert counts == [1, 2, 3]
        assert dead.payload == b"poison"
        assert "ValueError: not a number" in dead.attributes.values()
        counters = client.metrics()
        assert (
            'danube_client_handler_failed_messages_total{topic="/default/orders",subscription="billing"} 3'
            in counters
        )
        assert (
            'danube_client_handler_handled_messages_total{topic="/default/orders",subscription="billing"} 1'
            in counters
        )
    assert memory.unacknowledged("orders", "billing") == 0


async def test_workers_work_at_the_same_time_and_a_stop_waits_for_them(memory: InMemoryCluster) -> None:
    started, go, stop = 0, asyncio.Event(), asyncio.Event()
    all_here = asyncio.Event()

    async def handler(message: Message) -> None:
        nonlocal started
        started += 1
        if started == 4:
            all_here.set()
        await go.wait()

    async with memory.connect() as client:
        await publish(client, "t", *(b"%d" % i for i in range(10)))
        loop = asyncio.create_task(client.run(handler, "t", "s", workers=4, stop=stop))
        await all_here.wait()
        stop.set()
        await asyncio.sleep(0)
        assert not loop.done()
        go.set()
        await loop
    assert started == 4
    assert memory.unacknowledged("t", "s") == 6  # those that nobody had begun come to the next


async def test_a_function_that_outlives_the_drain_is_cancelled(memory: InMemoryCluster) -> None:
    started, stop = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        loop = asyncio.create_task(client.run(handler, "t", "s", drain_s=0.01, stop=stop))
        await started.wait()
        stop.set()
        await loop
    assert memory.unacknowledged("t", "s") == 1


async def test_a_function_that_swallows_its_cancellation_is_left_behind(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handler_loop, "DEAF_S", 0.01)
    started, free, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        started.set()
        while not free.is_set():
            with suppress(asyncio.CancelledError):
                await free.wait()

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        loop = asyncio.create_task(client.run(handler, "t", "s", drain_s=0.01, stop=stop))
        await started.wait()
        stop.set()
        done, _ = await asyncio.wait({loop}, timeout=20)
        free.set()
        await loop
    assert done
    assert "do not heed that they were cancelled" in caplog.text
    assert memory.unacknowledged("t", "s") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(memory: InMemoryCluster, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def handler(message: Message) -> None:
        os.kill(os.getpid(), number)

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        await client.run(handler, "t", "s")
    assert signal.getsignal(number) is before
    assert memory.unacknowledged("t", "s") == 0


async def test_a_plain_function_runs_in_threads(memory: InMemoryCluster) -> None:
    both, stop, threads = threading.Barrier(2), asyncio.Event(), set()
    main, loop = threading.get_ident(), asyncio.get_running_loop()

    def handler(message: Message) -> None:
        both.wait(timeout=60)  # two at the same time, or none gets past here
        threads.add(threading.get_ident())
        if message.payload == b"3":
            loop.call_soon_threadsafe(stop.set)

    async with memory.connect() as client:
        await publish(client, "t", b"0", b"1", b"2", b"3")
        await client.run(handler, "t", "s", workers=2, stop=stop)
    assert main not in threads
    assert memory.unacknowledged("t", "s") == 0


@pytest.mark.parametrize("ordered_by_key", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_what_the_function_awaited_was_cancelled_is_a_failure_like_any_other(
    memory: InMemoryCluster, *, ordered_by_key: bool, own: bool
) -> None:
    """Also its own task, as old libraries for timeouts do: a worker that ended with it would end the loop without a word."""
    tried, stop = 0, asyncio.Event()

    async def handler(message: Message) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            asked = asyncio.ensure_future(asyncio.Event().wait())
            task = asyncio.current_task() if own else asked
            assert task is not None
            task.cancel()
            await asked
        stop.set()

    async with memory.connect() as client:
        await publish(client, "t", b"one", key="k")
        await client.run(handler, "t", "s", workers=1, ordered_by_key=ordered_by_key, stop=stop, **SOON)
    assert tried == 2
    assert memory.unacknowledged("t", "s") == 0


async def test_a_plain_function_that_raises_stop_iteration_has_failed(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        await publish(client, "t", b"one")
        stop = asyncio.Event()
        loop = asyncio.create_task(
            client.run(lambda message: next(iter(())), "t", "s", retries=0, stop=stop, **SOON)
        )
        dead = await first_of(client, "t-dlq-s")
        stop.set()
        await loop
    assert any("StopIteration" in value for value in dead.attributes.values())


async def test_a_loop_whose_workers_all_hang_is_unhealthy(memory: InMemoryCluster) -> None:
    go, stop = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        await go.wait()

    async with memory.connect() as client:
        await publish(client, "t", b"one", b"two")
        loop = asyncio.create_task(client.run(handler, "t", "s", workers=2, max_extend_s=0.1, stop=stop))
        hang = "all 2 workers of the handler of /default/t have had their message for"
        await until(lambda: any(reason.startswith(hang) for reason in client.health().reasons))
        go.set()
        await until(lambda: client.health().ok)
        stop.set()
        await loop


HANGS = """
import asyncio, sys, threading
from pydanube import connect

def handler(message):
    print("begun", flush=True)
    threading.Event().wait()

async def main():
    async with connect(sys.argv[1]) as client:
        await client.run(handler, "t", "s", drain_s=0.01)
    print("ended", flush=True)

asyncio.run(main())
"""


def test_a_plain_function_that_never_returns_does_not_keep_the_process(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        producer.send(b"one")
    with subprocess.Popen([sys.executable, "-c", HANGS, memory.url], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"begun\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
            assert worker.stdout.read() == b"ended\n"
        finally:
            worker.kill()
    assert memory.unacknowledged("t", "s") == 1


async def test_failures_are_told_once_a_second_with_where_they_came_from(
    memory: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message) -> None:
        raise ValueError("not a number")

    async with memory.connect() as client:
        await publish(client, "t", *(b"%d" % i for i in range(50)))
        stop = asyncio.Event()
        loop = asyncio.create_task(client.run(handler, "t", "s", retries=0, stop=stop, **SOON))
        async with client.consumer("t-dlq-s", "look", create=True) as consumer:
            for _ in range(50):
                await anext(consumer)
        stop.set()
        await loop
    told = [record for record in caplog.records if "the handler of s failed" in record.message]
    assert 1 <= len(told) < 50
    assert told[0].levelno == logging.WARNING
    assert "of /default/t, delivery 1: ValueError: not a number" in told[0].message
    assert told[0].exc_info is not None


async def test_messages_of_a_key_keep_their_order_through_retries(memory: InMemoryCluster) -> None:
    seen: dict[str | None, list[bytes]] = defaultdict(list)
    running: set[str | None] = set()
    stop, failed, total = asyncio.Event(), set(), 0

    async def handler(message: Message) -> None:
        nonlocal total
        key = message.key
        assert key not in running
        running.add(key)
        try:
            await asyncio.sleep(0)
            if message.payload == b"3" and key not in failed:
                failed.add(key)
                raise RuntimeError("once")
            seen[key].append(message.payload)
            total += 1
            if total == 40:
                stop.set()
        finally:
            running.discard(key)

    async with memory.connect() as client:
        async with client.producer("t") as producer:
            for step in range(10):
                for key in "abcd":
                    await producer.send(b"%d" % step, key=key)
        await client.run(handler, "t", "s", workers=3, ordered_by_key=True, stop=stop, **SOON)
    assert seen == {key: [b"%d" % step for step in range(10)] for key in "abcd"}
    assert failed == set("abcd")
    assert memory.unacknowledged("t", "s") == 0


async def test_by_key_what_fails_too_often_is_a_dead_letter_and_the_next_of_its_key_follows(
    memory: InMemoryCluster,
) -> None:
    calls: list[bytes] = []
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handler(message: Message) -> None:
        calls.append(message.payload)
        if message.payload == b"bad":
            raise ValueError("never")
        loop.call_soon_threadsafe(stop.set)

    async with memory.connect() as client:
        await publish(client, "t", b"bad", b"next", key="k")

        await client.run(handler, "t", "s", ordered_by_key=True, retries=1, stop=stop, **SOON)
        assert calls == [b"bad", b"bad", b"next"]
        assert (await first_of(client, "t-dlq-s")).payload == b"bad"


async def test_a_stop_ends_it_while_everything_waits_for_a_retry(memory: InMemoryCluster) -> None:
    stop = asyncio.Event()

    async def handler(message: Message) -> None:
        asyncio.get_running_loop().call_soon(stop.set)
        raise ValueError("later")

    async with memory.connect() as client:
        await publish(client, "t", *(b"%d" % i for i in range(40)), key="k")
        await client.run(handler, "t", "s", workers=1, ordered_by_key=True, backoff_s=(60, 60), stop=stop)
    assert memory.unacknowledged("t", "s") == 40


async def test_values_and_what_is_none(memory: InMemoryCluster) -> None:
    @dataclass
    class Order:
        id: int

    stop, got = asyncio.Event(), []

    async def handler(order: Order, message: Message) -> None:
        got.append((order, message.offset))
        stop.set()

    async with memory.connect() as client:
        number = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
        await client.schemas.register("order", "json_schema", number)
        async with client.producer("t", schema="order") as producer:
            await producer.send(b"{}")  # fits the schema, and not the class
            await producer.send({"id": 7})
        loop = asyncio.create_task(client.run(handler, "t", "s", workers=1, schema=Order, stop=stop, **SOON))
        assert (await first_of(client, "t-dlq-s")).delivery_count == 1
        await loop
    assert got == [(Order(7), 1)]


async def test_decorated_functions_are_served_together(memory: InMemoryCluster) -> None:
    client, got, stop = memory.connect(), set(), asyncio.Event()

    @client.handler("a", "s")
    @client.handler(["b", "c"], "s", workers=1)
    async def handler(message: Message) -> None:
        got.add(message.topic)
        if len(got) == 3:
            stop.set()

    async with client:
        for topic in "abc":
            await publish(client, topic, b"one")
        await client.serve(stop=stop)
    assert got == {"/default/a", "/default/b", "/default/c"}


async def test_a_loop_that_fails_ends_the_others_and_is_unhealthy(memory: InMemoryCluster) -> None:
    client = memory.connect(retry=Retry(max_elapsed_s=0.1))

    async def handler(message: Message) -> None: ...

    client.handler("a", "s")(handler)
    client.handler("missing", "s", create=False)(handler)
    async with client:
        assert client.health().ok
        with pytest.raises(Exception, match="missing"):
            await client.serve()
        health = client.health()
        assert not health.ok
        assert "missing" in health.reasons[0]


async def test_a_policy_that_holds_is_not_written_again(memory: InMemoryCluster) -> None:
    async def handler(message: Message) -> None: ...

    async with memory.connect() as client:
        written = []
        for _ in range(2):
            stop = asyncio.Event()
            asyncio.get_running_loop().call_soon(stop.set)
            await client.run(handler, "t", "s", stop=stop)
            entries = (await client.admin.audit.query(limit=100)).items
            written.append([each.operation for each in entries].count("subscriptions.set_failure_policy"))
    assert written[0] == written[1] > 0


async def test_the_topics_of_a_pattern(memory: InMemoryCluster) -> None:
    stop, seen = asyncio.Event(), []

    async def handler(message: Message) -> None:
        seen.append((message.topic, message.payload))
        if len(seen) == 2:
            stop.set()

    async with memory.connect() as client:
        for name in ("pay-a", "pay-b", "other"):
            async with client.producer(name) as producer:
                await producer.send(name.encode())
        await client.run(handler, None, "s", pattern="pay*", stop=stop)
        assert sorted(seen) == [("/default/pay-a", b"pay-a"), ("/default/pay-b", b"pay-b")]
        with pytest.raises(InvalidArgument, match="topics or a pattern"):
            await client.run(handler, ["pay-a"], "s", pattern="pay*")


async def test_arguments_that_are_none(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        for changes in (
            {"workers": 0},
            {"retries": -1},
            {"backoff_s": (2, 1)},
            {"backoff_s": 3},
            {"backoff_s": (-1, 5)},
            {"backoff_s": ("1", 5)},
            {"dead_letter": 1},
        ):
            with pytest.raises(InvalidArgument) as refused:
                await client.run(print, "t", "s", **changes)
            assert refused.value.details["field"] == next(iter(changes))
        with pytest.raises(
            InvalidArgument, match=r"first wait of 8 s is longer than the longest of 1 s: give \(1, 8\)"
        ):
            await client.run(print, "t", "s", backoff_s=(8, 1))
        with pytest.raises(InvalidArgument, match="handler"):
            await client.run("print", "t", "s")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"handler is a function of \(message\), got <function"):
            await client.run(lambda: None, "t", "s")
        with pytest.raises(InvalidArgument, match=r"handler is a function of \(value, message\)"):
            await client.run(lambda message: None, "t", "s", schema=dict)
        with pytest.raises(TypeError, match="did you mean 'workers'"):
            await client.run(print, "t", "s", worker=3)  # type: ignore[call-arg]
        with pytest.raises(Misuse, match="handler"):
            await client.serve()
        assert client.statistics().consumers == 0
