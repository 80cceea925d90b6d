"""The transport over grpc.aio, with identity serializers: bytes in, bytes out.

gRPC's own errors are translated here, once (`statuses`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import grpc
import grpc.aio
from pydanube_core.errors import ClusterError, Unavailable

from pydanube.endpoint import Tls, metadata_of, parse_url, read_pem
from pydanube.statuses import error_of
from pydanube.transport import listen_by_reading

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


def translate(error: grpc.aio.AioRpcError, url: str) -> ClusterError:
    """The `ClusterError` behind a gRPC error."""
    return error_of(error.code().name, error.details() or "", error.trailing_metadata() or (), url=url)


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

    def write_at_once(self, message: bytes) -> bool:
        return False  # gRPC has no such thing

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

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        return await listen_by_reading(self, take)

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
        self._metadata = metadata_of(token, principal)
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
            credentials = grpc.ssl_channel_credentials(
                read_pem(tls.ca), read_pem(tls.key), read_pem(tls.cert)
            )
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
