"""`webhook-source`: an HTTP port that publishes the requests of other systems.

The source answers 2xx after the records of a request are durable in the topic. If publishing fails, it answers 503 and
the sender tries again. Delivery is therefore at least once. The number and the bytes of waiting requests are bounded.
Further requests get 503 with `Retry-After`.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import anyio
import uvicorn
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import from_json
from pydanube_core.errors import PortInUse

from pydanube_connect.connector import Settings, Source
from pydanube_connect.records import Batch, Record
from pydanube_connect.webhook.signatures import Scheme, key_of, signed

_WAIT_S: Final = 1.0  # seconds that one `read` waits for a request
_BATCH_REQUESTS: Final = 1_000
_CLOSE_S: Final = 5  # seconds that open responses have at shutdown

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebhookSettings(Settings):
    """Settings of `webhook-source`."""

    listen: str = Field(description="host:port. Port 0 is any free one")
    path: str = Field(default="/", pattern=r"^/", description="where requests are taken")
    token: SecretStr | None = Field(default=None, description="senders show it as Authorization: Bearer …")
    signature: Scheme | None = Field(
        default=None, description="sender whose signature each request must have. Others get 401"
    )
    secrets: list[SecretStr] = Field(
        default=[], max_length=10, description="keys of the signature. Two while the sender changes its key"
    )
    tolerance_s: int = Field(
        default=300, ge=1, le=86_400, description="age at which a signed request is too old"
    )
    split: Literal["none", "array", "lines"] = Field(
        default="none",
        description="one record a request, or one for each item of a JSON array, or for each line",
    )
    key_header: str | None = Field(default=None, description="the header that becomes the key")
    headers: list[str] = Field(default=[], max_length=50, description="headers that are kept as attributes")
    max_body_bytes: int = Field(default=1_000_000, ge=1, le=4_000_000, description="larger requests get 413")
    max_waiting: int = Field(
        default=1_024, ge=1, le=100_000, description="requests that wait for their answer. More get 503"
    )
    max_waiting_bytes: int = Field(default=64 << 20, ge=1, description="bytes of their bodies. More get 503")

    @field_validator("listen")
    @classmethod
    def _has_a_port(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise ValueError("an address is host:port, for example 127.0.0.1:8080")
        return listen

    @model_validator(mode="after")
    def _has_its_secret(self) -> Self:
        if self.signature is None and self.secrets:
            raise ValueError("secrets are for a signature: set signature, or leave them out")
        if self.signature is not None and not all(
            each.get_secret_value() for each in self.secrets or [SecretStr("")]
        ):
            raise ValueError(
                f'signature = "{self.signature}" needs secrets = ["${{env:NAME}}"], the key that its sender shows'
            )
        self.keys()
        return self

    def keys(self) -> list[bytes]:
        """Return the keys that requests may be signed with."""
        return [key_of(self.signature, each.get_secret_value()) for each in self.secrets if self.signature]


@dataclass(slots=True, eq=False)
class _Request:
    records: list[Record]
    size: int
    answer: asyncio.Future[int]


class WebhookSource(Source[WebhookSettings]):
    """Publishes the requests that its port receives."""

    def __init__(self, settings: WebhookSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        self._new: deque[_Request] = deque()
        self._taken: dict[int, list[_Request]] = {}  # requests by the id of their batch
        self._waiting = self._waiting_bytes = 0
        self._arrived = anyio.Event()
        token = settings.token.get_secret_value() if settings.token is not None else ""
        self._bearer = f"Bearer {token}".encode() if token else b""
        self._keys = settings.keys()
        self._kept = {name.lower().encode(): name.lower() for name in settings.headers}
        self._key_header = settings.key_header.lower().encode() if settings.key_header else b""

    @property
    def port(self) -> int:
        """The listening port, or 0 while the source does not listen."""
        listening = self._socket is not None and self._server is not None and self._server.started
        return int(self._socket.getsockname()[1]) if self._socket is not None and listening else 0

    async def open(self) -> None:
        host, _, port = self.settings.listen.rpartition(":")
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=2_048)
        except OSError as error:
            raise PortInUse(
                f"settings.listen = {self.settings.listen!r}: {error.strerror}. Stop the program that has the port, or "
                "choose another.",
                field="settings.listen",
                value=self.settings.listen,
            ) from None
        config = uvicorn.Config(
            self._serve,
            interface="asgi3", log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=_CLOSE_S, proxy_headers=False,
        )  # fmt: skip
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    async def close(self) -> None:
        for request in [*self._new, *(each for some in self._taken.values() for each in some)]:
            _answer(request, 503)
        self._new.clear()
        self._taken.clear()
        if self._server is not None:
            await self._server.shutdown(sockets=[self._socket] if self._socket is not None else None)
            self._server = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def check(self) -> list[str]:
        await self.open()
        return [f"{self.settings.listen} is free"]

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(self) -> Batch | None:
        if not self._new:
            self._arrived = anyio.Event()
            with anyio.move_on_after(_WAIT_S):
                await self._arrived.wait()
        taken = [self._new.popleft() for _ in range(min(len(self._new), _BATCH_REQUESTS))]
        if not taken:
            return None
        batch = Batch([record for request in taken for record in request.records])
        self._taken[id(batch)] = taken
        return batch

    async def stored(self, batch: Batch) -> None:
        for request in self._taken.pop(id(batch), ()):
            _answer(request, 200)

    # -- the port --------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = await self._handle(scope, receive)
        headers = [(b"content-length", b"0")]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _handle(self, scope: Scope, receive: Receive) -> int:
        """Store the records of a request, then return its HTTP status."""
        if scope["path"] != self.settings.path:
            return 404
        if scope["method"] not in ("POST", "PUT"):
            return 405
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._bearer and not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            return 401
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.settings.max_body_bytes:
            return 413
        if (
            self._waiting >= self.settings.max_waiting
            or self._waiting_bytes >= self.settings.max_waiting_bytes
        ):
            return 503
        self._waiting += 1
        size = 0
        try:
            body = b""
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return 400
                part: bytes = message.get("body", b"")
                size += len(part)
                self._waiting_bytes += len(part)
                if size > self.settings.max_body_bytes:
                    return 413
                body = body + part if body else part
                if not message.get("more_body"):
                    break
            if not self._signed(headers, body):
                return 401
            records = self._records(body, headers)
            if records is None:
                return 400
            return await self._stored(records, size) if records else 200
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size

    def _signed(self, headers: dict[bytes, bytes], body: bytes) -> bool:
        settings = self.settings
        return settings.signature is None or signed(
            settings.signature, self._keys, headers, body, now_s=time.time(), tolerance_s=settings.tolerance_s
        )

    async def _stored(self, records: list[Record], size: int) -> int:
        request = _Request(records, size, asyncio.get_running_loop().create_future())
        self._new.append(request)
        self._arrived.set()
        return await request.answer

    def _records(self, body: bytes, headers: dict[bytes, bytes]) -> list[Record] | None:
        """Return the records of a request, or None if its body does not have the form of `split`."""
        key = headers.get(self._key_header) if self._key_header else None
        attributes = {
            name: headers[raw].decode("latin-1") for raw, name in self._kept.items() if raw in headers
        }
        text = key.decode("latin-1") if key is not None else None
        if self.settings.split == "none":
            return [Record(body, text, attributes)]
        if self.settings.split == "lines":
            return [Record(line, text, attributes) for line in body.split(b"\n") if line.strip()]
        try:
            items = from_json(body)
        except ValueError:
            return None
        return [Record(item, text, attributes) for item in items] if isinstance(items, list) else None


def _answer(request: _Request, status: int) -> None:
    if not request.answer.done():
        request.answer.set_result(status)
