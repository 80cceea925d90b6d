"""Calls with one message and one answer, which this broker makes itself to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.grpc_wire import Headers, MessageReader, WireError, decode_metadata, frame

from pydanube_broker.relay.link import MESSAGE_BYTES, NO_STATUS, BrokerCall, Links
from pydanube_broker.relay.relayed_call import error_in

if TYPE_CHECKING:
    from pydanube_core.http2.head import AnswerHead

#: called once, with the answer, or with the error that ended the call
Answered = Callable[[bytes | ClusterError], None]


class UnaryCall(BrokerCall):
    """A call in flight."""

    def __init__(self, url: str, answered: Answered) -> None:
        super().__init__(url)
        self._answered: Answered | None = answered
        self._reader = MessageReader(limit=MESSAGE_BYTES, unpacker=None)
        self._answer: bytes | None = None

    @property
    def wanted(self) -> bool:
        return self._answered is not None

    def leave(self) -> None:
        """Take no answer any more."""
        self._answered = None

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        if not ended:
            return
        metadata = decode_metadata(head.fields)
        status = dict(head.fields).get(b"grpc-status", b"").decode()
        if status == "0" and self._answer is not None:
            self._end(self._answer)
        else:
            said = dict(metadata).get("grpc-message") or f"gRPC status {status}"
            refused = Unavailable(
                f"{self.url} does not take this call ({said!s:.200}). It has to be the client port of a pydanube broker of "
                "this version",
                broker=self.url,
            )
            self._end(error_in(metadata) or refused)

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        try:
            for message in self._reader.feed(data, start, end):
                self._answer = bytes(message)
        except WireError as error:
            self.on_lost(str(error), untouched=False)
        if ended:
            self.on_lost(NO_STATUS, untouched=False)

    def _end(self, outcome: bytes | ClusterError) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(outcome)


async def ask(links: Links, headers: Headers, url: str, message: bytes) -> bytes:
    """Return the answer of the broker at `url` to a message. Raises its error, and `Unavailable`."""
    outcome: asyncio.Future[bytes | ClusterError] = asyncio.get_running_loop().create_future()

    def answered(found: bytes | ClusterError) -> None:
        if not outcome.done():  # cancelled, and left a turn later
            outcome.set_result(found)

    call = UnaryCall(url, answered)
    links.ask(headers, frame(message), call)
    try:
        found = await outcome
    finally:
        call.leave()
    if isinstance(found, ClusterError):
        raise found
    return found
