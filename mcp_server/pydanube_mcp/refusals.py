"""Refusals, in our words, of what is no JSON-RPC message at all.

For such a message the SDK's transport of the 2025 protocol answers 400 with the text of the library that it validates
with, which names its classes, quotes the input and ends in addresses of that library's pages. Nothing of it helps.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from pydanube_admin.http import AsgiApp

_FOREIGN: Final = "alidation error"
_PLAIN: Final = (
    'that is no JSON-RPC message: send one object with "jsonrpc": "2.0", an "id" that is a string or an integer, a '
    '"method" and "params" that are an object; several at once are not taken'
)
_MOST: Final = 1_000_000  # a refusal quotes parts of its request; longer ones are not ours to look into

Message = MutableMapping[str, Any]


class PlainRefusals:
    """The application in front of which it stands, but for the text of those refusals."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        body = bytearray()

        async def plain(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] == 400:
                held = message
                return
            if held is None:
                await send(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body", False):
                return
            said = _in_our_words(bytes(body))
            headers = [pair for pair in held["headers"] if pair[0].lower() != b"content-length"]
            await send({**held, "headers": [*headers, (b"content-length", b"%d" % len(said))]})
            held = None
            await send({"type": "http.response.body", "body": said})

        await self._app(scope, receive, plain)


def _in_our_words(body: bytes) -> bytes:
    if len(body) > _MOST:
        return body
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return body
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or _FOREIGN not in str(error.get("message")):
        return body
    return json.dumps(answer | {"error": {"code": error.get("code"), "message": _PLAIN}}).encode()
