"""Control of a running local cluster from another terminal: one JSON line each way, on this machine.

Every request contains a secret word from `local.json`, which only its owner can read.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import ClusterError, InvalidArgument, Unavailable

from pydanube_cli.local_cluster.cluster import LocalCluster, State

ACTIONS: Final = ("status", "add", "stop", "start", "kill")
NUMBERED: Final = ("stop", "start", "kill")
_PATIENCE_S: Final = 180.0
_MAX_BYTES: Final = 1 << 20


async def serve(cluster: LocalCluster) -> asyncio.Server:
    """Listen, and write the address into the state."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line:
                writer.write(json.dumps(await _answer(cluster, line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the client has gone, or sent no line
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=64 << 10)
    cluster.state.port = server.sockets[0].getsockname()[1]
    cluster.state.word = secrets.token_hex(16)
    return server


async def _answer(cluster: LocalCluster, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not hmac.compare_digest(str(request.get("word")), cluster.state.word):
            raise InvalidArgument("this is not the word of the local cluster", field="word")
        return {"result": await _carry_out(cluster, request["action"], request.get("number"))}
    except ClusterError as error:
        return {"error": error.to_dict()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": InvalidArgument(f"not a request: {error!r}", field="request").to_dict()}


async def _carry_out(cluster: LocalCluster, action: str, number: int | None) -> dict[str, Any]:
    match action:
        case "status":
            return cluster.status()
        case "add":
            return await cluster.add()
        case "stop" if number is not None:
            return await cluster.stop_broker(number)
        case "start" if number is not None:
            return await cluster.start_broker(number)
        case "kill" if number is not None:
            return await cluster.kill_broker(number)
    raise InvalidArgument(f"{action!r}: use one of {', '.join(ACTIONS)}", field="action", value=action)


def ask(folder: Path, action: str, number: int | None) -> dict[str, Any]:
    """Send a request to the command that runs the cluster in a folder.

    Raises:
        Unavailable: none runs there.
        ClusterError: the command's error.
    """
    state = State.read(folder)
    request = json.dumps({"word": "" if state is None else state.word, "action": action, "number": number})
    try:
        if state is None or not state.port:
            raise ConnectionRefusedError
        with socket.create_connection(("127.0.0.1", state.port), timeout=_PATIENCE_S) as link:
            link.sendall(request.encode() + b"\n")
            with link.makefile("rb") as answers:
                said = json.loads(answers.readline(_MAX_BYTES))
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"no local cluster runs in {folder}: danube cluster local --data-dir {folder}",
            data_dir=str(folder),
        ) from error
    if "error" in said:
        raise ClusterError.from_dict(said["error"])
    result: dict[str, Any] = said["result"]
    return result
