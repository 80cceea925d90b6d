"""The last broker of a cluster goes on alone: nothing is lost, whenever the command is killed, and nobody else starts there."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.home.adoption import adopt
from pydanube_broker.home.cluster_file import SQLITE, Home
from pydanube_broker.home.metadata_home import broker_key, options_of
from pydanube_broker.home.release import Released, release
from pydanube_broker.settings.sections import Data, Metadata, Settings, Tier
from pydanube_broker.tier.status import reasons_of
from pydanube_core.errors import ClusterMismatch, Conflict, InvalidArgument, ObjectMissing, TierNotShared
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import KeyRange, Put, read_all
from pydanube_storage.metadata.etcd import EtcdStore

from tests.broker.home.test_adoption import (
    TAIL,
    alone,
    assert_all_there,
    files_below,
    ids_of,
    lone_broker,
    on_prefix,
)
from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.moves.test_removal_of_a_broker import gone
from tests.support.broker_process import client_environment, run_danube
from tests.support.etcd import EtcdMembers
from tests.support.killed_steps import killed_at
from tests.support.several_brokers import FREE, SeveralBrokers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]


def folder_of(settings: Settings) -> Path:
    assert settings.data.dir is not None
    return settings.data.dir


def sharing(settings: Settings) -> Settings:
    """The broker without etcd, its objects where the cluster's are."""
    return Settings(server=FREE, data=settings.data, journal=settings.journal, tier=settings.tier)


async def test_the_last_of_several_goes_on_alone_and_may_come_again(cluster: SeveralBrokers) -> None:
    settings = cluster.settings(1)
    ids = await lone_broker(folder_of(settings))
    await adopt(settings)
    for n in (1, 2):
        await cluster.start(n)
    await cluster.all_know_all()
    await move(cluster, "t", cluster.brokers[2])
    two = cluster.brokers[2]
    await two.registry.create(TopicName.parse("two"), partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(two.broker_url) as client, client.producer("two") as producer:
        await producer.send(b"of two")
    ids["/default/two"] = ids_of(two)["/default/two"]
    for name in ("t", "two"):
        await move(cluster, name, cluster.brokers[1])
    removed = await gone(cluster, 2)
    await cluster.brokers[1].port.remove_broker(removed)
    await cluster.stop(1)

    copied = await release(settings, copy=True, dry_run=True)
    assert copied.url == str(folder_of(settings) / "objects")
    assert not {SQLITE, f"{SQLITE}.new"} & set(files_below(folder_of(settings)))
    words = ("release", str(folder_of(settings)), "--metadata", settings.metadata.url, "--json")
    answers = []
    for more in (("--dry-run",), ()):
        environment = client_environment({"DANUBE_TIER__URL": str(settings.tier.url)})
        command = partial(run_danube, "cluster", *words, *more, environment=environment)
        ran = await anyio.to_thread.run_sync(command)
        answers.append(json.loads(ran.stdout))
    assert [each.pop("dry_run") for each in answers] == [True, False]
    assert answers[0] == answers[1], "what was forecast was done"
    done = Released(**answers[1])
    assert done.objects
    assert done.url == settings.tier.url
    async with Broker(alone(folder_of(settings))) as broker:  # tier.url was forgotten
        assert [reason.code for reason in reasons_of(broker.tier)] == ["TIER_STORE_EMPTY"]
    async with Broker(sharing(settings)) as broker:
        found = ids_of(broker)
        assert {name: found[name] for name in ids} == ids, "the audit has its name of a lone broker again"
        await assert_all_there(broker)
        async with connect(broker.broker_url) as client, client.reader("two", start="earliest") as reader:
            assert (await anext(reader)).payload == b"of two"
        await broker.registry.restore("c1")
        await broker.registry.create(TopicName.parse("new"), partitions=0, dispatch_strategy="reliable")
        assert ids_of(broker)["/default/new"] > max(each for each in found.values() if not each >> 40), (
            "no id is given out twice"
        )
        async with connect(broker.broker_url) as client, client.producer("t") as producer:
            await producer.send(b"after")
        assert await broker.port.flush_objects("t") == len(TAIL) + 1
        ids = ids_of(broker)

    for n in (2, 3):  # one that was removed, and a new one
        with pytest.raises(ClusterMismatch, match="was released"):
            await Broker(cluster.settings(n)).__aenter__()
    with pytest.raises(ClusterMismatch, match="start it without --metadata"):
        await release(settings)
    with pytest.raises(ClusterMismatch, match="holds another cluster"):
        await adopt(settings)
    again = settings.model_copy(update={"metadata": Metadata(url=f"{settings.metadata.url}-again")})
    await adopt(again)
    async with Broker(again) as broker:
        assert ids_of(broker) == {
            f"{name}-{done.broker_id}" if name == AUDIT_TOPIC else name: number
            for name, number in ids.items()
        }
        await assert_all_there(broker)


async def test_it_is_gone_on_with_wherever_it_was_killed(cluster: SeveralBrokers, tmp_path: Path) -> None:
    settings = cluster.settings(1)
    folder, objects = folder_of(settings), settings.tier.url
    assert objects is not None
    await lone_broker(folder)
    await adopt(settings)
    killed, refused = 0, 0
    while True:
        code = await killed_at(killed, "release", settings)
        if code != -signal.SIGKILL:
            break
        killed += 1
        async with EtcdStore(options_of(settings)) as on_etcd:
            item = await on_etcd.get(IDENTITY)
        assert item is not None
        if not Identity.of(item.value).released:
            if killed == 3:  # the objects are copied, and it may still go on in the cluster
                await cluster.start(1)
                await assert_all_there(cluster.brokers[1])
                await cluster.stop(1)
            continue
        refused += 1
        with pytest.raises(ClusterMismatch, match="cluster release"):
            await Broker(alone(folder)).__aenter__()
        with pytest.raises(ClusterMismatch, match=r"was released|cluster release"):
            await Broker(settings).__aenter__()
    assert code == 0
    assert killed >= 5, "every step was one to be killed at"
    assert refused >= 2
    await anyio.Path(objects).rename(tmp_path / "elsewhere")
    async with Broker(alone(folder)) as broker:
        await assert_all_there(broker)
        assert (await broker.port.verify_objects("t", start=0, end=None))["checked"]


async def test_what_cannot_be_released_is_said_and_left_alone(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    settings = cluster.settings(1)
    folder = folder_of(settings)
    with pytest.raises(InvalidArgument, match="is no data directory"):
        await release(settings)
    await lone_broker(folder)
    with pytest.raises(ClusterMismatch, match="belongs to no cluster: start it without"):
        await release(settings)
    await adopt(settings)
    with pytest.raises(InvalidArgument, match="--metadata etcd://"):
        await release(alone(folder))
    with pytest.raises(TierNotShared):
        await release(Settings(data=Data(dir=folder), metadata=settings.metadata))
    await cluster.start(1)
    await cluster.start(2)
    await cluster.all_know_all()
    two = str(cluster.brokers[2].registry.ownership.me.broker_id)
    await move(cluster, "t", cluster.brokers[2])
    await cluster.stop(1)
    with pytest.raises(Conflict, match="brokers are registered"):
        await release(settings)
    await cluster.stop(2)
    with pytest.raises(Conflict, match=f"brokers {two} are of the cluster") as refused:
        await release(settings)
    assert refused.value.details["brokers"] == [two]
    async with EtcdStore(options_of(settings)) as on_etcd:
        await on_etcd.transact(
            [Put(keys.removed_key(TopicId(int(two))), b"{}")]
        )  # and its topics not given away
        with pytest.raises(Conflict, match=r"not with this broker.*: 1 \(/default/t\)"):
            await release(settings)
        before, _ = await read_all(on_etcd, KeyRange.prefix("/"))
    with pytest.raises(ClusterMismatch, match="holds no cluster"):
        await release(
            settings.model_copy(update={"metadata": Metadata(url=f"{settings.metadata.url}-another")})
        )
    home = Home.read(folder)
    assert home is not None
    replace(home, revision=1 << 40).write(folder)
    with pytest.raises(ClusterMismatch, match="restored from an older snapshot"):
        await release(settings)
    home.write(folder)
    async with EtcdStore(options_of(settings)) as on_etcd:
        assert (await read_all(on_etcd, KeyRange.prefix("/")))[0] == before, "nothing was changed"


async def test_a_broker_that_comes_while_objects_are_copied_stops_it(
    cluster: SeveralBrokers, etcd: EtcdMembers
) -> None:
    settings = cluster.settings(1)
    await lone_broker(folder_of(settings))
    await adopt(settings)
    with pytest.raises(ObjectMissing):
        await release(settings.model_copy(update={"tier": Tier(url=f"{settings.tier.url}-another")}))
    other = '{"broker_id": "7", "life": "", "place": "", "host": "h", "data_dir": "d"}'

    def say(line: str) -> None:
        if line.startswith("objects go to"):
            etcd.control("put", on_prefix(settings, broker_key(7)), other)

    with pytest.raises(Conflict, match="brokers 7 are of the cluster"):
        await release(settings, copy=True, say=say)
    async with EtcdStore(options_of(settings)) as on_etcd:
        item = await on_etcd.get(IDENTITY)
    assert item is not None
    assert not Identity.of(item.value).released, "the mark was taken back"
    await cluster.start(1)
    await assert_all_there(cluster.brokers[1])
