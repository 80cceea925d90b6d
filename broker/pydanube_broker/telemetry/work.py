"""Telemetry in the tier's process: write, merge and delete files. Blocking. Only this module uses pyarrow."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.tables import EVENTS
from pydanube_storage.objects import ObjectStore
from pydanube_storage.telemetry.reading import newest_rows
from pydanube_storage.telemetry.upkeep import Keeping, look_after
from pydanube_storage.telemetry.writing import encode, table_of_rows

from pydanube_broker.telemetry.charted import charted_before
from pydanube_broker.telemetry.past import past_rings

Answer: TypeAlias = tuple[dict[str, Any], bytes]


class TelemetryWork:
    """Calls of the broker: `name(arguments, blob) → (result, blob)`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {
            "telemetry_write": self.write,
            "telemetry_tend": self.tend,
            "telemetry_events": self.events,
            "telemetry_past": self.past,
            "telemetry_charted": self.charted,
        }

    def write(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Write files. `files`: [{table, key, sizes}]. `blob` has the rows of each, in order."""
        at = written = 0
        for file in arguments["files"]:
            table = table_named(file["table"])
            rows: list[Any] = []
            for size in file["sizes"]:
                rows += marshal.loads(memoryview(blob)[at : at + size])
                at += size
            data = encode(table, table_of_rows(table, rows))
            self._store.put(file["key"], data)
            written += len(data)
        return {"bytes": written}, b""

    def tend(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Merge, thin and delete: {merged, deleted, damaged}, files."""
        keeping = Keeping(
            downsample_after_ms=arguments["downsample_after_ms"],
            keep_ms=arguments["keep_ms"],
            keep_downsampled_ms=arguments["keep_downsampled_ms"],
        )
        done = look_after(
            self._store,
            arguments["cluster"],
            arguments["broker_id"],
            keeping,
            now_ms=arguments["now_ms"],
            most=arguments["most"],
        )
        return dict(done), b""

    def events(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the newest rows of `events` in `[start_ms, end_ms)`: {more}, rows."""
        rows, more = newest_rows(
            self._store,
            arguments["cluster"],
            EVENTS,
            start_ms=arguments["start_ms"],
            end_ms=arguments["end_ms"],
            most=arguments["most"],
        )
        return {"more": more}, marshal.dumps(rows)

    def past(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the last run of a broker in `[start_ms, end_ms)`: {times}, rings."""
        times, rings = past_rings(
            self._store,
            arguments["cluster"],
            arguments["broker_id"],
            start_ms=arguments["start_ms"],
            end_ms=arguments["end_ms"],
        )
        return {"times": times}, marshal.dumps(rings)

    def charted(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the rows of a broker's charts in `[start_ms, end_ms)`: {}, rows."""
        bounds = {name: arguments[name] for name in ("start_ms", "end_ms", "hold_ms")}
        found = charted_before(self._store, arguments["cluster"], arguments["broker_id"], **bounds)
        return {}, marshal.dumps(found)
