"""One call over our own HTTP/2 connection: messages as bytes in both directions, and its status."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from pydanube_core.errors import ClusterError, GrpcStatus, Unavailable
from pydanube_core.grpc_wire import (
    MessageReader,
    Unpacker,
    WireError,
    decode_metadata,
    frame,
    percent_decode,
)
from pydanube_core.http2.codes import ErrorCode
from pydanube_core.ops_call import HTTP_STATUS

from pydanube.wire.statuses import error_of, not_reached
from pydanube.wire.transport import copy_of

if TYPE_CHECKING:
    from pydanube_core.http2 import ClientConnection, Stream
    from pydanube_core.http2.head import AnswerHead


MESSAGE_BYTES: Final = 16 << 20
#: limit of a stream's unread messages, above which the broker is held back. Its window may still let more through
HIGH_WATER_BYTES: Final = 1 << 20
_CODES: Final = {int(code): code.name for code in ErrorCode}
_STATUSES: Final = {b"%d" % status: status.name for status in GrpcStatus}
_STATUS_OF_HTTP: Final = {
    b"401": "UNAUTHENTICATED", b"403": "PERMISSION_DENIED", b"404": "UNIMPLEMENTED",
    b"429": "UNAVAILABLE", b"502": "UNAVAILABLE", b"503": "UNAVAILABLE", b"504": "UNAVAILABLE",
}  # fmt: skip


class CallLink(Protocol):
    """The connection, as a call uses it."""

    url: str
    loop: asyncio.AbstractEventLoop
    http: ClientConnection
    unpack: Unpacker

    def send(self) -> None:
        """Schedule a write to the connection."""


class Call:
    """See the module. One task writes, one reads."""

    __slots__ = (
        "_failure", "_held", "_link", "_messages", "_over", "_raised", "_reader", "_room", "_stream",
        "_take", "_waiter",
    )  # fmt: skip

    def __init__(self, link: CallLink, stream: Stream) -> None:
        self._link = link
        self._stream = stream
        self._reader: MessageReader | None = None  # once the answer has begun
        self._messages: deque[bytes] = deque()
        self._held = 0  # bytes of them
        self._waiter: asyncio.Future[None] | None = None  # of the reader or listener
        self._take: Callable[[bytes], bool] | None = None  # of the listener
        self._raised: Exception | None = None  # by it
        self._room: asyncio.Future[None] | None = None  # of the writer
        self._over = False
        self._failure: ClusterError | None = None

    # -- for the application ---------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        """Send one message. Waits while too much of this stream is queued.

        Raises:
            ClusterError: the call is over.
        """
        if self._over:
            raise self._ended()
        link, stream = self._link, self._stream
        link.http.out.data(stream, frame(message))
        link.send()
        while stream.full and not self._over:
            self._room = link.loop.create_future()
            try:
                await self._room
            finally:
                self._room = None

    def write_at_once(self, message: bytes) -> bool:
        """Send one message now. Return False, and do nothing, if the call is over or too much is queued."""
        if self._over or self._stream.full:
            return False
        link = self._link
        link.http.out.data(self._stream, frame(message))
        link.send()
        return True

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with each message, from within the read of the connection, until it returns False or raises.

        Returns True if `take` ended it, False if the call ended with OK. Not beside `read`.

        Raises:
            ClusterError: how else the call ended.
            Exception: raised by `take`.
        """
        while self._messages:
            if not take(self._messages.popleft()):
                return True
        self._held = 0
        if self._stream.paused:
            self._link.http.resume(self._stream, self._link.loop.time())
            self._link.send()
        if not self._over:
            self._take = take
            self._waiter = self._link.loop.create_future()
            try:
                await self._waiter
            finally:
                listens, self._take, self._waiter = self._take is not None, None, None
            if self._raised is not None:
                raise self._raised
            if not listens:
                return True
        if self._failure is None:
            return False
        raise copy_of(self._failure)

    async def read(self) -> bytes | None:
        """The next message, None when the call ended with OK.

        Raises:
            ClusterError: how else it ended.
        """
        while not self._messages:
            if self._over:
                if self._failure is None:
                    return None
                raise copy_of(self._failure)
            self._waiter = self._link.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        self._held -= len(message)
        if self._stream.paused and self._held * 2 < HIGH_WATER_BYTES:
            self._link.http.resume(self._stream, self._link.loop.time())
            self._link.send()
        return message

    async def finish(self) -> None:
        """End our side of the stream: nothing more is written."""
        if not self._over:
            self._link.http.out.finish(self._stream, None, repeats=False)
            self._link.send()

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it is over."""
        if not self._over:
            self._link.http.reset(self._stream, ErrorCode.CANCEL)
            self._end(Unavailable(f"the stream to {self._link.url} is closed", broker=self._link.url))
            self._link.send()
        self._messages.clear()

    async def aclose(self) -> None:
        self.cancel()

    def _ended(self) -> ClusterError:
        if self._failure is not None:
            return copy_of(self._failure)
        return Unavailable(f"the stream to {self._link.url} has ended", broker=self._link.url)

    # -- for the connection ----------------------------------------------------------------------------------

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        """Handle the headers of the answer, or its trailers."""
        fields = dict(head.fields)
        if ended:
            self._close(head, fields)
            return
        kind = fields.get(b"content-type", b"")
        if head.status != b"200" or not kind.startswith(b"application/grpc"):
            self._fail_http(head)
            return
        packed = fields.get(b"grpc-encoding") == b"gzip"
        self._reader = MessageReader(limit=MESSAGE_BYTES, unpacker=self._link.unpack if packed else None)

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        reader = self._reader
        if self._over or reader is None:
            return
        try:
            messages = reader.feed(data, start, end)
        except WireError as error:
            self._link.http.reset(self._stream, ErrorCode.CANCEL)
            self._end(not_reached(self._link.url, error.why, sent=True, limit_bytes=error.limit))
            return
        if self._take is not None:
            self._hand_over(messages, self._take)
        elif messages:
            self._messages += messages
            self._held += sum(map(len, messages))
            if self._held > HIGH_WATER_BYTES:
                self._link.http.pause(self._stream)
            self._wake()
        if ended:
            self._end(not_reached(self._link.url, "the answer ended without a status", sent=True))

    def _hand_over(self, messages: Sequence[bytes], take: Callable[[bytes], bool]) -> None:
        """Give messages to the listener. Those after one for which it returns False are dropped."""
        try:
            for message in messages:
                if not take(message):
                    break
            else:
                return
        except Exception as error:
            self._raised = error  # raised in the listener's task
        self._take = None
        self._wake()

    def on_reset(self, code: int, why: str) -> None:
        """End the call: its stream is gone."""
        if not self._over:
            if not why:
                why = f"the stream was reset: {_CODES.get(code, code)}"
            refused = code == ErrorCode.REFUSED_STREAM  # the peer has not processed it
            self._end(not_reached(self._link.url, why, sent=not refused))

    def eased(self) -> None:
        """Resume writing: there is room again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _close(self, head: AnswerHead, fields: dict[bytes, bytes]) -> None:
        status = fields.get(b"grpc-status")
        if status is None:
            self._fail_http(head)
        elif status == b"0":
            partial = self._reader is not None and self._reader.held
            self._end(
                not_reached(self._link.url, "the answer ended inside of a message", sent=True)
                if partial
                else None
            )
        else:
            name = _STATUSES.get(status, "UNKNOWN")
            text = percent_decode(fields.get(b"grpc-message", b""))
            self._end(error_of(name, text, decode_metadata(head.fields), url=self._link.url))

    def _fail_http(self, head: AnswerHead) -> None:
        """Fail the call: the other side does not speak gRPC."""
        self._link.http.reset(self._stream, ErrorCode.CANCEL)
        status = head.status or b""
        name = _STATUS_OF_HTTP.get(status, "UNKNOWN")
        failure = error_of(name, f"HTTP status {status.decode() or 'of none'}", (), url=self._link.url)
        if status.isdigit():
            failure.details[HTTP_STATUS] = int(status)
        self._end(failure)

    def _end(self, failure: ClusterError | None) -> None:
        if not self._over:
            self._over = True
            self._failure = failure
            self._stream.user = None
            self._wake()
            self.eased()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
