"""Hot and cold handlers on grpcio's asyncio server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from pydanube_core.errors import ClusterError, Internal, InvalidArgument

from pydanube_broker.rpc.caller import Caller, Peer, current_caller
from pydanube_broker.rpc.error_metadata import as_metadata
from pydanube_broker.rpc.hot import (
    ColdHandler,
    HotHandler,
    HotServerStream,
    HotStream,
    Route,
    ServerStreamOpener,
    StreamOpener,
)
from pydanube_broker.rpc.listening import listen, port_in_use

log = logging.getLogger("pydanube.rpc")

BUFFER_BYTES: Final = 1 << 20  # queued towards one client before its stream is told to wait
RECEIVE_LIMIT_BYTES: Final = 64 << 20  # we refuse by our own limits, with our own words
_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # a second broker on the port must fail, not share it
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # a minute otherwise, and the longer of the two counts
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.bdp_probe", 1),
)


class _Reply:
    """One stream's way back: a bounded queue and a task that writes it out."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._sleeper: asyncio.Future[None] | None = None  # not an Event: it is woken once a message
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._ended = False
        self._full = False
        self._headers = False
        self._headers_sent = False
        self.error: ClusterError | None = None
        self.stream: HotStream | HotServerStream | None = None
        self.finished = asyncio.Event()
        self.complete = False  # ended by us, and all of it has left

    @property
    def caller(self) -> Caller:
        return _caller(self._context)

    def begin(self) -> None:
        self._headers = True
        self._wake()

    def send(self, message: bytes) -> None:
        if self._ended:
            return
        self._queue.append(message)
        self._bytes += len(message)
        if self._bytes >= BUFFER_BYTES:
            self._full = True
        if self._sleeper is not None:
            self._wake()

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    @property
    def writable(self) -> bool:
        return not self._full and not self._ended

    def pause_reading(self) -> None:
        self._go_on.clear()

    def resume_reading(self) -> None:
        self._go_on.set()

    async def may_read(self) -> None:
        # Looked at again: an event that is set and cleared in one turn wakes whoever waits for it all the same.
        while not self._go_on.is_set():
            await self._go_on.wait()

    def end(self, error: ClusterError | None = None) -> None:
        if not self._ended:
            self._ended = True
            self.error = error
            self._wake()

    async def run(self) -> None:
        """Write until the stream was ended and everything has left."""
        queue, write, loop = self._queue, self._context.write, asyncio.get_running_loop()
        try:
            while True:
                if self._headers and not self._headers_sent:
                    self._headers_sent = True
                    await self._context.send_initial_metadata(())
                while queue:
                    message = queue.popleft()
                    await write(message)
                    self._bytes -= len(message)
                    if self._full and self._bytes < BUFFER_BYTES // 2:
                        self._full = False
                        if self.stream is not None and not self._ended:
                            self.stream.on_credit()
                if self._ended:
                    self.complete = True
                    return
                if not self._headers or self._headers_sent:
                    self._sleeper = loop.create_future()
                    await self._sleeper
        finally:
            self._ended = True
            self.finished.set()


class _UnaryReply:
    """One call's way back: the bytes or the error, and whoever waits for them."""

    __slots__ = ("_context", "_done", "answer", "error")

    def __init__(self, context: Any) -> None:
        self._context = context
        self.answer: bytes | None = None
        self.error: ClusterError | None = None
        self._done: asyncio.Future[None] | None = None

    @property
    def caller(self) -> Caller:
        return _caller(self._context)

    def send(self, message: bytes) -> None:
        if not self.settled:
            self.answer = message
            self._wake()

    def fail(self, error: ClusterError) -> None:
        if not self.settled:
            self.error = error
            self._wake()

    @property
    def settled(self) -> bool:
        return self.answer is not None or self.error is not None

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        self._done = asyncio.get_running_loop().create_future()
        await self._done


def _caller(context: Any) -> Caller:
    metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
    return Caller(peer=Peer(address=context.peer()), metadata=metadata)


async def _abort(context: Any, error: ClusterError) -> None:
    text, body = as_metadata(error)
    await context.abort(_STATUS[error.grpc_status], text, (("danube-error-bin", body),))


def _unexpected(path: str, error: Exception, event: str) -> ClusterError:
    """What a client is told of an exception that is none of ours; a defect is logged, a client's nonsense is not."""
    if isinstance(error, DecodeError):
        return InvalidArgument(f"the bytes are no request of {path}", method=path)
    log.error(event, exc_info=error, extra={"event": event, "method": path})
    what = "stream" if event == "stream_failed" else "call"
    return Internal(f"the broker failed on this {what}; see its log", method=path)


class GrpcioServer:
    """A gRPC server on one address.

    Args:
        host, port: port 0 takes any free one.
        route: what it serves.
        handlers: further grpcio handlers (health), if any.
        ended: told of every call that ended: full method path, name of its gRPC status.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        flag: str,
        route: Route,
        handlers: tuple[Any, ...] = (),
        ended: Callable[[str, str], None] = lambda path, status: None,
    ) -> None:
        self._ended = ended
        self._server = grpc.aio.server(options=_OPTIONS)
        self._calls: set[asyncio.Task[Any]] = set()
        methods = {path: self._stream(path, opener) for path, opener in route.streams.items()}
        methods |= {path: self._server_stream(path, opener) for path, opener in route.server_streams.items()}
        methods |= {path: self._unary(path, handler) for path, handler in route.cold.items()}
        methods |= {path: self._hot_unary(path, handler) for path, handler in route.hot.items()}
        self._server.add_generic_rpc_handlers((_Table(methods), *handlers))
        # Asked for by ourselves first: grpc's own failure is a line of C++ on stderr and no reason.
        listen(host, port, flag=flag).close()
        address = f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError as error:  # taken in between
            raise port_in_use(host, port, flag=flag, why=str(error)) from error

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float | None) -> None:
        await self._server.stop(grace_s)

    def _stream(self, path: str, opener: StreamOpener) -> Any:
        async def handle(_: Any, context: Any) -> None:
            reply = _Reply(context)
            stream = opener(reply)
            reply.stream = stream
            writer = asyncio.ensure_future(reply.run())  # the call's own scope: cancelled and awaited below
            reader = asyncio.ensure_future(self._read(path, stream, reply, context))
            try:
                await writer
                if reply.error is not None:
                    await _abort(context, reply.error)
            finally:
                for task in (reader, writer):
                    task.cancel()  # neither tells the stream anything from here on
                # Before the wait: a client that leaves while its stream ends cancels this handler a second time.
                stream.on_close()
                self._note(path, reply.error, gone=not reply.complete)
                await asyncio.gather(reader, writer, return_exceptions=True)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _read(self, path: str, stream: HotStream, reply: _Reply, context: Any) -> None:
        read = context.read
        try:
            while (message := await read()) is not grpc.aio.EOF:
                stream.on_message(message)
                await reply.may_read()
            stream.on_half_close()
        except ClusterError as error:
            reply.end(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # reading from a stream that was ended meanwhile is how its end is learnt
            if not isinstance(error, (grpc.aio.AbortError, grpc.aio.AioRpcError, grpc.aio.UsageError)):
                reply.end(_unexpected(path, error, "stream_failed"))
            else:
                reply.end(Internal("the stream was ended", method=path))

    def _server_stream(self, path: str, opener: ServerStreamOpener) -> Any:
        async def handle(request: bytes, context: Any) -> None:
            reply = _Reply(context)
            try:
                stream = reply.stream = opener(request, reply)
            except Exception as error:
                known = (
                    error if isinstance(error, ClusterError) else _unexpected(path, error, "stream_failed")
                )
                self._note(path, known)
                await _abort(context, known)
                return
            try:
                await reply.run()  # no task of its own: a thousand idle streams are a thousand tasks, not two
                if reply.error is not None:
                    await _abort(context, reply.error)
            finally:
                stream.on_close()
                self._note(path, reply.error, gone=not reply.complete)

        return grpc.unary_stream_rpc_method_handler(handle)

    def _hot_unary(self, path: str, handler: HotHandler) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            reply = _UnaryReply(context)
            try:
                handler(request, reply)
            except ClusterError as error:
                reply.fail(error)
            except Exception as error:
                reply.fail(_unexpected(path, error, "call_failed"))
            if not reply.settled:
                try:
                    await reply.wait()
                except asyncio.CancelledError:
                    self._note(path, None, gone=True)
                    raise
            self._note(path, reply.error)
            if reply.answer is None:
                assert reply.error is not None
                await _abort(context, reply.error)
                raise AssertionError("abort raises")
            return reply.answer

        return grpc.unary_unary_rpc_method_handler(handle)

    def _unary(self, path: str, handler: ColdHandler) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            current_caller.set(_caller(context))
            try:
                answer = await handler(request)
            except asyncio.CancelledError:
                self._note(path, None, gone=True)
                raise
            except Exception as error:
                known = error if isinstance(error, ClusterError) else _unexpected(path, error, "call_failed")
                self._note(path, known)
                await _abort(context, known)
                raise AssertionError("abort raises") from None
            self._note(path, None)
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    def _note(self, path: str, error: ClusterError | None, *, gone: bool = False) -> None:
        """Count a call that ended; `gone`: its client left before."""
        status = "OK" if error is None else _STATUS[error.grpc_status].name
        self._ended(path, "CANCELLED" if gone and error is None else status)


class _Table(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)
