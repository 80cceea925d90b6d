"""`danube doctor`: whether this machine is fit for a broker, and a bundle to attach to a request for help."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydanube.addresses import DEFAULT_ADMIN_URL
from pydanube_core.errors import ClusterError, ConditionNotMet, InvalidArgument
from pydanube_core.secrets import REDACTED, without_passwords, without_secrets
from pydanube_core.units import counted

from pydanube_cli.checks import examine
from pydanube_cli.command import Common, command
from pydanube_cli.fitness import Finding, Level
from pydanube_cli.parameters import option
from pydanube_cli.render import print_json, print_table
from pydanube_cli.serve import DataDirOption, OffsetOption, settings_from_flags

if TYPE_CHECKING:
    from pydanube_broker.settings.sections import Settings

MAX_LOG_BYTES: Final = 2 << 20
_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"
_SECRET_NAME: Final = re.compile(r"token|secret|passw|credential|api_?key|auth", re.IGNORECASE)
_SIGNS: Final = {Level.OK: "ok", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM", Level.SKIPPED: "-"}


@command(
    examples=[
        "danube doctor",
        "danube doctor --data-dir /var/lib/danube --port-offset 100",
        "danube doctor --config danube.toml --json",
        "danube doctor --bundle help.tar.gz",
    ]
)
def doctor(
    *,
    common: Common,
    config: Annotated[Path | None, option("--config", "-c", "FILE", "Settings file.")] = None,
    data_dir: DataDirOption = None,
    port_offset: OffsetOption = 0,
    bundle: Annotated[
        Path | None, option("--bundle", "FILE", "Pack findings, status and settings, no secrets.")
    ] = None,
    log: Annotated[
        Path | None, option("--log", "FILE", "With --bundle: a broker's log to pack along.")
    ] = None,
) -> int:
    """Check settings, versions, extras, Java, ports, disk, sync, clock, limits and the object store; exit 6 on a problem.

    Each finding comes with the command that mends it. A broker's start logs the same of disk, clock and limits.
    """
    if log is not None and bundle is None:
        raise InvalidArgument("--log goes with --bundle", field="log", value=str(log))

    def load() -> Settings:
        flags = {"data.dir": data_dir}
        return settings_from_flags(config, flags, port_offset=port_offset, env=dict(os.environ))

    named = None if common.admin_url == DEFAULT_ADMIN_URL else common.admin_url
    with _quick_imports():
        findings = list(examine(load, admin_url=named, timeout_s=common.timeout_s))
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if bundle is not None:
        _pack(bundle, findings, load, log, common)
    if common.as_json:
        print_json({"ok": not problems, "findings": [finding.to_dict() for finding in findings]})
    else:
        _print(findings)
        if bundle is not None:
            print(f"packed {bundle}. Look into it before you send it")
    if problems:
        raise ConditionNotMet(
            f"{counted(len(problems), 'problem')}: "
            + "; ".join(f"{finding.check}: {finding.summary}" for finding in problems),
            problems=[finding.to_dict() for finding in problems],
        )
    return 0


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Import many modules without collections in between, and without pydantic's search of all distributions for plugins."""
    gc.disable()
    searches = _PLUGINS not in os.environ
    if searches:
        os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        gc.enable()
        if searches:
            del os.environ[_PLUGINS]


def _print(findings: Sequence[Finding]) -> None:
    print_table(
        [
            {"check": finding.check, "": _SIGNS[finding.level], "what": finding.summary.replace("\n", " ")}
            for finding in findings
        ],
        ["check", "", "what"],
    )
    for finding in findings:
        if finding.remedy:
            print(f"{finding.check}: {finding.remedy}")


def _pack(
    bundle: Path, findings: Sequence[Finding], load: Callable[[], Settings], log: Path | None, common: Common
) -> None:
    """Write the bundle: text files that can be read before it is sent."""
    import platform  # slow to load, as tarfile is
    import tarfile

    files: dict[str, bytes] = {
        "findings.json": _json([finding.to_dict() for finding in findings]),
        "machine.json": _json(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "python": sys.version,
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
                "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
            }
        ),
        "environment.json": _json(redacted({k: v for k, v in os.environ.items() if k.startswith("DANUBE_")})),
        "settings.json": _json(_settings(load)),
        "status.json": _json(_status(common)),
    }
    metrics = _metrics(load)
    if metrics is not None:
        files["metrics.txt"] = metrics
    if log is not None:
        try:
            with log.open("rb") as source:
                source.seek(max(0, log.stat().st_size - MAX_LOG_BYTES))
                files["broker.log"] = without_secrets(source.read().decode("utf-8", "replace")).encode()
        except OSError as error:
            raise InvalidArgument(
                f"--log: cannot read {log}: {error.strerror}", field="log", value=str(log)
            ) from None
    with tarfile.open(bundle, "w:gz") as archive:
        for name, content in files.items():
            content = without_passwords(content.decode("utf-8", "replace")).encode()
            entry = tarfile.TarInfo(f"danube-doctor/{name}")
            entry.size = len(content)
            entry.mtime = int(time.time())
            archive.addfile(entry, io.BytesIO(content))


def redacted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without secrets, by the names of their fields."""
    return {name: REDACTED if _SECRET_NAME.search(name) else value for name, value in values.items()}


def _settings(load: Callable[[], Settings]) -> dict[str, Any]:
    try:
        entries = list(load().entries())
    except ClusterError as error:
        return {"error": error.to_dict()}
    values = redacted({entry.name: entry.value for entry in entries})
    return {entry.name: {"value": values[entry.name], "source": str(entry.source)} for entry in entries}


def _status(common: Common) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operation in ("brokers.status", "topics.list", "subscriptions.lag"):
        try:
            found[operation] = common.call(operation, timeout_s=min(common.timeout_s, 3.0))
        except ClusterError as error:
            found[operation] = {"error": error.to_dict()}
    return found


def _metrics(load: Callable[[], Settings]) -> bytes | None:
    import urllib.request  # it is slow to load

    try:
        server = load().server
        url = f"http://{server.host}:{server.metrics_port}/metrics"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=3) as answer:
            return bytes(answer.read(8 << 20))
    except (ClusterError, OSError, ValueError):
        return None


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str).encode()
