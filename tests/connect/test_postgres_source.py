"""`postgres-source` against a real server: snapshot, changes, restarts, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.running import check, runner_of
from pydanube_connect.statistics import exposition
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied

from tests.connect.servers import MISSING, Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as found:
        yield found


@pytest.fixture
def postgres(server: Postgres) -> Postgres:
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP PUBLICATION IF EXISTS danube_pg")
    server.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    server.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, price numeric(30,4), at timestamptz, ok bool, doc jsonb, big text)"
    )
    return server


def file(postgres: Postgres, **settings: Any) -> dict[str, Any]:
    return {
        "name": "pg", "connector": "postgres-source", "topic": "t",
        "settings": {"dsn": postgres.dsn, "tables": ["orders"], **settings},
        "delivery": {"backoff_s": 0.05},
    }  # fmt: skip


async def once(client: Any, tree: dict[str, Any]) -> Any:
    runner = runner_of(declared(tree, path="x"), client, stop=anyio.Event(), once=True)
    await runner.run()
    return runner.statistics


async def values(client: Any) -> list[tuple[str | None, Any]]:
    async with client.reader("t", stop="head") as reader:
        return [(message.key, json.loads(message.payload)) async for message in reader]


async def test_rows_then_changes_exactly(postgres: Postgres, memory: InMemoryCluster) -> None:
    postgres.sql(
        "INSERT INTO orders VALUES (1, '12345678901234567890.1234', '2026-01-31T12:00:00Z', true, '{\"a\": [1]}', 'x')"
    )
    async with memory.connect() as client:
        await once(client, file(postgres))
        ((key, row),) = await values(client)
        assert (key, row["op"], row["table"], row["before"]) == ("1", "read", "public.orders", None)
        assert row["after"]["price"] == "12345678901234567890.1234"
        assert row["after"]["at"].startswith("2026-01-31 12:00:00")
        assert (row["after"]["ok"], row["after"]["doc"]) == (True, {"a": [1]})
        postgres.sql(
            "INSERT INTO orders (id) VALUES (2); UPDATE orders SET ok = false WHERE id = 1; DELETE FROM orders WHERE id = 2"
        )
        postgres.sql("TRUNCATE orders")
        found = await once(client, file(postgres))
        changes = (await values(client))[1:]
        assert [(key, change["op"]) for key, change in changes] == [
            ("2", "insert"), ("1", "update"), ("2", "delete"), (None, "truncate"),
        ]  # fmt: skip
        assert changes[0][1]["xid"] == changes[2][1]["xid"]
        assert changes[1][1]["after"]["ok"] is False
        assert changes[0][1]["committed_at"] is not None
        assert (found.records, found.guarantee) == (4, "exactly_once")
        assert (await once(client, file(postgres))).records == 0


async def test_unchanged_toast_is_marked_and_full_identity_gives_before(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    postgres.sql(
        "ALTER TABLE orders ALTER COLUMN big SET STORAGE EXTERNAL; INSERT INTO orders (id, big) VALUES (1, repeat('x', 9000))"
    )
    async with memory.connect() as client:
        await once(client, file(postgres))
        postgres.sql("UPDATE orders SET ok = true")
        postgres.sql("ALTER TABLE orders REPLICA IDENTITY FULL; UPDATE orders SET ok = false")
        await once(client, file(postgres))
        _, first, second = [change for _, change in await values(client)]
        assert (first["before"], first["unchanged"]) == (None, ["big"])
        assert "big" not in first["after"]
        assert second["before"]["ok"] is True
        assert second["after"]["big"] == "x" * 9000


async def test_runs_that_are_cut_lose_and_double_nothing(postgres: Postgres, memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        await once(client, file(postgres))
        for begin in range(0, 3_000, 1_000):  # transactions larger than a batch
            postgres.sql(
                "INSERT INTO orders (id, big) SELECT n, repeat('y', 3000) FROM generate_series(%s::int, %s::int) n",
                [begin, begin + 999],
            )
        for cut in (100, 1_200):
            runner = runner_of(declared(file(postgres), path="x"), client, stop=anyio.Event())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run)
                while runner.statistics.records < cut:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        await once(client, file(postgres))
        ids = [change["after"]["id"] for _, change in await values(client)]
        assert ids == list(range(3_000))


async def test_a_signal_reads_a_table_anew_between_the_changes(
    postgres: Postgres, memory: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    postgres.sql("INSERT INTO orders (id, price) SELECT n, n FROM generate_series(1, 2500) n")
    async with memory.connect() as client:
        assert (await once(client, file(postgres, snapshot=False))).records == 0
        postgres.sql("UPDATE orders SET ok = true WHERE id = 1")
        postgres.sql("SELECT pg_logical_emit_message(true, 'danube', 'snapshot orders')")
        postgres.sql("SELECT pg_logical_emit_message(true, 'danube', 'snapshot unknown')")
        postgres.sql("SELECT pg_logical_emit_message(true, 'another', 'snapshot orders')")
        postgres.sql("UPDATE orders SET ok = false WHERE id = 1")
        found = await once(client, file(postgres, snapshot=False))
        changes = [change for _, change in await values(client)]
        assert found.records == 2_502
        assert [changes[0]["op"], changes[-1]["op"]] == ["update", "update"]
        assert sorted(change["after"]["id"] for change in changes[1:-1]) == list(range(1, 2_501))
        assert {change["op"] for change in changes[1:-1]} == {"read"}
        assert "connector_signal_refused" in caplog.text
        assert (await once(client, file(postgres, snapshot=False))).records == 0, "a signal is obeyed once"


async def test_a_signal_whose_reading_was_cut_is_obeyed_again(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    postgres.sql("INSERT INTO orders (id) SELECT n FROM generate_series(1, 30000) n")
    async with memory.connect() as client:
        await once(client, file(postgres, snapshot=False))
        postgres.sql("SELECT pg_logical_emit_message(true, 'danube', 'snapshot orders')")
        runner = runner_of(declared(file(postgres, snapshot=False), path="x"), client, stop=anyio.Event())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            while not 0 < runner.statistics.records < 29_000:  # noqa: ASYNC110
                await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
        assert (await once(client, file(postgres, snapshot=False))).records == 30_000
        ids = {change["after"]["id"] for _, change in await values(client)}
        assert ids == set(range(1, 30_001))


async def test_a_quiet_database_does_not_keep_its_log(postgres: Postgres, memory: InMemoryCluster) -> None:
    """Only tables that are not published change: the slot moves on, and keeps no log on the disk."""
    async with memory.connect() as client:
        await once(client, file(postgres))
        postgres.sql("CREATE TABLE other (t text)")
        for _ in range(3):
            postgres.sql("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 20000)")
        stop = anyio.Event()
        runner = runner_of(declared(file(postgres), path="x"), client, stop=stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            kept = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
            with anyio.fail_after(60):
                while postgres.sql(kept)[0][0] > 100_000:  # noqa: ASYNC110
                    await anyio.sleep(0.2)
            stop.set()
        assert runner.statistics.held_bytes is not None
        assert "danube_connect_held_bytes" in exposition([runner.statistics])


async def test_a_slot_that_another_connector_reads_is_waited_for(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    async with memory.connect() as client:
        await once(client, file(postgres))
        stop = anyio.Event()
        first = runner_of(declared(file(postgres), path="x"), client, stop=stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            while not postgres.sql("SELECT 1 FROM pg_replication_slots WHERE active"):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            busy = {**file(postgres), "delivery": {"backoff_s": 0.01, "retries": 2}}
            with pytest.raises(ClusterError, match=r"slot danube_pg is in use by the process \d+"):
                await once(client, busy)
            with pytest.raises(InvalidArgument, match=r"is in use by the process \d+.*settings\.slot"):
                await check(declared(busy, path="x"), client)
            stop.set()


async def test_the_slot_of_another_connector_is_never_dropped(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    async with memory.connect() as client:
        await once(client, file(postgres))
        with pytest.raises(InvalidArgument, match=r"slot danube_pg exists, and may be another connector's"):
            await once(client, {**file(postgres, slot="danube_pg"), "name": "other"})
        postgres.sql("INSERT INTO orders (id) VALUES (7)")
        await once(client, file(postgres))
        assert "7" in [key for key, _ in await values(client)], "the first connector goes on"


async def test_missing_rights_are_found_before_anything_is_made(
    postgres: Postgres, memory: InMemoryCluster
) -> None:
    postgres.sql(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA public TO reader"
    )
    tree = file(postgres, dsn=postgres.dsn.replace("postgres@", "reader@"))
    async with memory.connect() as client:
        with pytest.raises(PermissionDenied, match="ALTER ROLE reader REPLICATION"):
            await check(declared(tree, path="x"), client)
        postgres.sql("ALTER ROLE reader REPLICATION")
        with pytest.raises(PermissionDenied, match=r"GRANT SELECT ON public\.orders TO reader"):
            await once(client, tree)
    assert (
        postgres.sql(
            "SELECT 1 FROM pg_publication WHERE pubname = 'danube_pg' UNION SELECT 1 FROM pg_replication_slots"
        )
        == []
    )


async def test_what_is_wrong_is_a_sentence(postgres: Postgres, memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        with pytest.raises(InvalidArgument, match=r"table public.nothing does not exist.*settings.tables"):
            await check(declared(file(postgres, tables=["nothing"]), path="x"), client)
        await once(client, file(postgres))
        postgres.sql("CREATE TABLE other (id int PRIMARY KEY)")
        with pytest.raises(InvalidArgument, match=r"ALTER PUBLICATION danube_pg ADD TABLE public\.other"):
            await once(client, file(postgres, tables=["orders", "other"]))
        postgres.sql("SELECT pg_drop_replication_slot('danube_pg')")
        with pytest.raises(ClusterError, match=r"slot danube_pg is gone.*connect-pg-positions"):
            await once(client, file(postgres))
