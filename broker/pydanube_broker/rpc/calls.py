"""One call each, on our own server: between the events of its stream and a handler (`hot`).

A call is told what its stream brings (`on_data`, `gone`), when its time is up (`expire`), and when all it said has left
(`left`). The common call, one small request in one frame and one answer, passes through here without a task, a timer or a
future: `on_data` reads the request, calls the handler, and `send` writes the whole response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError
from pydanube_core.errors import ClusterError, Internal, InvalidArgument

from pydanube_broker.rpc.caller import Caller, current_caller
from pydanube_broker.rpc.error_metadata import as_metadata
from pydanube_broker.rpc.grpc_wire import (
    HEAD,
    OK_TRAILERS,
    MessageReader,
    Status,
    WireError,
    encode_metadata,
    frame,
    frame_gzip,
    too_large,
    trailers,
    unpack,
)

if TYPE_CHECKING:
    from pydanube_broker.rpc.call_host import CallConnection, CalledMethod, HeadOfCall
    from pydanube_broker.rpc.hot import (
        ColdHandler,
        HotHandler,
        HotServerStream,
        HotStream,
        ServerStreamOpener,
        StreamOpener,
    )
    from pydanube_broker.rpc.http2 import Stream

__all__ = ["Call", "ColdCall", "HotCall", "RefusedCall", "ServerStreamCall", "StreamCall"]

log = logging.getLogger("pydanube.rpc")

#: a response of one message leaves in one piece up to this size; above it takes its turns
WHOLE_BYTES: Final = 32 << 10
Metadata = Sequence[tuple[str, str | bytes]]


def unexpected(path: str, error: Exception, event: str) -> ClusterError:
    """What a client is told of an exception that is none of ours; a defect is logged, a client's nonsense is not."""
    if isinstance(error, DecodeError):
        return InvalidArgument(f"the bytes are no request of {path}", method=path)
    log.error(event, exc_info=error, extra={"event": event, "method": path})
    what = "stream" if event == "stream_failed" else "call"
    return Internal(f"the broker failed on this {what}; see its log", method=path)


class Call:
    """What every kind of call has."""

    __slots__ = ("connection", "due", "head", "method", "over", "since", "stream")

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.method = method
        self.head = head
        self.over = False  # its status is decided
        self.due = 0  # the slot of the deadlines it stands in
        self.since = connection.now  # something came of the request; 0 when it is whole

    @property
    def caller(self) -> Caller:
        return Caller(peer=self.connection.peer, metadata=self.head.metadata)

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        """The stream is gone, and with it whoever waits for an answer."""
        raise NotImplementedError

    def left(self) -> None:
        """Everything that was said has left."""

    def eased(self) -> None:
        """There is room again for what can wait."""

    def expire(self) -> None:
        """The time the caller gave is up."""
        self.finish(Status.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def fail(self, error: ClusterError) -> None:
        """End with an error's status."""
        text, body = as_metadata(error)
        self.finish(error.grpc_status, text, (("danube-error-bin", body),))

    def finish(self, status: int, message: str = "", metadata: Metadata = ()) -> None:
        """End with a status: trailers only, if nothing was sent before."""
        if self.over:
            return
        self._end(status)
        self._close(status, message, metadata)
        self.connection.wake()

    def _close(self, status: int, message: str, metadata: Metadata) -> None:
        out, stream = self.connection.http.out, self.stream
        ending = OK_TRAILERS if not status and not metadata else trailers(status, message, metadata)
        if not stream.head_sent:  # trailers only: one block that is both
            ending = (*HEAD[:2], *ending)
        out.finish(stream, ending, repeats=not status and not metadata)

    def _end(self, status: int) -> None:
        """Note how it ended, once."""
        self.over = True
        self.since = 0.0
        if self.due:
            self.connection.deadlines.drop(self)
        self.method.ended(status)

    def refuse(self, error: WireError) -> None:
        """What came is no gRPC."""
        self.finish(error.status, error.why)


class RefusedCall(Call):
    """A request that calls nothing. It is answered when it has ended: whoever writes it may not read before."""

    __slots__ = ()

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        self.since = self.connection.now
        if not ended or self.over:
            return
        self._end(Status.UNIMPLEMENTED)
        out, stream, head = self.connection.http.out, self.stream, self.head
        if head.body is None:
            out.finish(stream, head.refusal, repeats=False)
        else:
            out.head(stream, head.refusal)
            out.data(stream, head.body)
            out.finish(stream, None, repeats=False)

    def gone(self) -> None:
        if not self.over:
            self._end(Status.CANCELLED)


class _OneRequest(Call):
    """A call whose caller sends one message."""

    __slots__ = ("_held", "_pieces")
    WHOLE = True  # one message answers it, for which the connection's window keeps room

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        # As `Call`'s, which is not called: every call comes by here.
        self.connection = connection
        self.stream = stream
        self.method = method
        self.head = head
        self.over = False
        self.due = 0
        self.since = connection.now
        self._pieces: list[bytes] | None = None
        self._held = 0
        if self.WHOLE:
            connection.http.out.answers_open += 1

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        if (
            ended
            and self._pieces is None
            and end - start >= 5
            and not data[start]
            and int.from_bytes(data[start + 1 : start + 5], "big") == end - start - 5
            and end - start - 5 <= self.connection.message_bytes
            and not self.over
        ):
            self.since = 0.0
            self.on_request(data[start + 5 : end])
            return
        if self.over:
            return
        self.since = self.connection.now
        limit = self.connection.message_bytes
        pieces = self._pieces
        if pieces is None:
            pieces = self._pieces = []
        pieces.append(data[start:end])
        self._held += end - start
        try:
            self.connection.hold(end - start)
            if self._held >= 5:
                if len(pieces[0]) < 5:
                    pieces[:] = [b"".join(pieces)]
                size = int.from_bytes(pieces[0][1:5], "big")
                if size > limit:
                    raise too_large(size, limit)
                if self._held > size + 5:
                    raise WireError(Status.INTERNAL, "a second message where one is due")
                if ended and self._held == size + 5:
                    self._whole(b"".join(pieces))
                    return
            if ended:
                raise WireError(Status.INTERNAL, "the request ended before its message did")
        except WireError as error:
            self._release()
            self.refuse(error)

    def _whole(self, data: bytes) -> None:
        message = data[5:]
        if data[0]:
            if data[0] != 1 or not self.head.gzip:
                raise WireError(Status.INTERNAL, "a packed message without grpc-encoding")
            message = unpack(message, self.connection.message_bytes)
        self._release()
        self.since = 0.0
        self.on_request(message)

    def _release(self) -> None:
        self.connection.release(self._held)
        self._pieces, self._held = None, 0

    def on_request(self, message: bytes) -> None:
        raise NotImplementedError

    def _end(self, status: int) -> None:
        super()._end(status)
        if self.WHOLE:
            self.connection.http.out.answers_open -= 1
        if self._held:
            self._release()

    def gone(self) -> None:
        if not self.over:
            self._end(Status.CANCELLED)

    def send(self, message: bytes) -> None:
        """Answer with one message and OK; after an end nothing happens any more."""
        if self.over:
            return
        connection = self.connection
        out = connection.http.out
        # As `_end`, step by step: every call comes by here.
        self.over = True
        self.since = 0.0
        if self.due:
            connection.deadlines.drop(self)
        self.method.ended(0)
        out.answers_open -= 1
        self.stream.user = None  # nothing more is told to this call
        if len(message) <= WHOLE_BYTES:
            out.answer(self.stream, HEAD, frame(message), OK_TRAILERS)
        else:
            out.head(self.stream, HEAD)
            out.data(self.stream, frame(message))
            out.finish(self.stream, OK_TRAILERS, repeats=True)
        if not connection.corked:
            connection.wake()


class HotCall(_OneRequest):
    """A hot call; the `UnaryReply` of its handler."""

    __slots__ = ()

    def on_request(self, message: bytes) -> None:
        handler: HotHandler = self.method.handler
        try:
            handler(message, self)
        except ClusterError as error:
            self.fail(error)
        except Exception as error:
            self.fail(unexpected(self.method.path, error, "call_failed"))


class ColdCall(_OneRequest):
    """A call whose handler awaits: a task of the connection's."""

    __slots__ = ("_task",)

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self._task: asyncio.Task[None] | None = None

    def on_request(self, message: bytes) -> None:
        context = copy_context()
        context.run(current_caller.set, self.caller)
        self._task = self.connection.start(self._run(message), context)

    async def _run(self, message: bytes) -> None:
        handler: ColdHandler = self.method.handler
        try:
            answer = await handler(message)
        except ClusterError as error:
            self.fail(error)
        except Exception as error:
            self.fail(unexpected(self.method.path, error, "call_failed"))
        else:
            self.send(answer)

    def expire(self) -> None:
        super().expire()
        self._cancel()

    def gone(self) -> None:
        super().gone()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Streaming(Call):
    """A call that answers with any number of messages; the reply of its handler."""

    # No slots: Python lets no class inherit those of two others, and streams are few.

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self.handler: HotStream | HotServerStream | None = None
        self.compress = False  # pack what is sent from here on; asked for before the headers leave, or never
        self._packs = False
        self._closed = False

    def begin(self, metadata: Metadata = ()) -> None:
        """Send the response's headers now."""
        if not self.over and not self.stream.head_sent:
            head = (*HEAD, *encode_metadata(metadata)) if metadata else HEAD
            if self.compress:
                self._packs = True
                head = (*head, (b"grpc-encoding", b"gzip"))
            self.connection.http.out.head(self.stream, head)
            self.connection.wake()

    def send(self, message: bytes) -> None:
        if self.over:
            return
        out, stream = self.connection.http.out, self.stream
        if not stream.head_sent:
            self.begin()
        out.data(stream, frame_gzip(message) if self.compress and self._packs else frame(message))
        if not self.connection.corked:
            self.connection.wake()

    @property
    def writable(self) -> bool:
        return not self.over and not self.stream.full

    def end(self, error: ClusterError | None = None) -> None:
        if error is not None:
            self.fail(error)
        else:
            self.finish(0)

    def _close(self, status: int, message: str, metadata: Metadata) -> None:
        if not status and not self.stream.head_sent:
            self.connection.http.out.head(
                self.stream, HEAD
            )  # OK is never trailers only: some clients miss it
        super()._close(status, message, metadata)

    def expire(self) -> None:
        super().expire()
        self._tell_closed()

    def eased(self) -> None:
        if self.handler is not None and not self.over:
            self.handler.on_credit()

    def gone(self) -> None:
        if not self.over:
            self._end(Status.CANCELLED)
        self._tell_closed()

    def left(self) -> None:
        self._tell_closed()

    def _tell_closed(self) -> None:
        if self.handler is not None and not self._closed:
            self._closed = True
            self.handler.on_close()


class ServerStreamCall(_Streaming, _OneRequest):
    """A hot server stream; the `ServerStreamReply` of its handler."""

    WHOLE = False

    def on_request(self, message: bytes) -> None:
        opener: ServerStreamOpener = self.method.handler
        try:
            self.handler = opener(message, self)
        except ClusterError as error:
            self.fail(error)
        except Exception as error:
            self.fail(unexpected(self.method.path, error, "stream_failed"))


class StreamCall(_Streaming):
    """A hot stream; the `StreamReply` of its handler."""

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self.since = 0.0  # it may be silent
        self._reader = MessageReader(limit=connection.message_bytes, gzip=head.gzip)
        self._held: deque[bytes] = deque()  # read, and not wanted yet
        self._paused = False
        self._resuming = False
        self._ended = False  # by the client; told when all is read
        opener: StreamOpener = method.handler
        self.handler = opener(self)

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        if self.over:
            return
        held = self._reader.held
        try:
            messages = self._reader.feed(data, start, end)
            self.connection.hold(self._reader.held - held)
            if ended and self._reader.held:
                raise WireError(Status.INTERNAL, "the stream ended inside of a message")
        except WireError as error:
            self.refuse(error)
            return
        self._ended = ended
        if self._paused or self._held:
            self._keep(messages)
        else:
            self._tell(messages)

    def _keep(self, messages: Sequence[bytes]) -> None:
        """Messages that the stream does not want yet; the window holds the peer back from sending many."""
        for message in messages:
            self._held.append(message)
            try:
                self.connection.hold(len(message))
            except WireError as error:
                self.refuse(error)
                return

    def _tell(self, messages: Sequence[bytes]) -> None:
        """Hand messages to the stream, until it wants no more."""
        handler: Any = self.handler
        try:
            for number, message in enumerate(messages):
                if self._paused:
                    self._keep(messages[number:])
                    return
                handler.on_message(message)
                if self.over:
                    return
            if self._ended and not self._paused:
                self._ended = False
                handler.on_half_close()
        except ClusterError as error:
            self.end(error)
        except Exception as error:
            self.end(unexpected(self.method.path, error, "stream_failed"))

    def pause_reading(self) -> None:
        self._paused = True
        self.connection.http.pause(self.stream)

    def resume_reading(self) -> None:
        """Go on in the next turn: a stream that pauses again before is told nothing."""
        self._paused = False
        if not self._resuming:
            self._resuming = True
            self.connection.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if self._paused or self.over:
            return
        try:
            while self._held and not self._paused and not self.over:
                message = self._held.popleft()
                self.connection.release(len(message))
                self.handler.on_message(message)  # type: ignore[union-attr]
        except ClusterError as error:
            self.end(error)
        except Exception as error:
            self.end(unexpected(self.method.path, error, "stream_failed"))
        if self._paused or self.over:
            return
        self.connection.http.resume(self.stream, self.connection.loop.time())
        self.connection.wake()
        self._tell(())

    def _end(self, status: int) -> None:
        super()._end(status)
        self.connection.release(sum(map(len, self._held)) + self._reader.held)
        self._held.clear()
