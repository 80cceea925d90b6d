"""Rules on a broker: its disk, its journal, its object store."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.filling import AHEAD
from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.pressing import PRESSURE_RULES
from pydanube_core.diagnosis.views import BrokerView
from pydanube_core.units import counted

NEAR_TIMES: Final = 2  # of the guard: from there on it is a matter of time
SOON_S: Final = 86_400.0  # full within a day at the rate it fills
SOON_SHARE: Final = 0.25  # of the disk: a rate says something about the near future only

SHOWN_ASIDE: Final = 10

_STATUS: Final = NextCall("brokers.status", {}, "see disk, journal and cold tier")


def journal_read_only(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.journal_error is None:
        return "the journal takes records"
    since_ms = view.journal_error_since_ms
    return Finding(
        severity=Severity.CRITICAL,
        summary="the journal failed and takes nothing more: publishes are refused and cursors stand until a restart",
        evidence={
            "error": view.journal_error,
            "since_s": None if since_ms is None else max(0, view.now_ms - since_ms) / 1000,
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=(_STATUS,),
    )


def disk_nearly_full(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.memory_only:
        return "the broker keeps everything in memory"
    free, total, guard = view.disk_free_bytes, view.disk_total_bytes, view.disk_guard_bytes
    if free is None or total is None or guard is None:
        return "the data folder cannot be looked at"
    filling = view.disk_filling
    rate = None if filling is None else filling.bytes_per_s
    full_in_s = (free - guard) / rate if rate is not None and rate > 0 and free > guard else None
    ahead_s = 0.0 if filling is None else min(SOON_S, AHEAD * filling.seen_s)
    near = free < NEAR_TIMES * guard
    soon = full_in_s is not None and full_in_s < ahead_s and free < SOON_SHARE * total
    if not view.disk_refuses and not near and not soon:
        return f"{free} of {total} bytes are free, and publishing goes on down to {guard}"
    return Finding(
        severity=Severity.CRITICAL if view.disk_refuses else Severity.WARNING,
        confidence=1.0 if view.disk_refuses or near else 0.7,
        summary=f"{free} of {total} bytes are free on the data disk; publishing "
        + ("has stopped" if view.disk_refuses else "stops")
        + f" below {guard}",
        evidence={
            "free_bytes": free,
            "total_bytes": total,
            "guard_bytes": guard,
            "refuses_publishes": view.disk_refuses,
            "bytes_per_s": rate,
            "seen_s": None if filling is None else filling.seen_s,
            "stops_in_s": full_in_s,
            "tier_backlog_bytes": view.tier_backlog_bytes,
        },
        next=(
            _STATUS,
            NextCall(
                "topics.list",
                {},
                "find the topics that hold the most, to set retention_bytes or retention_age_s",
            ),
        ),
    )


def object_store_unreachable(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.store_error is None:
        return "there is no cold tier" if view.tier_off is not None else "the object store answers"
    since_ms = view.store_error_since_ms
    return Finding(
        severity=Severity.WARNING,
        summary="the object store cannot be reached: nothing is lost, but the journal grows by "
        f"{view.tier_backlog_bytes} bytes that wait, and old messages cannot be read",
        evidence={
            "error": view.store_error,
            "since_s": None if since_ms is None else max(0, view.now_ms - since_ms) / 1000,
            "store": view.store_url,
            "tier_backlog_bytes": view.tier_backlog_bytes,
            "errors": view.tier_errors.total,
            "errors_in_window": view.tier_errors.in_window,
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=(_STATUS,),
    )


def metadata_set_aside(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if not view.set_aside:
        return "all metadata could be read and carried out"
    first = view.set_aside[0]
    calls = [
        NextCall(one.operation, one.arguments, one.mend)
        for one in view.set_aside[:SHOWN_ASIDE]
        if one.operation is not None
    ]
    return Finding(
        severity=Severity.CRITICAL,
        summary=f"{len(view.set_aside)} pieces of metadata are set aside, and what they say is not served; the first, "
        f"{first.key}: {first.why}",
        evidence={
            "set_aside": len(view.set_aside),
            "keys": {one.key: one.why for one in view.set_aside[:SHOWN_ASIDE]},
            "mend": sorted({one.mend for one in view.set_aside}),
        },
        next=(*calls, _STATUS),
    )


def undo_given_up(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    gone = sorted(call_id for call_id, until_ms in view.given_up.items() if until_ms > view.now_ms)
    if not gone:
        return "no deletion lost its undo to a full disk"
    return Finding(
        severity=Severity.WARNING,
        summary=f"{len(gone)} deletions cannot be undone any more, before their time: the disk fell below "
        f"{view.disk_guard_bytes} free bytes, and what they had kept was given up",
        evidence={
            "deletions": len(gone),
            "call_ids": gone[:SHOWN_ASIDE],
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=tuple(
            NextCall("audit.query", {"call_id": call_id}, "see what was deleted")
            for call_id in gone[:SHOWN_ASIDE]
        ),
    )


def clock_stepped(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.clock is None:
        return f"the machine's clock has not stepped lately ({counted(view.clock_steps, 'time')} since the start)"
    return Finding(
        severity=Severity.WARNING,
        summary=view.clock,
        evidence={"step_s": view.clock_step_s, "steps": view.clock_steps},
        next=(_STATUS,),
    )


BROKER_RULES: Final = (
    Rule(
        area=RuleArea.BROKER,
        severity="critical",
        holds="a write or a sync of the journal failed",
        evidence={"error": "as the disk gave it", "since_s": "how long ago"},
        unobservable=("what the disk's firmware has stored of the failed write",),
        helps="look at the disk and the broker's log, then restart the broker",
        check=journal_read_only,
        many="brokers take nothing more",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="critical if publishing has stopped, else warning",
        holds="free space is below twice `data.min_free_bytes`, or less than a quarter and will be used up within a day "
        "at a rate that was seen for a tenth of that time",
        evidence={
            "free_bytes, total_bytes": "of the data folder's disk",
            "guard_bytes": "publishing stops below",
            "stops_in_s": "at the rate it fills; null: it does not, or is not known",
            "bytes_per_s, seen_s": "the rate, and over what time it was seen",
        },
        unobservable=("what else writes to that disk",),
        helps="free space, set retention, or lower `data.min_free_bytes`",
        check=disk_nearly_full,
        many="brokers have a disk that is nearly full",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="warning",
        holds="the last call to the object store failed",
        evidence={
            "error": "as the store or the network gave it",
            "tier_backlog_bytes": "waiting to be written",
            "errors_in_window": "failed flushes and reads",
        },
        unobservable=("whether the store, its network or its credentials failed, beyond the error",),
        helps="bring the store back; what waits is written by itself",
        check=object_store_unreachable,
        many="brokers do not reach their object store",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="critical",
        holds="a record in the metadata could not be read, or a change that a crash cut off could not be ended",
        evidence={
            "set_aside": "how many",
            "keys": "the first ten, and why each",
            "mend": "what is to be done",
        },
        unobservable=("what damaged it",),
        helps="make the call in next, or restore the metadata from a backup",
        check=metadata_set_aside,
        many="brokers have metadata set aside",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="warning",
        holds="free space fell below `data.min_free_bytes`, and deletions within `admin.undo_grace` lost what their undo "
        "needs; for as long as that would have been",
        evidence={
            "deletions": "how many",
            "call_ids": "the first ten",
            "disk_free_bytes": "of the data folder's disk",
        },
        unobservable=("deletions before the broker started",),
        helps="restore what is missed from a backup; give the disk room before the next deletion",
        check=undo_given_up,
        many="brokers gave up the undo of deletions",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="warning",
        holds="the machine's clock stepped by more than 2 s within the last ten minutes",
        evidence={"step_s": "forward or back, the last time", "steps": "since the broker started"},
        unobservable=("which of the machine's times was right",),
        helps="look at its time service; ages and append times of that time may be wrong",
        check=clock_stepped,
        many="brokers have a clock that stepped",
    ),
    *PRESSURE_RULES,
)
