"""The data source `danube_telemetry`: a table of the brokers' telemetry."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pydanube.addresses import admin_address
from pydanube.table_broker import TableBroker
from pydanube_core.errors import InvalidArgument
from pydanube_core.telemetry import ColumnType, Table, table_named
from pydanube_core.units import check_period, parse_moment_ms
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples, stored_files
from pydanube_storage.telemetry.writing import arrow_schema
from pydanube_storage.topics.located import (
    STORE,
    cluster_folder,
    open_for_reading,
    store_of_broker,
    store_options,
)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from pydanube_spark.sources.options import words_of

_KNOWN: Final = ("table", "tier", "broker", "admin", "cluster", "start", "end", *STORE)
_TASK_BYTES: Final = 8 << 20
_MAX_MS: Final = 1 << 62


def spark_schema(table: Table) -> StructType:
    return StructType([StructField(each.name, from_arrow_type(each.type)) for each in arrow_schema(table)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    table: Table
    store: StoreOptions
    cluster: str | None
    start_ms: int
    end_ms: int

    @classmethod
    def parse(cls, options: dict[str, str]) -> Self:
        given = words_of(options, _KNOWN)
        if "table" not in given:
            raise InvalidArgument('name a table: .option("table", "cursors")', field="table", value=None)
        table = table_named(given["table"])
        tier, cluster = given.get("tier"), given.get("cluster")
        place: dict[str, str] = {name: given[name] for name in STORE if name in given}
        if tier is None:
            admin_url = admin_address(given.get("admin"), given.get("broker"), os.environ)
            calls = TableBroker(broker_url=admin_url, admin_url=admin_url)
            store, cluster = store_of_broker(calls, cluster, place)
        else:
            store = store_options(tier, place)
        now_ms = time.time_ns() // 1_000_000
        start_ms = parse_moment_ms(given["start"], now_ms=now_ms, field="start") if "start" in given else 0
        end_ms = parse_moment_ms(given["end"], now_ms=now_ms, field="end") if "end" in given else _MAX_MS
        check_period(start_ms, end_ms, given=given.get("end", ""), field="end", begin="start")
        return cls(table=table, store=store, cluster=cluster, start_ms=start_ms, end_ms=end_ms)


class TelemetrySource(DataSource):
    """The Spark source `danube_telemetry`. See the module."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = _Options.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "danube_telemetry"

    def schema(self) -> StructType:
        return spark_schema(self._parsed.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._parsed)


class _Reader(DataSourceReader):
    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return tasks of about 8 MB of files each, which are read whole."""
        options = self._options
        store = open_for_reading(options.store)
        cluster = cluster_folder(store, options.cluster)
        tasks: list[list[str]] = []
        size = _TASK_BYTES
        for key, _, file_bytes in stored_files(
            store, cluster, options.table, start_ms=options.start_ms, end_ms=options.end_ms
        ):
            if size >= _TASK_BYTES:
                tasks.append([])
                size = 0
            tasks[-1].append(key)
            size += file_bytes
        return [InputPartition(tuple(task)) for task in tasks] or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        store = open_for_reading(options.store)
        for key in partition.value:
            samples = read_samples(store, key, options.table)
            times = samples.column("taken_at").cast(pa.int64()).to_numpy()
            if options.start_ms or options.end_ms < _MAX_MS:
                inside = (times >= options.start_ms) & (times < options.end_ms)
                samples = samples.filter(pa.array(inside))
            yield from _as_spark(samples, options.table).to_batches(max_chunksize=65_536)


def _as_spark(samples: Any, table: Table) -> Any:
    """Return the table with times in microseconds, as Spark needs them."""
    for number, column in enumerate(table.columns):
        if column.kind is ColumnType.TIME:
            cast = samples.column(number).cast(pa.timestamp("us", tz="UTC"))
            samples = samples.set_column(number, column.name, cast)
    return samples
