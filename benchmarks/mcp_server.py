"""The MCP server beside a bare one of the SDK: start to tools listed over stdio, calls a second over HTTP.

    .venv/bin/python benchmarks/mcp_server.py [--calls 400] [--side-by-side 16] [--rounds 3]

Ours answers `list_topics` from a broker in memory on the other side of gRPC, each call in the audit; the bare server
answers a constant. Both take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import statistics
import sys
import time
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer
from pydanube_admin.core import AdminCore
from pydanube_admin.http import http_server
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.sections import MEMORY_DIR
from pydanube_core.errors import ClusterError
from pydanube_mcp import http_face

BARE = """
from mcp.server import MCPServer
server = MCPServer("bare")
@server.tool()
def ping() -> dict[str, int]:
    return {"total": 1}
server.run()
"""
OURS = "from pydanube_mcp import run_stdio; run_stdio('http://127.0.0.1:1')"


async def start_s(program: str) -> float:
    began = time.perf_counter()
    async with Client(StdioServerParameters(command=sys.executable, args=["-c", program])) as client:
        assert (await client.list_tools()).tools
        return time.perf_counter() - began


async def calls_per_s(url: str, tool: str, calls: int, lanes: int) -> float:
    async def lane(count: int) -> None:
        async with Client(url) as client:
            for _ in range(count):
                assert not (await client.call_tool(tool, {})).is_error

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(lanes):
            group.start_soon(lane, calls // lanes)
    return calls / (time.perf_counter() - began)


def bound() -> tuple[socket.socket, str]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock, f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    starts: dict[str, list[float]] = {"bare": [], "ours": []}
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(arguments.rounds):
        starts["bare"].append(await start_s(BARE))
        starts["ours"].append(await start_s(OURS))
    bare = MCPServer[Any]("bare")

    @bare.tool()
    async def ping() -> dict[str, int]:
        """Answer a call."""
        return {"total": 1}

    core = AdminCore()
    free = {f"server.{name}": 0 for name in ("grpc_port", "admin_port", "metrics_port")}
    settings = load_settings(None, {}, {"data.dir": MEMORY_DIR, **free})
    ours_sock, ours_url = bound()
    bare_sock, bare_url = bound()
    async with (
        Broker(settings, ops=core.serve_call) as broker,
        http_face(broker.admin_url) as app,
        http_server(ours_sock, app, grace_s=1),
        http_server(bare_sock, bare.streamable_http_app(), grace_s=1),
    ):
        core.attach(broker.port)
        for number in range(10):
            made = await core.call(
                "topics.create", {"topic": f"topic-{number}"}, principal="bench", face="cli"
            )
            assert not isinstance(made, ClusterError), made
        for _ in range(arguments.rounds):
            for name, url, tool in (("bare", bare_url, "ping"), ("ours", ours_url, "list_topics")):
                rates[name].append(await calls_per_s(url, tool, arguments.calls, arguments.side_by_side))
        await core.aclose()
    start = {name: round(statistics.median(found), 3) for name, found in starts.items()}
    rate = {name: round(statistics.median(found), 1) for name, found in rates.items()}
    return {"start_s": start, "calls_per_s": rate, "share": round(rate["ours"] / rate["bare"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description="MCP server beside a bare one")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--side-by-side", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    logging.disable(logging.INFO)  # the SDK logs each call to the terminal, which costs as much as the call
    print(json.dumps(anyio.run(measure, parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
