"""A lone broker becomes the first one of a cluster on etcd: nothing is lost, whenever the command is killed."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.identity import IDENTITY
from pydanube_broker.home.adoption import adopt
from pydanube_broker.home.cluster_file import CLUSTER_FILE, SQLITE
from pydanube_broker.home.metadata_home import ADOPTING, options_of
from pydanube_broker.schema.vocabulary import SchemaType
from pydanube_broker.settings.sections import Data, Metadata, Settings
from pydanube_core.errors import ClusterMismatch, InvalidArgument, ObjectMissing, TierNotShared
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import KeyRange, Put
from pydanube_storage.metadata.etcd import EtcdStore

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.serving.test_undo_among_several import grace
from tests.support.etcd import EtcdMembers
from tests.support.killed_steps import killed_at
from tests.support.several_brokers import FREE, SMALL, SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]

STORED = [b"stored-%d" % n for n in range(10)]
TAIL = [b"tail-%d" % n for n in range(5)]


def on_prefix(settings: Settings, key: str) -> str:
    """The key as etcd has it."""
    return "/" + settings.metadata.url.partition("://")[2].partition("/")[2] + key


def alone(folder: Path) -> Settings:
    return Settings(server=FREE, data=Data(dir=folder), journal=SMALL)


async def lone_broker(folder: Path) -> dict[str, int]:
    """A directory with a topic of which a part is in objects, a partitioned one and a deleted one; ids by name."""
    async with Broker(alone(folder)) as broker:
        async with connect(broker.broker_url) as client, client.producer("t") as producer:
            await producer.send_many(STORED)
            assert await broker.port.flush_objects("t") == len(STORED)
            await producer.send_many(TAIL)
            async with client.consumer("t", "s", start="earliest") as consumer:
                for _ in range(3):
                    await (await anext(consumer)).ack()
            served = broker.registry.find(TopicName.parse("t"))
            assert served is not None
            await until(lambda: served.subscriptions["s"].floor == 3)
        await broker.registry.create(TopicName.parse("p"), partitions=2, dispatch_strategy="reliable")
        await broker.registry.audit_topic()
        await broker.registry.schemas.registry.register(
            "schema", SchemaType.JSON_SCHEMA, b'{"type": "object"}'
        )
        gone = TopicName.parse("gone")
        await broker.registry.create(gone, partitions=0, dispatch_strategy="reliable")
        async with connect(broker.broker_url) as client, client.producer("gone") as producer:
            await producer.send(b"back")
        await broker.registry.delete(gone, grace=grace("c1"))
        for n in range(100):  # so that the ids are above what etcd would give out
            await broker.admin_state.write({f"test/{n}": b"x"}, {})
        await broker.registry.create(TopicName.parse("last"), partitions=0, dispatch_strategy="reliable")
        return ids_of(broker)


def ids_of(broker: Broker) -> dict[str, int]:
    """Of topics, subscriptions and a schema, by name."""
    index, schemas = broker.registry.catalog.index, broker.registry.schemas.registry.index
    return {
        "schema": schemas.subject("schema").schema_id,
        **{str(each.topic): each.topic_id for each in index.topics()},
        **{
            f"{each.topic} {one.name}": one.subscription_id
            for each in index.topics()
            for one in index.subscriptions(each.topic_id)
        },
    }


def files_below(folder: Path) -> list[str]:
    """Return the names of files in a folder and in those below."""
    return [each.name for each in folder.rglob("*") if each.is_file()]


async def assert_all_there(broker: Broker) -> None:
    """Every message, and the subscription where it was."""
    async with connect(broker.broker_url) as client:
        async with client.reader("t", start="earliest") as reader:
            assert [(await anext(reader)).payload for _ in [*STORED, *TAIL]] == STORED + TAIL
        async with client.consumer("t", "s") as consumer:
            assert (await anext(consumer)).payload == STORED[3]


async def test_a_lone_broker_goes_on_as_the_first_of_several(cluster: SeveralBrokers) -> None:
    settings = cluster.settings(1)
    folder = settings.data.dir
    assert folder is not None
    ids = await lone_broker(folder)
    forecast = await adopt(settings, dry_run=True)
    async with EtcdStore(options_of(settings)) as etcd:
        assert not (await etcd.range(KeyRange.prefix("/"))).items, "a dry run changes nothing"
    assert files_below(Path(str(settings.tier.url))) == []
    assert (SQLITE in files_below(folder), CLUSTER_FILE in files_below(folder)) == (True, False)
    done = await adopt(settings)
    assert replace(done, cluster_id="") == forecast
    assert done.objects
    await cluster.start(1)
    adopted = cluster.brokers[1]
    assert ids_of(adopted) == {
        f"{name}-{done.broker_id}" if name == AUDIT_TOPIC else name: number for name, number in ids.items()
    }
    await assert_all_there(adopted)
    await adopted.registry.restore("c1")
    async with connect(adopted.broker_url) as client, client.reader("gone", start="earliest") as reader:
        assert (await anext(reader)).payload == b"back", "what was deleted can still be undone"
    await cluster.start(2)
    await cluster.all_know_all()
    await move(cluster, "t", cluster.brokers[2])
    await assert_all_there(cluster.brokers[2])
    new = TopicName.parse("new")
    await adopted.registry.create(new, partitions=0, dispatch_strategy="reliable", here=True)
    made = adopted.registry.catalog.index.find_topic(new)
    assert made is not None
    revisions = [each for each in ids.values() if not each >> 40]  # the others are from leased blocks
    assert made.topic_id > max(revisions), "no id is given out twice"
    await cluster.stop(2)
    await cluster.stop(1)
    with pytest.raises(ClusterMismatch, match="belongs to the cluster"):
        await adopt(settings)


async def test_it_is_gone_on_with_wherever_it_was_killed(cluster: SeveralBrokers) -> None:
    settings = cluster.settings(1)
    folder, objects = settings.data.dir, settings.tier.url
    assert folder is not None
    assert objects is not None
    await lone_broker(folder)
    elsewhere = Metadata(url=f"{settings.metadata.url}-another")
    killed = 0
    while True:
        code = await killed_at(killed, "adopt", settings)
        if code != -signal.SIGKILL:
            break
        killed += 1
        if not (folder / "cluster.json").exists():
            async with Broker(alone(folder)) as broker:  # it may still go on alone
                await assert_all_there(broker)
            continue
        with pytest.raises(ClusterMismatch, match="may be complete"):
            await adopt(settings.model_copy(update={"metadata": elsewhere}))
        for start in (alone(folder), settings):
            with pytest.raises(ClusterMismatch, match="cluster adopt"):
                await Broker(start).__aenter__()
    assert code == 0
    assert killed >= 4, "every step was one to be killed at"
    await cluster.start(1)
    await assert_all_there(cluster.brokers[1])


async def test_what_cannot_be_adopted_is_said_and_left_alone(cluster: SeveralBrokers, tmp_path: Path) -> None:
    settings = cluster.settings(1)
    folder = settings.data.dir
    assert folder is not None
    with pytest.raises(InvalidArgument, match="is no data directory"):
        await adopt(settings)
    assert not folder.exists()
    await lone_broker(folder)
    with pytest.raises(InvalidArgument, match="--metadata etcd://"):
        await adopt(alone(folder))
    with pytest.raises(TierNotShared):
        await adopt(Settings(data=Data(dir=folder), metadata=settings.metadata))
    (stored,) = folder.glob("objects/*/topics/default/t/*/*.parquet")
    aside = stored.rename(tmp_path / "aside.parquet")
    with pytest.raises(ObjectMissing, match="DANUBE_TIER__URL"):
        await adopt(settings)
    aside.rename(stored)
    async with EtcdStore(options_of(settings)) as on_etcd:
        page = await on_etcd.range(KeyRange.prefix("/"))
        assert not page.items, "nothing was changed"
        for key, what in (("/else", "something else"), (IDENTITY, "another cluster")):
            await on_etcd.transact([Put(key, b'{"cluster_id": "another"}')])
            with pytest.raises(ClusterMismatch, match=f"holds {what}"):
                await adopt(settings)
    async with Broker(alone(folder)) as broker:
        await assert_all_there(broker)


async def test_two_that_are_moved_to_one_prefix_do_not_mix(
    cluster: SeveralBrokers, etcd: EtcdMembers
) -> None:
    settings = cluster.settings(1)
    folder = settings.data.dir
    assert folder is not None
    await lone_broker(folder)

    def say(line: str) -> None:
        if "keys of the metadata go to" in line:  # the other one was quicker with its objects
            etcd.control("put", on_prefix(settings, ADOPTING), "another")
            etcd.control("put", on_prefix(settings, "/registry/namespaces/of-the-other"), "x")

    with pytest.raises(ClusterMismatch, match="holds something else"):
        await adopt(settings, say=say)
    async with EtcdStore(options_of(settings)) as on_etcd:
        assert len((await on_etcd.range(KeyRange.prefix("/"))).items) == 2, "what the other wrote is there"
    async with Broker(alone(folder)) as broker:
        await assert_all_there(broker)
