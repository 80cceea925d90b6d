"""Write rows of objects into one file, Parquet or JSON lines, which gets its name when it is complete and synced.

`begin` → `add` once per object, ascending → `finish`, or `abort` at any time. An existing file is never replaced. An
abandoned export leaves a hidden file beside the target, which the next export to the same name does not touch.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.batch.nulls import is_null
from pydanube_core.errors import AlreadyExists, ClosedResource, DiskFull, InvalidArgument
from pydanube_core.units import format_time

from pydanube_storage.audit_file import check_file_name
from pydanube_storage.folders import is_full, sync_file, sync_folder
from pydanube_storage.objects import ObjectStore
from pydanube_storage.parquet.columns import READS_VERSION, Meta
from pydanube_storage.parquet.encode import RowGroup
from pydanube_storage.parquet.read import Expected, ObjectReader
from pydanube_storage.parquet.write import ROW_GROUP_BYTES, ObjectWriter


class ExportFile:
    """One export: a hidden file that gets its name in `finish`. Rows are added in ascending order of offsets.

    Args:
        target: a path that does not exist yet.
        file_format: `parquet` or `jsonl`.
        partition: of the topic, written into JSON lines.

    The constructor and all methods except `abort` raise `AlreadyExists`, `InvalidArgument` and `DiskFull`.
    """

    def __init__(self, target: Path, meta: Meta, *, file_format: str, partition: int | None) -> None:
        self.messages = 0
        # for other programs: they see a null payload as null
        meta = replace(meta, format_version=READS_VERSION)
        self._target, self._meta, self._partition = target, meta, partition
        self._temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        self._writer: ObjectWriter | None = None
        self._lines: IO[bytes] | None = None
        check_file_name(target)
        try:
            if target.exists() or target.is_symlink():
                raise FileExistsError(target)
            if file_format == "parquet":
                self._writer = ObjectWriter(self._temporary, meta, must_be_new=True)
            else:
                self._lines = self._temporary.open("xb", 1 << 20)
        except OSError as error:
            _fail(target, error)

    def add(self, table: Any, epochs: tuple[tuple[int, int], ...], *, start: int, end: int) -> None:
        """Add the rows in `[start, end)` of a table, and the epochs that begin in it."""
        offsets = table.column("offset")
        table = table.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
        self.messages += table.num_rows
        try:
            if self._writer is not None:
                self._writer.add_table(table, epochs)
            else:
                assert self._lines is not None
                self._lines.writelines(_lines(table, self._meta.topic, self._partition))
        except OSError as error:
            _fail(self._target, error)

    def finish(self, *, covers: tuple[int, int] | None = None) -> dict[str, int]:
        """Give the file its name and return {messages, bytes}. The file is durable on return.

        Args:
            covers: the offsets [start, end), if `meta` does not have them.
        """
        try:
            if self._writer is not None:
                with self._writer as writer:
                    writer.finish(covers=covers)
            else:
                assert self._lines is not None
                self._lines.close()
            size = self._temporary.stat().st_size
            sync_file(self._temporary)
            os.link(self._temporary, self._target)
            self._temporary.unlink()
            sync_folder(self._target.parent)
        except OSError as error:
            _fail(self._target, error)
        return {"messages": self.messages, "bytes": size}

    def abort(self) -> None:
        """Remove the unfinished file."""
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.__exit__(None, None, None)
            if self._lines is not None:
                self._lines.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


class ExportOfBatches:
    """An export of stored batches, for a process without the object store: `danube objects export`."""

    def __init__(self, file: ExportFile) -> None:
        self._file = file
        self._group = RowGroup()
        self._epochs: list[tuple[int, int]] = []
        self.start: int | None = None  # first offset
        self.end = 0  # one past the last added offset
        self._taken = 0  # end of the batches in the group, where a batch that arrives in parts is whole
        self._at = 0  # rows below are in the file

    def add(self, stored: bytes | memoryview, *, start: int, end: int) -> None:
        """Add the messages in `[start, end)` of a batch. Raises like `RowGroup.add` and `ExportFile.add`."""
        if self.start is None:
            self.start = self._at = start
        if end > self._taken:
            if self._group.raw_bytes >= ROW_GROUP_BYTES:
                self._flush()
            owner = self._group.add(stored)
            if not self._epochs or self._epochs[-1][0] != owner.epoch:
                self._epochs.append((owner.epoch, max(start, owner.base_offset)))
            self._taken = owner.last_offset + 1
        self.end = end

    def finish(self) -> dict[str, int]:
        self._flush()
        return self._file.finish(covers=(self.start or 0, self.end))

    def _flush(self) -> None:
        if self._group.messages:
            table = pa.Table.from_batches([self._group.to_arrow()])
            self._file.add(table, tuple(self._epochs), start=self._at, end=self.end)
        self._group, self._epochs, self._at = RowGroup(), [], self.end


class ExportWork:
    """Calls of the tier's process, with JSON values and bytes in and out. A token names an export."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._open: dict[str, ExportFile] = {}

    def begin(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Begin an export: `token`, `path`, `format` (parquet or jsonl), `meta` (`Meta`), `partition`.

        Raises `AlreadyExists`, `InvalidArgument` or `DiskFull`. Nothing was written then.
        """
        self._open[arguments["token"]] = ExportFile(
            Path(arguments["path"]),
            Meta(**arguments["meta"]),
            file_format=arguments["format"],
            partition=arguments["partition"],
        )
        return {}, b""

    def add(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Add an object's rows in `[start, end)`: `token`, `key`, `bytes`, `footer_bytes`, `footer_crc`, `start`, `end`."""
        export = self._find(arguments["token"])
        reader = ObjectReader(
            self._store,
            arguments["key"],
            Expected(
                bytes=arguments["bytes"],
                footer_bytes=arguments["footer_bytes"],
                footer_crc=arguments["footer_crc"],
            ),
        )
        start, end = arguments["start"], arguments["end"]
        for index in range(reader.row_group_at(start), reader.row_groups):
            if reader.first[index] >= end:
                break
            export.add(reader.read_row_group(index), reader.meta.epochs, start=start, end=end)
        return {"messages": export.messages}, b""

    def finish(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Give the file its name. It is durable on return."""
        said = self._find(arguments["token"]).finish()
        del self._open[arguments["token"]]
        return said, b""

    def abort(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Abort an export and remove its unfinished file."""
        export = self._open.pop(arguments["token"], None)
        if export is not None:
            export.abort()
        return {}, b""

    def _find(self, token: str) -> ExportFile:
        export = self._open.get(token)
        if export is None:
            raise ClosedResource("the export was lost with the process that wrote it: begin again")
        return export


def _lines(table: Any, topic: str, partition: int | None) -> list[bytes]:
    """Return a JSON object for each message, with the names of `danube consume --json`."""
    columns = {name: table.column(name) for name in table.column_names}
    times = columns["append_time"].cast(pa.int64()).to_pylist()
    published = columns["publish_time"].cast(pa.int64()).to_pylist()
    rest = [
        columns[name].to_pylist()
        for name in (
            "offset",
            "producer",
            "sequence",
            "schema_id",
            "schema_version",
            "key",
            "attributes",
            "payload",
        )
    ]
    found = []
    for at, out, offset, producer, sequence, schema, version, key, attributes, payload in zip(
        times, published, *rest, strict=True
    ):
        line = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "append_time": format_time(at),
            "publish_time": format_time(out),
            "producer": producer["name"],
            "producer_id": str(producer["id"]),
            "sequence": sequence,
            "schema_id": None if schema is None else str(schema),
            "schema_version": version,
            "key": key,
            "attributes": dict(attributes),
        }
        try:
            line["payload"] = None if is_null(payload, line["attributes"]) else payload.decode()
        except UnicodeDecodeError:
            line["payload_base64"] = base64.b64encode(payload).decode()
        found.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return found


def _fail(target: Path, error: OSError) -> NoReturn:
    if isinstance(error, FileExistsError):
        raise AlreadyExists(
            f"{target} exists already. An export never replaces a file: name another",
            field="to",
            value=str(target),
        ) from error
    cause = error.strerror or str(error)
    if is_full(error):
        raise DiskFull(
            f"there is no room for {target}: free some on its disk, or export a smaller range",
            path=str(target),
        ) from error
    raise InvalidArgument(
        f"to: {target} cannot be written ({cause}): name a file in a folder that exists there and may be written to",
        field="to",
        value=str(target),
        cause=cause,
    ) from error
