"""The rules for declared connectors. Their facts are the record and the newest report of a worker. Pure.

A connector has one finding of the rules for its end (`stopped`, `refused`, `without worker`), and any number of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Severity

CREDENTIALS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
DOES_NOT_FIT: Final = frozenset({"PAYLOAD_INVALID", "SCHEMA_INCOMPATIBLE", "MESSAGE_TOO_LARGE"})
#: bytes (1 GiB) of the database's log that a slot keeps. More fills small disks within an hour of writing
SLOT_BYTES: Final = 1 << 30
SILENT_MS: Final = 600_000  # a source without a record for so long, after it had some
BUSY: Final = 0.8  # part of the last minute that a sink waited for its target
#: messages. A smaller backlog is a few batches
SLOW_LAG: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorView:
    """One connector at one moment. None: unknown, or no worker reports it."""

    connector: str
    type: str
    kind: str | None
    group: str
    state: str  # starting, running, paused, failing, stopped
    worker: str | None
    last_error: str | None = None
    error_code: str | None = None  # of the error that stopped it
    refused: int | None = None
    refused_per_min: int | None = None
    lag_messages: int | None = None
    busy: float | None = None  # part of the last minute in which a sink waited for its target
    last_record_ms: int | None = None
    held_bytes: int | None = None  # that the other system keeps until they are read


def connector_findings(view: ConnectorView, now_ms: int) -> list[Finding]:
    """Return what is wrong with a connector."""
    return list(_findings(view, now_ms))


def _findings(view: ConnectorView, now_ms: int) -> Iterator[Finding]:
    own = {"connector": view.connector}
    describe = NextCall("connectors.describe", own, "shows its file, worker, counters and positions")
    logs = NextCall("connectors.logs", own, "shows what its worker logged")
    errors = NextCall(
        "connectors.errors", own, "shows the last error, and the refused records with their reasons"
    )
    restart = NextCall("connectors.restart", own, "starts it again after the cause is mended")

    def finding(
        rule: str,
        summary: str,
        evidence: Mapping[str, Any],
        *calls: NextCall,
        severity: Severity = Severity.WARNING,
    ) -> Finding:
        said: Mapping[str, Any] = {} if view.last_error is None else {"last_error": view.last_error}
        return Finding(
            rule=rule, subject=own, summary=f"the connector {view.connector} {summary}", evidence=evidence,
            severity=severity, untrusted=said, next=calls, impact=view.lag_messages or 0,
        )  # fmt: skip

    ended = view.state == "stopped" and view.worker is not None
    if view.type == "postgres-source" and (view.state == "paused" or view.worker is None):
        yield finding(
            "connector_slot_fills_disk",
            "rests, and its replication slot keeps the log of the database meanwhile. Resume it, or drop the slot",
            {"state": view.state},
            describe,
            NextCall("connectors.resume", own, "lets it read on"),
            severity=Severity.INFO,
        )
    if view.state != "paused" and view.worker is None:
        leases = NextCall("consumers.list", {"topic": "connect-leases"}, "shows the workers that are there")
        yield finding(
            "connector_worker_gone",
            f"has no worker: none of the group {view.group} reports it. Start one: danube connect worker --group {view.group}",
            {"group": view.group},
            leases,
            describe,
            severity=Severity.CRITICAL,
        )
    elif ended and view.error_code in CREDENTIALS:
        yield finding(
            "connector_credentials_refused",
            "has stopped, because the other system or the cluster refuses its credentials or rights",
            {"error_code": view.error_code},
            errors,
            restart,
            severity=Severity.CRITICAL,
        )
    elif ended and view.error_code in DOES_NOT_FIT:
        yield finding(
            "connector_schema_does_not_fit",
            "has stopped at a record that does not fit its target or schema. Correct the producer or the target, or set "
            'on_error = "dead_letter"',
            {"error_code": view.error_code},
            errors,
            restart,
            severity=Severity.CRITICAL,
        )
    elif view.state == "failing" or (ended and view.last_error is not None):
        yield finding(
            "connector_failing",
            "has stopped with an error" if ended else "fails and tries again",
            {"state": view.state, "error_code": view.error_code},
            errors,
            logs,
            *((restart,) if ended else ()),
            severity=Severity.CRITICAL if ended else Severity.WARNING,
        )
    if view.refused_per_min:
        yield finding(
            "connector_refuses_records",
            f"refused {view.refused_per_min} records in the last minute. They are dead letters",
            {"refused_per_min": view.refused_per_min, "refused": view.refused},
            errors,
        )
    if view.state == "running" and (view.busy or 0) >= BUSY and (view.lag_messages or 0) >= SLOW_LAG:
        yield finding(
            "connector_target_slow",
            "is behind, and waits for its target most of the time. Larger batches, or more partitions, may help",
            {"busy": view.busy, "lag_messages": view.lag_messages},
            describe,
            logs,
        )
    silent_ms = 0 if view.last_record_ms is None else now_ms - view.last_record_ms
    if view.kind == "source" and view.state == "running" and silent_ms >= SILENT_MS:
        yield finding(
            "connector_source_silent",
            f"has read no record for {silent_ms // 60_000} minutes. Its other system may be quiet, or no longer send",
            {"silent_ms": silent_ms},
            logs,
            severity=Severity.INFO,
        )
    if (view.held_bytes or 0) >= SLOT_BYTES:
        yield finding(
            "connector_slot_fills_disk",
            f"leaves {(view.held_bytes or 0) >> 20} MiB of the database's log unread, which its replication slot keeps on "
            "the disk",
            {"held_bytes": view.held_bytes},
            describe,
            logs,
        )
