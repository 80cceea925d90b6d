"""Runners between a real broker, in memory, and the other side: nothing lost, positions, restarts, order."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from pydanube import Client, PayloadInvalid, TopicNotFound
from pydanube.testing import InMemoryCluster
from pydanube.wire.ops_channel import OpsChannel
from pydanube_connect import Place
from pydanube_connect.file import declared
from pydanube_connect.running import check, dry_run, run_all, runner_of
from pydanube_connect.statistics import exposition
from pydanube_core.batch import timing
from pydanube_core.errors import ProducerFenced, Unavailable
from pydanube_core.generated.danube_ops_pb2 import CallRequest
from pydanube_core.ops_call import unknown_outcome

from tests.connect.own import LinesSource, Table, TableSink
from tests.connect.targets import Answer, HttpTarget
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
SINK = {"name": "s", "connector": "tests.connect.own:TableSink", "topic": "t"}
SOURCE = {"name": "lines", "connector": "tests.connect.own:LinesSource", "topic": "t"}


@pytest.fixture(autouse=True)
def table() -> Table:
    TableSink.table = Table()
    LinesSource.count, LinesSource.keyed = 100, True
    LinesSource.stored_up_to, LinesSource.begun_at = [], []
    return TableSink.table


async def once(client: Client, tree: dict[str, Any]) -> Any:
    runner = runner_of(declared(tree, path="x.toml"), client, stop=anyio.Event(), once=True)
    await runner.run()
    return runner.statistics


async def fill(client: Client, values: range, partitions: int | None = None) -> None:
    async with client.producer("t", partitions=partitions) as producer:
        await producer.send_many([b"%d" % n for n in values])


async def payloads(client: Client, topic: str = "t") -> list[bytes]:
    async with client.reader(topic, stop="head") as reader:
        return [message.payload async for message in reader]


@pytest.mark.parametrize("partitions", [None, 3])
async def test_a_sink_drains_its_topic_and_continues_where_it_was(
    memory: InMemoryCluster, table: Table, partitions: int | None
) -> None:
    async with memory.connect() as client:
        await fill(client, range(2_500), partitions)
        first = await once(client, SINK | {"delivery": {"batch_size": 300}})
        assert sorted(table.rows) == list(range(2_500))
        assert first.batches >= 9
        assert sum(table.positions.values()) == 2_500
        await fill(client, range(2_500, 2_600), partitions)
        second = await once(client, SINK)
        assert sorted(table.rows) == list(range(2_600))
        assert (second.records, second.repeated) == (100, 0)


async def test_a_lost_cursor_writes_nothing_twice(memory: InMemoryCluster, table: Table) -> None:
    async with memory.connect() as client:
        await fill(client, range(500))
        await once(client, SINK)
        async with client.consumer("t", "connect-s", type="failover") as consumer:
            await consumer.seek("earliest")
        again = await once(client, SINK)
        assert again.repeated == 500
        assert table.rows == list(range(500))


async def test_a_target_that_was_set_back_gets_what_it_lacks(memory: InMemoryCluster, table: Table) -> None:
    async with memory.connect() as client:
        await fill(client, range(500))
        await once(client, SINK)
        await fill(client, range(500, 600))
        del table.rows[200:]  # restored from a backup
        table.positions[Place("/default/t", None)] = 200
        await once(client, SINK)
        assert table.rows == list(range(600))


async def test_refused_payloads_are_dead_letters_that_administration_shows(
    memory: InMemoryCluster, table: Table
) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send_many([b"1", b"{not json", b'"bad"', b"2"])
        found = await once(client, SINK | {"delivery": {"on_error": "dead_letter"}})
        assert table.rows == [1, 2]
        assert found.refused == 2
        async with client.reader("t-dlq-connect-s", stop="head") as reader:
            letters = [message async for message in reader]
        assert [letter.payload for letter in letters] == [b"{not json", b'"bad"']
        assert letters[0].attributes["x-original-topic-offset"] == "1"
        assert "no JSON" in letters[0].attributes["x-failure-reason"]
        shown = await client.admin.dead_letters.list("t", "connect-s")
        assert len(shown.items) == 2


async def test_a_dead_letter_neither_waits_nor_expires(memory: InMemoryCluster, table: Table) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send(b'"bad"', delay_ms=1, ttl_ms=60_000, attributes={"x-shop": "7"})
        await once(client, SINK | {"delivery": {"on_error": "dead_letter"}})
        async with client.reader("t-dlq-connect-s", stop="head") as reader:
            (letter,) = [message async for message in reader]
        assert not {*timing.NAMES} & {*letter.attributes}
        assert letter.attributes["x-shop"] == "7"
        again = await client.admin.dead_letters.replay("t", "connect-s")
        assert (again.messages, again.not_there) == (1, {})


async def test_a_refused_record_stops_the_sink_and_comes_again(memory: InMemoryCluster, table: Table) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send_many([b"1", b'"bad"'])
        with pytest.raises(PayloadInvalid, match=r"/default/t offset 1"):
            await once(client, SINK)
        assert table.rows == []
        await once(client, SINK | {"delivery": {"on_error": "dead_letter"}})
        assert table.rows == [1]


async def test_a_sink_without_its_topic_is_a_sentence(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        for attempt in (once(client, SINK), check(declared(SINK, path="x.toml"), client)):
            with pytest.raises(TopicNotFound, match="danube topics create"):
                await attempt


async def test_a_stopped_sink_ends_its_batch(memory: InMemoryCluster, target: HttpTarget) -> None:
    tree = {
        "name": "h", "connector": "http-sink", "topic": "t", "settings": {"url": target.url},
        "delivery": {"batch_age": "10ms"},
    }  # fmt: skip
    async with memory.connect() as client:
        await fill(client, range(50))
        stop = anyio.Event()
        runner = runner_of(declared(tree, path="x.toml"), client, stop=stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_all, [runner])
            await until(lambda: runner.statistics.records == 50)
            await fill(client, range(50, 60))
            await until(lambda: runner.statistics.records == 60)
            stop.set()
        assert [asked.json for asked in target.asked] == list(range(60))
        assert 'danube_connect_records_total{connector="h",type="http-sink"} 60' in exposition(
            [runner.statistics]
        )
        lag = await client.admin.subscriptions.describe("t", "connect-h")
        assert lag.lag_messages == 0


async def test_a_dry_run_shows_records_and_moves_nothing(memory: InMemoryCluster, target: HttpTarget) -> None:
    tree = {
        "name": "h", "connector": "http-sink", "topic": "t", "settings": {"url": target.url + "/{id}"},
        "shape": {"mask": ["card"]},
    }  # fmt: skip
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send_many([b'{"id":%d,"card":"4111"}' % n for n in range(20)] + [b"no"])
        shown = [text async for text in dry_run(declared(tree, path="x.toml"), client, 3)]
        assert shown == [f'POST {target.url}/{n} {{"id":{n},"card":"***"}}' for n in range(3)]
        assert target.asked == []
        described = await client.admin.topics.describe("t")
        assert described.subscriptions == []


async def test_one_connector_that_fails_leaves_the_others_running(
    memory: InMemoryCluster, target: HttpTarget
) -> None:
    def tree(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "connector": "http-sink", "topic": "t", "settings": {"url": target.url + path}}

    target.answer = lambda asked: Answer(404 if asked.path == "/wrong" else 200)
    async with memory.connect() as client:
        await fill(client, range(10))
        runners = [
            runner_of(declared(tree(name, path), path="x.toml"), client, stop=anyio.Event(), once=True)
            for name, path in (("good", "/right"), ("poor", "/wrong"))
        ]
        failed = await run_all(runners)
        assert [runner.statistics.connector for runner, _ in failed] == ["poor"]
        assert runners[0].statistics.records == 10


async def test_a_shard_may_have_any_name(memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinesSource, "shard", "folder/" + "é" * 300)
    async with memory.connect() as client:
        assert (await once(client, SOURCE)).records == 100
        monkeypatch.setattr(LinesSource, "count", 120)
        assert (await once(client, SOURCE)).records == 20


@pytest.mark.parametrize(("partitions", "keyed"), [(None, True), (4, True), (4, False)])
async def test_a_deterministic_source_is_exactly_once_wherever_it_stops(
    memory: InMemoryCluster, partitions: int | None, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    LinesSource.keyed = keyed
    tree = SOURCE | ({"topic": {"name": "t", "partitions": partitions}} if partitions else {})
    from pydanube_connect import positions

    whole = positions.Positions.save
    async with memory.connect() as client:
        for crash in range(1, 8):
            saved = 0

            async def save(self: Any, crash: int = crash) -> None:
                nonlocal saved
                saved += 1
                if saved == crash:
                    raise KeyboardInterrupt  # as SIGKILL: published, and the state not stored
                await whole(self)

            monkeypatch.setattr(positions.Positions, "save", save)
            monkeypatch.setattr("pydanube_connect.sourcing.STATE_EVERY_S", 0.0)
            LinesSource.count = 100 * crash
            with pytest.raises(BaseException) as caught:
                await once(client, tree)
            assert isinstance(caught.value, KeyboardInterrupt | BaseExceptionGroup)
        monkeypatch.undo()
        last = await once(client, tree)
        assert last.guarantee == "exactly_once"
        got = await payloads(client)
        assert sorted(map(int, got)) == list(range(700)), "each line once"
        again = await once(client, tree)
        assert (again.records, again.repeated) == (0, 0)
        assert LinesSource.begun_at == [0, 0, 20, 50, 90, 140, 200, 700], (
            "lines are read again after each crash"
        )


async def test_a_source_that_failed_continues_in_the_same_run(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = LinesSource.read, 0

    async def sometimes(self: LinesSource) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 6):
            raise ConnectionError("cut")
        return await whole(self)

    monkeypatch.setattr(LinesSource, "read", sometimes)
    async with memory.connect() as client:
        found = await once(client, SOURCE | {"delivery": {"backoff_s": 0.001}})
        assert found.retries == 2
        assert list(map(int, await payloads(client))) == list(range(100))


@pytest.mark.parametrize("made", [True, False])
async def test_a_source_continues_if_the_answer_to_a_creation_is_lost(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    whole, lost = OpsChannel.call, list[str]()

    async def call(self: OpsChannel, request: CallRequest, **options: Any) -> bytes:
        topic = json.loads(request.arguments).get("topic")
        if request.operation != "topics.create" or topic in lost:
            return await whole(self, request, **options)
        lost.append(topic)
        if made:
            await whole(self, request, **options)
        raise Unavailable("the connection was lost", **unknown_outcome(request.operation))

    monkeypatch.setattr(OpsChannel, "call", call)
    tree = SOURCE | {"topic": {"name": "t", "durability": "fsynced"}, "delivery": {"backoff_s": 0.001}}
    async with memory.connect() as client:
        found = await once(client, tree)
        assert lost == ["/default/connect-lines-positions", "/default/t"]
        assert found.retries == 2
        assert list(map(int, await payloads(client))) == list(range(100))


async def test_a_source_whose_producer_was_taken_over_ends(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fenced(self: Any) -> None:
        raise ProducerFenced("the producer was opened again", outcome="unknown")

    monkeypatch.setattr("pydanube_connect.positions.Positions.save", fenced)
    async with memory.connect() as client:
        with pytest.raises(ProducerFenced):
            await once(client, SOURCE | {"delivery": {"backoff_s": 0.001}})


async def test_a_function_of_the_user_makes_a_source_at_least_once(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        found = await once(client, SOURCE | {"shape": {"function": "tests.connect.test_running:numbered"}})
        assert found.guarantee == "at_least_once"
        assert (await payloads(client))[5] == b'{"n":5}'


def numbered(records: Any) -> None:
    for record in records:
        record.value = {"n": record.value}


async def test_shape_topic_spreads_a_source(memory: InMemoryCluster) -> None:
    tree = SOURCE | {"shape": {"topic": "t-{n}", "function": None}}
    LinesSource.count = 10
    async with memory.connect() as client:
        found = await once(client, tree | {"delivery": {"on_error": "dead_letter"}})
        assert found.refused == 10, "lines are no objects"
        async with client.reader("t-dlq-connect-lines", stop="head") as reader:
            reasons = {message.attributes["x-failure-reason"] async for message in reader}
        assert len(reasons) == 1
        assert re.search("no object", reasons.pop())


async def test_a_payload_that_does_not_fit_costs_its_neighbours_nothing(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses a batch as a whole, so the source checks each record by the schema of its topic."""
    LinesSource.count = 30
    tree = SOURCE | {
        "topic": {"name": "t", "schema_subject": "small"},
        "delivery": {"on_error": "dead_letter"},
    }
    async with memory.connect() as client:
        await client.schemas.register("small", "json_schema", '{"type": "integer", "not": {"const": 15}}')
        found = await once(client, tree)
        assert (found.records, found.refused) == (29, 1)
        assert sorted(map(int, await payloads(client))) == [n for n in range(30) if n != 15]
        (letter,) = await payloads(client, "t-dlq-connect-lines")
        assert letter == b"15"


async def test_a_record_that_no_topic_can_hold_is_a_dead_letter(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LinesSource.read

    async def with_large_ones(self: LinesSource) -> Any:
        batch = await read(self)
        for record in batch or ():
            if record.value == b"3":
                record.value = b"x" * 9_000_000
            if record.value == b"5":
                record.attributes = {"note": "y" * 5_000_000}
            if record.value == b"7":  # each part fits, the whole does not
                record.value, record.key = b"x" * 3_900_000, "k" * 400_000
            if record.value == b"8":
                record.value, record.attributes = b"x" * 3_900_000, {"n" * 400_000: ""}
        return batch

    monkeypatch.setattr(LinesSource, "read", with_large_ones)
    LinesSource.count = 10
    async with memory.connect() as client:
        found = await once(client, SOURCE | {"delivery": {"on_error": "dead_letter"}})
        assert (found.records, found.refused) == (6, 4)
        assert sorted(map(int, await payloads(client))) == [0, 1, 2, 4, 6, 9]
        async with client.reader("t-dlq-connect-lines", stop="head") as reader:
            reasons = [each.attributes["x-failure-reason"] async for each in reader]
        assert "9000000 bytes" in reasons[0]
        assert "more than 500000 characters" in reasons[1]
        assert "4300000 bytes with its key" in reasons[2]
        assert "4300010 bytes with its key" in reasons[3]
