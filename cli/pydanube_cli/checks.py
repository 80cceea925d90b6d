"""What `danube doctor` looks at. Each check is a function that returns findings; none of them changes anything.

A problem is what keeps a broker from starting or from keeping its promises; a warning is what will hurt later.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import ClusterError
from pydanube_core.extras import install_command

from pydanube_cli.runtime import EXTRA_MODULES

if TYPE_CHECKING:
    from pydanube_broker.settings import Settings


SLOW_SYNC_MS: Final = 20.0
FEW_FILES: Final = 1024
ENOUGH_FILES: Final = 8192
SPARE_BYTES: Final = 256 << 20  # the journal's segments, the spare one and the metadata of a small broker
_TIME_ERROR: Final = 5  # what adjtimex answers while no source keeps the clock


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report: what was looked at, how it is, and what to do."""

    check: str
    level: Level
    summary: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()
        }


def examine(
    config: Path | None, env: Mapping[str, str], *, admin_url: str, timeout_s: float
) -> Iterator[Finding]:
    """All checks, in the order of the report."""
    from pydanube_broker.settings import Settings
    from pydanube_broker.settings_load import load_settings

    try:
        settings = load_settings(config, env)
        settings.check_startable()
    except ClusterError as error:
        yield Finding(
            check="config",
            level=Level.PROBLEM,
            summary=error.message,
            remedy="danube config check says where; danube config init writes a file to start from",
        )
        settings = Settings()
    else:
        count = len(settings.sources)
        yield Finding(check="config", level=Level.OK, summary=f"{count} settings set, the rest are defaults")
    yield from _versions()
    running = _running_broker(settings)
    yield from _ports(settings, running)
    yield from _data_dir(settings)
    yield from _sync(settings)
    yield from _limits()
    yield from _clock()
    yield from _broker(admin_url, timeout_s)


def _versions() -> Iterator[Finding]:
    names = ("pydanube", "hpack", "protobuf")
    found = {name: _version(name) for name in names}
    text = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    python = sys.version.split()[0]
    yield Finding(check="versions", level=Level.OK, summary=f"Python {python}, {text}")
    for extra, modules in EXTRA_MODULES.items():
        if absent := [name for name in modules if find_spec(name) is None]:
            yield Finding(
                check="versions",
                level=Level.WARNING,
                summary=f"the extra {extra} is not complete: {', '.join(absent)} missing",
                remedy=install_command(extra),
            )
    if sys.platform == "win32":
        yield Finding(
            check="versions",
            level=Level.WARNING,
            summary="a broker does not run on Windows; the client commands do",
            remedy="run the broker on Linux or macOS",
        )
    elif find_spec("uvloop") is None:
        yield Finding(
            check="versions",
            level=Level.WARNING,
            summary="uvloop is not installed: the broker runs, more slowly",
            remedy=install_command("broker"),
        )


def _running_broker(settings: Settings) -> dict[str, str]:
    """The addresses of a broker of ours on these ports, by its own word."""
    url = f"http://{settings.server.host}:{settings.server.metrics_port}/status"
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as answer:
            status = json.load(answer)
        return {"pid": str(status["pid"]), **{str(k): str(v) for k, v in status["listen"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, urllib.error.URLError):
        return {}


def _ports(settings: Settings, running: Mapping[str, str]) -> Iterator[Finding]:
    taken_by_us: list[int] = []
    free: list[int] = []
    for name in ("grpc", "admin", "metrics", "http"):
        port = getattr(settings.server, f"{name}_port")
        if port == 0 or _can_listen(settings.server.host, port):
            free.append(port)
        elif running and (name == "http" or running.get(name, "").endswith(f":{port}")):
            taken_by_us.append(port)
        else:
            yield Finding(
                check="ports",
                level=Level.PROBLEM,
                summary=f"port {port} ({name}) is in use by another program",
                remedy=f"danube up --{name}-port PORT, or --port-offset N for all four",
            )
    if taken_by_us:
        text = f"a danube broker (process {running['pid']}) listens on {', '.join(map(str, taken_by_us))}"
        yield Finding(check="ports", level=Level.OK, summary=text)
    if free:
        yield Finding(check="ports", level=Level.OK, summary=f"free: {', '.join(map(str, free))}")


def _can_listen(host: str, port: int) -> bool:
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bare, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _place(settings: Settings) -> Path | None:
    """The data directory, or the nearest folder above that exists; None in memory."""
    if settings.data.dir is None:
        return None
    place = settings.data.dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _data_dir(settings: Settings) -> Iterator[Finding]:
    place = _place(settings)
    if place is None:
        yield Finding(check="disk", level=Level.SKIPPED, summary="data is kept in memory")
        return
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            check="disk",
            level=Level.PROBLEM,
            summary=f"{place} cannot be written to",
            remedy="choose another --data-dir, or give this user the folder",
        )
        return
    free = shutil.disk_usage(place).free
    text = f"{free / (1 << 30):.1f} GiB free at {place}"
    guard = settings.data.min_free_bytes
    if settings.is_set("data.min_free_bytes") and free < guard:
        yield Finding(
            check="disk",
            level=Level.PROBLEM,
            summary=f"{text}: below data.min_free_bytes ({guard} bytes), publishing would be refused",
            remedy="make room, or lower data.min_free_bytes",
        )
    elif free < SPARE_BYTES:
        yield Finding(
            check="disk", level=Level.PROBLEM, summary=f"{text}: too little for a journal", remedy="make room"
        )
    elif free < guard:
        yield Finding(
            check="disk",
            level=Level.WARNING,
            summary=f"{text}: little",
            remedy="make room before it fills up",
        )
    else:
        yield Finding(check="disk", level=Level.OK, summary=text)


def _sync(settings: Settings) -> Iterator[Finding]:
    place = _place(settings)
    if place is None or not os.access(place, os.W_OK) or shutil.disk_usage(place).free < SPARE_BYTES:
        yield Finding(check="fsync", level=Level.SKIPPED, summary="there is no disk to try it on")
        return
    from pydanube_cli.bench.raw import fdatasync_reference

    try:
        found = fdatasync_reference(place, seconds=0.5)
    except OSError as error:
        yield Finding(
            check="fsync",
            level=Level.PROBLEM,
            summary=f"a sync on {place} failed: {error.strerror}",
            remedy="a broker cannot keep its promises there; choose another --data-dir",
        )
        return
    text = f"p50 {found['fdatasync_p50_ms']} ms, p99 {found['fdatasync_p99_ms']} ms at {place}"
    if found["fdatasync_p50_ms"] > SLOW_SYNC_MS:
        remedy = "every lone publish waits for one sync; use a faster disk"
        yield Finding(check="fsync", level=Level.WARNING, summary=text, remedy=remedy)
    else:
        yield Finding(check="fsync", level=Level.OK, summary=text)


def _limits() -> Iterator[Finding]:
    if sys.platform == "win32":
        yield Finding(check="limits", level=Level.SKIPPED, summary="not on Windows")
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files allowed (at most {hard})"
    remedy = f"ulimit -n {ENOUGH_FILES}: a connection takes one, a journal segment two"
    if soft < FEW_FILES:
        yield Finding(check="limits", level=Level.PROBLEM, summary=text, remedy=remedy)
    elif soft < ENOUGH_FILES:
        yield Finding(check="limits", level=Level.WARNING, summary=text, remedy=remedy)
    else:
        yield Finding(check="limits", level=Level.OK, summary=text)


def _clock() -> Iterator[Finding]:
    """Append times come from this clock; deadlines do not."""
    if time.time() < 1_700_000_000:
        yield Finding(
            check="clock",
            level=Level.PROBLEM,
            summary="the clock stands years back",
            remedy="set it before starting: append times never go back",
        )
        return
    state = _ntp_state()
    if state == _TIME_ERROR:
        remedy = "start a time service (chrony, systemd-timesyncd)"
        yield Finding(
            check="clock", level=Level.WARNING, summary="nothing keeps the clock right", remedy=remedy
        )
    elif state is None:
        yield Finding(
            check="clock", level=Level.OK, summary="plausible; whether it is synchronised is not known"
        )
    else:
        yield Finding(check="clock", level=Level.OK, summary="synchronised")


def _ntp_state() -> int | None:
    """What `adjtimex` says without changing anything; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(
            ctypes.create_string_buffer(512)
        )  # modes = 0: read only; struct timex is 208 bytes
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


def _broker(admin_url: str, timeout_s: float) -> Iterator[Finding]:
    from pydanube_admin.remote import call_sync

    try:
        status = call_sync(admin_url, "brokers.status", {}, timeout_s=min(timeout_s, 3.0))
    except ClusterError as error:
        text = f"none answers at {admin_url} ({error.code})"
        yield Finding(check="broker", level=Level.SKIPPED, summary=text)
        return
    for reason in status["reasons"]:
        yield Finding(
            check="broker",
            level=Level.WARNING if status["ready"] else Level.PROBLEM,
            summary=f"{reason['code']}: {reason['message']}",
            remedy="danube brokers status",
        )
    if status["ready"] and not status["reasons"]:
        text = f"{status['version']} ready at {admin_url}, {status['topics']} topics, {status['durability']}"
        yield Finding(check="broker", level=Level.OK, summary=text)
    own = _version("pydanube")
    if own is not None and status["version"] != own:
        yield Finding(
            check="broker",
            level=Level.WARNING,
            summary=f"the broker runs {status['version']}, this command is {own}",
            remedy="restart the broker after an upgrade",
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
