"""One call that another broker carries out: its requests are sent there, its answers come back.

Messages are passed on unchanged. A stream is paused while its client does not read (`Link` has the windows), and its
client is paused while the other broker does not read. If the other broker does not have the topic either, the call
goes on: the relay looks for the owner again. If the client of a call is gone, the call to the other broker is
cancelled immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pydanube_core.errors import ClusterError, GrpcStatus, NoOwner, NotOwner, Unavailable
from pydanube_core.grpc_wire import (
    Headers,
    MessageReader,
    WireError,
    decode_metadata,
    frame,
    percent_decode,
)
from pydanube_core.names import TopicName

from pydanube_broker.relay.link import MESSAGE_BYTES, NO_STATUS, Leg, Link
from pydanube_broker.rpc.calls import OneRequest
from pydanube_broker.rpc.stream_calls import ServerStreamCall, StreamCall

if TYPE_CHECKING:
    from pydanube_core.http2 import Stream
    from pydanube_core.http2.head import AnswerHead

ERROR: Final = "danube-error-bin"
_STATUSES: Final = {b"%d" % status: status for status in GrpcStatus}
#: memory of a held call beside its request, in bytes
HELD_BYTES: Final = 1024
FRESH_S: Final = 10.0  # after so long in one place a call's patience starts again

#: called with a call whose topic is not at the broker that it was carried to, and with that broker's error
Missed = Callable[["RelayedCall", ClusterError | None], None]


class RelayedCall(Leg):
    """A call on its way to the owner of its topic: the base of single requests and of streams.

    Args:
        topic: the call's topic, or None if only the owner's address is given.
        broker_url: that address.
    """

    def __init__(
        self,
        call: OneRequest | StreamCall,
        topic: TopicName | None,
        broker_url: str,
        since: float,
        missed: Missed,
    ) -> None:
        self.call = call
        self.topic = topic
        self.broker_url = broker_url
        self.since = since  # its patience began
        self.seen_at = since  # it was last held or sent on its way
        self.held_bytes = 0  # counted against the client's connection
        self.given_up = False
        self._missed = missed
        self._link: Link | None = None
        self._stream: Stream | None = None
        self._reader: MessageReader | None = None

    # -- of the relay ----------------------------------------------------------------------------------------

    def begin(self, link: Link, headers: Headers) -> None:
        """Start on a link that is usable and has room."""
        assert self.call.first is not None
        self._reader = None
        self._link = link
        self._stream = link.ask(headers, frame(self.call.first), self)

    def moved_on(self, now: float) -> None:
        """Note that the call is held or carried now. After `FRESH_S` in one place its patience starts again."""
        if now - self.seen_at > FRESH_S:
            self.since = now
        self.seen_at = now

    def hold(self) -> None:
        """Hold the call here, counted against the client's connection. Raises `WireError`: that holds too much."""
        if not self.held_bytes:
            count = HELD_BYTES + len(self.call.first or b"")
            self.held_bytes = count
            self.call.connection.hold(count)

    def stop_holding(self) -> None:
        """Stop counting the call against the client's connection. Does nothing if it was not held."""
        if self.held_bytes:
            self.call.connection.release(self.held_bytes)
            self.held_bytes = 0

    def handle_here(self) -> None:
        """Hand the call back to this broker's handler, which serves the topic now."""
        assert isinstance(self.call, OneRequest), "clients open streams again themselves"
        self.call.again()

    def over(self) -> None:
        """Give up, because the client's call has ended: release its held bytes and cancel the stream to the owner."""
        self.given_up = True
        self.stop_holding()
        link, stream = self._link, self._stream
        self._leave()
        if link is not None and stream is not None:
            link.cancel(stream)

    def _leave(self) -> None:
        """Detach from the link: the stream to the other broker is over."""
        if self._stream is not None:
            self._stream.user = None
        self._link = self._stream = self._reader = None

    # -- of the link -----------------------------------------------------------------------------------------

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        fields = dict(head.fields)
        if ended:
            self._ended(head.fields, fields)
            return
        packed = fields.get(b"grpc-encoding") == b"gzip"
        assert self._link is not None
        self._reader = MessageReader(limit=MESSAGE_BYTES, unpacker=self._link.unpack if packed else None)
        self._began(head.fields)

    def _ended(self, all_fields: Headers, fields: dict[bytes, bytes]) -> None:
        text = fields.get(b"grpc-status", b"")
        status = _STATUSES.get(text, GrpcStatus.UNKNOWN)
        if status == GrpcStatus.OK:
            self._leave()
            self._succeeded()
            return
        metadata = [(name, value) for name, value in decode_metadata(all_fields) if name == ERROR]
        error = error_in(metadata)
        self._leave()
        if isinstance(error, (NotOwner, NoOwner)) and not isinstance(self.call, StreamCall):
            self._missed(self, error)
            return
        self.call.finish(status, percent_decode(fields.get(b"grpc-message", b"")), metadata)

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        reader = self._reader
        if reader is not None:
            try:
                messages = reader.feed(data, start, end)
            except WireError as error:
                self.call.refuse(error)
                return
            for message in messages:
                self._answered(message)
        if ended and self._stream is not None:
            self.on_lost(NO_STATUS, untouched=False)

    def on_lost(self, why: str, *, untouched: bool) -> None:
        url = "" if self._link is None else self._link.url
        self._leave()
        if untouched and not isinstance(self.call, StreamCall):
            self._missed(self, None)
            return
        self.not_reached(url, why)

    def not_reached(self, url: str, why: str) -> None:
        """Fail as retryable: the owner cannot be reached."""
        self.call.fail(
            Unavailable(
                f"the broker at {url}, which serves this call, cannot be reached from here ({why})",
                broker=url,
                outcome="unknown",
                retry_after_ms=500,
            )
        )

    def eased(self) -> None:
        """Resume: the link has room again."""

    def _began(self, fields: Headers) -> None:
        raise NotImplementedError

    def _answered(self, message: bytes) -> None:
        raise NotImplementedError

    def _succeeded(self) -> None:
        raise NotImplementedError


class OneAnswer(RelayedCall):
    """A relayed call with one answer."""

    _message: bytes | None = None

    def _began(self, fields: Headers) -> None:
        self._message = None

    def _answered(self, message: bytes) -> None:
        self._message = message

    def _succeeded(self) -> None:
        assert isinstance(self.call, OneRequest)
        if self._message is None:
            self.call.finish(GrpcStatus.INTERNAL, "the answer of the other broker has no message")
        else:
            self.call.send(self._message)


class ManyAnswers(RelayedCall):
    """A relayed call with a stream of answers. It is the handler of its call (`HotServerStream`)."""

    call: ServerStreamCall | StreamCall

    def _began(self, fields: Headers) -> None:
        self.call.begin(decode_metadata(fields))

    def _answered(self, message: bytes) -> None:
        self.call.send(message)
        if not self.call.writable and self._stream is not None and self._link is not None:
            self._link.http.pause(self._stream)

    def _succeeded(self) -> None:
        self.call.end()

    def on_credit(self) -> None:
        """Resume the stream from the owner if it was paused, because the client reads again."""
        if self._stream is not None and self._link is not None and self._stream.paused:
            self._link.resume(self._stream)

    def on_close(self) -> None:
        """Do nothing: `over` has ended the stream."""


class BothWays(ManyAnswers):
    """A relayed stream in both directions (`HotStream`), taken over when its first messages name the topic."""

    call: StreamCall

    def begin(self, link: Link, headers: Headers) -> None:
        self._link = link
        self._stream = link.start(headers, self)
        early, self.call.early = self.call.early or [], None
        for message in early:
            self.on_message(message)
        self.call.resume_reading()

    def on_message(self, message: bytes) -> None:
        link, stream = self._link, self._stream
        if link is None or stream is None:
            return
        link.http.out.data(stream, frame(message))
        if not link.http.out.admits(stream):
            self.call.pause_reading()
        link.send()

    def eased(self) -> None:
        self.call.resume_reading()

    def on_half_close(self) -> None:
        if self._link is not None and self._stream is not None:
            self._link.http.out.finish(self._stream, None, repeats=False)
            self._link.send()


def error_in(metadata: Sequence[tuple[str, str | bytes]]) -> ClusterError | None:
    """Return the error in a call's trailers, or None if there is none."""
    for name, value in metadata:
        if name != ERROR:
            continue
        return ClusterError.from_json(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return None
