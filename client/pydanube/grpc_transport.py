"""The transport over grpc.aio, with identity serializers: bytes in, bytes out.

gRPC's own errors are translated here, once. The broker's errors arrive whole in the streams' `Failure` messages; on
the unary call they are in the trailing metadata (`danube-error-bin`, JSON) or, failing that, in `CODE: message`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import grpc
import grpc.aio
from pydanube_core.errors import (
    CODES,
    ClusterError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotImplementedYet,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    error_for,
)

__all__ = ["GrpcTransport", "Tls", "parse_url", "translate"]

ERROR_METADATA: Final = "danube-error-bin"
_SERVICE: Final = "/danube.stream.Stream/"
# A broker that is stopped or whose machine is gone closes nothing. While calls are open and nothing has come for
# KEEPALIVE_MS, the connection is asked; without an answer for as long again it is given up, and the outage begins.
# Answers come from gRPC's own threads, so that a busy broker is not taken for a dead one.
KEEPALIVE_MS: Final = 10_000
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.http2.max_pings_without_data", 0),  # no end to them
    ("grpc.max_send_message_length", 16 * 1024 * 1024),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # The channel's own back-off reaches minutes; ours decides, so the channel's only has to stay below it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # how long a broker that accepts may take to say hello: on a busy machine more than a second
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a client's connection is its own: closing it closes the socket
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files: the authority to trust (None: the system's), and the client's own certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def parse_url(url: str) -> tuple[str, bool]:
    """`host:port` and whether to use TLS, from `http://host:port` or `https://host:port`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError):  # the latter two: it is no text at all
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path.strip("/"):
        raise InvalidArgument(
            f"url {url!r}: write http://host:port or https://host:port", field="url", value=url if isinstance(url, str) else repr(url)[:200],
        )  # fmt: skip
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", parts.scheme == "https"


def translate(error: grpc.aio.AioRpcError, url: str) -> ClusterError:
    """The `ClusterError` behind a gRPC error."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            return ClusterError.from_json(value.decode() if isinstance(value, bytes) else value)
    text = error.details() or ""
    code, separator, message = text.partition(": ")
    if separator and code in CODES:
        return error_for(code, message, {"broker": url})
    # From here on it is gRPC that speaks, not the broker. Its INTERNAL is what a connection that breaks under a write
    # looks like ("Internal error from Core", RST_STREAM): the stream is lost, which a retry may mend.
    status = error.code()
    what = f"the broker at {url} answered {status.name}: {text}"
    match status:
        case grpc.StatusCode.UNIMPLEMENTED:
            return NotImplementedYet(f"{what}; is it a pydanube broker?", broker=url)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(what, broker=url)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(what, broker=url)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(what, broker=url)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return Internal(what, broker=url)
    refused = text.rpartition("Failed to connect to remote host: ")[2]  # the rest is gRPC's list of addresses
    return Unavailable(
        f"the broker at {url} cannot be reached ({refused or status.name}); is `danube up` running?",
        broker=url,
    )


class GrpcStream:
    """One bidirectional call.

    gRPC keeps the connection of a closed channel while anybody holds a call of it. So the call is let go at `aclose`, and
    errors are raised outside of `except`: as their context, gRPC's own would hold the frames that hold the call, until
    the garbage collector comes by.
    """

    __slots__ = ("_call", "_url")

    def __init__(self, call: Any, url: str) -> None:
        self._call: Any | None = call
        self._url = url

    async def write(self, message: bytes) -> None:
        try:
            await self._held().write(message)
            return
        except grpc.aio.AioRpcError as error:
            failure = translate(error, self._url)
        except asyncio.InvalidStateError:
            failure = None
        if failure is None:
            await self.read()  # the call is over: this does not read, it raises what ended it
            failure = Unavailable(f"the stream to {self._url} has ended", broker=self._url)
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame

    async def read(self) -> bytes | None:
        try:
            message = await self._held().read()
        except grpc.aio.AioRpcError as error:
            failure = translate(error, self._url)
        else:
            return None if message is grpc.aio.EOF else cast("bytes", message)
        try:
            raise failure
        finally:
            del failure

    async def finish(self) -> None:
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            if self._call is not None:
                await self._call.done_writing()

    async def aclose(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _held(self) -> Any:
        if self._call is None:
            raise Unavailable(f"the stream to {self._url} is closed", broker=self._url)
        return self._call


class GrpcTransport:
    """A channel to one broker."""

    __slots__ = ("_channel", "_consume", "_metadata", "_publish", "_resolve", "_url")

    def __init__(
        self, url: str, *, token: str | None = None, tls: Tls | None = None, principal: str | None = None
    ) -> None:
        target, secure = parse_url(url)
        self._url = url
        metadata: list[tuple[str, str]] = []
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        if principal is not None:
            metadata.append(("danube-principal", principal))
        self._metadata = tuple(metadata)
        options = (
            *_OPTIONS,
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            (
                "grpc.http2.ping_timeout_ms",
                KEEPALIVE_MS,
            ),  # a minute, and without it the longer of the two counts
        )
        if secure or tls is not None:
            tls = tls or Tls()
            credentials = grpc.ssl_channel_credentials(_pem(tls.ca), _pem(tls.key), _pem(tls.cert))
            self._channel = grpc.aio.secure_channel(target, credentials, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        self._resolve = self._channel.unary_unary(_SERVICE + "Resolve")
        self._publish = self._channel.stream_stream(_SERVICE + "Publish")
        self._consume = self._channel.stream_stream(_SERVICE + "Consume")

    @property
    def url(self) -> str:
        return self._url

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        return await self._unary(self._resolve, request, timeout_s)

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        return await self._unary(self._channel.unary_unary(path), request, timeout_s)

    async def _unary(self, method: Any, request: bytes, timeout_s: float) -> bytes:
        try:
            return cast("bytes", await method(request, timeout=timeout_s, metadata=self._metadata or None))
        except grpc.aio.AioRpcError as error:
            failure = translate(error, self._url)
        try:
            raise failure
        finally:
            del failure, method

    def publish(self) -> GrpcStream:
        return GrpcStream(self._publish(metadata=self._metadata or None), self._url)

    def consume(self) -> GrpcStream:
        return GrpcStream(self._consume(metadata=self._metadata or None), self._url)

    async def aclose(self) -> None:
        await self._channel.close()


def _pem(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"tls: cannot read {path}: {error}", field="tls", value=path) from error
