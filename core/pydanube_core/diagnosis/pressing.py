"""Rules on what weighs on a whole broker: a slow disk, clients that come again and again, one topic that takes it all."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView
from pydanube_core.units import counted

SLOW_SHARE: Final = 0.01  # of the syncs: their p99
FEWEST_SLOW: Final = 3  # one long wait is no slow disk
FEWEST_OPENED: Final = 100  # connections in a window
OPENED_TIMES: Final = 5  # those that are open
NOISY_SHARE: Final = 0.7  # of the bytes
NOISY_BYTES: Final = 1 << 20  # a second: less weighs on nobody
BUSY: Final = 0.7  # of a core: the broker's loop has one
LATE_MS: Final = 50.0

_STATUS: Final = NextCall("brokers.status", {}, "see syncs, disk and connections")


def disk_sync_slow(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if seen.slow_syncs < max(FEWEST_SLOW, SLOW_SHARE * seen.syncs):
        p99 = "" if seen.sync_p99_ms is None else f", 99 of 100 within {seen.sync_p99_ms:.1f} ms"
        return f"{seen.syncs} syncs of the journal in the window{p99}"
    return Finding(
        severity=Severity.WARNING,
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
        next=(_STATUS,),
    )


def reconnect_storm(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    seen = view.pressure
    if seen.opened < max(FEWEST_OPENED, OPENED_TIMES * seen.open_now):
        return f"{seen.opened} connections were opened in the window, and {seen.open_now} are open"
    return Finding(
        severity=Severity.WARNING,
        confidence=0.85,
        summary=f"clients opened {seen.opened} connections within {seen.window_s:.0f} s, and {seen.open_now} are open: "
        "something connects, goes, and comes again",
        evidence={
            "opened_in_window": seen.opened,
            "open_now": seen.open_now,
            "per_s": round(seen.opened / seen.window_s, 1) if seen.window_s else None,
        },
        next=(NextCall("brokers.logs", {"lines": 100}, "see what its connections ended with"), _STATUS),
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
        summary=f"{seen.busiest} brings {share:.0%} of all bytes, {per_s / 1e6:.1f} MB a second; "
        + (
            counted(seen.others, "other topic shares", "other topics share") + " what it leaves: the broker is busy"
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
            NextCall("producers.list", {"topic": seen.busiest}, "see who sends that much"),
            NextCall("topics.get_policies", {"topic": seen.busiest}, "see whether max_publish_rate bounds it"),
        ),
    )  # fmt: skip


PRESSURE_RULES: Final = (
    Rule(
        area=RuleArea.BROKER,
        severity="warning",
        holds="one in a hundred syncs of the window took more than half a second, and three of them at least",
        evidence={
            "syncs, slow_syncs": "of the journal, in the window",
            "sync_p50_ms, sync_p99_ms": "no longer than; upper bounds of a histogram",
        },
        unobservable=("what else uses that disk",),
        helps="give the journal a disk of its own, or a faster one",
        check=disk_sync_slow,
        many="brokers have a disk that syncs slowly",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="warning if the broker is busy (70 % of a core, looks that come 50 ms late, or slow syncs); else info",
        holds="one topic brings 70 % of the bytes and a MiB a second at least, and others are published to",
        evidence={
            "share, bytes_per_s": "of the topic",
            "other_topics": "that were published to in the window",
            "cores_used, loop_late_ms, slow_syncs": "how busy the broker is",
        },
        unobservable=("what the other topics would get without it",),
        helps="bound it by `max_publish_rate`, or give it a broker of its own",
        check=noisy_neighbour,
        many="brokers are kept busy by one topic",
    ),
    Rule(
        area=RuleArea.BROKER,
        severity="warning",
        holds="100 connections or more were opened in the window, five times as many as are open",
        evidence={"opened_in_window, per_s": "connections of clients", "open_now": "those that stayed"},
        unobservable=("which program it is, where it does not stay long enough to say its name",),
        helps="look for a client that connects for each message, or fails right after connecting",
        check=reconnect_storm,
        many="brokers have clients that connect again and again",
    ),
)
