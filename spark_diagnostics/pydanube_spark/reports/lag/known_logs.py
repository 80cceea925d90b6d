"""Message size and retention of each log, for the lag report.

They are as of the end of the reported time, from the last hour with samples in the table `topics`. With one row per log
they fit into the driver's memory.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples, stored_files
from pydanube_storage.topics.located import open_for_reading

from pydanube_spark.reports.lag.history import LogFacts
from pydanube_spark.reports.run import Span
from pydanube_spark.reports.source import topic_matches

_COLUMNS: Final = (
    *("taken_at", "topic", "topic_id", "messages_in", "bytes_in"),
    *("retention_age_s", "retention_bytes", "drop_unread"),
)


def log_facts(options: StoreOptions, cluster: str, span: Span, topic: str | None) -> dict[int, LogFacts]:
    """Return facts by topic id. Damaged files are skipped: the report then lacks bytes and retention, but no lag."""
    store = open_for_reading(options)
    table = table_named("topics")
    found = list(stored_files(store, cluster, table, start_ms=span.since_ms - HOUR_MS, end_ms=span.until_ms))
    newest_ms = min(span.until_ms, max((file.end_ms for _, file, _ in found), default=0))
    rows: list[dict[str, Any]] = []
    for key, file, _ in found:
        if file.end_ms > newest_ms - 2 * HOUR_MS:
            with contextlib.suppress(CorruptObject, ObjectMissing):
                rows += read_samples(store, key, table, columns=list(_COLUMNS)).to_pylist()
    until = datetime.fromtimestamp(span.until_ms / 1000, UTC)
    rows = [row for row in rows if row["taken_at"] < until and topic_matches(row["topic"], topic)]
    newest = max((row["taken_at"] for row in rows), default=until)
    ordered = sorted(rows, key=lambda row: row["taken_at"])
    return {row["topic_id"]: _facts(row) for row in ordered if row["taken_at"] > newest - timedelta(hours=1)}


def _facts(row: dict[str, Any]) -> LogFacts:
    return LogFacts(
        message_bytes=row["bytes_in"] / row["messages_in"] if row["messages_in"] else None,
        retention_age_s=row["retention_age_s"],
        retention_bytes=row["retention_bytes"],
        drop_unread=bool(row["drop_unread"]),
    )
