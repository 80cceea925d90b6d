"""Keep answers to messages until the broker has carried them out, since the topic may move before that.

A broker that hands a topic over reports how many answers of a stream it carried out. The others are sent again to the
next owner, where the session goes on. At most `MOST_REPEATED` of them are kept. If there are more, the session ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from pydanube_core.generated import danube_stream_pb2 as pb

MOST_REPEATED: Final = 512  # requests: a second and more of a busy consumer


class RepeatedAnswers:
    """The answers of one consumer's stream, until the next one. `settled` is not set between two owners."""

    __slots__ = ("_carried_out", "_kept", "_noted", "settled")

    def __init__(self) -> None:
        self._kept: deque[pb.ConsumeRequest] = deque(maxlen=MOST_REPEATED)
        self._noted = 0
        self._carried_out: int | None = None
        self.settled = asyncio.Event()
        self.settled.set()

    def note(self, message: pb.ConsumeRequest) -> pb.ConsumeRequest:
        """Keep an Ack, Nack, Terminate or GivenBack that is about to be sent, and return it."""
        self._kept.append(message)
        self._noted += 1
        return message

    def owner_left(self, carried_out: int) -> None:
        """Note that the topic moves, and that the former owner carried out so many of the stream's answers."""
        self._carried_out = carried_out
        self.settled.clear()

    @property
    def between_owners(self) -> bool:
        return self._carried_out is not None

    @property
    def complete(self) -> bool:
        """Whether the session can continue: everything that was not carried out is kept."""
        return self._carried_out is not None and 0 <= self._noted - self._carried_out <= len(self._kept)

    @property
    def gave_back(self) -> bool:
        """Whether messages that were given back are to be given back again, to the topic's next owner."""
        return self.between_owners and any(
            message.given_back.ranges or message.nack.returned for message in self._kept
        )

    def begin_stream(self, *, keeps: bool) -> None:
        """Begin another stream. `keeps`: its session continues, and the kept answers are sent on it."""
        if not keeps:
            self._kept.clear()
        self._noted, self._carried_out = len(self._kept), None
        self.settled.set()

    def resume(self, session: int) -> tuple[pb.ConsumeRequest, ...]:
        """Continue the session under another number. Return the answers to send again, in order."""
        assert self._carried_out is not None
        for _ in range(len(self._kept) - (self._noted - self._carried_out)):
            self._kept.popleft()
        for message in self._kept:
            kind = message.WhichOneof("kind")
            assert kind is not None
            getattr(message, kind).session = session
            if kind == "ack":
                message.ack.confirm = 0  # its waiter sends it again
        self.begin_stream(keeps=True)
        return tuple(self._kept)
