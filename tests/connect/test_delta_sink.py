"""`delta-sink`: what it wrote is read back by DuckDB and by the Delta library; two writers write each record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydanube.testing import InMemoryCluster
from pydanube_connect import Batch, Overtaken, Place, Record
from pydanube_connect.file import declared
from pydanube_connect.running import check, runner_of
from pydanube_connect.testing import deliver
from pydanube_core.errors import InvalidArgument, PayloadInvalid

pytestmark = pytest.mark.anyio
PLACE = Place("/default/t", None)


def file(folder: Path, delivery: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {
        "name": "a", "connector": "delta-sink", "topic": "t", "settings": {"table": str(folder / "table"), **settings},
        "delivery": {"backoff_s": 0.001, "retries": 2, "on_error": "dead_letter", **(delivery or {})},
    }  # fmt: skip


def rows(folder: Path, sql: str) -> list[Any]:
    found = pa.table(DeltaTable(str(folder / "table")).to_pyarrow_table())
    with duckdb.connect() as connection:
        connection.register("t", found)
        return connection.execute(sql).fetchall()


async def test_a_table_is_made_partitioned_and_evolved(tmp_path: Path) -> None:
    made = file(tmp_path, partition_by=["day"])
    await deliver(made, [{"id": 1, "day": "mon", "n": None}, {"id": 2, "day": "tue", "price": 2.5}])
    await deliver(made, [{"id": 3, "day": "mon", "note": {"a": [1]}}], first=2)
    assert rows(tmp_path, "SELECT id, day, price FROM t ORDER BY id") == [
        (1, "mon", None),
        (2, "tue", 2.5),
        (3, "mon", None),
    ]
    assert DeltaTable(str(tmp_path / "table")).metadata().partition_columns == ["day"]
    assert rows(tmp_path, "SELECT note.a[1] FROM t WHERE id = 3") == [(1,)]


async def test_records_that_do_not_fit_are_found(tmp_path: Path) -> None:
    await deliver(file(tmp_path), [{"id": 1}])
    outcome = await deliver(file(tmp_path), [{"id": 2}, {"id": "x"}, {"id": 3}, "text", {"id": 4.5}], first=1)
    assert rows(tmp_path, "SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
    assert {each.record.offset for each in outcome.refused} == {2, 4, 5}
    nothing = await deliver(file(tmp_path), ["text"], first=6)
    assert len(nothing.refused) == 1
    sink = declared(file(tmp_path), path="a").make()
    await sink.open()
    assert await sink.positions([PLACE]) == {PLACE: 7}, "the position passes a batch without rows"
    outcome = await deliver(file(tmp_path, evolve=False), [{"id": 8, "new": 1}], first=7)
    assert "has no column new" in outcome.refused[0].reason


async def test_two_writers_of_one_position_write_it_once(tmp_path: Path) -> None:
    first, second = (declared(file(tmp_path), path="a").make() for _ in range(2))
    await first.open()
    await second.open()  # neither has seen the other's commits from here on
    records = [Record({"id": n}, place=PLACE, offset=n) for n in range(6)]
    await first.write(Batch(records[:2], ends={PLACE: 2}))
    with pytest.raises(Overtaken):
        await second.write(Batch(records[:2], ends={PLACE: 2}))
    assert await second.positions([PLACE]) == {PLACE: 2}
    await second.write(Batch(records[2:4], starts={PLACE: 2}, ends={PLACE: 4}))
    with pytest.raises(Overtaken):
        await first.write(Batch(records[2:6], starts={PLACE: 2}, ends={PLACE: 6}))
    assert await first.positions([PLACE]) == {PLACE: 4}
    await first.write(Batch(records[4:], starts={PLACE: 4}, ends={PLACE: 6}))
    assert rows(tmp_path, "SELECT id FROM t ORDER BY id") == [(n,) for n in range(6)]


async def test_a_topic_with_partitions_is_written_once_by_runs_that_are_cut(
    tmp_path: Path, memory: InMemoryCluster
) -> None:
    tree = file(tmp_path, {"batch_size": 100, "batch_age": "50ms"})
    async with memory.connect() as client:
        async with client.producer("t", partitions=3) as producer:
            await producer.send_many(
                [b'{"id":%d}' % n for n in range(2_000)], keys=[str(n) for n in range(2_000)]
            )
        for cut in (300, 900):  # the process is killed amid a batch: nothing is acknowledged any more
            runner = runner_of(declared(tree, path="a"), client, stop=anyio.Event())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run)
                while runner.statistics.records < cut:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
                tasks.cancel_scope.cancel()
        await runner_of(declared(tree, path="a"), client, stop=anyio.Event(), once=True).run()
    assert rows(tmp_path, "SELECT count(*), count(DISTINCT id) FROM t") == [(2_000, 2_000)]


async def test_a_check_finds_a_table_that_does_not_fit(tmp_path: Path, memory: InMemoryCluster) -> None:
    await deliver(file(tmp_path), [{"id": 1, "day": "mon"}])
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send_many([b'{"id":1,"day":"mon"}', b'{"id":"x"}'])
        with pytest.raises(
            InvalidArgument, match=r"partitioned by nothing, and settings\.partition_by is day"
        ):
            await check(declared(file(tmp_path, partition_by=["day"]), path="x"), client)
        with pytest.raises(PayloadInvalid, match=r"/default/t offset 1 would be refused: id: "):
            await check(declared(file(tmp_path, {"on_error": "stop"}), path="x"), client)
    assert rows(tmp_path, "SELECT id FROM t") == [(1,)]
