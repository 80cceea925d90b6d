"""`kafka-source` against a real Kafka: everything of a record, starts, restarts, what is wrong."""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import fastavro
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.kafka import source as kafka_source
from pydanube_connect.running import check, runner_of
from pydanube_core.errors import ClusterError, InvalidArgument

from tests.connect.servers import Kafka
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka")) as found:
        yield found


def file(kafka: Kafka, name: str = "k", **settings: Any) -> dict[str, Any]:
    return {
        "name": name, "connector": "kafka-source", "topic": "t",
        "settings": {"bootstrap": kafka.bootstrap, **settings},
        "delivery": {"backoff_s": 0.05},
    }  # fmt: skip


async def once(client: Any, tree: dict[str, Any]) -> Any:
    runner = runner_of(declared(tree, path="k.toml"), client, stop=anyio.Event(), once=True)
    await runner.run()
    return runner.statistics


async def messages(client: Any, topic: str = "t") -> list[Any]:
    async with client.reader(topic, stop="head") as reader:
        return [message async for message in reader]


def numbers(found: list[Any]) -> list[int]:
    return sorted(int(message.payload) for message in found)


async def test_everything_of_a_record_comes_along(kafka: Kafka, memory: InMemoryCluster) -> None:
    kafka.create("whole", 3, retention_ms="-1")  # one of its records is old
    headers = [("trace", b"abc"), ("trace", b"def"), ("raw", b"\xff\x00"), ("none", None)]
    kafka.send("whole", [("user-42", "a")], headers=headers, timestamp=1_700_000_000_123, partition=2)
    kafka.send("whole", [(None, "b"), (b"\xff", "c"), ("user-42", None)], partition=2)
    async with memory.connect() as client:
        found = await once(client, file(kafka, subscribe=["whole"]))
        first, second, third, gone = await messages(client)
    assert (found.records, found.guarantee) == (4, "exactly_once")
    assert (first.payload, first.key) == (b"a", "user-42")
    assert first.attributes == {
        "kafka-topic": "whole", "kafka-partition": "2", "kafka-offset": "0", "kafka-timestamp-ms": "1700000000123",
        "trace": "abc", "trace-2": "def", "raw-hex": "ff00", "none": "",
    }  # fmt: skip
    assert second.key is None
    assert (third.key, third.attributes["kafka-key-encoding"]) == ("ff", "hex")
    assert (gone.key, gone.attributes["danube-null"]) == ("user-42", "true")


async def test_runs_that_are_cut_lose_and_double_nothing(kafka: Kafka, memory: InMemoryCluster) -> None:
    kafka.create("cut", 4)
    kafka.send("cut", [(f"k{n % 50}", str(n)) for n in range(6_000)])
    tree = {**file(kafka, subscribe=["cut"]), "topic": {"name": "t", "partitions": 3}}
    async with memory.connect() as client:
        for least in (1, 2_000, 4_500):
            runner = runner_of(declared(tree, path="k.toml"), client, stop=anyio.Event())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run)
                while runner.statistics.records + runner.statistics.repeated < least:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
                tasks.cancel_scope.cancel()
        await once(client, tree)
        found = await messages(client)
        assert numbers(found) == list(range(6_000))
        by_key: dict[str, list[int]] = {}
        for message in found:
            by_key.setdefault(str(message.key), []).append(int(message.payload))
        assert all(each == sorted(each) for each in by_key.values()), "the order of each key is kept"
        kafka.send("cut", [("k1", "6000")])
        assert (await once(client, tree)).records == 1


async def test_a_move_from_a_group_loses_and_doubles_nothing(kafka: Kafka, memory: InMemoryCluster) -> None:
    """The steps of “Move from Kafka” in docs/connect.md."""
    kafka.create("orders", 3)
    kafka.send("orders", [(f"k{n % 20}", str(n)) for n in range(900)])
    handled = set()
    old = Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    old.subscribe(["orders"])
    while len(handled) < 400:
        if some := old.consume(37, 1.0):
            handled |= {int(message.value() or b"") for message in some}
            old.commit(asynchronous=False)
    old.close()
    tree = file(kafka, "move", subscribe=["orders"], start="group", from_group="billing")
    async with memory.connect() as client:
        await once(client, tree)
        kafka.send("orders", [(f"k{n % 20}", str(n)) for n in range(900, 1_000)])
        await once(client, tree)
        moved = [int(message.payload) for message in await messages(client)]
    assert sorted([*handled, *moved]) == list(range(1_000))
    shown = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "danube-move"})
    places = [TopicPartition("orders", n) for n in range(3)]
    ends = [shown.get_watermark_offsets(place, timeout=10)[1] for place in places]
    assert [place.offset for place in shown.committed(places, timeout=10)] == ends, (
        "Kafka's tools show the progress"
    )
    shown.close()


async def test_topics_by_pattern_each_to_its_own_and_new_ones_too(
    kafka: Kafka, memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "DISCOVER_S", 0.5)
    kafka.create("site.a", 1)
    kafka.create("site.b", 1)
    kafka.create("other", 1)
    kafka.send("site.a", [(None, "1")])
    kafka.send("site.b", [(None, "2")])
    stop = anyio.Event()
    tree = file(kafka, pattern=r"site\..*", topic_prefix="/default/")
    async with memory.connect() as client:
        runner = runner_of(declared(tree, path="k.toml"), client, stop=stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            await until(lambda: runner.statistics.records == 2)
            kafka.create("site.c", 2)
            kafka.send("site.c", [(None, "3")], partition=1)
            await until(lambda: runner.statistics.records == 3)
            stop.set()
        for topic, value in (("site_a", b"1"), ("site_b", b"2"), ("site_c", b"3")):
            assert [message.payload for message in await messages(client, topic)] == [value]


async def test_a_record_is_published_without_waiting_for_more(kafka: Kafka, memory: InMemoryCluster) -> None:
    kafka.create("quick", 1)
    stop = anyio.Event()
    async with memory.connect() as client:
        runner = runner_of(declared(file(kafka, subscribe=["quick"]), path="k.toml"), client, stop=stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            took = []
            for count in range(1, 7):
                kafka.send("quick", [(None, str(count))])
                begun = time.monotonic()
                await until(lambda count=count: runner.statistics.records == count)
                took.append(time.monotonic() - begun)
            stop.set()
    assert sorted(took)[2] < kafka_source.WAIT_S / 2, took


async def test_latest_begins_where_it_was_first_started(kafka: Kafka, memory: InMemoryCluster) -> None:
    kafka.create("late", 1)
    kafka.send("late", [(None, "0")])
    tree = file(kafka, subscribe=["late"], start="latest")
    async with memory.connect() as client:
        assert (await once(client, tree)).records == 0
        kafka.send("late", [(None, "1")])
        assert (await once(client, tree)).records == 1


async def test_a_compacted_topic_is_at_least_once_by_its_own_group(
    kafka: Kafka, memory: InMemoryCluster
) -> None:
    kafka.create("compacted", 1, cleanup_policy="compact")
    kafka.send("compacted", [("k", "0"), ("k", "1")])
    tree = file(kafka, "compacted", subscribe=["compacted"])
    async with memory.connect() as client:
        found = await once(client, tree)
        assert (found.records, found.guarantee) == (2, "at_least_once")
        kafka.send("compacted", [("k", "2")])
        assert (await once(client, tree)).records == 1
        assert numbers(await messages(client)) == [0, 1, 2]


async def test_kafka_may_be_killed(tmp_path: Path, memory: InMemoryCluster) -> None:
    with Kafka(tmp_path) as own:
        own.create("killed", 2)
        own.send("killed", [(str(n), str(n)) for n in range(2_000)])
        stop = anyio.Event()
        async with memory.connect() as client:
            runner = runner_of(declared(file(own, subscribe=["killed"]), path="k.toml"), client, stop=stop)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run)
                await until(lambda: runner.statistics.records >= 1)
                own.kill()
                await anyio.to_thread.run_sync(own.start)
                await anyio.to_thread.run_sync(
                    own.send, "killed", [(str(n), str(n)) for n in range(2_000, 2_500)]
                )
                await until(lambda: runner.statistics.records >= 2_500)
                stop.set()
            assert numbers(await messages(client)) == list(range(2_500))


# -- a schema registry -----------------------------------------------------------------------------------------

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": "string", "default": "-"}]}


class Registry:
    """What a schema registry answers to the requests of the source, with basic authentication."""

    def __init__(self) -> None:
        self.versions: list[dict[str, Any]] = [V1]
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers["Authorization"] != "Basic dXNlcjpzZWNyZXQ=":
                    return self.send_error(401)
                words = urllib.parse.unquote(self.path).strip("/").split("/")
                text = [json.dumps(each) for each in registry.versions]
                match words:
                    case ["subjects"]:
                        answer: Any = ["avro-value"]
                    case ["subjects", "avro-value", "versions", "latest"]:
                        answer = {"schema": text[-1]}
                    case ["schemas", "ids", number] if int(number) <= len(text):
                        answer = {"schema": text[int(number) - 1]}
                    case _:
                        return self.send_error(404)
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def framed(self, number: int, value: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(self.versions[number - 1]), value)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    yield found
    found.close()


async def test_framed_avro_values_keep_their_schema_and_its_versions(
    kafka: Kafka, memory: InMemoryCluster, registry: Registry
) -> None:
    kafka.create("avro", 1)
    kafka.send("avro", [("1", registry.framed(1, {"id": 1})), ("x", b"\0\0\0\0\1"), ("gone", None)])
    settings = {"schema_registry": registry.url, "registry_username": "user", "registry_password": "secret"}
    tree = file(kafka, subscribe=["avro"], topic_prefix="/default/", **settings)
    tree["delivery"]["on_error"] = "dead_letter"
    async with memory.connect() as client:
        assert await check(declared(tree, path="k.toml"), client)
        found = await once(client, tree)
        assert (found.records, found.refused) == (2, 1)
        registry.versions.append(V2)
        kafka.send(
            "avro",
            [("2", registry.framed(2, {"id": 2, "note": "new"})), ("3", registry.framed(1, {"id": 3}))],
        )
        assert (await once(client, tree)).records == 2
        stored = await messages(client, "avro")
        assert [message.key for message in stored] == ["1", "gone", "2", "3"]
        values = []
        for message in stored:
            if message.payload:
                schema = await client.schemas.get(message.schema)
                parsed = fastavro.parse_schema(json.loads(schema.definition))
                values.append(fastavro.schemaless_reader(io.BytesIO(message.payload), parsed, None))
        assert values == [{"id": 1}, {"id": 2, "note": "new"}, {"id": 3, "note": "-"}]
        tree["settings"]["registry_password"] = "wrong"
        with pytest.raises(ClusterError, match="registry_password"):
            await check(declared(tree, path="k.toml"), client)


# -- mistakes --------------------------------------------------------------------------------------------------


async def test_what_is_wrong_is_a_sentence(kafka: Kafka, memory: InMemoryCluster) -> None:
    kafka.create("short", 1)
    async with memory.connect() as client:
        with pytest.raises(InvalidArgument, match=r"no topic nothing.*settings\.subscribe"):
            await check(declared(file(kafka, subscribe=["nothing"]), path="k.toml"), client)
        with pytest.raises(InvalidArgument, match=r"settings\.config.*nonsense"):
            await check(
                declared(file(kafka, subscribe=["short"], config={"nonsense": "1"}), path="k.toml"), client
            )
        kafka.send("short", [(None, "0")])
        tree = file(kafka, "short", subscribe=["short"])
        await once(client, tree)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        kafka.send("short", [(None, str(n)) for n in range(20)])
        end = TopicPartition("short", 0, 15)
        admin.delete_records([end])[end].result(30)
        with pytest.raises(InvalidArgument, match="deleted records that were not read"):
            await once(client, tree)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either subscribe or pattern"),
        ({"subscribe": ["a"], "pattern": "b"}, "either subscribe or pattern"),
        ({"pattern": "("}, "regular expression"),
        ({"subscribe": ["a"], "start": "group"}, "go together"),
        ({"subscribe": ["a"], "config": {"group.id": "x"}}, "group.id is set by the connector"),
        ({"subscribe": ["a"], "bootstrap": ""}, r"settings\.bootstrap"),
    ],
)
def test_settings_that_cannot_be_are_a_sentence(settings: dict[str, Any], words: str) -> None:
    tree = {
        "name": "k", "connector": "kafka-source", "topic": "t", "settings": {"bootstrap": "h:9092", **settings},
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=words):
        declared(tree, path="k.toml")


async def test_a_kafka_that_is_not_there_is_one_sentence(
    memory: InMemoryCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = {
        "name": "k", "connector": "kafka-source", "topic": "t",
        "settings": {"bootstrap": "127.0.0.1:9", "subscribe": ["t"]},
    }  # fmt: skip
    async with memory.connect() as client:
        with pytest.raises(
            ClusterError, match=r"Kafka cannot be reached: .*127\.0\.0\.1:9.*Connection refused"
        ):
            await check(declared(tree, path="k.toml"), client)
    assert "FAIL" not in capfd.readouterr().err, "librdkafka writes nothing itself"
