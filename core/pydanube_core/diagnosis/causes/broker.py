"""Causes in a broker: disk, journal, object store, metadata, and load on the whole broker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from pydanube_core.diagnosis.filling import AHEAD
from pydanube_core.diagnosis.findings import BrokerRule, Finding, NextCall, Outcome, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView, ago_s
from pydanube_core.security.credential import Credential
from pydanube_core.units import counted

NEAR_TIMES: Final = 2  # of the guard: from there on it is a matter of time
SOON_S: Final = 86_400.0  # full within a day at the rate it fills
SOON_SHARE: Final = 0.25  # of the disk: a rate predicts only the near future
SHOWN_ASIDE: Final = 10
SLOW_SHARE: Final = 0.01  # of the syncs: their p99
FEWEST_SLOW: Final = 3  # one long wait is no slow disk
FEWEST_OPENED: Final = 100  # connections in a window
OPENED_TIMES: Final = 5  # those that are open
NOISY_SHARE: Final = 0.7  # of the bytes
NOISY_BYTES: Final = 1 << 20  # per second: less affects no other topic
BUSY: Final = 0.7  # of a core: the broker's loop has one
LATE_MS: Final = 50.0
DAY_MS: Final = 86_400_000
LATE_SHARE: Final = 1 / 3  # of a credential's life: one that lives for hours is near its end all the time

_STATUS: Final = NextCall("brokers.status", {}, "see disk, journal and cold tier")
_PRESSURE: Final = NextCall("brokers.status", {}, "see syncs, disk and connections")


@partial(
    BrokerRule,
    severity="critical",
    holds="a write or a sync of the journal failed",
    evidence={"error": "as the disk gave it", "since_s": "how long ago"},
    unobservable=("how much of the failed write the disk's firmware has stored",),
    helps="look at the disk and the broker's log, then restart the broker",
    many="brokers take nothing more",
)
def journal_read_only(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.journal_error is None:
        return "the journal takes records"
    return Finding(
        severity=Severity.CRITICAL,
        summary="the journal failed and takes nothing more: publishes are refused and cursors stand until a restart",
        evidence={
            "error": view.journal_error,
            "since_s": ago_s(view, view.journal_error_since_ms),
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=(_STATUS,),
    )


@partial(
    BrokerRule,
    severity="critical if publishing has stopped, else warning",
    holds="free space is below twice `data.min_free_bytes`, or less than a quarter and will be used up within a day "
    "at a rate that was seen for a tenth of that time",
    evidence={
        "free_bytes, total_bytes": "of the data folder's disk",
        "guard_bytes": "publishing stops below",
        "stops_in_s": "at the rate it fills. Null if it does not fill, or without a rate",
        "bytes_per_s, seen_s": "the rate, and the time over which it was measured",
    },
    unobservable=("other writers to that disk",),
    helps="free space, set retention, or lower `data.min_free_bytes`",
    many="brokers have a disk that is nearly full",
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
                {"sort": "-bytes", "top": 10},
                "find the topics that hold the most, to set retention_bytes or retention_age_s",
            ),
        ),
    )


@partial(
    BrokerRule,
    holds="the last call to the object store failed, or the broker started without it and topics are stored there",
    evidence={
        "error": "as the store or the network gave it",
        "waiting": "stored topics that acknowledge and show nothing new since the start",
        "tier_backlog_bytes": "waiting to be written",
        "errors_in_window": "failed flushes and reads",
    },
    unobservable=("whether the store, its network or its credentials failed, beyond the error",),
    helps="bring the store back. The waiting objects are then written without help",
    many="brokers do not reach their object store",
    of_all_brokers=True,
)
def object_store_unreachable(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    late = view.late_store
    if late is not None:
        topics = counted(late.topics, "stored topic waits", "stored topics wait")
        since_s = ago_s(view, late.since_ms)
        return Finding(
            summary=f"the broker started without the object store {since_s:.0f} s ago, and {topics} for it: nothing is lost, "
            "but they acknowledge and show nothing new until it answers",
            evidence={
                "error": late.error,
                "since_s": since_s,
                "waiting": late.topics,
                **_store_facts(view),
            },
            next=(_STATUS,),
        )
    if view.store_error is None:
        return (
            "there is no cold tier"
            if view.tier_off is not None
            else "the last call to the object store did not fail"
        )
    return Finding(
        summary="the object store cannot be reached: nothing is lost, but messages that are due for it stay in the journal, "
        f"{view.tier_backlog_bytes} bytes by now, and old messages cannot be read",
        evidence={
            "error": view.store_error,
            "since_s": ago_s(view, view.store_error_since_ms),
            "waiting": 0,
            **_store_facts(view),
        },
        next=(_STATUS,),
    )


def _store_facts(view: BrokerView) -> Mapping[str, object]:
    return {
        "store": view.store_url,
        "tier_backlog_bytes": view.tier_backlog_bytes,
        "errors": view.tier_errors.total,
        "errors_in_window": view.tier_errors.in_window,
        "disk_free_bytes": view.disk_free_bytes,
    }


@partial(
    BrokerRule,
    severity="critical",
    holds="etcd did not answer the last calls, or a disk error stopped writing to the metadata file",
    evidence={"error": "as it was met", "since_s": "how long ago it began"},
    unobservable=("whether the store or the network to it failed",),
    helps="bring etcd back, or look at the network to it: the broker recovers without help. Of a file, mend the disk and "
    "start the broker again",
    many="brokers do not reach the metadata store",
    of_all_brokers=True,
)
def metadata_unreachable(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.metadata_error is None:
        return "the metadata store answers"
    if view.metadata_full:
        return "it answers: it is full"
    return Finding(
        severity=Severity.CRITICAL,
        summary="the metadata store does not answer or takes no writes: messages flow on, and nothing can be changed, moved or "
        "taken over",
        evidence={"error": view.metadata_error, "since_s": ago_s(view, view.metadata_since_ms)},
        next=(_STATUS,),
    )


@partial(
    BrokerRule,
    severity="critical",
    holds="etcd refuses writes because it is at its quota",
    evidence={"error": "as it was met", "since_s": "how long ago it began"},
    unobservable=("how much of it is others' data",),
    helps="`etcdctl defrag`, then `etcdctl alarm disarm`, and raise its quota",
    many="brokers have a metadata store that is full",
    of_cluster=True,
)
def metadata_full(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if not view.metadata_full:
        return "the metadata store takes writes, or does not answer"
    return Finding(
        severity=Severity.CRITICAL,
        summary="the metadata store is full and takes no change: `etcdctl defrag`, then `etcdctl alarm disarm`",
        evidence={"error": view.metadata_error, "since_s": ago_s(view, view.metadata_since_ms)},
        next=(_STATUS,),
    )


@partial(
    BrokerRule,
    severity="critical",
    holds="a record in the metadata could not be read, or a change that a crash cut off could not be ended",
    evidence={
        "set_aside": "how many",
        "keys": "the first ten, and why each",
        "mend": "the remedy",
    },
    unobservable=("the cause of the damage",),
    helps="make the call in next, or restore the metadata from a backup",
    many="brokers have quarantined metadata",
)
def metadata_set_aside(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if not view.quarantined:
        return "all metadata could be read and carried out"
    first = view.quarantined[0]
    calls = [
        NextCall(one.operation, one.arguments, one.mend)
        for one in view.quarantined[:SHOWN_ASIDE]
        if one.operation is not None
    ]
    return Finding(
        severity=Severity.CRITICAL,
        summary=counted(len(view.quarantined), "piece of metadata is", "pieces of metadata are")
        + " quarantined and not served; the first, "
        f"{first.key}: {first.why}",
        evidence={
            "set_aside": len(view.quarantined),
            "keys": {one.key: one.why for one in view.quarantined[:SHOWN_ASIDE]},
            "mend": sorted({one.mend for one in view.quarantined}),
        },
        next=(*calls, _STATUS),
    )


@partial(
    BrokerRule,
    holds="free space fell below `data.min_free_bytes`, and deletions within `admin.undo_grace` lost the data that their undo "
    "needs, for as long as they could have been undone",
    evidence={
        "deletions": "how many",
        "call_ids": "the first ten",
        "disk_free_bytes": "of the data folder's disk",
    },
    unobservable=("deletions before the broker started",),
    helps="restore missing data from a backup. Give the disk room before the next deletion",
    many="brokers gave up the undo of deletions",
)
def undo_given_up(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    gone = sorted(call_id for call_id, until_ms in view.given_up.items() if until_ms > view.now_ms)
    if not gone:
        return "no deletion that could still be undone lost its undo to a full disk"
    return Finding(
        summary=f"{counted(len(gone), 'deletion')} cannot be undone any more, before the time: the disk had too little free space, "
        "and its data was given up",
        evidence={
            "deletions": len(gone),
            "call_ids": gone[:SHOWN_ASIDE],
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=tuple(
            NextCall("audit.query", {"call_id": call_id}, "see the deletions")
            for call_id in gone[:SHOWN_ASIDE]
        ),
    )


@partial(
    BrokerRule,
    holds="the machine's clock stepped by more than 2 s within the last ten minutes",
    evidence={"step_s": "forward or back, the last time", "steps": "since the broker started"},
    unobservable=("which of the machine's times was right",),
    helps="look at its time service. Ages and append times of that time may be wrong",
    many="brokers have a clock that stepped",
)
def clock_stepped(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.clock is None:
        return f"the machine's clock has not stepped lately ({counted(view.clock_steps, 'time')} since the start)"
    return Finding(
        summary=view.clock,
        evidence={"step_s": view.clock_step_s, "steps": view.clock_steps},
        next=(_STATUS,),
    )


@partial(
    BrokerRule,
    holds="the broker's clock differs by more than 60 s from another broker's, from the object store's, or from the newest "
    "message that it stored",
    evidence={"ahead_s": "of the clock that differs most. Below 0 if behind it"},
    unobservable=("which of the clocks is right",),
    helps="set the clocks, or nothing if the summary names messages from the future. Until they agree, only data that is old by all of them is deleted by age",
    many="brokers have a clock that differs from others",
)
def clocks_apart(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if view.clocks_apart is None:
        return "the broker's clock agrees with the clocks that it has heard of"
    return Finding(summary=view.clocks_apart, evidence={"ahead_s": view.clock_ahead_s}, next=(_STATUS,))


def _days(days: float) -> str:
    """Return a number of days in words, in hours or minutes if it is less than one."""
    if days >= 1:
        return f"{days:.1f} days"
    return f"{days * 24:.1f} hours" if days * 24 >= 1 else f"{days * 1440:.0f} minutes"


@partial(
    BrokerRule,
    severity="info from 30 days on, a warning from 7, critical within a day or expired",
    holds="a certificate of the ports, the authority of clients' certificates or an API token has less than 30 days left, and "
    "less than a third of its life. Of a principal's tokens the one that lasts longest",
    evidence={
        "credentials": "the first ten to expire: kind, name (a file, or the id of a token), expires_at_ms, left_days (below 0 if expired)",
        "more": "further ones",
    },
    unobservable=("tokens of other issuers", "certificates that clients hold", "keys of the object store"),
    helps="put new files in place of the old ones, which brokers read without a restart. Rotate the token",
    many="brokers have credentials that expire",
)
def credential_expires(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    def left_ms(each: Credential) -> int:
        return each.until_ms - view.now_ms

    near = sorted(
        (
            each
            for each in view.credentials
            if left_ms(each) < min(30 * DAY_MS, (each.until_ms - each.from_ms) * LATE_SHARE)
        ),
        key=left_ms,
    )
    if not near:
        return f"none of {counted(len(view.credentials), 'credential')} with an end expires soon"
    first, days = near[0], left_ms(near[0]) / DAY_MS
    soon = Severity.WARNING if days <= 7 else Severity.INFO
    what = {"certificate": "the certificate", "client_ca": "the authority of clients' certificates"}.get(
        first.kind, "the API token"
    )
    token = first.kind == "token"
    return Finding(
        severity=Severity.CRITICAL if days <= 1 else soon,
        summary=f"{what} {first.name} "
        + (f"expires in {_days(days)}" if days > 0 else f"expired {_days(-days)} ago")
        + (f", and {counted(len(near) - 1, 'other credential')} soon" if len(near) > 1 else ""),
        evidence={
            "credentials": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "expires_at_ms": each.until_ms,
                    "left_days": round(left_ms(each) / DAY_MS, 2),
                }
                for each in near[:SHOWN_ASIDE]
            ],
            "more": max(0, len(near) - SHOWN_ASIDE),
        },
        next=(NextCall("tokens.list", {}, "see whose it is, and rotate it"),) if token else (_STATUS,),
    )


@partial(
    BrokerRule,
    severity="critical",
    holds="an object that the catalog lists is missing in the store or differs from the written one, seen by a check in the "
    "background or by a reader",
    evidence={
        "objects": f"the first {SHOWN_ASIDE}: topic, path, offsets from start to end, missing or damaged, since when, and the "
        "subscriptions that have not read it yet",
        "messages_offsets": "offsets in all of them, which cannot be read",
        "checked": "objects checked since the start",
    },
    unobservable=(
        "objects whose turn has not come: objects.verify reads all of a topic",
        "the program that deleted or changed it",
    ),
    helps="restore the object from a backup or an older version in the store, else seek behind it",
    many="brokers have objects that are missing or damaged",
)
def object_damaged(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    bad = sorted(view.bad_objects, key=lambda one: (not one.ahead_of, one.topic, one.start))
    if not bad:
        return f"{counted(view.objects_checked, 'object was', 'objects were')} checked since the start, none of them bad"
    worst = bad[0]
    ahead = f"; {counted(len(worst.ahead_of), 'subscription has', 'subscriptions have')} not read it yet"
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    return Finding(
        severity=Severity.CRITICAL,
        summary=f"an object of {worst.topic} with offsets {worst.start} to {worst.end - 1} is {worst.state}{more}"
        + (ahead if worst.ahead_of else ""),
        evidence={
            "objects": [
                {
                    "topic": one.topic,
                    "path": one.path,
                    "start_offset": one.start,
                    "end_offset": one.end,
                    "state": one.state,
                    "since_s": ago_s(view, one.since_ms),
                    "by_reader": one.by_reader,
                    "ahead_of": list(one.ahead_of[:SHOWN_ASIDE]),
                }
                for one in bad[:SHOWN_ASIDE]
            ],
            "more": max(0, len(bad) - SHOWN_ASIDE),
            "messages_offsets": sum(one.end - one.start for one in bad),
            "checked": view.objects_checked,
        },
        next=(
            NextCall(
                "objects.verify", {"topic": worst.topic}, "read all its objects back: others may be bad, too"
            ),
            NextCall(
                "objects.list",
                {"topic": worst.topic, "from": f"offset:{worst.start}"},
                "see it, and the objects after it",
            ),
        ),
    )


@partial(
    BrokerRule,
    holds="one in a hundred syncs of the window took more than half a second, and three of them at least",
    evidence={
        "syncs, slow_syncs": "of the journal, in the window",
        "sync_p50_ms, sync_p99_ms": "upper bounds, from a histogram",
    },
    unobservable=("other users of that disk",),
    helps="give the journal a disk of its own, or a faster one",
    many="brokers have a disk that syncs slowly",
)
def disk_sync_slow(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if seen.slow_syncs < max(FEWEST_SLOW, SLOW_SHARE * seen.syncs):
        p99 = "" if seen.sync_p99_ms is None else f", 99 of 100 within {seen.sync_p99_ms:.1f} ms"
        return f"{seen.syncs} syncs of the journal in the window{p99}"
    return Finding(
        confidence=0.9,
        summary=f"the disk syncs slowly: {seen.slow_syncs} of {seen.syncs} syncs of the journal took more than 500 ms within "
        f"{options.window_s:.0f} s, and every publish waits for one",
        evidence={
            "syncs": seen.syncs,
            "slow_syncs": seen.slow_syncs,
            "sync_p50_ms": seen.sync_p50_ms,
            "sync_p99_ms": seen.sync_p99_ms,
            "disk_free_bytes": view.disk_free_bytes,
        },
        next=(_PRESSURE,),
    )


@partial(
    BrokerRule,
    holds="the helper process began with one in a hundred syncs of the window more than half a second after the "
    "request, with three of them at least, and the syncs themselves were not that slow",
    evidence={
        "syncs, slow_waits": "of the journal in the window, and those that were begun so late",
        "wait_p50_ms, wait_p99_ms": "from the request until the helper began, no longer than",
        "sync_p50_ms, sync_p99_ms": "the syncs themselves: upper bounds, from a histogram",
        "cores_used, loop_late_ms": "how busy the broker itself is",
    },
    unobservable=(
        "the cause that keeps the helper from running: another process, or a limit of the container",
    ),
    helps="give the broker processor time: raise its limit of processors, or end other programs that use it",
    many="brokers have syncs that wait for their helper process",
)
def sync_helper_slow(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if seen.slow_waits < max(FEWEST_SLOW, SLOW_SHARE * seen.syncs):
        p99 = "" if seen.wait_p99_ms is None else f", 99 of 100 within {seen.wait_p99_ms:.1f} ms"
        return f"the helper began with {seen.syncs} syncs in the window{p99}"
    if disk_sync_slow.holds_for(view, options):
        return "the disk is slow: each sync waits for the sync before it"
    return Finding(
        confidence=0.85,
        summary=f"syncs of the journal wait for their helper process: it began with {seen.slow_waits} of {seen.syncs} more "
        f"than 500 ms after the request within {options.window_s:.0f} s, and every publish waits for one",
        evidence={
            "syncs": seen.syncs,
            "slow_waits": seen.slow_waits,
            "wait_p50_ms": seen.wait_p50_ms,
            "wait_p99_ms": seen.wait_p99_ms,
            "sync_p50_ms": seen.sync_p50_ms,
            "sync_p99_ms": seen.sync_p99_ms,
            "cores_used": round(seen.busy, 2),
            "loop_late_ms": round(seen.late_ms, 1),
        },
        next=(_PRESSURE, NextCall("brokers.metrics", {}, "see danube_journal_fsync_wait_seconds")),
    )


@partial(
    BrokerRule,
    holds="100 connections or more were opened in the window, five times as many as are open",
    evidence={"opened_in_window, per_s": "connections of clients", "open_now": "those that stayed"},
    unobservable=("which program it is, where it does not stay long enough to name itself",),
    helps="look for a client that connects for each message, or fails right after connecting",
    many="brokers have clients that connect again and again",
)
def reconnect_storm(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if seen.opened < max(FEWEST_OPENED, OPENED_TIMES * seen.open_now):
        return f"{seen.opened} connections were opened in the window, and {seen.open_now} are open"
    return Finding(
        confidence=0.85,
        summary=f"clients opened {seen.opened} connections within {seen.window_s:.0f} s, and {seen.open_now} are open: "
        "something connects, goes, and comes again",
        evidence={
            "opened_in_window": seen.opened,
            "open_now": seen.open_now,
            "per_s": round(seen.opened / seen.window_s, 1) if seen.window_s else None,
        },
        next=(NextCall("brokers.logs", {"lines": 100}, "see why its connections ended"), _PRESSURE),
    )


@partial(
    BrokerRule,
    severity="warning if the broker is busy (70 % of a core, samples that come 50 ms late, or slow syncs), else info",
    holds="one topic brings 70 % of the bytes and a MiB a second at least, and others are published to",
    evidence={
        "share, bytes_per_s": "of the topic",
        "other_topics": "that were published to in the window",
        "cores_used, loop_late_ms, slow_syncs": "how busy the broker is",
    },
    unobservable=("the rates of the other topics without it",),
    helps="bound it by `max_publish_rate`, or give it a broker of its own",
    many="brokers are kept busy by one topic",
)
def noisy_neighbour(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if not seen.bytes_in or seen.busiest is None or seen.window_s <= 0:
        return "nothing was published in the window"
    share, per_s = seen.busiest_bytes / seen.bytes_in, seen.busiest_bytes / seen.window_s
    if not seen.others or share < NOISY_SHARE or per_s < NOISY_BYTES:
        return f"the busiest topic brought {share:.0%} of {seen.bytes_in} bytes, beside {counted(seen.others, 'other')}"
    pressed = seen.busy >= BUSY or seen.late_ms >= LATE_MS or seen.slow_syncs >= FEWEST_SLOW
    return Finding(
        severity=Severity.WARNING if pressed else Severity.INFO,
        confidence=0.8,
        summary=f"{seen.busiest} brought {share:.0%} of all bytes of {seen.window_s:.0f} s, {per_s / 1e6:.1f} MB a second; "
        + (
            counted(seen.others, "other topic shared", "other topics shared") + " the rest: the broker is busy"
            if pressed
            else counted(seen.others, "other topic has", "other topics have") + " room beside it yet"
        ),
        subject={**view.subject, "topic": seen.busiest},
        evidence={
            "share": round(share, 3),
            "bytes_per_s": round(per_s),
            "other_topics": seen.others,
            "cores_used": round(seen.busy, 2),
            "loop_late_ms": round(seen.late_ms, 1),
            "slow_syncs": seen.slow_syncs,
        },
        next=(
            NextCall("producers.list", {"topic": seen.busiest}, "see which producer sends that much"),
            NextCall("topics.get_policies", {"topic": seen.busiest}, "see whether max_publish_rate bounds it"),
        ),
    )  # fmt: skip
