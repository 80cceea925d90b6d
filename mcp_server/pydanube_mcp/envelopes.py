"""Refuse a message that is no JSON-RPC 2.0 message of MCP, with its id if that is readable.

The SDK drops such a message over stdio, and takes a request whose id is no string or integer for a
notification, so that its caller waits for ever. Its own refusals over HTTP quote the validation library.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from mcp.types import ErrorData, JSONRPCError
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError
from pydanube_admin.arguments import no_constant
from pydanube_admin.http import MAX_BODY_BYTES, AsgiApp, Message, Receive, Scope, Send
from pydanube_admin.jsonrpc import INVALID_REQUEST, PARSE_ERROR
from pydanube_admin.value_limit import check_values
from pydanube_core.errors import InvalidArgument

_MOST_LEVELS: Final = 150  # that the SDK reads
_SHAPE: Final = (
    'send one object with "jsonrpc": "2.0", an "id" that is a string or an integer, a "method" and "params" that are an '
    "object"
)


def refusal(message: bytes) -> JSONRPCError | None:
    """Return the answer to an invalid message, or None if the SDK can take it."""
    found = parsed(message)
    return found if isinstance(found, JSONRPCError) else None


def parsed(message: bytes) -> dict[str, Any] | JSONRPCError:
    """Return the object of a message that the SDK can take, or the answer to an invalid one."""
    too_many: InvalidArgument | None = None
    try:
        check_values(message, "message")
        jsonrpc_message_adapter.validate_json(message, by_name=False)
    except InvalidArgument as error:
        # Over stdio, whose thread reads the id. Over HTTP the guard has refused it
        valid, too_many = False, error
    except ValidationError:
        valid = False
    else:
        valid = True
    try:
        # As text: bytes may also be UTF-16 for json, and NaN is no JSON
        found = json.loads(message.decode(), parse_constant=no_constant)
        if not valid:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return refused(PARSE_ERROR, "a text holds half a surrogate pair, which is no Unicode", _id_of(found))
    except RecursionError:
        return refused(PARSE_ERROR, "the message is nested too deeply")
    except ValueError:
        return refused(PARSE_ERROR, "the message is not JSON that can be read: it is one JSON text, in UTF-8")
    if too_many is not None:
        return refused(INVALID_REQUEST, too_many.message, _id_of(found))
    if isinstance(found, list):
        return refused(INVALID_REQUEST, f"a batch of messages is not taken: {_SHAPE}")
    if valid and not ("method" in found and "id" in found and not _is_id(found["id"])):
        return cast("dict[str, Any]", found)
    deep = not valid and isinstance(found, dict) and found.get("jsonrpc") == "2.0" and _depth_exceeds(found)
    if deep:
        return refused(PARSE_ERROR, "the message is nested too deeply", _id_of(found))
    return refused(INVALID_REQUEST, f"that is no JSON-RPC message: {_SHAPE}", _id_of(found))


def refused(code: int, why: str, id: str | int | None = None) -> JSONRPCError:
    """Return a refusal."""
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=code, message=why))


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _id_of(found: Any) -> str | int | None:
    value = found.get("id") if isinstance(found, dict) else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and not value.isprintable():
        return None
    return value if _is_id(value) else None


def _depth_exceeds(value: Any) -> bool:
    """Return whether a value has more levels than the SDK reads."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


class CheckedMessages:
    """An ASGI application in front of another that refuses messages which are not MCP's with 400."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client is gone
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > MAX_BODY_BYTES:
                break
        whole = not message.get("more_body", False)
        answer = refusal(bytes(body)) if whole and len(body) <= MAX_BODY_BYTES else None
        if answer is not None:
            said = answer.model_dump_json(by_alias=True, exclude_unset=True).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": said})
            return
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": not whole}

        async def again() -> Message:
            nonlocal first
            taken, first = first, None
            return await receive() if taken is None else taken

        await self._app(scope, again, send)
