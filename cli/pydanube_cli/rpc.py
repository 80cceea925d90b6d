"""`danube rpc`: JSON-RPC without HTTP: one call with its result on stdout, or a server on stdin and stdout."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from pydanube_core.errors import ClusterError, InvalidArgument

from pydanube_cli.command import Common, command, this_command
from pydanube_cli.messages.lines import LineSource, Outlet, split_lines, stdin_pieces
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import print_json
from pydanube_cli.runtime import run_async

if TYPE_CHECKING:
    from pydanube_admin.remote import OpsClient

MAX_LINE_BYTES: Final = 4 << 20  # as over HTTP


@command(
    examples=[
        "danube rpc topics.list",
        """danube rpc subscriptions.lag --params '{"topic": "logs"}'""",
        "danube rpc topics.create --params @topic.json",
        "danube rpc --stdio",
    ]
)
def rpc(
    *,
    common: Common,
    method: Annotated[str | None, argument(metavar="METHOD", help="topics.list, rpc.discover …")] = None,
    params: Annotated[str | None, option("--params", "JSON|@FILE|-", "The parameters, an object.")] = None,
    stdio: Annotated[
        bool, option("--stdio", help="Serve: one JSON text a line on stdin, answers on stdout.")
    ] = False,
) -> None:
    """Call one JSON-RPC method and print its result, or serve JSON-RPC on stdin and stdout."""
    if stdio == (method is not None):
        raise InvalidArgument("give a METHOD, or --stdio and none", field="method", value=method)
    if stdio:
        if params is not None:
            raise InvalidArgument("--params goes with a METHOD", field="params", value=params)
        run_async(partial(_serve, common))
        return
    assert method is not None
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": _params(params)}
    answer = json.loads(run_async(partial(_call, common, json.dumps(request).encode())))
    if "error" in answer:
        raise ClusterError.from_dict(answer["error"]["data"])
    print_json(answer["result"])


def _params(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8-sig")
        found = json.loads(text)
    except OSError as error:
        raise InvalidArgument(
            f"--params: cannot read {error.filename}: {error.strerror}", field="params"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"--params is not JSON: {error}", field="params") from None
    if not isinstance(found, dict):
        raise InvalidArgument("--params: parameters are named: pass a JSON object", field="params")
    return found


def _client(common: Common) -> OpsClient:
    """Return a client whose calls are those of JSON-RPC, and recorded as made by this command."""
    from pydanube_admin.remote import OpsClient

    return OpsClient(
        common.admin_url,
        timeout_s=common.timeout_s,
        principal=common.principal,
        face="jsonrpc",
        program=this_command(),
    )


async def _call(common: Common, request: bytes) -> bytes:
    from pydanube_admin.jsonrpc import JsonRpc

    async with _client(common) as ops:
        answer = await JsonRpc(ops).handle(request)
    assert answer is not None, "the request has an id"
    return answer


async def _serve(common: Common) -> None:
    """Answer lines in their order."""
    from pydanube_admin.jsonrpc import JsonRpc, too_long

    async with (
        _client(common) as ops,
        LineSource(lambda: split_lines(stdin_pieces(), max_bytes=MAX_LINE_BYTES, cut=True)) as source,
        Outlet() as outlet,
    ):
        answerer = JsonRpc(ops)
        while (gathered := await source.take()) is not None:
            for line in gathered.payloads:
                answer = too_long(MAX_LINE_BYTES) if len(line) > MAX_LINE_BYTES else None
                if answer is None and line.strip():
                    answer = await answerer.handle(line)
                if answer is not None:
                    await outlet.write(answer + b"\n")
            await anyio.lowlevel.checkpoint()
