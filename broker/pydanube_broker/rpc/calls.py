"""Single calls on our own server, between the events of a stream and a handler (`hot`).

The connection notifies a call of its stream's data (`on_data`), its end (`gone`), its deadline (`expire`), and when all
of its response was sent (`left`). The common call, one small request in one frame and one answer, passes through here
without a task, a timer or a future: `on_data` reads the request, calls the handler, and `send` writes the whole
response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from pydanube_core.errors import ClusterError, GrpcStatus, Internal, InvalidArgument
from pydanube_core.grpc_wire import HEAD, OK_TRAILERS, WireError, frame, too_large, trailers
from pydanube_core.security.identity import current_identity

from pydanube_broker.rpc.caller import Caller, current_caller
from pydanube_broker.rpc.error_metadata import as_metadata

if TYPE_CHECKING:
    from pydanube_core.http2 import Stream
    from pydanube_core.security.identity import Identity

    from pydanube_broker.rpc.call_host import CallConnection, CalledMethod, CarriedCall, HeadOfCall
    from pydanube_broker.rpc.hot import ColdHandler, HotHandler


log = logging.getLogger("pydanube.rpc")

#: A response of one message up to this size is sent in one piece. A larger one takes its turns.
WHOLE_BYTES: Final = 32 << 10
COLD_BYTES: Final = 8 << 20  # maximum of a request without messages. Parsed, it takes twenty times as much
TASK_BYTES: Final = 4096  # memory of a cold call while its handler works, beside its request
Metadata = Sequence[tuple[str, str | bytes]]


def unexpected(path: str, error: Exception, event: str) -> ClusterError:
    """Return a client's error for an exception that is not a `ClusterError`. Log it unless the request is malformed."""
    if isinstance(error, DecodeError):
        return InvalidArgument(f"the bytes are no request of {path}", method=path)
    log.error(event, exc_info=error, extra={"event": event, "method": path})
    what = "stream" if event == "stream_failed" else "call"
    return Internal(f"the broker failed on this {what}. See its log", method=path)


class Call:
    """The state common to all kinds of calls."""

    __slots__ = ("carried", "connection", "due", "first", "head", "method", "over", "since", "stream")

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.method = method
        self.head = head
        self.over = False  # its status is decided
        self.due = 0  # its slot in the deadlines
        self.since = connection.now  # time of the newest part of the request. 0 when it is complete
        self.carried: CarriedCall | None = None  # the forwarding of the call to another broker
        self.first: bytes | None = None  # the request, if it may be forwarded

    @property
    def caller(self) -> Caller:
        return Caller(peer=self.connection.peer, metadata=self.head.metadata)

    @property
    def identity(self) -> Identity | None:
        return self.head.identity

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        """The stream is gone, so no answer is needed."""
        if not self.over:
            self._end(GrpcStatus.CANCELLED)

    def left(self) -> None:
        """The connection has sent everything that was queued."""

    def eased(self) -> None:
        """There is room again for data that can wait."""

    def expire(self) -> None:
        """End the call, because its deadline has passed."""
        self.finish(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def goes_elsewhere(self, error: ClusterError) -> bool:
        """Return whether another broker takes the call over. If not, it ends with the error."""
        elsewhere = self.method.elsewhere
        return elsewhere is not None and not self.over and elsewhere.takes(self, error)

    def fail(self, error: ClusterError) -> None:
        """End with an error's status, unless another broker takes the call over."""
        if self.goes_elsewhere(error):
            return
        text, body = as_metadata(error)
        self.finish(error.grpc_status, text, (("danube-error-bin", body),))

    def finish(self, status: int, message: str = "", metadata: Metadata = ()) -> None:
        """End with a status. The response is trailers only if nothing was sent before."""
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
        """Count the call's status, once."""
        self.over = True
        self.since = 0.0
        if self.due:
            self.connection.deadlines.drop(self)
        if self.carried is not None:
            self.carried.over()
        self.method.ended(status)

    def refuse(self, error: WireError) -> None:
        """Refuse a call whose bytes are not gRPC."""
        self.finish(error.status, error.why)


class RefusedCall(Call):
    """A request for no existing method. It is answered at its end, because a client that writes may not read before."""

    __slots__ = ()

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        self.since = self.connection.now
        if not ended or self.over:
            return
        self._end(GrpcStatus.UNIMPLEMENTED)
        out, stream, head = self.connection.http.out, self.stream, self.head
        if head.body is None:
            out.finish(stream, head.refusal, repeats=False)
        else:
            out.head(stream, head.refusal)
            out.data(stream, head.body)
            out.finish(stream, None, repeats=False)


class UnidentifiedCall(Call):
    """A call of an unauthenticated caller.

    It is answered at its first byte, because a client that opens a stream waits for an answer. `wait_s` delays the
    answer if wrong credentials keep coming from this peer.
    """

    __slots__ = ("_asked", "_error", "_wait_s")

    def __init__(
        self,
        connection: CallConnection,
        stream: Stream,
        method: CalledMethod,
        head: HeadOfCall,
        error: ClusterError,
        wait_s: float,
    ) -> None:
        super().__init__(connection, stream, method, head)
        self._error = error
        self._wait_s = wait_s
        self._asked = False

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        if self.over or self._asked:
            return
        self._asked = True
        if self._wait_s:
            self.connection.loop.call_later(self._wait_s, self.fail, self._error)
        else:
            self.fail(self._error)


class OneRequest(Call):
    """A call with a single request message."""

    __slots__ = ("_held", "_pieces")  # bytes counted with `hold`, and an incomplete message
    LARGEST: int | None = None  # maximum message size, checked before parsing
    WHOLE = True  # one message answers it, and the connection's window keeps room for that

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        # A copy of `Call.__init__` without the call, because every call passes here.
        self.connection = connection
        self.stream = stream
        self.method = method
        self.head = head
        self.over = False
        self.due = 0
        self.since = connection.now
        self.carried = None
        self.first = None
        self._pieces: bytearray | None = None
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
        limit = min(self.connection.message_bytes, self.LARGEST or self.connection.message_bytes)
        pieces = self._pieces
        if pieces is None:
            pieces = self._pieces = bytearray()
        pieces += memoryview(data)[start:end]
        self._held += end - start
        try:
            self.connection.hold(end - start)
            if self._held >= 5:
                size = int.from_bytes(pieces[1:5], "big")
                if size > limit:
                    raise too_large(size, limit)
                if self._held > size + 5:
                    raise WireError(GrpcStatus.INTERNAL, "a second message where one is due")
                if ended and self._held == size + 5:
                    self._whole(pieces[0], bytes(memoryview(pieces)[5:]), limit)
                    return
            if ended:
                raise WireError(GrpcStatus.INTERNAL, "the request ended before its message did")
        except WireError as error:
            self._release()
            self.refuse(error)

    def _whole(self, packed: int, message: bytes, limit: int) -> None:
        if packed:
            if packed != 1 or not self.head.gzip:
                raise WireError(GrpcStatus.INTERNAL, "a packed message without grpc-encoding")
            message = self.connection.unpack(message)
            if len(message) > limit:
                raise too_large(len(message), limit)
        self._release()
        self.since = 0.0
        self.on_request(message)

    def _release(self) -> None:
        self.connection.release(self._held)
        self._pieces, self._held = None, 0

    def on_request(self, message: bytes) -> None:
        raise NotImplementedError

    def again(self) -> None:
        """Pass the request to this broker's handler again."""
        assert self.first is not None, "only a call that may be carried has kept it"
        self.on_request(self.first)

    def _end(self, status: int) -> None:
        super()._end(status)
        if self.WHOLE:
            self.connection.http.out.answers_open -= 1
        if self._held:
            self._release()

    def send(self, message: bytes) -> None:
        """Answer with one message and OK. Ignored after an end."""
        if self.over:
            return
        connection = self.connection
        out = connection.http.out
        if out.overdue:
            self.finish(GrpcStatus.RESOURCE_EXHAUSTED, "this connection does not read its answers")
            return
        # A copy of `_end`, because every call passes here.
        self.over = True
        self.since = 0.0
        if self.due:
            connection.deadlines.drop(self)
        self.method.ended(0)
        out.answers_open -= 1
        self.stream.user = None  # no more events for this call
        if len(message) <= WHOLE_BYTES:
            out.answer(self.stream, HEAD, frame(message), OK_TRAILERS)
        else:
            out.head(self.stream, HEAD)
            out.data(self.stream, frame(message))
            out.finish(self.stream, OK_TRAILERS, repeats=True)
        if not connection.corked:
            connection.wake()


class HotCall(OneRequest):
    """A hot call, which is the `UnaryReply` of its handler."""

    __slots__ = ()

    def on_request(self, message: bytes) -> None:
        if self.method.elsewhere is not None:
            self.first = message
        handler: HotHandler = self.method.handler
        try:
            handler(message, self)
        except ClusterError as error:
            self.fail(error)
        except Exception as error:
            self.fail(unexpected(self.method.path, error, "call_failed"))


class ColdCall(OneRequest):
    """A call whose handler awaits. The handler runs as a task of the connection."""

    __slots__ = ("_task",)
    LARGEST = COLD_BYTES

    def __init__(
        self, connection: CallConnection, stream: Stream, method: CalledMethod, head: HeadOfCall
    ) -> None:
        super().__init__(connection, stream, method, head)
        self._task: asyncio.Task[None] | None = None

    def on_request(self, message: bytes) -> None:
        if self.method.elsewhere is not None:
            self.first = message
        self._held = len(message) + TASK_BYTES
        try:
            self.connection.hold(self._held)
        except WireError as error:
            self.refuse(error)
            return
        context = copy_context()
        context.run(current_caller.set, self.caller)
        context.run(current_identity.set, self.head.identity)
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
        finally:
            self._release()

    def expire(self) -> None:
        super().expire()
        self._cancel()

    def gone(self) -> None:
        super().gone()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
