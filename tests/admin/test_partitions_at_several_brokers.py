"""A partitioned topic whose partitions are at three brokers is one topic for every operation, whichever broker is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import Producer, Retry, Unavailable, connect
from pydanube.outage import NOTICE_S
from pydanube.routing import Router, Routing
from pydanube_broker.broker import Broker
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName

from tests.admin.test_any_broker_administers import administered, ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]
PARTS = [TopicName.parse(f"wide-part-{n}") for n in range(6)]


@pytest.fixture(scope="module")
async def brokers(
    etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SeveralBrokers]:
    """Three brokers for the tests that leave all of them running."""
    async with several_brokers(etcd, tmp_path_factory.mktemp("brokers"), administered) as cluster:
        yield cluster


async def make_wide(cluster: SeveralBrokers) -> None:
    """Make `wide`: two partitions at each broker, three messages in each."""
    first, *_ = cluster.brokers.values()
    await ask(first, "topics.create", topic="wide", partitions=6)
    for n, part in enumerate(PARTS):
        await until(lambda part=part: cluster.serves(part))
        target = cluster.brokers[1 + n % 3]
        if cluster.owner(str(part)) is not target:
            await ask(first, "topics.move", topic=str(part), to_broker=id_of(target))
            await until(lambda part=part, target=target: target.registry.find(part) is not None)
    async with connect(first.broker_url) as client:
        for part in PARTS:
            async with client.producer(str(part)) as producer:
                for n in range(3):
                    await producer.send(b"%d" % n)


@pytest.fixture
async def cluster(brokers: SeveralBrokers) -> AsyncIterator[SeveralBrokers]:
    """The three with a `wide` of this test."""
    await make_wide(brokers)
    yield brokers
    if any(brokers.serves(part) for part in PARTS):
        await planned(brokers.brokers[1], "topics.delete", topic="wide")
        await until(lambda: not any(brokers.serves(part) for part in PARTS))


@pytest.fixture
async def mortal(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    """Three brokers of which a test stops one, with `wide`."""
    async with several_brokers(etcd, tmp_path, administered) as cluster:
        await make_wide(cluster)
        yield cluster


def lags(answer: dict[str, Any]) -> list[int]:
    return [each["lag_messages"] for each in answer["items"]]


async def planned(broker: Broker, operation: str, **arguments: Any) -> dict[str, Any]:
    with pytest.raises(ClusterError) as caught:
        await ask(broker, operation, **arguments)
    assert caught.value.code == "PLAN_REQUIRED"
    plan: dict[str, Any] = caught.value.details["plan"]
    done = await ask(broker, operation, **arguments, plan_token=plan["plan_token"])
    return {**plan, **done}


async def test_subscriptions_and_cursors_of_all_partitions(cluster: SeveralBrokers) -> None:
    for broker in cluster.brokers.values():
        name = f"s{broker.data_dir.broker_id}"
        of = {"topic": "wide", "subscription": name}
        await ask(broker, "subscriptions.create", **of, type="shared", start="earliest")
        described = await ask(broker, "subscriptions.describe", **of)
        assert described["lag_messages"] == 18
        with pytest.raises(ClusterError) as caught:
            await ask(broker, "subscriptions.skip", **of, count=1)
        assert caught.value.code == "INVALID_ARGUMENT"
        sought = await planned(broker, "subscriptions.seek", **of, to="latest")
        assert lags(await ask(broker, "subscriptions.lag", **of)) == [0] * 6
        await ask(broker, "changes.undo", call_id=sought["call_id"])
        assert lags(await ask(broker, "subscriptions.lag", **of)) == [3] * 6
        await planned(broker, "subscriptions.purge", **of)
        assert lags(await ask(broker, "subscriptions.lag", **of)) == [0] * 6
        policy = await ask(broker, "subscriptions.set_failure_policy", **of, ack_timeout_ms=7000)
        assert policy["ack_timeout_ms"] == 7000
        found = (await ask(broker, "diagnose.subscription", **of))["subject"]
        assert found == {"topic": "/default/wide", "subscription": name}
        await planned(broker, "subscriptions.delete", **of)
        for part in PARTS:
            owner = cluster.owner(str(part)).registry.find(part)
            await until(lambda owner=owner, name=name: name not in owner.subscriptions)


async def test_policies_hold_at_every_owner(cluster: SeveralBrokers) -> None:
    for n, broker in enumerate(cluster.brokers.values(), start=5):
        await ask(broker, "topics.set_policies", topic="wide", policies={"max_publish_rate": n})
        found = await ask(broker, "topics.get_policies", topic="wide")
        assert found["policies"] == {"max_publish_rate": n}
        for part in PARTS:
            topic = cluster.owner(str(part)).registry.find(part)
            assert topic is not None
            await until(lambda topic=topic, n=n: topic.gate.limits.as_policies()["max_publish_rate"] == n)


async def test_truncated_and_deleted_with_every_partition(cluster: SeveralBrokers) -> None:
    _, second, third = cluster.brokers.values()
    cut = await planned(second, "topics.truncate", topic="wide", before="offset:2")
    assert (cut["blast_radius"]["messages"], cut["messages"]) == (12, 12)
    described = await ask(third, "topics.describe", topic="wide")
    assert [part["start_offset"] for part in described["parts"]] == [2] * 6
    metrics = await ask(third, "topics.metrics", topic="wide")
    assert metrics["messages_in"] == 18
    gone = await planned(third, "topics.delete", topic="wide")
    assert gone["blast_radius"]["messages"] == 6
    await until(lambda: not any(cluster.serves(part) for part in PARTS))
    for broker in cluster.brokers.values():
        assert (await ask(broker, "topics.list"))["items"] == []


async def test_messages_are_looked_at_wherever_they_are(cluster: SeveralBrokers) -> None:
    for broker in cluster.brokers.values():
        found = (await ask(broker, "messages.peek", topic="wide", limit=18))["items"]
        assert sorted((each["partition"], each["offset"]) for each in found) == [
            (partition, offset) for partition in range(6) for offset in range(3)
        ]
        with pytest.raises(ClusterError, match="name one partition") as caught:
            await ask(broker, "topics.chart", topic="wide")
        assert caught.value.code == "NOT_OWNER"
        peeked = await ask(broker, "messages.peek", topic="wide-part-3")
        assert [each["offset"] for each in peeked["items"]] == [0, 1, 2]


async def test_dead_letters_in_partitions_of_all_brokers_are_copied(cluster: SeveralBrokers) -> None:
    first, *_ = cluster.brokers.values()
    failed = {"topic": "failing", "subscription": "s"}
    await ask(first, "topics.create", topic="failing")
    await ask(first, "subscriptions.create", **failed, type="shared", start="earliest")
    policy = {"poison_policy": "dead_letter", "dead_letter_topic": "wide"}
    await ask(first, "subscriptions.set_failure_policy", **failed, **policy)
    letter = {"x-original-topic": "/default/failing", "x-original-subscription": "s", "x-shop": "7"}
    async with connect(first.broker_url) as client:
        for n, part in enumerate(PARTS):
            async with client.producer(str(part)) as producer:
                await producer.send(b"%d" % n, attributes={**letter, "x-original-topic-offset": str(n)})
        for broker in cluster.brokers.values():
            to = f"repaired-{id_of(broker)}"
            assert (await ask(broker, "dead_letters.replay", **failed, to=to))["messages"] == len(PARTS)
            async with client.reader(to, stop="head") as reader:
                copies = [copy async for copy in reader]
            assert sorted(copy.payload for copy in copies) == [b"%d" % n for n in range(len(PARTS))]
            assert [{*copy.attributes} for copy in copies] == [{"x-shop", "x-replayed-from"}] * len(PARTS)
    await planned(first, "topics.delete", topic="failing")


async def test_change_that_an_owner_cannot_make_names_it_and_changes_nothing(mortal: SeveralBrokers) -> None:
    first, gone = mortal.brokers[1], mortal.brokers[3]
    await ask(first, "subscriptions.create", topic="wide", subscription="s", start="earliest")
    gone_id = id_of(gone)
    await mortal.stop(3)
    for operation, arguments in (
        ("subscriptions.seek", {"subscription": "s", "to": "latest"}),
        ("topics.set_policies", {"policies": {"max_publish_rate": 5}}),
        ("topics.delete", {}),
    ):
        with pytest.raises(ClusterError, match="does not answer") as caught:
            await ask(first, operation, topic="wide", **arguments)
        assert gone_id in caught.value.message
        assert caught.value.retryable
    answer = await ask(first, "subscriptions.lag")
    assert lags(answer) == [3] * 4
    assert [each["broker_id"] for each in answer["not_seen"]] == [gone_id]


async def test_partitions_whose_broker_is_gone_hold_up_no_message_without_a_key(
    mortal: SeveralBrokers,
) -> None:
    """Two of six are at that broker. Messages with a key, or with `partition=`, wait for it."""
    first, gone = mortal.brokers[1], mortal.brokers[3]
    down = {n for n, part in enumerate(PARTS) if mortal.owner(str(part)) is gone}
    retry = Retry(initial_s=0.01, max_delay_s=0.1)
    async with connect(first.broker_url, retry=retry) as client, client.producer("wide") as before:
        await before.send_many([b"open everywhere"] * 6)
        await mortal.stop(3)
        kept = before.send_nowait(b"bound", partition=min(down))
        async with (
            client.producer("wide") as later,
            client.producer("wide", routing="round-robin") as in_turn,
        ):
            for producer in (before, later, in_turn):
                with anyio.fail_after(60):
                    receipts = [await producer.send(b"%d" % n) for n in range(30)]
                    assert (await producer.send_many([b"many"] * 100)).count == 100
                assert not down & {receipt.partition for receipt in receipts}
            keyed = later.send_nowait(b"keyed", key=key_of(min(down)))
            assert not kept.done()
            assert not keyed.done()
            await mortal.start(3)
            with anyio.fail_after(60):
                assert (await kept).partition == (await keyed).partition == min(down)
                await until_in(down, later)


async def test_who_waits_for_a_broker_that_is_gone_learns_which_and_what_to_do(
    mortal: SeveralBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    first, gone = mortal.brokers[1], mortal.brokers[3]
    topic = next(str(part) for part in PARTS if mortal.owner(str(part)) is gone)
    gone_id = id_of(gone)
    await mortal.stop(3)
    await until(lambda: int(gone_id) not in first.registry.ownership.coordinator.members)
    async with connect(first.broker_url, retry=Retry(max_elapsed_s=NOTICE_S + 1)) as client:
        for opened in (client.producer(topic), client.consumer(topic, "s")):
            with pytest.raises(Unavailable) as caught:
                await opened.__aenter__()
            said = caught.value
            assert (said.details["broker_id"], said.details["state"]) == (gone_id, "gone")
            assert f"{topic} waits for broker {gone_id}" in said.message
            assert f"danube brokers remove {gone_id}" in said.message
    assert f"{topic} waits for broker {gone_id}" in caplog.text, "as a warning, long before the error"


async def until_in(partitions: set[int], producer: Producer) -> None:
    """Send until messages without a key go to one of these partitions again."""
    while (await producer.send(b"x")).partition not in partitions:
        pass


def key_of(partition: int) -> str:
    router = Router(Routing.KEY, len(PARTS))
    return next(key for key in map(str, count()) if router.pick(key, None) == partition)


async def test_what_changed_at_any_broker_is_told_by_each(mortal: SeveralBrokers) -> None:
    first, second, _ = mortal.brokers.values()
    await ask(first, "subscriptions.create", topic="wide", subscription="s", start="earliest")
    lists = ("topics.list", "subscriptions.list", "subscriptions.lag")
    marks = {operation: (await ask(first, operation))["mark"] for operation in lists}
    async with connect(first.broker_url) as client, client.producer(str(PARTS[2])) as producer:
        await producer.send(b"x")
    for broker in mortal.brokers.values():  # a mark is good at each of them
        found = {
            operation: await ask(broker, operation, changed_since=mark) for operation, mark in marks.items()
        }
        assert [each["messages"] for each in found["topics.list"]["items"]] == [19]
        assert lags(found["subscriptions.list"]) == [19]
        assert 4 in lags(found["subscriptions.lag"])
        assert all("whole_because" not in answer for answer in found.values())
    await mortal.stop(3)
    whole = await ask(second, "topics.list", changed_since=marks["topics.list"])
    assert whole["whole_because"] == "brokers_changed"
    assert [each["topic"] for each in whole["items"]] == ["/default/wide"]


async def test_partitions_are_added_for_all_brokers_and_taken_away_at_their_owners(
    cluster: SeveralBrokers,
) -> None:
    first, second, third = cluster.brokers.values()
    await ask(first, "subscriptions.create", topic="wide", subscription="idle", type="shared")
    added = await ask(second, "topics.add_partitions", topic="wide", partitions=9)
    for broker in (first, second, third):
        async with connect(broker.broker_url) as client, client.producer("wide") as producer:
            assert producer.partitions == 9
    new = [TopicName.parse(f"wide-part-{n}") for n in (6, 7, 8)]
    for part in new:
        await until(lambda part=part: cluster.serves(part))
        owner = cluster.owner(str(part)).registry.find(part)
        await until(lambda owner=owner: "idle" in owner.subscriptions and not owner.producers_connected)
    target = next(broker for broker in (first, second) if broker.registry.find(new[0]) is None)
    await ask(third, "topics.move", topic=str(new[0]), to_broker=id_of(target))
    await until(lambda: target.registry.find(new[0]) is not None)
    await ask(third, "changes.undo", call_id=added["call_id"])
    for broker in (first, second, third):
        await until(lambda broker=broker: len(broker.registry.catalog.index.partitions(PARTS[0].base)) == 6)
        assert (await ask(broker, "topics.describe", topic="wide"))["partitions"] == 6
