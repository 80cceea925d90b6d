"""`danube up` and `danube broker`: from flags to settings to the process that serves."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydanube_core.errors import InvalidArgument, UnsupportedPlatform
from pydanube_core.units import parse_duration_s

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option
from pydanube_cli.runtime import require

if TYPE_CHECKING:
    from pydanube_broker.settings.sections import Settings


LOADED_OBJECTS: Final = 1_000_000  # a start makes some 300 000


def settings_from_flags(
    config: Path | None, flags: dict[str, Any], *, port_offset: int, env: dict[str, str]
) -> Settings:
    """Return the settings of a broker to be started.

    Raises:
        InvalidArgument: any mistake in file, environment or flags.
    """
    from pydanube_broker.settings.load import load_settings

    settings = load_settings(config, env, flags)
    return offset_ports(settings, port_offset) if port_offset else settings


def offset_ports(settings: Settings, offset: int) -> Settings:
    """Add `offset` to all four ports. Port 0 (any free one) stays 0.

    Raises:
        InvalidArgument: a port would leave 1 to 65535.
    """
    from pydanube_broker.settings.sections import OWN_PORTS, Source, SourceKind

    moved = {name: getattr(settings.server, name) for name in (*OWN_PORTS, "http_port")}
    ports = [port for port in moved.values() if port]
    sources = dict(settings.sources)
    for name, port in moved.items():
        if port == 0:
            continue
        moved[name] = port + offset
        if not 1 <= moved[name] <= 65_535:
            raise InvalidArgument(
                f"--port-offset {offset} moves server.{name} from {port} to {moved[name]}, which is no port. "
                f"Offsets from {1 - min(ports)} to {65_535 - max(ports)} work",
                field="port_offset",
                value=offset,
            )
        sources[f"server.{name}"] = Source(kind=SourceKind.FLAG, where=f"--port-offset {offset}")
    server = settings.server.model_copy(update=moved)
    return settings.model_copy(update={"server": server}).with_sources(sources)


DataDirOption = Annotated[
    Path | None, option("--data-dir", "DIR", "Where data lives [default: ./danube-data]")
]
OffsetOption = Annotated[int, option("--port-offset", "N", "Add N to all four ports.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags of `danube up` and `danube broker`."""

    data_dir: DataDirOption = None
    memory: Annotated[
        bool, option("--memory", help="Keep everything in memory. Nothing survives the end.")
    ] = False
    config: Annotated[Path | None, option("--config", "-c", "FILE", "Settings file (TOML).")] = None
    host: Annotated[str | None, option("--host", help="Address to listen on [default: 127.0.0.1]")] = None
    port_offset: OffsetOption = 0
    grpc_port: Annotated[
        int | None, option("--grpc-port", "PORT", "Producers and consumers [default: 6650], 0: any.")
    ] = None
    admin_port: Annotated[int | None, option("--admin-port", "PORT", "Administration [default: 50051]")] = (
        None
    )
    metrics_port: Annotated[
        int | None, option("--metrics-port", "PORT", "Metrics and health [default: 9040]")
    ] = None
    http_port: Annotated[int | None, option("--http-port", "PORT", "MCP and JSON-RPC [default: 8765]")] = None
    ready_file: Annotated[
        Path | None, option("--ready-file", "PATH", "Write the ready line here, atomically.")
    ] = None
    grace: Annotated[str, option("--grace", "DURATION", "Longest time to stop.")] = "10s"
    drain: Annotated[bool, option("--drain", help="On SIGTERM, hand all topics to other brokers first.")] = (
        False
    )
    log_level: Annotated[
        str | None, option("--log-level", "LEVEL", "debug, info, warning, error [default: info]")
    ] = None
    log_format: Annotated[
        str | None, option("--log-format", "text|json", "Logs on stderr [default: text]")
    ] = None
    metadata: Annotated[
        str | None,
        option("--metadata", "URL", "embedded, or etcd://host:port[,host:port]/prefix [default: embedded]"),
    ] = None
    zone: Annotated[
        str | None,
        option("--zone", "ZONE", "Rack or cloud zone of this broker. Partitions spread over zones."),
    ] = None
    insecure_bind: Annotated[
        bool, option("--insecure-bind", help="Allow a public --host without TLS and authentication.")
    ] = False
    no_upgrade: Annotated[bool, option("--no-upgrade", help="Refuse data of an older format.")] = False


def _serve(common: Common, options: ServeOptions, *, http: bool) -> int:
    """Run a broker. `http`: with MCP and JSON-RPC on 8765."""
    name = "danube up" if http else "danube broker"
    if sys.platform == "win32":
        raise UnsupportedPlatform(
            f"{name} runs on Linux and macOS. On Windows the client commands work against a broker elsewhere",
            platform=sys.platform,
        )
    if options.memory and options.data_dir is not None:
        raise InvalidArgument("--memory and --data-dir exclude each other", field="memory", value=True)
    grace_s = parse_duration_s(options.grace, field="grace")
    # Objects loaded from here on are permanent: scanning them again and again during the load takes a
    # twentieth of the start. When the broker is ready, `composition` sets the thresholds for serving.
    gc.set_threshold(LOADED_OBJECTS)
    # Neither this process nor those that it starts use numpy's linear algebra. Its threads, one for each
    # processor, spin for a while when numpy is loaded, which takes a third of that time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    require("broker", *(("mcp",) if http else ()), what=name)
    settings = settings_from_flags(
        options.config,
        {
            "data.dir": ":memory:" if options.memory else options.data_dir,
            "metadata.url": options.metadata,
            "server.host": options.host,
            "server.zone": options.zone,
            "server.grpc_port": options.grpc_port,
            "server.admin_port": options.admin_port,
            "server.metrics_port": options.metrics_port,
            "server.http_port": options.http_port,
            "server.insecure_bind": True if options.insecure_bind else None,
            "log.level": options.log_level,
            "log.format": options.log_format,
        },
        port_offset=options.port_offset,
        env=dict(os.environ),
    )
    settings.check_startable()
    from pydanube_cli.composition import serve

    return serve(
        settings,
        http=http,
        as_json=common.as_json,
        ready_file=options.ready_file,
        grace_s=grace_s,
        drain=options.drain,
        upgrade=not options.no_upgrade,
    )


@command(
    examples=[
        "danube up",
        "danube up --data-dir /var/lib/danube --port-offset 100",
        "danube up --memory --json --ready-file ready.json",
    ]
)
def up(*, common: Common, options: ServeOptions) -> int:
    """Start a broker, MCP and JSON-RPC in one process; it stays in the foreground."""
    return _serve(common, options, http=True)


@command(examples=["danube broker", "danube broker --config danube.toml --log-format json"])
def broker(*, common: Common, options: ServeOptions) -> int:
    """Start a broker alone: the same flags as `danube up`, and the HTTP port stays closed."""
    return _serve(common, options, http=False)
