"""`mqtt-source` against mosquitto: both versions, acknowledged after the receipt, shared, refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from paho.mqtt import publish
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.mqtt.source import MqttSource
from pydanube_connect.running import check, run_all, runner_of
from pydanube_connect.sourcing import SourceRunner
from pydanube_core.errors import ClusterError, InvalidArgument, Unauthenticated

from tests.connect.servers import MOSQUITTO_MISSING, Mosquitto
from tests.support.certificates import make_certificates
from tests.support.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(MOSQUITTO_MISSING is not None, reason=str(MOSQUITTO_MISSING)),
]
VERSIONS = ["3.1.1", "5"]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as found:
        yield found


def file(broker: Mosquitto, **settings: Any) -> dict[str, Any]:
    return {
        "name": "m", "connector": "mqtt-source", "topic": "readings",
        "settings": {"url": broker.url, "subscribe": ["plant/#"], **settings}, "delivery": {"backoff_s": 0.05},
    }  # fmt: skip


def send(broker: Mosquitto, *payloads: str, topic: str = "plant/1", qos: int = 1, **more: Any) -> None:
    some = [{"topic": topic, "payload": each, "qos": qos, **more} for each in payloads]
    publish.multiple(some, "127.0.0.1", broker.port)


@asynccontextmanager
async def running(client: Any, tree: dict[str, Any]) -> AsyncIterator[SourceRunner]:
    stop = anyio.Event()
    runner = runner_of(declared(tree, path="m.toml"), client, stop=stop)
    assert isinstance(runner, SourceRunner)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_all, [runner])
        await until(lambda: runner.statistics.state == "running")
        yield runner
        stop.set()


async def messages(client: Any) -> list[Any]:
    async with client.reader("readings", stop="head") as reader:
        return [message async for message in reader]


@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_of_all_kinds_come_with_their_topic(
    mosquitto: Mosquitto, memory: InMemoryCluster, version: str
) -> None:
    send(mosquitto, "kept", topic="plant/old", retain=True)
    async with memory.connect() as client:
        async with running(
            client, file(mosquitto, version=version, subscribe=["plant/+", "other/#"])
        ) as runner:
            for qos in (0, 1, 2):
                send(mosquitto, f"qos {qos}", qos=qos)
            send(mosquitto, "deep", topic="other/a/b")
            send(mosquitto, "unasked", topic="plant/1/2")
            await until(lambda: runner.statistics.records == 5)
        found = {
            message.payload: (message.key, message.attributes["mqtt-qos"])
            for message in await messages(client)
        }
    assert found == {
        b"kept": ("plant/old", "1"), b"qos 0": ("plant/1", "0"), b"qos 1": ("plant/1", "1"), b"qos 2": ("plant/1", "1"),
        b"deep": ("other/a/b", "1"),
    }  # fmt: skip


async def test_properties_of_version_5_are_attributes(mosquitto: Mosquitto, memory: InMemoryCluster) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/json"
    properties.UserProperty = [("unit", "K")]
    async with memory.connect() as client:
        async with running(client, file(mosquitto)) as runner:
            sender = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
            sender.connect("127.0.0.1", mosquitto.port)
            sender.loop_start()
            sender.publish("plant/1", "{}", 1, properties=properties).wait_for_publish(30)
            sender.disconnect()
            sender.loop_stop()
            await until(lambda: runner.statistics.records == 1)
        (found,) = await messages(client)
    assert (found.attributes["content-type"], found.attributes["mqtt-user-unit"]) == ("application/json", "K")


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_not_stored_comes_again(
    mosquitto: Mosquitto, memory: InMemoryCluster, version: str
) -> None:
    tree = file(mosquitto, version=version)
    async with memory.connect() as client:
        async with running(client, tree) as runner:
            send(mosquitto, "a", "b")
            await until(lambda: runner.statistics.records == 2)
        runner = runner_of(declared(tree, path="m.toml"), client, stop=anyio.Event())
        assert isinstance(runner, SourceRunner)
        source = runner.source
        await source.open()
        await source.start({})
        send(mosquitto, "c", "d")
        batch = None
        while batch is None:
            batch = await source.read()
        await source.close()  # killed before anything was published
        send(mosquitto, "e")  # while nobody is there
        async with running(client, tree) as runner:
            await until(lambda: runner.statistics.records >= 3)
        assert [message.payload for message in await messages(client)] == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_broker_that_is_killed_costs_no_acknowledged_message(
    mosquitto: Mosquitto, memory: InMemoryCluster
) -> None:
    async with memory.connect() as client:
        async with running(client, file(mosquitto)) as runner:
            for begin in range(0, 600, 200):
                some = [str(n) for n in range(begin, begin + 200)]
                await anyio.to_thread.run_sync(send, mosquitto, *some)
                await anyio.sleep(1.2)  # the broker keeps its sessions on disk once a second
                mosquitto.kill()
                mosquitto.start()
                await until(lambda: runner.statistics.state == "running")
                await anyio.sleep(0.3)
            await until(lambda: runner.statistics.records >= 600)
        found = [int(message.payload) for message in await messages(client)]
    assert set(found) == set(range(600))


async def test_waiting_messages_are_bounded(mosquitto: Mosquitto, memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        tree = file(mosquitto, max_waiting=10)
        runner = runner_of(declared(tree, path="m.toml"), client, stop=anyio.Event())
        source: Any = runner.source
        await source.open()
        await anyio.to_thread.run_sync(lambda: send(mosquitto, *(str(n) for n in range(100))))
        await anyio.sleep(0.5)
        assert source.waiting == 10
        seen = 0
        while seen < 100:
            batch = await source.read()
            seen += len(batch or ())
            if batch is not None:
                await source.stored(batch)
        await source.close()


async def test_shared_subscriptions_share(mosquitto: Mosquitto, memory: InMemoryCluster) -> None:
    def tree(name: str) -> dict[str, Any]:
        return {**file(mosquitto, subscribe=["$share/g/plant/#"]), "name": name}

    async with memory.connect() as client:
        async with running(client, tree("a")) as one, running(client, tree("b")) as other:
            send(mosquitto, *(str(n) for n in range(40)))
            await until(lambda: one.statistics.records + other.statistics.records == 40)
            assert one.statistics.records
            assert other.statistics.records
        assert sorted(int(message.payload) for message in await messages(client)) == list(range(40))


async def test_a_dry_run_takes_nothing(mosquitto: Mosquitto, memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with running(client, file(mosquitto)):
            pass
        send(mosquitto, "a", topic="plant/kept", retain=True)
        source = declared(file(mosquitto), path="m.toml").make()
        assert isinstance(source, MqttSource)
        batches = [batch async for batch in source.sample(1)]
        assert [record.value for record in batches[0]] == [b"a"]
        await source.close()
        async with running(client, file(mosquitto)) as runner:
            await until(lambda: runner.statistics.records >= 1)


async def test_tls_and_credentials(tmp_path: Path, memory: InMemoryCluster) -> None:
    keys = make_certificates(tmp_path)
    passwords = tmp_path / "passwords"
    words = ["mosquitto_passwd", "-b", "-c", str(passwords), "plant", "secret"]
    await anyio.run_process(words)
    passwords.chmod(0o600)
    rules = tmp_path / "rules"
    rules.write_text("user plant\ntopic readwrite plant/#\n")
    rules.chmod(0o600)
    lines = [
        f"cafile {keys}/ca.pem", f"certfile {keys}/server.pem", f"keyfile {keys}/server.key", "allow_anonymous false",
        f"password_file {passwords}", f"acl_file {rules}",
    ]  # fmt: skip
    folder = tmp_path / "broker"
    folder.mkdir()
    with Mosquitto(folder, *lines) as broker:
        url = broker.url.replace("mqtt://", "mqtts://")
        right = {"url": url, "ca": f"{keys}/ca.pem", "username": "plant", "password": "secret"}
        async with memory.connect() as client:
            assert await check(declared(file(broker, **right), path="x"), client)
            async with running(client, file(broker, **right)):
                pass
            with pytest.raises(Unauthenticated, match=r"settings\.password"):
                await check(declared(file(broker, **right | {"password": "wrong"}), path="x"), client)
            wrong = {**file(broker, **right | {"ca": None}), "delivery": {"retries": 0}}
            with pytest.raises(ClusterError, match=r"with TLS.*settings\.ca"):
                await runner_of(declared(wrong, path="x"), client, stop=anyio.Event()).run()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "http://h"}, "mqtt://host:port"),
        ({"url": "mqtt://user:secret@h"}, "username and password"),
        ({"subscribe": ["a/#/b"]}, "no topic filter"),
        ({"subscribe": ["a+"]}, "no topic filter"),
        ({"subscribe": ["$share/g"]}, r"\$share/GROUP/FILTER"),
        ({"subscribe": []}, r"settings\.subscribe"),
        ({"ca": "ca.pem"}, "mqtts://"),
        ({"password": "x"}, "username"),
    ],
)
def test_settings_that_cannot_be_are_a_sentence(settings: dict[str, Any], words: str) -> None:
    tree = {
        "name": "m", "connector": "mqtt-source", "topic": "t",
        "settings": {"url": "mqtt://h:1883", "subscribe": ["a"], **settings},
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=words):
        declared(tree, path="m.toml")
