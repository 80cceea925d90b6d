"""The MCP face of the admin core: `build_server`, `run_stdio`, `run_http`, `http_face`, `print_config`.

The SDK is imported when a name that needs it is first used. Without the SDK, that raises a typed error that
names the extra.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

if TYPE_CHECKING:
    from pydanube_mcp.client_config import McpClient, find_program, print_config
    from pydanube_mcp.clusters import parse_connections
    from pydanube_mcp.lazy_app import lazy_http_face
    from pydanube_mcp.profiles import Profile
    from pydanube_mcp.run import http_face, mcp_app, run_http, run_stdio
    from pydanube_mcp.server import DanubeServer, build_server

__all__ = [
    "DanubeServer",
    "McpClient",
    "Profile",
    "build_server",
    "find_program",
    "http_face",
    "lazy_http_face",
    "mcp_app",
    "parse_connections",
    "print_config",
    "run_http",
    "run_stdio",
]

_HOMES: Final = {
    **dict.fromkeys(("McpClient", "find_program", "print_config"), "client_config"),
    "parse_connections": "clusters",
    "lazy_http_face": "lazy_app",
    **dict.fromkeys(("http_face", "mcp_app", "run_http", "run_stdio"), "run"),
    **dict.fromkeys(("DanubeServer", "build_server"), "server"),
    "Profile": "tools",
}
assert set(_HOMES) == set(__all__), "a name is exported but has no home, or the other way round"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        with _nothing_looked_through():
            return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise MissingExtra(
            f"the MCP server is not installed: {install_command('mcp')}", extra="mcp"
        ) from error


@contextmanager
def _nothing_looked_through() -> Iterator[None]:
    """Context without garbage collection: the SDK's modules stay, and scanning them again and again costs 0.15 s."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
