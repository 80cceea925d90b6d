"""Write rows of objects into one file, Parquet or JSON lines, which gets its name when it is complete and synced.

`begin` → `add` once an object, ascending → `finish`, or `abort` at any time. A file that exists is never replaced. What
an abandoned export leaves is a hidden file beside the target; the next export to that folder under the same name does
not touch it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.errors import AlreadyExists, ClosedResource, DiskFull, InvalidArgument
from pydanube_core.units import format_time

from pydanube_storage.folders import sync_file, sync_folder
from pydanube_storage.objects import ObjectStore
from pydanube_storage.parquet.columns import Meta
from pydanube_storage.parquet.read import Expected, ObjectReader
from pydanube_storage.parquet.write import ObjectWriter

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Export:
    target: Path
    temporary: Path
    meta: Meta
    partition: int | None
    writer: ObjectWriter | None  # Parquet
    lines: IO[bytes] | None  # JSON lines
    messages: int = 0


class ExportWork:
    """Calls of the tier's process: JSON values in and out, bytes beside. A token names an export."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._open: dict[str, _Export] = {}

    def begin(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Begin an export: `token`, `path`, `format` (parquet or jsonl), `meta` (`Meta`), `partition`.

        Raises `AlreadyExists`, `InvalidArgument`, `DiskFull`: nothing was written.
        """
        target = Path(arguments["path"])
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        meta = Meta(**arguments["meta"])
        try:
            if target.exists() or target.is_symlink():
                raise FileExistsError(target)
            parquet = arguments["format"] == "parquet"
            export = _Export(
                target=target,
                temporary=temporary,
                meta=meta,
                partition=arguments["partition"],
                writer=ObjectWriter(temporary, meta) if parquet else None,
                lines=None if parquet else temporary.open("xb", 1 << 20),
            )
        except OSError as error:
            _fail(target, error)
        self._open[arguments["token"]] = export
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
        try:
            for index in range(reader.row_group_at(start), reader.row_groups):
                if reader.first[index] >= end:
                    break
                table = reader.read_row_group(index)
                if reader.first[index] < start or reader.row_group_end(index) > end:
                    offsets = table.column("offset")
                    table = table.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
                export.messages += table.num_rows
                if export.writer is not None:
                    export.writer.add_table(table, reader.meta.epochs)
                else:
                    assert export.lines is not None
                    export.lines.writelines(_lines(table, export))
        except OSError as error:
            _fail(export.target, error)
        return {"messages": export.messages}, b""

    def finish(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Give the file its name; it is on stable storage on return."""
        export = self._find(arguments["token"])
        try:
            if export.writer is not None:
                with export.writer as writer:
                    writer.finish()
            else:
                assert export.lines is not None
                export.lines.close()
            size = export.temporary.stat().st_size
            sync_file(export.temporary)
            os.link(export.temporary, export.target)
            export.temporary.unlink()
            sync_folder(export.target.parent)
        except OSError as error:
            _fail(export.target, error)
        del self._open[arguments["token"]]
        return {"messages": export.messages, "bytes": size}, b""

    def abort(self, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Give up an export and leave nothing behind."""
        export = self._open.pop(arguments["token"], None)
        if export is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                if export.writer is not None:
                    export.writer.__exit__(None, None, None)
                if export.lines is not None:
                    export.lines.close()
            with contextlib.suppress(OSError):
                export.temporary.unlink()
        return {}, b""

    def _find(self, token: str) -> _Export:
        export = self._open.get(token)
        if export is None:
            raise ClosedResource("the export was lost with the process that wrote it: begin again")
        return export


def _lines(table: Any, export: _Export) -> list[bytes]:
    """Yield a JSON object for each message, with the names of `danube consume --json`."""
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
            "topic": export.meta.topic,
            "partition": export.partition,
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
            line["payload"] = payload.decode()
        except UnicodeDecodeError:
            line["payload_base64"] = base64.b64encode(payload).decode()
        found.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return found


def _fail(target: Path, error: OSError) -> NoReturn:
    if isinstance(error, FileExistsError):
        raise AlreadyExists(
            f"{target} exists already; an export never replaces a file: name another",
            field="to",
            value=str(target),
        ) from error
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        raise DiskFull(
            f"there is no room for {target}: free some on its disk, or export a smaller range",
            path=str(target),
        ) from error
    raise InvalidArgument(
        f"to: {target} cannot be written by the broker ({cause}): name a file in a folder that exists on the broker's "
        "machine and that its user may write to",
        field="to",
        value=str(target),
        cause=cause,
    ) from error
