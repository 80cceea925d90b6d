"""Three whole brokers on one etcd and one folder of objects: each serves what it owns, and every one knows where all is."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.election import Election, ElectionState
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.owner_choice import rounded_load
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.settings.sections import Settings
from pydanube_broker.tier import owned_store
from pydanube_core.errors import ClusterError, NotOwner, TierNotShared
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.services import CONSUMER_SERVICE, DISCOVERY, PRODUCER_SERVICE
from pydanube_storage.metadata import Put
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore
from pydanube_storage.objects import LocalStore, store_identity

from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


@pytest.fixture
async def cluster(etcd: EtcdMembers, tmp_path: Path) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path) as cluster:
        yield cluster


async def create(broker: Broker, name: str, partitions: int = 0) -> None:
    await broker.registry.create(
        TopicName.parse(name), partitions=partitions, dispatch_strategy="reliable", must_be_new=True
    )


def reasons(broker: Broker) -> list[str]:
    return [reason.code for reason in broker.port.degraded()]


async def call(broker: Broker, path: str, request: Any) -> bytes:
    return await broker.official.cold[path](request.SerializeToString())


async def test_new_topics_are_spread_over_the_brokers_and_each_has_one_owner(cluster: SeveralBrokers) -> None:
    for n in range(30):
        await create(cluster.brokers[1], f"t{n}")
    names = [TopicName.parse(f"t{n}") for n in range(30)]

    def owners() -> Counter[int]:
        return Counter(
            n for n, broker in cluster.brokers.items() for name in names if broker.registry.find(name)
        )

    await until(lambda: sum(owners().values()) == 30)
    # two choices by the number of topics: the fullest has few more than its share
    assert max(owners().values()) <= 16
    assert set(owners()) == {1, 2, 3}


async def test_partitions_of_one_topic_are_spread(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[2], "many", partitions=9)
    name = TopicName.parse("many")
    await until(lambda: sum(len(b.registry.parts(name)[1]) for b in cluster.brokers.values()) == 9)
    assert all(len(b.registry.parts(name)[1]) in range(1, 6) for b in cluster.brokers.values())


async def test_partitions_are_even_over_zones_and_others_hear_who_is_busy(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    zones = {"broker-1": "a", "broker-2": "a", "broker-3": "b"}

    def in_a_zone(settings: Settings) -> Broker:
        assert settings.data.dir is not None
        zone = zones[settings.data.dir.name]
        server = settings.server.model_copy(update={"zone": zone})
        return Broker(settings.model_copy(update={"server": server}))

    async with several_brokers(etcd, tmp_path, in_a_zone) as cluster:
        await create(cluster.brokers[1], "wide", partitions=8)
        await until(lambda: sum(broker.registry.count for broker in cluster.brokers.values()) == 8)
        assert cluster.brokers[3].registry.count == 4
        shown = {each.broker_id: each.zone for each in await cluster.brokers[2].port.members()}
        assert shown == {str(b.data_dir.broker_id): zones[f"broker-{n}"] for n, b in cluster.brokers.items()}
        busy = cluster.brokers[1].registry.ownership.coordinator
        await busy.membership.report_load(rounded_load({"network_in": 1e9, "network_out": 0.0, "cpu": 0.9}))
        busy_id = BrokerId(int(cluster.brokers[1].data_dir.broker_id))
        coordinator = cluster.brokers[2].registry.ownership.coordinator
        await until(lambda: coordinator.members[busy_id].load == {"network_in": 1e9, "cpu": 0.9})
        await coordinator.open()
        assert coordinator.members[busy_id].zone == "a", (
            "what a broker shows of itself stays when it shows another state"
        )


async def test_nothing_is_looked_over_while_nothing_changes(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Election] = []
    over_all: list[RegistryIndex] = []
    state, topics = Election.state, RegistryIndex.topics

    def noted_look(election: Election) -> ElectionState:
        looks.append(election)
        assert state.fget is not None
        found: ElectionState = state.fget(election)
        return found

    def noted_topics(index: RegistryIndex) -> list[TopicRecord]:
        over_all.append(index)
        return topics(index)

    monkeypatch.setattr(Election, "state", property(noted_look))
    monkeypatch.setattr(RegistryIndex, "topics", noted_topics)
    async with several_brokers(etcd, tmp_path, look_s=0.01) as cluster:
        await create(cluster.brokers[1], "wide", partitions=8)
        await until(lambda: sum(broker.registry.count for broker in cluster.brokers.values()) == 8)

        async def rests() -> bool:
            seen, begun = len(over_all), len(looks)
            await until(lambda: len(looks) > begun + 100)
            return len(over_all) == seen

        while not await rests():
            pass  # on a slow machine the leader sees the last change late
        assert await rests()
        before = len(over_all)
        await create(cluster.brokers[2], "new")
        await until(lambda: len(over_all) > before)


async def test_messages_sent_through_one_broker_are_read_through_another(cluster: SeveralBrokers) -> None:
    for n in range(12):
        async with (
            connect(cluster.brokers[1].broker_url) as client,
            client.producer(f"orders-{n}", partitions=2 if n % 2 else None) as producer,
        ):
            for i in range(5):
                await producer.send(b"%d-%d" % (n, i))
    seen = Counter[bytes]()
    async with connect(cluster.brokers[3].broker_url) as client:
        for n in range(12):
            with anyio.fail_after(60):
                async with client.consumer(f"orders-{n}", "all", start="earliest") as consumer:
                    for _ in range(5):
                        message = await anext(consumer)
                        seen[message.payload] += 1
                        await message.ack()
    assert seen == Counter({b"%d-%d" % (n, i): 1 for n in range(12) for i in range(5)})


async def test_topic_made_at_one_broker_is_found_at_another_at_once(cluster: SeveralBrokers) -> None:
    for n in range(20):
        await create(cluster.brokers[1], f"fresh-{n}")
        request = pb.TopicLookupRequest(request_id=n, topic=f"/default/fresh-{n}")
        answer = pb.TopicLookupResponse.FromString(
            await call(cluster.brokers[2], DISCOVERY["TopicLookup"].path, request)
        )
        assert answer.connect_url in {broker.broker_url for broker in cluster.brokers.values()}


async def test_official_lookup_redirects_to_the_owner(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "here")
    await until(lambda: any(b.registry.find(TopicName.parse("here")) for b in cluster.brokers.values()))
    owner = cluster.owner("here")
    request = pb.TopicLookupRequest(request_id=1, topic="/default/here")
    for broker in cluster.brokers.values():
        answer = pb.TopicLookupResponse.FromString(await call(broker, DISCOVERY["TopicLookup"].path, request))
        kind = pb.TopicLookupResponse.LookupType.Name(answer.response_type)
        assert kind == ("Connect" if broker is owner else "Redirect")
        assert (answer.connect_url, answer.broker_url, answer.proxy) == (
            owner.broker_url,
            owner.broker_url,
            False,
        )


async def test_official_session_at_the_wrong_broker_is_told_to_look_up(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "strict")
    await until(lambda: any(b.registry.find(TopicName.parse("strict")) for b in cluster.brokers.values()))
    for broker in cluster.others("strict"):
        for path, request in (
            (
                PRODUCER_SERVICE["CreateProducer"].path,
                pb.ProducerRequest(
                    producer_name="p",
                    topic_name="/default/strict",
                    dispatch_strategy=pb.DispatchStrategy.Reliable,
                ),
            ),
            (
                CONSUMER_SERVICE["Subscribe"].path,
                pb.ConsumerRequest(consumer_name="c", topic_name="/default/strict", subscription="s"),
            ),
        ):
            with pytest.raises(NotOwner) as caught:
                await call(broker, path, request)
            assert caught.value.details["broker_url"] == cluster.owner("strict").broker_url


async def test_unknown_topic_is_unknown_everywhere(cluster: SeveralBrokers) -> None:
    for broker in cluster.brokers.values():
        request = pb.TopicLookupRequest(request_id=1, topic="/default/nowhere")
        with pytest.raises(ClusterError) as caught:
            await call(broker, DISCOVERY["TopicLookup"].path, request)
        assert caught.value.code == "TOPIC_NOT_FOUND"


async def test_deletion_at_another_broker_ends_the_topic_at_its_owner(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "short")
    name = TopicName.parse("short")
    await until(lambda: any(b.registry.find(name) for b in cluster.brokers.values()))
    await cluster.others("short")[0].registry.delete(name)
    await until(lambda: not any(b.registry.find(name) for b in cluster.brokers.values()))


async def test_restarted_broker_has_its_topics_again_and_nothing_else(cluster: SeveralBrokers) -> None:
    async with connect(cluster.brokers[1].broker_url) as client:
        for n in range(9):
            async with client.producer(f"kept-{n}") as producer:
                await producer.send(b"%d" % n)
    before = {
        n: {str(t.options.topic) for t in b.registry.topics if t.options.topic.namespace == "default"}
        for n, b in cluster.brokers.items()
    }
    await cluster.stop(2)
    await cluster.start(2)
    await cluster.all_know_all()
    after = {
        n: {str(t.options.topic) for t in b.registry.topics if t.options.topic.namespace == "default"}
        for n, b in cluster.brokers.items()
    }
    assert after == before
    async with connect(cluster.brokers[3].broker_url) as client:
        for n in range(9):
            with anyio.fail_after(60):
                async with client.consumer(f"kept-{n}", "all", start="earliest") as consumer:
                    assert (await anext(consumer)).payload == b"%d" % n


async def test_owner_that_is_down_keeps_its_topics(cluster: SeveralBrokers) -> None:
    for n in range(6):
        await create(cluster.brokers[1], f"stay-{n}")
    names = [TopicName.parse(f"stay-{n}") for n in range(6)]
    await until(
        lambda: sum(b.registry.find(x) is not None for b in cluster.brokers.values() for x in names) == 6
    )
    gone = {str(name) for name in names if cluster.brokers[3].registry.find(name)}
    await cluster.stop(3)
    for name in gone:
        with pytest.raises(NotOwner):
            raise cluster.brokers[1].registry.not_found(TopicName.parse(name))
    if gone:
        for broker in cluster.brokers.values():
            await until(lambda broker=broker: "OWNER_DOWN" in reasons(broker))
    # what is made now goes to those that are there
    for n in range(6):
        await create(cluster.brokers[1], f"later-{n}")
    later = [TopicName.parse(f"later-{n}") for n in range(6)]
    await until(
        lambda: sum(b.registry.find(x) is not None for b in cluster.brokers.values() for x in later) == 6
    )


async def test_non_reliable_topics_of_a_broker_that_is_gone_are_served_by_another(
    cluster: SeveralBrokers,
) -> None:
    names = [TopicName.parse(f"live-{n}") for n in range(9)]
    for name in names:
        await cluster.brokers[1].registry.create(name, partitions=0, dispatch_strategy="non_reliable")
    await until(
        lambda: sum(b.registry.find(x) is not None for b in cluster.brokers.values() for x in names) == 9
    )
    await cluster.stop(2)
    await until(
        lambda: sum(b.registry.find(x) is not None for b in cluster.brokers.values() for x in names) == 9
    )


async def test_topic_whose_assignment_cannot_be_read_holds_up_no_topic_without_an_owner(
    cluster: SeveralBrokers,
) -> None:
    first = cluster.brokers[1]
    (unreadable,) = await first.registry.create(
        TopicName.parse("t"), partitions=0, dispatch_strategy="reliable", here=True
    )
    await first.registry.create(
        TopicName.parse("live"), partitions=0, dispatch_strategy="non_reliable", here=True
    )
    key = keys.assignment_key(unreadable.options.topic_id)
    item = await first.admin_state.store.get(key)
    assert item is not None
    newer = item.value.replace(b'{"version":1,', b'{"version":9,')
    await first.admin_state.store.transact([Put(key, newer)])
    for n in (2, 3):
        await cluster.stop(n)
    await cluster.start(2)
    await cluster.stop(1)
    await until(lambda: cluster.serves_name("live"))
    found = await cluster.brokers[2].admin_state.store.get(key)
    assert found is not None
    assert found.value == newer


async def test_one_leads_and_another_follows_when_it_is_gone(cluster: SeveralBrokers) -> None:
    def leaders() -> list[int]:
        return [n for n, broker in cluster.brokers.items() if broker.registry.ownership.coordinator.leads()]

    await until(lambda: len(leaders()) == 1)
    await until(lambda: not any(reasons(broker) for broker in cluster.brokers.values()))
    await cluster.stop(leaders()[0])
    await until(lambda: len(leaders()) == 1)
    leader = cluster.brokers[leaders()[0]].address()
    await until(lambda: all(b.registry.ownership.leader() == leader for b in cluster.brokers.values()))


async def test_brokers_share_one_folder_of_objects_without_touching_each_others(
    cluster: SeveralBrokers,
) -> None:
    for n in range(6):
        async with connect(cluster.brokers[1].broker_url) as client, client.producer(f"cold-{n}") as producer:
            await producer.send(b"%d" % n)
    for broker in cluster.brokers.values():
        assert broker.tier.hold.held
        assert broker.tier.hold.reason is None
    assert len({broker.tier.cluster for broker in cluster.brokers.values()}) == 1


@pytest.mark.parametrize("other", ["another-clusters", "private"])
async def test_broker_that_does_not_share_the_store_is_refused(
    cluster: SeveralBrokers, tmp_path: Path, other: str
) -> None:
    if other == "another-clusters":  # a folder with a mark that some other cluster made
        name = cluster.brokers[1].tier.cluster
        store_identity(LocalStore(tmp_path / other), name, "0123456789abcdef")
    with pytest.raises(TierNotShared, match=r"brokers of one cluster share one object store"):
        async with Broker(cluster.settings(4, tier=other)):
            pass
    assert not list((tmp_path / other).rglob("*.parquet"))
    await cluster.all_know_all()  # it is no member


async def test_brokers_that_start_at_once_call_their_store_the_same(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store lets both of two name it, as those do that know no conditional writes."""
    meeting, given = threading.Barrier(2), list[str]()

    def identity(store: object, cluster: str, proposed: str) -> str:
        if proposed:
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(1)
            given.append(proposed)
        return given[-1] if given else ""

    monkeypatch.setattr(owned_store, "store_identity", identity)
    async with anyio.create_task_group() as group:
        cluster = SeveralBrokers(etcd, tmp_path, group)
        async with anyio.create_task_group() as starting:
            for n in (1, 2, 3):
                starting.start_soon(cluster.start, n)
        await cluster.all_know_all()
        for n in (1, 2, 3):
            await cluster.stop(n)
    assert len(given) == 1


async def test_who_was_about_to_name_the_store_and_is_gone_is_not_waited_for(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_store, "NAMING_S", 0.0)
    async with anyio.create_task_group() as group:
        cluster = SeveralBrokers(etcd, tmp_path, group)
        url = str(cluster.settings(1).metadata.url)
        async with EtcdStore(EtcdOptions(address=EtcdAddress.parse(url))) as store:
            founded = Put("/cluster/identity", b'{"cluster_id": "0123456789abcdef"}')
            await store.transact([founded, Put("/tier/store", b"0123456789abcdef 77")])
        await cluster.start(1)
        await cluster.start(2)
        await cluster.all_know_all()
        for n in (1, 2):
            await cluster.stop(n)


async def test_client_that_was_given_a_dead_address_first_asks_the_next(cluster: SeveralBrokers) -> None:
    (dead,) = free_ports(1)
    url = f"danube://127.0.0.1:{dead},{cluster.brokers[2].broker_url.removeprefix('http://')}"
    async with connect(url) as client, client.producer("by-the-second") as producer:
        assert (await producer.send(b"x")).offset == 0


async def test_client_learns_the_others_and_outlives_the_broker_it_was_given(cluster: SeveralBrokers) -> None:
    async with connect(cluster.brokers[3].broker_url) as client:
        for n in range(6):
            async with client.producer(f"learned-{n}") as producer:
                await producer.send(b"x")
        await cluster.stop(3)
        for n in range(6):
            async with client.producer(f"after-{n}") as producer:
                await producer.send(b"x")
