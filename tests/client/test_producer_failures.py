"""What a producer does when the cluster fails it: client and broker are real, the faults are between them."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import pytest
from pydanube import Retry
from pydanube import producer as producer_module
from pydanube.admin import connect_admin
from pydanube.sending.publish_lane import MAX_IN_FLIGHT
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    DeadlineExceeded,
    DiskFull,
    JournalReadOnly,
    NameReused,
    OutOfSequence,
    PayloadInvalid,
    ProducerFenced,
    ProducerUnknown,
    TopicNotFound,
    Unavailable,
)

from tests.support.waiting import until

pytestmark = pytest.mark.anyio

QUICK = Retry(max_elapsed_s=20, initial_s=0.001, max_delay_s=0.01)
IMPATIENT = Retry(max_elapsed_s=0.05, initial_s=0.001, max_delay_s=0.01)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


async def stored(memory: InMemoryCluster, count: int) -> None:
    """Wait until so many messages are stored."""
    with anyio.fail_after(60):
        await until(lambda: len(memory.payloads("t")) >= count)


async def test_a_lost_receipt_is_answered_as_a_duplicate_and_nothing_is_stored_twice(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        await producer.send(b"first")
        memory.cut_before_answers(3)
        receipt = await producer.send(b"second")
        assert (receipt.offset, receipt.duplicate) == (1, True)
        assert not (await producer.send(b"third")).duplicate
        assert memory.payloads("t") == [b"first", b"second", b"third"]
        statistics = producer.statistics()
        assert (statistics.resent_batches, statistics.reconnects, statistics.sessions) == (3, 3, 1)
        assert statistics.duplicate_messages == 1


async def test_batches_in_flight_survive_a_cut_in_order(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=100) as producer:
        memory.cut_before_answers(7)
        handles = [producer.send_nowait(payload) for payload in numbers(100)]
        await producer.flush()
        assert [(await handle).offset for handle in handles] == list(range(100))
        assert memory.payloads("t") == numbers(100)


async def test_at_most_five_batches_are_in_flight(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t", batch_bytes=1) as producer:
        with memory.answers_held():
            handles = [producer.send_nowait(payload) for payload in numbers(50)]
            await stored(memory, MAX_IN_FLIGHT)
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(memory.payloads("t")) == MAX_IN_FLIGHT
            assert not any(handle.done() for handle in handles)
        await producer.flush()
        assert memory.payloads("t") == numbers(50)


async def test_while_the_pipe_is_full_messages_gather_into_one_batch(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        with memory.answers_held():
            for count, payload in enumerate(numbers(MAX_IN_FLIGHT), 1):
                producer.send_nowait(payload)
                await stored(memory, count)
            for payload in numbers(1000, start=MAX_IN_FLIGHT):
                producer.send_nowait(payload)
                await asyncio.sleep(0)
            assert producer.statistics().written_batches == MAX_IN_FLIGHT
        await producer.flush()
        assert producer.statistics().written_batches == MAX_IN_FLIGHT + 1
        assert memory.payloads("t") == numbers(1000 + MAX_IN_FLIGHT)


async def test_a_refused_batch_fails_alone_and_those_behind_it_are_stored_once(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        await producer.send(b"before")
        memory.refuse_publishes(PayloadInvalid("not an order", field="payload"))
        handles = [
            producer.send_nowait(
                payload, key="k" if i == 3 else None, attributes={"i": "3"} if i == 3 else None
            )
            for i, payload in enumerate(numbers(20))
        ]
        with pytest.raises(PayloadInvalid):
            await handles[0]
        assert [(await handle).offset for handle in handles[1:]] == list(range(1, 20))
        assert memory.payloads("t") == [b"before", *numbers(19, start=1)]
        statistics = producer.statistics()
        assert (statistics.sessions, statistics.failed_messages) == (2, 1)
        await producer.flush()  # its failure was seen above
        async with client.reader("t", stop="head") as reader:
            messages = [message async for message in reader]
        assert (messages[3].key, dict(messages[3].attributes)) == ("k", {"i": "3"})


async def test_batches_ahead_of_a_refused_one_are_waited_for(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        with memory.answers_held():
            ahead = [producer.send_nowait(payload) for payload in (b"a", b"b")]
            await stored(memory, 2)
            memory.refuse_publishes(PayloadInvalid("no", field="payload"))
            refused = producer.send_nowait(b"refused")
            behind = producer.send_nowait(b"behind")
            with pytest.raises(PayloadInvalid):
                await refused
            assert not ahead[0].done()
        assert [(await handle).offset for handle in (*ahead, behind)] == [0, 1, 2]
        assert memory.payloads("t") == [b"a", b"b", b"behind"]


async def test_a_cut_while_a_new_session_is_due_first_settles_the_old_one(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        with memory.answers_held():
            ahead = [producer.send_nowait(payload) for payload in (b"a", b"b")]
            await stored(memory, 2)
            memory.refuse_publishes(PayloadInvalid("no", field="payload"))
            refused = producer.send_nowait(b"refused")
            behind = producer.send_nowait(b"behind")
            with pytest.raises(PayloadInvalid):
                await refused
            memory.drop_connections()
        receipts = [await handle for handle in (*ahead, behind)]
        assert [(r.offset, r.duplicate) for r in receipts] == [(0, True), (1, True), (2, False)]
        assert memory.payloads("t") == [b"a", b"b", b"behind"]
        assert producer.statistics().sessions == 2


async def test_a_client_that_is_never_closed_warns(memory: InMemoryCluster) -> None:
    clients = [await memory.connect().__aenter__()]
    with pytest.warns(ResourceWarning, match="not closed"):
        clients.clear()


async def test_a_retryable_refusal_is_retried_until_it_passes(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        memory.refuse_publishes(DiskFull("no room", retry_after_ms=1), DiskFull("no room", retry_after_ms=1))
        handles = [producer.send_nowait(payload) for payload in numbers(10)]
        assert [(await handle).offset for handle in handles] == list(range(10))
        assert memory.payloads("t") == numbers(10)
        assert producer.statistics().sessions == 1


async def test_a_retryable_failure_that_lasts_is_raised_to_the_senders(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=IMPATIENT) as client, client.producer("t") as producer:
        memory.stop()
        with pytest.raises(Unavailable):
            await producer.send(b"lost")
        memory.restart()
        assert (await producer.send(b"after")).offset == 0
        assert memory.payloads("t") == [b"after"]


async def test_what_may_be_stored_is_failed_as_unknown_and_not_sent_again(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=IMPATIENT) as client, client.producer("t") as producer:
        with memory.answers_held():
            maybe = producer.send_nowait(b"maybe")
            await stored(memory, 1)
            memory.stop()
            with pytest.raises(Unavailable) as failure:
                await maybe
            assert failure.value.details["outcome"] == "unknown"
        memory.restart()
        await producer.send(b"after")
        assert memory.payloads("t") == [b"maybe", b"after"]


async def test_a_producer_survives_a_restart_of_the_cluster(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=200) as producer:
        handles = []
        for i, payload in enumerate(numbers(2000)):
            handles.append(producer.send_nowait(payload))
            if i % 100 == 0:
                await asyncio.sleep(0)
            if i == 500:
                memory.stop()
            if i == 1000:
                memory.restart()
        await producer.flush()
        assert memory.payloads("t") == numbers(2000)
        assert [(await handle).offset for handle in handles] == list(range(2000))


async def test_an_unknown_producer_fails_what_is_in_flight_and_goes_on_with_the_rest(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        await producer.send(b"before")
        memory.forget_producers()
        handles = [producer.send_nowait(payload) for payload in numbers(20)]
        with pytest.raises(ProducerUnknown):
            await producer.flush()
        outcomes = []
        for handle in handles:
            try:
                await handle
                outcomes.append("stored")
            except ProducerUnknown as error:
                outcomes.append(error.details["outcome"])
        assert outcomes == ["unknown"] * MAX_IN_FLIGHT + ["stored"] * (20 - MAX_IN_FLIGHT)
        assert memory.payloads("t") == [b"before", *numbers(20 - MAX_IN_FLIGHT, start=MAX_IN_FLIGHT)]


async def test_a_fenced_producer_is_over(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        await producer.send(b"before")
        memory.fence_producers()
        with pytest.raises(ProducerFenced) as failure:
            await producer.send(b"late")
        assert failure.value.details["outcome"] == "unknown"
        with pytest.raises(ProducerFenced):
            await producer.send(b"later")
        with pytest.raises(ProducerFenced):
            producer.send_nowait(b"latest")
        assert memory.payloads("t") == [b"before"]


async def test_a_gap_that_nobody_explains_is_raised_and_not_resent(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        memory.refuse_publishes(OutOfSequence("gap"))
        with pytest.raises(OutOfSequence) as failure:
            await producer.send(b"lost")
        assert failure.value.details["outcome"] == "unknown"
        assert (await producer.send(b"after")).offset == 0


async def test_an_outcome_that_is_unknown_is_passed_on(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1) as producer:
        memory.refuse_publishes(JournalReadOnly("a failed sync", outcome="unknown"))
        first, second = producer.send_nowait(b"first"), producer.send_nowait(b"second")
        with pytest.raises(JournalReadOnly) as failure:
            await first
        assert failure.value.details["outcome"] == "unknown"
        with pytest.raises(ClusterError) as behind:
            await second
        assert behind.value.details["outcome"] == "unknown"


async def test_a_failure_that_nobody_awaited_is_raised_by_flush_once(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        memory.refuse_publishes(PayloadInvalid("no", field="payload"))
        producer.send_nowait(b"dropped handle")
        with pytest.raises(PayloadInvalid) as failure:
            await producer.flush()
        assert failure.value.details["messages"] == 1
        await producer.flush()


async def test_a_failure_that_nobody_awaited_is_raised_by_leaving_the_block(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client:
        memory.refuse_publishes(PayloadInvalid("no", field="payload"))
        with pytest.raises(PayloadInvalid):
            async with client.producer("t") as producer:
                producer.send_nowait(b"dropped handle")


async def test_send_many_says_what_was_acknowledged_when_it_fails(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", batch_bytes=1000) as producer:
        await producer.send_many(numbers(10))
        memory.refuse_publishes(PayloadInvalid("no", field="payload"))
        with pytest.raises(PayloadInvalid) as failure:
            await producer.send_many(numbers(5000))
        stored = len(memory.payloads("t")) - 10
        assert 0 < stored < 5000
        assert failure.value.details["acknowledged"] == stored
        assert failure.value.acknowledged.count == stored  # type: ignore[attr-defined]


async def test_leaving_by_an_exception_does_not_wait_for_ever(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "LEAVE_S", 0.05)
    async with memory.connect() as client:
        handles = []

        async def leave_by_an_exception() -> None:
            async with client.producer("t") as producer:
                memory.stop()
                handles.append(producer.send_nowait(b"never stored"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave_by_an_exception()
        with pytest.raises(ClosedResource):
            await handles[0]


async def test_the_window_opens_again_after_failures(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t", window_messages=2) as producer:
        for _ in range(3):
            memory.refuse_publishes(PayloadInvalid("no", field="payload"))
            with pytest.raises(PayloadInvalid):
                await producer.send(b"refused")
        receipts = await asyncio.gather(*(producer.send(payload) for payload in numbers(10)))
        assert [receipt.offset for receipt in receipts] == list(range(10))
        assert producer.statistics().waiting_messages == 0


async def test_events_show_an_outage(memory: InMemoryCluster) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        events = client.events()
        memory.drop_connections()
        await producer.send(b"x")
        kinds = [(await anext(events)).kind.value for _ in range(3)]
        assert kinds == ["disconnected", "reconnecting", "connected"]
        assert client.statistics().reconnects == 1


async def test_a_send_past_its_deadline_says_what_became_of_it(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t", window_messages=1) as producer:
        with memory.answers_held():
            with pytest.raises(DeadlineExceeded) as handed_over:
                await producer.send(b"one", timeout_s=0.1)
            with pytest.raises(DeadlineExceeded) as no_room:
                await producer.send(b"two", timeout_s=0.1)
        await producer.flush()
        assert (await producer.send(b"three", timeout_s=60)).offset == 1  # the window is whole again
    assert handed_over.value.details["outcome"] == "unknown"
    assert no_room.value.details["outcome"] == "not_stored"
    assert memory.payloads("t") == [b"one", b"three"]


@pytest.mark.parametrize("partitions", [None, 2])
async def test_a_producer_of_a_topic_made_again_is_told_so_and_a_restored_topic_is_sent_to(
    memory: InMemoryCluster, partitions: int | None
) -> None:
    async with memory.connect(retry=QUICK) as client:
        topics = client.admin.topics
        await topics.create("again", partitions=partitions)
        async with client.producer("again") as producer:
            await producer.send(b"kept", key="k")
            deleted = await (await topics.plan_delete("again")).apply()
            for _ in range(3):
                with pytest.raises(TopicNotFound) as absent:
                    await producer.send(b"into the void", key="k")
            assert absent.value.details["outcome"] == "not_stored"
            await client.admin.changes.undo(deleted.call_id)
            await producer.send(b"restored", key="k")
            await (await topics.plan_delete("again")).apply()
            await topics.create("again", partitions=partitions)
            with contextlib.suppress(TopicNotFound):  # the first may meet the deletion
                await producer.send(b"not for this one", key="k")
            for _ in range(2):
                with pytest.raises(NameReused, match="new producer") as reused:
                    await producer.send(b"not for this one", key="k")
                assert reused.value.details["topic_id"] != reused.value.details["other_topic_id"]
            async with client.producer("again") as another:
                await another.send(b"first", key="k")
            async with client.reader("again", stop="head") as reader:
                assert [message.payload async for message in reader] == [b"first"]


async def test_what_was_in_flight_to_a_topic_made_again_may_be_stored_in_the_former(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect(retry=QUICK) as client, client.producer("t") as producer:
        await producer.send(b"one")
        with memory.answers_held():
            handle = producer.send_nowait(b"two")
            await stored(memory, 2)
            memory.stop()
        async with connect_admin(memory.admin_url) as admin:
            await (await admin.topics.plan_delete("t")).apply()
            await admin.topics.create("t")
        memory.restart()
        with pytest.raises(NameReused) as reused:
            await handle
        assert reused.value.details["outcome"] == "unknown"
        with pytest.raises(NameReused):
            await producer.send(b"three")
        assert memory.payloads("t") == []
