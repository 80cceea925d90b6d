"""Who moved a cursor, or made a topic or a subscription, by a call for data stands in the audit: bounded, and no pace of its own."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube import ClusterError, connect
from pydanube_broker.serving.data_changes import MOST_WAITING, DataChanges
from pydanube_core.facts import DataChange

from tests.admin.real_broker import Administered, cluster
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = pytest.mark.anyio


async def by_data(cluster: Administered, **asked: Any) -> list[dict[str, Any]]:
    """Records of what clients changed, the oldest first."""
    found = (await cluster("audit.query", **asked, hashes=True))["items"][::-1]
    return [record for record in found if record["face"] == "data"]


async def test_who_moved_a_cursor_and_made_what_is_recorded(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer("orders") as producer:
                await producer.send_many([b"x"] * 500)
            async with client.consumer("orders", "billing", name="worker-7") as consumer:
                await consumer.seek("latest")
        records = await by_data(cluster, topic="orders")
        assert [(each["phase"], each["operation"]) for each in records] == [
            (phase, operation)
            for operation in ("topics.create", "subscriptions.create", "subscriptions.seek")
            for phase in ("call", "outcome")
        ]
        call, outcome = records[-2:]
        assert call["call_id"] == outcome["call_id"]
        assert (call["before"], outcome["after"]) == ({"next_unacked": 0}, {"next_unacked": 500})
        assert call["principal"] == "worker-7"  # what it calls itself: nobody has to prove who he is here
        assert call["arguments"]["subscription"] == "billing"
        assert call["arguments"]["address"].startswith("ipv4:127.0.0.1:")
        moved = await by_data(cluster, operation="subscriptions.seek")
        assert len(moved) == 2
        assert (await cluster("audit.verify"))["intact"] is True


@pytest.mark.parametrize("partitions", [0, 2])
async def test_diagnosis_tells_who_moved_a_cursor_and_the_move_is_undone(
    cluster: Administered, partitions: int
) -> None:
    with anyio.fail_after(60):
        if partitions:
            await cluster("topics.create", topic="orders", partitions=partitions)
        log = "/default/orders-part-1" if partitions else "/default/orders"
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer(log) as producer:
                await producer.send_many([b"x"] * 500)
            async with client.consumer(log, "billing", name="worker-7") as consumer:
                await consumer.seek("latest")
        diagnosis = await cluster("diagnose.subscription", topic=log, subscription="billing")
        found = next(one for one in diagnosis["findings"] if one["rule"] == "cursor_moved_forward")
        assert found["severity"] == "info"
        assert "by client 'worker-7' 0 s ago: 500 unread messages were passed over" in found["summary"]
        assert (found["evidence"]["passed_over_messages"], found["evidence"]["moved_by"]) == (500, "worker-7")
        look = found["next"][0]
        records = (await cluster(look["operation"], **look["arguments"]))["items"]
        call_id = next(one["call_id"] for one in records if one["face"] == "data")
        undone = await cluster("changes.undo", call_id=call_id)
        assert undone["operation"] == "subscriptions.seek"
        (lag,) = (await cluster("subscriptions.lag", topic=log, subscription="billing"))["items"]
        assert (lag["lag_messages"], lag["next_unacked"]) == (500, 0)
        assert (await cluster.refused("changes.undo", call_id=call_id)).code == "PLAN_USED"


async def test_a_topic_whose_time_is_over_is_recorded_as_deleted(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with connect(cluster.broker.broker_url) as client, client.producer("short", unused_ttl_s=1):
            pass
        await until(lambda: by_data(cluster, operation="topics.delete"))  # nobody tells
        call, outcome = await by_data(cluster, operation="topics.delete")
        assert (call["principal"], call["arguments"]["topic"]) == ("unused_ttl_s", "/default/short")
        assert call["call_id"] == outcome["call_id"]


async def test_a_refused_seek_and_one_of_a_reader_leave_no_record(cluster: Administered) -> None:
    with anyio.fail_after(60):
        await cluster("topics.create", topic="t")
        async with connect(cluster.broker.broker_url) as client, client.reader("t") as reader:
            await reader.seek("latest")
            async with client.consumer("t", "s") as consumer:
                with pytest.raises(ClusterError, match="position"):
                    await consumer.seek("nonsense")
        assert [each["operation"] for each in await by_data(cluster)] == ["subscriptions.create"] * 2


async def test_a_client_that_moves_without_end_is_one_record_a_second(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer("t") as producer:
                await producer.send_many([b"x"] * 50)
            async with client.consumer("t", "s") as consumer:
                for offset in range(40):
                    await consumer.seek(f"offset:{offset}")
        moves = [each for each in await by_data(cluster) if each["operation"] == "subscriptions.seek"]
        calls = [each for each in moves if each["phase"] == "call"]
        assert sum(each["arguments"].get("times", 1) for each in calls) == 40
        assert len(calls) < 40
        assert moves[-1]["after"] == {"next_unacked": 39}


async def test_what_is_not_asked_for_is_written_all_the_same(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with connect(cluster.broker.broker_url) as client, client.producer("made"):
            pass
        while True:  # read as it is stored: a query would draw it in
            _, stored = await cluster.broker.port.read_audit(start=0, max_messages=100)
            if any(b'"topics.create"' in payload for _, payload in stored):
                break
            await anyio.sleep(0.02)


def test_more_than_are_kept_are_counted() -> None:
    woken: list[int] = []
    changes = DataChanges()
    changes.watch(lambda: woken.append(1))

    def note(topic: str) -> None:
        changes.note(
            DataChange(operation="topics.create", at_ms=0, principal=None, client="", address="", topic=topic)
        )

    for number in range(MOST_WAITING + 5):
        note(f"/default/t{number}")
    note("/default/t0")
    taken = changes.take()
    assert (len(taken.changes), taken.left_out, taken.changes[0].times, woken) == (MOST_WAITING, 5, 2, [1])
    assert changes.take().changes == ()
