"""Configuration to paste into the usual MCP clients.

Formats as documented by the clients in November 2026: Claude Desktop, Cursor and Windsurf read an object
`mcpServers`, Visual Studio Code one named `servers` whose entries have a `type`. Claude Code is configured by
a command. The program is given by its absolute path, because no client starts a login shell with our path.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.extras import install_command
from pydanube_core.spelling import close_names

SERVER_NAME = "danube"
TOKEN_VARIABLE = "DANUBE_TOKEN"


class McpClient(StrEnum):
    CLAUDE_DESKTOP = "claude-desktop"  # claude_desktop_config.json
    CLAUDE_CODE = "claude-code"  # a command for a shell
    CURSOR = "cursor"  # ~/.cursor/mcp.json, or .cursor/mcp.json of a project
    WINDSURF = "windsurf"  # ~/.codeium/windsurf/mcp_config.json
    VSCODE = "vscode"  # .vscode/mcp.json, or mcp.json of the user profile


def find_program(argv0: str | None = None) -> Path:
    """Return the absolute path of `danube`: the running program, or one beside this Python or on the path.

    Args:
        argv0: how this process was started, or None for `sys.argv[0]`.

    Raises:
        ClusterError: there is none.
    """
    candidates: list[Path] = []
    started = Path(sys.argv[0] if argv0 is None else argv0)
    if started.stem == SERVER_NAME:
        candidates.append(started if started.is_absolute() else Path.cwd() / started)
    scripts = Path(sys.executable).parent  # not resolved: in a virtual environment it is a link to elsewhere
    candidates += [scripts / SERVER_NAME, scripts / f"{SERVER_NAME}.exe"]
    found = shutil.which(SERVER_NAME)
    if found:
        candidates.append(Path(found).absolute())
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return Path(os.path.normpath(candidate))
    raise InvalidArgument(
        "the program `danube` is not to be found beside this Python or on the path. Install it with "
        f"`{install_command('mcp')}`",
        field="command",
    )


def print_config(
    client: McpClient | str,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    program: Path | None = None,
    url: str | None = None,
    token: bool = False,
) -> str:
    """Return the text to paste, without a final newline.

    Args:
        client: whose configuration.
        arguments: further ones of `danube mcp`, such as `["--read-only"]`.
        env: for the server's process, such as `DANUBE_ADMIN_ENDPOINT`.
        program: absolute path of `danube`, found if None.
        url: of a running server to connect to. Then all arguments above but `client` are ignored.
        token: with `url`: send a bearer token. The text names its source and does not contain it.

    Raises:
        InvalidArgument: the client is not supported, or takes no address.
    """
    known = _known(client)
    if url is not None:
        return _of_address(known, url, token=token)
    command = str(program or find_program())
    args = ["mcp", *arguments]
    entry: dict[str, object] = {"command": command, "args": args}
    if env:
        entry["env"] = dict(env)
    match known:
        case McpClient.CLAUDE_CODE:
            settings = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
            # Options stand before the name. --env takes any number of words, so it does not stand right
            # before the name. The server's own command follows the dashes.
            words = [
                "claude",
                "mcp",
                "add",
                *settings,
                "--transport",
                "stdio",
                SERVER_NAME,
                "--",
                command,
                *args,
            ]
            return shlex.join(words)
        case McpClient.VSCODE:
            return json.dumps({"servers": {SERVER_NAME: {"type": "stdio", **entry}}}, indent=2)
        case McpClient.CLAUDE_DESKTOP | McpClient.CURSOR | McpClient.WINDSURF:
            return json.dumps({"mcpServers": {SERVER_NAME: entry}}, indent=2)


def _known(client: McpClient | str) -> McpClient:
    try:
        return McpClient(client)
    except ValueError:
        names = [each.value for each in McpClient]
        close = close_names(str(client), names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(names)}"
        error: ClusterError = InvalidArgument(
            f"--print-config {str(client)!r}: {hint}", field="print-config", value=str(client), allowed=names
        )
        raise error from None


def _of_address(client: McpClient, url: str, *, token: bool) -> str:
    def headers(place: str) -> dict[str, object]:
        return {"headers": {"Authorization": f"Bearer ${{{place}}}"}} if token else {}

    match client:
        case McpClient.CLAUDE_CODE:
            words = shlex.join(["claude", "mcp", "add", "--transport", "http", SERVER_NAME, url])
            return f'{words} --header "Authorization: Bearer ${TOKEN_VARIABLE}"' if token else words
        case McpClient.CURSOR:
            entry = {"url": url, **headers(f"env:{TOKEN_VARIABLE}")}
            return json.dumps({"mcpServers": {SERVER_NAME: entry}}, indent=2)
        case McpClient.WINDSURF:
            entry = {"serverUrl": url, **headers(f"env:{TOKEN_VARIABLE}")}
            return json.dumps({"mcpServers": {SERVER_NAME: entry}}, indent=2)
        case McpClient.VSCODE:
            entry = {"type": "http", "url": url, **headers("input:danube-token")}
            asked = {
                "type": "promptString",
                "id": "danube-token",
                "description": "Token of danube",
                "password": True,
            }
            servers: dict[str, object] = {"inputs": [asked]} if token else {}
            return json.dumps({**servers, "servers": {SERVER_NAME: entry}}, indent=2)
        case McpClient.CLAUDE_DESKTOP:
            raise InvalidArgument(
                "the file of Claude Desktop holds programs that it starts, no addresses: leave --transport http out, "
                "or use the bundle of docs/ai-administration.md",
                field="transport",
                value="http",
            )
