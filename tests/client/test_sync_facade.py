"""The SDK without await: from any thread, also where an event loop is running already (Jupyter)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Final, get_args, get_origin, get_type_hints

import pydanube
import pydanube.sync
import pytest
from pydanube import Retry
from pydanube.sync import Message, connect
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import ClosedResource, InvalidArgument, PayloadInvalid, Unavailable


def test_publish_and_consume_without_await(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        with client.producer("t") as producer:
            assert producer.send(b"one", key="k").offset == 0
            pending = producer.send_nowait(b"two")
            assert pending.result(timeout_s=10).offset == 1
            assert pending.done()
            assert producer.send_many(b"%d" % i for i in range(2000)).count == 2000
            producer.flush()
            assert producer.statistics().acknowledged_messages == 2002
        with client.consumer("t", "s") as consumer:
            seen = []
            for message in consumer:
                seen.append(message.offset)
                message.ack()
                if len(seen) == 1000:
                    break
            consumer.flush_acks()
            for message in consumer.receive(2):
                assert message.offset in (1000, 1001)
                message.nack()
        assert seen == list(range(1000))
        assert memory.unacknowledged("t", "s") == 1002
        with client.reader("t", stop="head") as reader:
            assert [m.offset for m in reader] == list(range(2002))
        with client.reader("t", stop="head") as reader:
            assert sum(len(batch) for batch in reader.batches()) == 2002
        assert client.statistics().producers == 0


def test_the_clients_connection_is_enough_for_administration(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        assert client.admin.topics.create("t", partitions=2).topic == "/default/t"
        plan = client.admin.topics.plan_truncate("t", before="latest")
        assert plan.reversible is False
        plan.discard()
        assert [item.topic for item in client.admin.topics.list().items] == ["/default/t"]
        admin = client.admin
    with pytest.raises(ClosedResource):
        client.admin  # noqa: B018  # of a client that is closed
    with pytest.raises(ClosedResource):
        admin.topics.list()


def test_a_worker_without_await_replies_and_ends_when_it_is_told(memory: InMemoryCluster) -> None:
    stop = threading.Event()

    def handler(message: Message) -> bytes | None:
        if message.payload == b"last":
            stop.set()
            return None
        message.reply(message.payload.upper())
        return None

    with memory.connect_sync() as client, client.producer("service") as producer:
        worker = threading.Thread(target=client.run, args=(handler, "service", "s"), kwargs={"stop": stop})
        worker.start()
        assert client.request("service", b"one", timeout_s=60).payload == b"ONE"
        assert client.health().ok
        producer.send(b"last")
        worker.join()
    assert memory.unacknowledged("service", "s") == 0


WORKER = """
import sys
from pydanube.sync import connect

with connect(sys.argv[1]) as client:
    client.run(lambda message: print("handled", flush=True), "t", "s")
print("ended")
"""


def test_a_signal_ends_a_worker_without_await(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        producer.send(b"one")
    with subprocess.Popen([sys.executable, "-c", WORKER, memory.url], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"handled\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == b"ended\n"
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    assert memory.unacknowledged("t", "s") == 0


def test_seek_drops_what_was_fetched(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        with client.producer("t") as producer:
            producer.send_many([b"%d" % i for i in range(100)])
        with client.consumer("t", "s") as consumer:
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            consumer.seek("offset:50")
            assert next(consumer).offset == 50
            for batch in consumer.batches():
                batch.ack()
                if batch.offsets[-1] == 99:
                    break


def test_messages_of_a_lost_session_are_not_handed_out(memory: InMemoryCluster) -> None:
    with memory.connect_sync(retry=Retry(initial_s=0.001, max_delay_s=0.01)) as client:
        with client.producer("t") as producer:
            producer.send_many([b"%d" % i for i in range(100)])
        with client.consumer("t", "s") as consumer:
            assert next(consumer).offset == 0
            memory.drop_connections()
            while not consumer.statistics().reconnects:
                time.sleep(0.001)
            assert [next(consumer).offset for _ in range(100)] == list(range(100))


def test_several_threads_share_a_client(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        threads = [
            threading.Thread(target=lambda: [producer.send(b"x") for _ in range(25)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(memory.payloads("t")) == 100


def test_two_clients_meet_in_one_cluster(memory: InMemoryCluster) -> None:
    with (
        memory.connect_sync() as one,
        memory.connect_sync() as two,
        one.producer("t") as producer,
        two.consumer("t", "s") as consumer,
    ):
        for i in range(20):
            producer.send(b"%d" % i)
            message = next(consumer)
            assert message.payload == b"%d" % i
            message.ack()


@pytest.mark.anyio
async def test_it_works_beside_a_running_event_loop(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        assert producer.send(b"from inside a coroutine").offset == 0


def test_errors_are_raised_in_the_calling_thread(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        memory.refuse_publishes(PayloadInvalid("no", field="payload"))
        with pytest.raises(PayloadInvalid):
            producer.send(b"x")
        with pytest.raises(InvalidArgument):
            client.consumer("t", "s", type="none")
    with pytest.raises(ClosedResource):
        client.producer("t")
    with pytest.raises(ClosedResource):
        producer.send(b"x")


def test_an_unreachable_broker_is_unavailable() -> None:
    with (
        connect("http://127.0.0.1:1", retry=Retry(max_elapsed_s=0)) as client,
        pytest.raises(Unavailable),
        client.producer("t"),
    ):
        pass


def test_events_end_when_the_client_closes(memory: InMemoryCluster) -> None:
    kinds: list[str] = []
    with memory.connect_sync() as client:
        events = client.events()

        def listen() -> None:
            for event in events:
                kinds.append(event.kind)
                heard.set()

        heard = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        while not heard.is_set():
            with client.producer("t") as producer:
                producer.send(b"x")
        client.close()
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert kinds[0] == "connected"


def test_pause_and_the_seek_of_one_partition(memory: InMemoryCluster) -> None:
    memory.create_topic("t", partitions=2)
    with memory.connect_sync() as client:
        with client.producer("t", routing="explicit") as producer:
            for number in range(6):
                producer.send(b"%d" % number, partition=number % 2, timeout_s=60)
        with client.consumer("t", "s") as consumer:
            consumer.pause()
            assert consumer.paused
            assert consumer.receive(max_wait_s=0.1) == []
            threading.Timer(0.2, consumer.resume).start()
            assert {next(consumer).payload for _ in range(6)} == {b"%d" % number for number in range(6)}
            consumer.seek("offset:2", partition=1)
            assert next(consumer).payload == b"5"
            assert consumer.receive(max_wait_s=0.1) == []


def test_several_topics_without_await(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        for topic in ("several-a", "several-b"):
            with client.producer(topic) as producer:
                producer.send_many([b"1", b"2"])
        with client.consumer(["several-a", "several-b"], "s") as consumer:
            assert {(m.topic, m.offset) for m in (next(consumer) for _ in range(4))} == {
                (f"/default/several-{letter}", offset) for letter in "ab" for offset in (0, 1)
            }
            consumer.seek("offset:1", topic="several-b")
            again = next(consumer)
            assert (again.topic, again.offset) == ("/default/several-b", 1)
        with client.consumer(pattern="several-*", subscription="t", refresh_s=0.1) as consumer:
            assert consumer.topics == ("/default/several-a", "/default/several-b")
            with client.producer("several-c") as producer:
                producer.send(b"3")
            assert {next(consumer).topic for _ in range(5)} >= {"/default/several-c"}


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Reader", "Message", "Batch"])
def test_facts_have_the_types_that_they_have_there(name: str) -> None:
    there, here = getattr(pydanube, name), getattr(pydanube.sync, name)
    facts = {
        fact: get_args(hint)[0]
        for kind in reversed(here.__mro__)
        for fact, hint in get_type_hints(kind).items()
        if get_origin(hint) is Final
    }
    assert len(facts) >= 4
    for fact, kind in facts.items():
        member = getattr(there, fact)
        if isinstance(
            member, property
        ):  # else it is a slot, which has the type of the argument that fills it
            assert get_type_hints(member.fget)["return"] == kind, fact
