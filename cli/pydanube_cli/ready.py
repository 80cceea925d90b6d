"""A broker's output when it is ready: a short text with what to type next, or one JSON line, and the ready file."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.units import counted

if TYPE_CHECKING:
    from pydanube_broker.broker import Broker

_DEFAULT_PORTS: Final = {"grpc": 6650, "admin": 50051}


def ready_facts(broker: Broker) -> dict[str, Any]:
    """Return the fields of the ready line (docs/interface.md#3-starting-and-stopping), in its order."""
    from pydanube_broker.home.data_dir import FORMAT_VERSION  # other importers of this module have no broker

    return {
        "event": "ready",
        "version": broker.port.version,
        "format_version": FORMAT_VERSION,
        "broker_id": str(broker.data_dir.broker_id),
        "pid": os.getpid(),
        "data_dir": None if broker.data_dir.memory else str(broker.data_dir.path),
        "grpc": broker.broker_url,
        "admin": broker.admin_url,
        "metrics": broker.metrics_url,
        "http": broker.http_url,
        "durability": broker.durability,
        "recovered": broker.recovered,
    }


def replace_file(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Write a file beside the old one and rename it: a reader sees either all of the old or all of the new.

    `durable`: sync it, for content that must survive a power cut. The mark of a running process does not need
    that.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(content)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    beside.replace(path)


def program_name() -> str:
    """Return how this program is called from here: `./danube`, `danube` or its full path."""
    own = Path(sys.argv[0]).absolute()
    launcher = Path.cwd() / "danube"
    if launcher.is_file() and os.access(launcher, os.X_OK) and own.parent == Path.cwd() / ".venv" / "bin":
        return "./danube"
    if own.name == "danube" and shutil.which("danube") == str(own):
        return "danube"
    return (
        shlex.quote(str(own))
        if own.name == "danube"
        else f"{shlex.quote(sys.executable)} -m pydanube_cli.main"
    )


def ready_text(info: Mapping[str, Any], *, program: str) -> str:
    """Return a text for people: where it listens, its durability, and lines to paste next."""
    where = info.get("data_dir")
    place = f"data in {where}" if where else "data in memory only: it is gone when this ends"
    lines = [f"danube {info.get('version')} is ready; {place}"]
    recovered = info.get("recovered") or {}
    if recovered.get("records"):
        lines.append(
            f"recovered {counted(recovered['records'], 'record', spec=',')} in {recovered.get('seconds', 0):.1f} s"
        )
    names = {
        "grpc": "producers, consumers",
        "admin": "administration",
        "metrics": "metrics, health",
        "http": "MCP, JSON-RPC",
    }
    lines += ["", *(f"  {text:<22}{info[name]}" for name, text in names.items() if info.get(name)), ""]
    flags = _client_flags(info)
    lines += [
        "Next, in another terminal:",
        f'  {program} produce hello -m "first message"{flags}',
        f"  {program} consume hello --exit{flags}",
        f"  {program} topics list{flags}",
        f"  {program} subscriptions lag{flags}",
        f"  {program} tui{flags}",
    ]
    if info.get("http"):
        lines.append(f"  {program} mcp --print-config claude-desktop{flags}")
    lines += ["", "Ctrl-C stops it. Acknowledged messages stay."]
    return "\n".join(lines)


def _client_flags(info: Mapping[str, Any]) -> str:
    """Return the flags that lead a client here, empty on the default ports."""
    flags = ""
    for name, flag in (("grpc", "--broker"), ("admin", "--admin")):
        url = info.get(name)
        if url and url != f"http://127.0.0.1:{_DEFAULT_PORTS[name]}":
            flags += f" {flag} {url}"
    return flags
