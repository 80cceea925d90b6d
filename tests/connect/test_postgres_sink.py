"""`postgres-sink` against a real server: types, upsert, deletion, evolution, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from pydanube.testing import InMemoryCluster
from pydanube_connect import Batch, Overtaken, Place, Record
from pydanube_connect.file import declared
from pydanube_connect.running import check, runner_of
from pydanube_connect.testing import deliver
from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    PayloadInvalid,
    PermissionDenied,
    Unauthenticated,
)

from tests.connect.servers import MISSING, Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
PLACE = Place("/default/t", None)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as found:
        yield found


@pytest.fixture
def postgres(server: Postgres) -> Postgres:
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


def file(postgres: Postgres, delivery: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {
        "name": "a", "connector": "postgres-sink", "topic": "t",
        "settings": {"dsn": postgres.dsn, "table": "orders", **settings},
        "delivery": {"backoff_s": 0.001, "retries": 2, "on_error": "dead_letter", **(delivery or {})},
    }  # fmt: skip


async def test_a_table_is_made_from_the_first_batch_and_widened(postgres: Postgres) -> None:
    rows = [
        {"id": 1, "total": 2, "name": "a\tb\\c\n", "ok": True, "tags": ["x"], "big": 10**20},
        {"id": 2, "total": 2.5},
    ]
    await deliver(file(postgres), rows)
    await deliver(file(postgres), [{"id": 3, "note": "new"}], first=2)
    assert postgres.sql("SELECT id, total, name, ok, tags, big, note FROM orders ORDER BY id") == [
        (1, 2.0, "a\tb\\c\n", True, ["x"], 10**20, None),
        (2, 2.5, None, None, None, None, None),
        (3, None, None, None, None, None, "new"),
    ]
    assert postgres.sql("SELECT topic, partition, next_offset FROM danube_positions") == [
        ("/default/t", -1, 3)
    ]


async def test_values_keep_the_types_of_the_table(postgres: Postgres) -> None:
    postgres.sql(
        "CREATE TABLE orders (id int, at timestamptz, price numeric(12,2), doc jsonb, list int[], word text)"
    )
    row = {
        "id": 1, "at": "2026-01-31T12:00:00+02:00", "price": "1234567890.12", "doc": "text", "list": [1, 2],
        "word": {"a": 1},
    }  # fmt: skip
    await deliver(file(postgres), [row])
    assert postgres.sql("SELECT at = '2026-01-31T10:00:00Z', price::text, doc, list, word FROM orders") == [
        (True, "1234567890.12", "text", [1, 2], '{"a":1}')
    ]


async def test_a_row_that_does_not_fit_is_found_and_refused(postgres: Postgres) -> None:
    postgres.sql("CREATE TABLE orders (id int PRIMARY KEY)")
    values = [{"id": n} for n in range(20)] + [{"id": 5}, {"id": "x"}, {"id": 1 << 40}, 7]
    outcome = await deliver(file(postgres), values)
    assert postgres.sql("SELECT count(*), sum(id) FROM orders") == [(20, 190)]
    assert len(outcome.refused) == 4
    assert {each.record.offset for each in outcome.refused} == {20, 21, 22, 23}
    with pytest.raises(PayloadInvalid, match="invalid input syntax"):
        await deliver(file(postgres, {"on_error": "stop"}), [{"id": "x"}], first=24)


async def test_upsert_keeps_the_newest_of_each_key_and_deletes(postgres: Postgres) -> None:
    def upsert(**settings: Any) -> dict[str, Any]:
        return file(postgres, mode="upsert", key=["id"], **settings)

    await deliver(upsert(), [{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 1, "n": 2}])
    await deliver(
        upsert(), [Record(None, "2"), {"id": 3, "n": 1}, Record(None, "3"), {"id": 1, "n": 3}], first=3
    )
    assert postgres.sql("SELECT id, n FROM orders") == [(1, 3)]
    refused = await deliver(upsert(), [{"n": 1}, Record(None, None)], first=7)
    assert len(refused.refused) == 2


async def test_deletions_of_a_compound_key(postgres: Postgres) -> None:
    postgres.sql(
        "CREATE TABLE orders (a int, b text, n int, PRIMARY KEY (a, b)); INSERT INTO orders VALUES (1,'x',1),(1,'y',1)"
    )
    await deliver(file(postgres, mode="upsert"), [Record(None, '[1,"x"]'), {"a": 1, "b": "y", "n": 5}])
    assert postgres.sql("SELECT a, b, n FROM orders") == [(1, "y", 5)]
    refused = await deliver(file(postgres, mode="upsert"), [Record(None, "[" * 100_000)], first=2)
    assert len(refused.refused) == 1, "it stopped the connector"


async def test_two_writers_of_one_position_write_it_once(postgres: Postgres) -> None:
    first, second = (declared(file(postgres), path="a").make() for _ in range(2))
    await first.open()
    await second.open()
    records = [Record({"id": n}, place=PLACE, offset=n) for n in range(4)]
    await first.write(Batch(records[:2], ends={PLACE: 2}))
    with pytest.raises(Overtaken):
        await second.write(Batch(records[:1], ends={PLACE: 1}))
    assert await second.positions([PLACE]) == {PLACE: 2}
    await second.write(Batch(records[2:], starts={PLACE: 2}, ends={PLACE: 4}))
    with pytest.raises(Overtaken):
        await first.write(Batch(records[2:], starts={PLACE: 2}, ends={PLACE: 4}))
    await first.close()
    await second.close()
    assert postgres.sql("SELECT id FROM orders ORDER BY id") == [(0,), (1,), (2,), (3,)]


async def test_wrong_settings_are_sentences_before_anything_moves(postgres: Postgres) -> None:
    postgres.sql("CREATE TABLE orders (id int)")
    cases: list[tuple[dict[str, Any], type[ClusterError], str]] = [
        ({"dsn": postgres.dsn.replace("postgres@", "nobody_there@")}, Unauthenticated, "settings.dsn"),
        (
            {"dsn": postgres.dsn.removesuffix("/postgres") + "/nowhere"},
            InvalidArgument,
            "settings.dsn",
        ),
        ({"mode": "upsert"}, InvalidArgument, "needs a key"),
        ({"table": "other", "evolve": False}, InvalidArgument, "does not exist"),
        ({"table": "a.b.c"}, InvalidArgument, "schema.table"),
    ]
    for settings, kind, said in cases:
        with pytest.raises(kind) as caught:
            await deliver(file(postgres, **settings), [{"id": 1}])
        assert said in caught.value.message
    assert postgres.sql("SELECT count(*) FROM orders") == [(0,)]


async def test_a_crash_of_the_server_loses_and_doubles_nothing(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    tree = file(postgres, {"batch_size": 50, "retries": 100, "backoff_s": 0.05})
    async with memory.connect() as client:
        async with client.producer("t", partitions=2) as producer:
            await producer.send_many(
                [b'{"id":%d}' % n for n in range(3_000)], keys=[str(n) for n in range(3_000)]
            )
        runner = runner_of(declared(tree, path="a"), client, stop=anyio.Event(), once=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            while runner.statistics.records < 500:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(postgres.stop, "immediate")
            await anyio.to_thread.run_sync(postgres.start)
        assert postgres.sql("SELECT count(*), count(DISTINCT id) FROM orders") == [(3_000, 3_000)]
        found = await check(declared(tree, path="a"), client)
        assert "has the columns id" in found[-1]


async def test_a_check_finds_a_table_that_does_not_fit_and_changes_nothing(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    postgres.sql("CREATE TABLE orders (id int PRIMARY KEY, other text NOT NULL)")
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send_many([b'{"id":1,"other":"x","new":1}', b'{"id":2}'])
        stops = file(postgres, {"on_error": "stop"})
        with pytest.raises(PayloadInvalid, match=r"/default/t offset 0 would be refused.*\(other\)"):
            await check(declared(stops, path="x"), client)
        with pytest.raises(PayloadInvalid, match=r"no column new: set settings.evolve = true"):
            await check(declared(file(postgres, {"on_error": "stop"}, evolve=False), path="x"), client)
        assert "would become a dead letter" in (await check(declared(file(postgres), path="x"), client))[-1]
        assert postgres.sql("SELECT count(*) FROM orders") == [(0,)]
        assert postgres.sql("SELECT to_regclass('danube_positions'), to_regclass('orders.new')") == [
            (None, None)
        ]
        postgres.sql("ALTER TABLE orders ALTER other DROP NOT NULL")
        await check(declared(stops, path="x"), client)
        await runner_of(declared(stops, path="x"), client, stop=anyio.Event(), once=True).run()
        await check(declared(stops, path="x"), client)  # the rows that are written are no duplicates
        assert postgres.sql("SELECT id, other, new FROM orders ORDER BY id") == [(1, "x", 1), (2, None, None)]
        postgres.sql(
            "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA public TO reader; DROP TABLE danube_positions"
        )
        lacks = file(postgres, {"on_error": "stop"}, dsn=postgres.dsn.replace("postgres@", "reader@"))
        with pytest.raises(PermissionDenied, match="permission denied for schema public"):
            await check(declared(lacks, path="x"), client)
