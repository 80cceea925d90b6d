"""Calls that answer with any number of messages, on our own server (`calls` has the common part of all calls)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import ClusterError, GrpcStatus
from pydanube_core.grpc_wire import HEAD, MessageReader, WireError, encode_metadata, frame, frame_gzip

from pydanube_broker.rpc.calls import COLD_BYTES, Call, Metadata, OneRequest, unexpected

if TYPE_CHECKING:
    from pydanube_core.http2 import Stream

    from pydanube_broker.rpc.call_host import CallConnection, CalledMethod, HeadOfCall
    from pydanube_broker.rpc.hot import HotServerStream, HotStream, ServerStreamOpener, StreamOpener


OBJECT_BYTES: Final = 48  # overhead of a message beside its bytes
EARLY_MESSAGES: Final = 16  # kept of a stream without an answer yet, which another broker may take over
EARLY_BYTES: Final = 64 << 10  # the largest of them
#: In the head of a stream that another broker carries here, and that is open at its client.
GOES_ON: Final = "x-danube-goes-on"


class _Streaming(Call):
    """A call that answers with any number of messages. It is the reply of its handler."""

    # No slots: Python lets no class inherit the slots of two others, and streams are few.

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self.handler: HotStream | HotServerStream | None = None
        self.compress = False  # pack messages from here on. Set before the headers leave, or never
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

    def send_along(self, message: bytes) -> None:
        if self.over or not self.stream.head_sent or self.connection.http.out.held_bytes:
            self.send(message)  # in company already
            return
        self.connection.http.out.data(self.stream, frame(message))
        self.connection.wake_later()

    @property
    def writable(self) -> bool:
        return not self.over and self.connection.http.out.admits(self.stream)

    @property
    def has_room(self) -> bool:
        return not self.over and not self.stream.full

    def owes(self, count: int) -> None:
        out = self.connection.http.out
        out.owe(self.stream, count)
        if out.relieved:
            self.connection.wake()

    def end(self, error: ClusterError | None = None) -> None:
        if error is not None:
            self.fail(error)
        else:
            self.finish(0)

    def _close(self, status: int, message: str, metadata: Metadata) -> None:
        if not status and not self.stream.head_sent:
            # OK is never trailers only, because some clients miss it.
            self.connection.http.out.head(self.stream, HEAD)
        super()._close(status, message, metadata)

    def expire(self) -> None:
        super().expire()
        self._tell_closed()

    def eased(self) -> None:
        if self.handler is not None and not self.over:
            self.handler.on_credit()

    def gone(self) -> None:
        super().gone()
        self._tell_closed()

    def left(self) -> None:
        self._tell_closed()

    def hand_over(self, handler: Any) -> None:
        """Give the stream to another handler. For the present one it is closed."""
        self._tell_closed()
        self.handler, self._closed = handler, False

    def _tell_closed(self) -> None:
        if self.handler is not None and not self._closed:
            self._closed = True
            handler, self.handler = self.handler, None  # it refers to this call, so this leaves no cycle
            handler.on_close()


class ServerStreamCall(_Streaming, OneRequest):
    """A hot server stream, which is the `ServerStreamReply` of its handler."""

    LARGEST = COLD_BYTES
    WHOLE = False

    @property
    def goes_on(self) -> bool:
        # A client that sends this header without cause gets fewer of its own messages again, and none of another
        # client's.
        return self.stream.head_sent or any(name == GOES_ON for name, _ in self.head.metadata)

    def on_request(self, message: bytes) -> None:
        if self.method.elsewhere is not None:
            self.first = message
        opener: ServerStreamOpener = self.method.handler
        try:
            self.hand_over(opener(message, self))
        except ClusterError as error:
            self.fail(error)
        except Exception as error:
            self.fail(unexpected(self.method.path, error, "stream_failed"))


class StreamCall(_Streaming):
    """A hot stream, which is the `StreamReply` of its handler."""

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self.since = 0.0  # it may be silent
        self._reader = MessageReader(
            limit=connection.message_bytes, unpacker=connection.unpack if head.gzip else None
        )
        self._held: deque[bytes] = deque()  # received, but not taken by the handler yet
        self._paused = False
        self._resuming = False
        self._ended = False  # by the client. The handler is notified when all is read
        # Messages that the handler got before it answered, if the stream may be carried.
        self.early: list[bytes] | None = None if method.elsewhere is None else []
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
                raise WireError(GrpcStatus.INTERNAL, "the stream ended inside of a message")
        except WireError as error:
            self.refuse(error)
            return
        self._ended = ended
        if self._paused or self._held:
            self._keep(messages)
        else:
            self._tell(messages)

    def _keep(self, messages: Sequence[bytes]) -> None:
        """Keep messages that the handler does not take yet. The flow-control window keeps them few."""
        for message in messages:
            self._held.append(message)
            try:
                self.connection.hold(len(message) + OBJECT_BYTES)
            except WireError as error:
                self.refuse(error)
                return

    def _tell(self, messages: Sequence[bytes]) -> None:
        """Give messages to the handler, until it pauses."""
        handler: Any = self.handler
        try:
            for number, message in enumerate(messages):
                if self._paused:
                    self._keep(messages[number:])
                    return
                self._note_early(message)
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

    def _note_early(self, message: bytes) -> None:
        if self.early is None:
            return
        if self.stream.head_sent or len(self.early) >= EARLY_MESSAGES or len(message) > EARLY_BYTES:
            self.early = None  # the stream stays here
        else:
            self.early.append(message)

    def pause_reading(self) -> None:
        self._paused = True
        self.connection.http.pause(self.stream)

    def resume_reading(self) -> None:
        """Resume in the next turn, unless the stream is paused again by then. No effect if it was not paused."""
        if self._paused and not self._resuming:
            self._resuming = True
            self.connection.loop.call_soon(self._resume)
        self._paused = False

    def _resume(self) -> None:
        self._resuming = False
        if self._paused or self.over:
            return
        try:
            while self._held and not self._paused and not self.over:
                message = self._held.popleft()
                self.connection.release(len(message) + OBJECT_BYTES)
                self._note_early(message)
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
        held = sum(map(len, self._held)) + len(self._held) * OBJECT_BYTES
        self.connection.release(held + self._reader.held)
        self._reader.drop()
        self._held.clear()
