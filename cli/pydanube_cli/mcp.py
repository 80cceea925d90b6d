"""`danube mcp`: the cluster as tools of an AI assistant, and the configuration for the assistant's program."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydanube.addresses import DEFAULT_ADMIN_URL
from pydanube_core.errors import Conflict

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option

DEFAULT_PORT: Final = 8765
_LOOPBACK: Final = "127.0.0.1"
# Paths, which may stand in an assistant's configuration. A token itself may not.
_FILES: Final = ("DANUBE_TOKEN_FILE", "DANUBE_CA", "DANUBE_CERT", "DANUBE_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """Options of `danube mcp`: the tools for an assistant, and how they are served."""

    transport: Annotated[
        Literal["stdio", "http"],
        option("--transport", help="stdio: started by the assistant's program."),
    ] = "stdio"
    profile: Annotated[
        Literal["default", "full"] | None,
        option("--profile", help="Which tools are offered [default: default]"),
    ] = None
    read_only: Annotated[bool, option("--read-only", help="Offer nothing that changes anything.")] = False
    confirm: Annotated[
        Literal["auto", "human"] | None,
        option("--confirm", help="human: plans are not applied by the assistant alone [default: auto]"),
    ] = None
    toolsets: Annotated[
        str | None, option("--toolsets", "NAME,…", "Sets of tools to list beside the profile's.")
    ] = None
    connect: Annotated[
        list[str] | None,
        option(
            "--connect",
            "NAME=URL",
            "A cluster's admin address, may repeat. `,read_only` behind it: no changes.",
        ),
    ] = None
    print_config: Annotated[
        str | None,
        option("--print-config", "CLIENT", "claude-desktop, claude-code, cursor, windsurf, vscode"),
    ] = None
    host: Annotated[str, option("--host", help="With --transport http.")] = _LOOPBACK
    http_port: Annotated[
        int | None,
        option(
            "--http-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="With --transport http. [default: 8765; to print, that of the broker that is named]",
        ),
    ] = None
    explain: Annotated[
        str | None, option("--explain", "TOOL", "Say why a tool is in the list or not, and end.")
    ] = None
    conformance: Annotated[bool, option("--conformance", hidden=True)] = False


@command(
    examples=[
        "danube mcp --print-config claude-desktop",
        "danube mcp --read-only",
        "danube mcp --connect prod=http://10.0.0.5:50051,read_only --connect test=http://10.0.0.6:50051",
        "danube mcp --transport http --http-port 8766",
    ]
)
def mcp(*, common: Common, options: McpOptions) -> None:
    """Serve MCP. It starts while the broker is down; tools then answer UNAVAILABLE."""
    if options.print_config is not None:
        _print_config(options, common)
        return
    profile, confirm = options.profile, options.confirm
    if options.explain is not None:
        from pydanube_mcp import Profile
        from pydanube_mcp.profiles import explain as why

        print(why(options.explain, Profile(profile or "default"), read_only=options.read_only))
        return
    # Objects loaded from here on are permanent: collections that scan them take a sixth of the start.
    gc.disable()
    from pydanube_broker.settings.load import load_settings
    from pydanube_broker.status.log import configure_logging
    from pydanube_mcp import parse_connections, run_http, run_stdio

    flags = {
        "mcp.profile": profile,
        "mcp.confirm": confirm,
        "mcp.toolsets": options.toolsets,
        "server.host": options.host,
    }
    settings = load_settings(None, os.environ, flags)
    configure_logging(level=settings.log.level, format=settings.log.format)
    served: dict[str, Any] = {
        "profile": settings.mcp.profile,
        "confirm": settings.mcp.confirm,
        "conformance": options.conformance,
        "read_only": options.read_only or settings.mcp.read_only,
        "toolsets": settings.mcp.toolsets,
        "timeout_s": common.timeout_s,
        "principal": common.principal,
    }
    connections = parse_connections(options.connect or [], admin_url=common.admin_url)
    if options.transport == "stdio":
        run_stdio(connections, **served)
        return
    settings.check_startable()
    from pydanube_broker.rpc.connection_limits import patient_http
    from pydanube_broker.rpc.listening import listen
    from pydanube_broker.rpc.places import places

    port = DEFAULT_PORT if options.http_port is None else options.http_port
    listener = listen(options.host, port, flag="http-port")
    run_http(listener, connections, protocol=patient_http(places().other), **served)


def _http_url(options: McpOptions, common: Common) -> str:
    """Return the address of MCP: by the given host or port, else the named broker's own, else the default one."""
    named = options.http_port is not None or options.host != _LOOPBACK
    if not named and common.admin_url != DEFAULT_ADMIN_URL:
        url = common.call("brokers.status", {})["listen"].get("http")
        if url is None:
            raise Conflict(
                f"the broker at {common.admin_url} serves no MCP over HTTP. Start it as `danube up`, or name another "
                "address by --host and --http-port"
            )
        return f"{url}/mcp"
    scheme = "https" if common.admin_url.startswith("https://") else "http"
    port = DEFAULT_PORT if options.http_port is None else options.http_port
    return f"{scheme}://{options.host}:{port}/mcp"


def _print_config(options: McpOptions, common: Common) -> None:
    from pydanube_mcp import print_config

    assert options.print_config is not None
    words: list[str] = []  # the flags that the assistant's program has to pass on
    if options.profile is not None:
        words += ["--profile", options.profile]
    if options.read_only:
        words.append("--read-only")
    if options.confirm is not None:
        words += ["--confirm", options.confirm]
    for connection in options.connect or []:
        words += ["--connect", connection]
    env: dict[str, str] = {}
    if common.admin_url != DEFAULT_ADMIN_URL:
        env["DANUBE_ADMIN_ENDPOINT"] = common.admin_url
    if common.principal is not None:
        env["DANUBE_PRINCIPAL"] = common.principal
    for name in _FILES:
        if file := os.environ.get(name):
            env[name] = str(Path(file).absolute())
    token = any(os.environ.get(name) for name in ("DANUBE_TOKEN", "DANUBE_TOKEN_FILE"))
    url = _http_url(options, common) if options.transport == "http" else None
    print(print_config(options.print_config, arguments=words, env=env or None, url=url, token=token))
