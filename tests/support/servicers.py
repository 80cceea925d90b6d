"""Generated servicers on our own server: classes written for grpcio's asyncio server, as `protoc` makes their frames.

    servicers = Servicers()
    add_TestServiceServicer_to_server(TestService(), servicers)
    OwnServer(…, route=Route(streams=servicers.streams))

Each call is a task beside its stream. What the client sends waits in the call, a few messages of it, and what the servicer
sends waits until there is room. Of grpcio's `ServicerContext` there is what servicers use; the broker's own services are
handlers of bytes (`hot`) and need none of it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc
from pydanube_broker.rpc.hot import StreamOpener
from pydanube_broker.rpc.stream_calls import StreamCall
from pydanube_core.errors import GrpcStatus

log = logging.getLogger("pydanube.rpc")

WAITING: Final = 16  # messages of a client that the servicer has not asked for
Metadata = Sequence[tuple[str, str | bytes]]


class Servicers:
    """Takes what generated `add_…_to_server` functions register."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamOpener] = {}

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            self._streams[f"/{service}/{name}"] = _opener(handler)

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """The older way to say the same; the newer one is called beside it."""

    @property
    def streams(self) -> Mapping[str, StreamOpener]:
        """Make a handler for `Route.streams`."""
        return self._streams


def _opener(handler: Any) -> StreamOpener:
    def opener(reply: Any) -> _ServicerStream:
        return _ServicerStream(reply, handler)

    return opener


class _Aborted(Exception):
    """The servicer ended its call by `abort`."""


class ServicerContext:
    """The context that a servicer gets with a call: metadata, deadline, status."""

    def __init__(self, stream: _ServicerStream, reply: StreamCall) -> None:
        self._stream = stream
        self._reply = reply
        self._code: int = GrpcStatus.OK
        self._details = ""
        self._trailing: Metadata = ()

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._reply.caller.metadata

    def peer(self) -> str:
        return self._reply.caller.peer.address

    def peer_identities(self) -> tuple[bytes, ...] | None:
        """The names in the client's certificate, verified; None without one."""
        names = self._reply.caller.peer.names
        return tuple(name.encode() for name in names) or None

    def cancelled(self) -> bool:
        return self._reply.over

    def set_code(self, code: Any) -> None:
        self._code = code.value[0] if isinstance(code, grpc.StatusCode) else int(code)

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = tuple(metadata)

    def set_compression(self, compression: Any) -> None:
        self._reply.compress = compression == grpc.Compression.Gzip

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self._reply.begin(tuple(metadata))

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF`."""
        return await self._stream.read()

    async def write(self, message: Any) -> None:
        await self._stream.write(message)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        self.set_code(code)
        self._details = details
        self._trailing = tuple(trailing_metadata) or self._trailing
        raise _Aborted

    def finish(self) -> None:
        self._reply.finish(self._code, self._details, self._trailing)


class _ServicerStream:
    """One call of a servicer (`HotStream`)."""

    def __init__(self, reply: StreamCall, handler: Any) -> None:
        self._reply = reply
        self._handler = handler
        self._inbox: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()
        self.context = ServicerContext(self, reply)
        # The call's own scope: it ends with the stream, at the latest.
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- from the client -----------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        self._inbox.append(message)
        if len(self._inbox) >= WAITING:
            self._reply.pause_reading()
        self._changed.set()

    def on_half_close(self) -> None:
        self._ended = True
        self._changed.set()

    def on_credit(self) -> None:
        self._changed.set()

    def on_close(self) -> None:
        self._task.cancel()

    async def read(self) -> Any:
        while not self._inbox:
            if self._ended:
                return grpc.aio.EOF
            await self._wait()
        message = self._inbox.popleft()
        if len(self._inbox) == WAITING - 1:
            self._reply.resume_reading()
        decode: Callable[[bytes], Any] | None = self._handler.request_deserializer
        return message if decode is None else decode(message)

    async def write(self, message: Any) -> None:
        encode: Callable[[Any], bytes] | None = self._handler.response_serializer
        while not self._reply.writable and not self._reply.over:
            await self._wait()
        self._reply.send(message if encode is None else encode(message))

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    # -- the servicer --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._serve()
        except _Aborted:
            pass
        except Exception:
            log.exception("call_failed", extra={"event": "call_failed", "method": self._reply.method.path})
            self._reply.finish(GrpcStatus.UNKNOWN, "the servicer failed; see the broker's log")
        self.context.finish()

    async def _serve(self) -> None:
        handler, context = self._handler, self.context
        if handler.request_streaming:
            request: Any = self._messages()
        else:
            request = await self.read()
            if request is grpc.aio.EOF:
                await context.abort(GrpcStatus.INTERNAL, "the request has no message")
        method = (
            (handler.stream_stream if handler.response_streaming else handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_stream if handler.response_streaming else handler.unary_unary)
        )
        answer = method(request, context)
        if inspect.isasyncgen(answer):
            async for message in answer:
                await self.write(message)
            return
        message = await answer
        if not handler.response_streaming and context._code == GrpcStatus.OK:
            await self.write(message)
