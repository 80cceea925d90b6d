"""`delta-sink`: append records to a Delta Lake table, exactly once.

A commit contains the data and the position of each partition, as application transactions. It is based on the table
version in which the positions were read. The library does not retry it. If another commit came first, the sink reads
the positions again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from anyio.to_thread import run_sync
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pydantic import Field
from pydanube_core.errors import InvalidArgument

from pydanube_connect.connector import Guarantee, Settings, Sink
from pydanube_connect.records import Batch, Place, Refused
from pydanube_connect.writing import Overtaken

_ENGINE: Final = "danube-connect"


class DeltaSinkSettings(Settings):
    """Settings of `delta-sink`."""

    table: str = Field(description="path or URL: /data/orders, s3://bucket/orders")
    mode: Literal["append"] = Field(default="append", description="a row for each record")
    partition_by: list[str] = Field(default=[], description="partition columns of a table that is made")
    storage_options: dict[str, str] = Field(
        default={}, description="of the object store. Secrets as ${env:NAME}"
    )
    evolve: bool = Field(default=True, description="make the table, and add columns for new fields")


class DeltaSink(Sink[DeltaSinkSettings]):
    """Appends rows."""

    def __init__(self, settings: DeltaSinkSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._table: DeltaTable | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    async def open(self) -> None:
        await run_sync(self._load)

    async def close(self) -> None:
        self._table = None

    async def check(self) -> list[str]:
        await self.open()
        if self._table is None:
            return [f"table {self.settings.table} does not exist: it is made from the first batch"]
        names = ", ".join(field.name for field in self._table.schema().fields)
        return [f"table {self.settings.table} has version {self._table.version()} and the columns {names}"]

    async def positions(self, places: Collection[Place]) -> Mapping[Place, int]:
        await run_sync(self._load)
        return self._positions(places)

    async def rehearse(self, batch: Batch) -> None:
        if batch.records:
            self._rows(_objects(batch))

    async def write(self, batch: Batch) -> None:
        _objects(batch)
        await run_sync(self._write, batch)

    # -- in a thread -----------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the newest version of the table."""
        try:
            if self._table is None:
                self._table = DeltaTable(
                    self.settings.table, storage_options=self.settings.storage_options or None
                )
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
            return
        wanted, found = self.settings.partition_by, self._table.metadata().partition_columns
        if wanted and wanted != found:
            raise InvalidArgument(
                f"table {self.settings.table} is partitioned by {', '.join(found) or 'nothing'}, and "
                f"settings.partition_by is {', '.join(wanted)}. Correct it, or write to another table.",
                field="settings.partition_by", value=wanted,
            )  # fmt: skip

    def _positions(self, places: Collection[Place]) -> dict[Place, int]:
        if self._table is None:
            return {}
        found = {place: self._table.transaction_version(self._application(place)) for place in places}
        return {place: position for place, position in found.items() if position is not None}

    def _application(self, place: Place) -> str:
        return f"{_ENGINE}/{self.name}{place.topic}/{-1 if place.partition is None else place.partition}"

    def _write(self, batch: Batch) -> None:
        if self._positions(batch.ends) != batch.starts:
            raise Overtaken
        rows = self._rows(batch.values)
        now_ms = time.time_ns() // 1_000_000
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[
                Transaction(self._application(place), end, now_ms) for place, end in batch.ends.items()
            ],
        )
        settings = self.settings
        try:
            if self._table is None:
                write_deltalake(
                    settings.table, rows, mode="error", partition_by=settings.partition_by or None,
                    storage_options=settings.storage_options or None, commit_properties=properties,
                )  # fmt: skip
            else:
                write_deltalake(
                    self._table, rows, mode="append", schema_mode="merge", commit_properties=properties
                )
        except CommitFailedError as error:
            raise Overtaken from error
        except DeltaError as error:
            if self._table is None and "already exists" in str(error):
                raise Overtaken from error
            raise
        self._load()

    def _rows(self, values: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the rows with the types of the table. A new column has the type of its values.

        Raises:
            Refused: a value does not fit.
        """
        known = pa.schema([] if self._table is None else self._table.schema().to_arrow())
        types = {field.name: field.type for field in known}
        new = dict.fromkeys(name for value in values for name in value.keys() - types)
        if new and self._table is not None and not self.settings.evolve:
            raise Refused(
                None, f"the table has no column {', '.join(new)}: set settings.evolve = true or drop it"
            )
        columns: dict[str, pa.Array] = {}
        for name in (*types, *new):
            try:
                columns[name] = _column([value.get(name) for value in values], types.get(name))
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
                raise Refused(None, f"{name}: {' '.join(str(error).split())[:300]}") from None
        return pa.table(columns)


def _objects(batch: Batch) -> Sequence[Mapping[str, Any]]:
    if not {*map(type, batch.values)} <= {dict}:
        wrong = [record for record in batch if not isinstance(record.value, dict)]
        raise Refused(wrong, "a row is an object, and the value is none")
    return batch.values


def _column(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as a column. A lossy conversion raises `ArrowInvalid`."""
    if kind is not None and pa.types.is_nested(kind):
        return pa.array(values, type=kind)
    found = pa.array(values)
    if kind is None:
        return found.cast(pa.string()) if pa.types.is_null(found.type) else found
    return found if found.type == kind else found.cast(kind)
