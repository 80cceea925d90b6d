"""The application's answers to the messages of one lane: acks, nacks, longer deadlines, and giving up.

Acks are gathered for some milliseconds and sent as ranges. The others are sent immediately, after the acks before them.
An answer for a session that has ended is not sent, but counted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from pydanube_core.errors import ClusterError, InvalidArgument, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.options import ReceiverOptions
from pydanube.receiving.acks import AckGatherer
from pydanube.receiving.consume_counters import ConsumeCounters
from pydanube.receiving.control import ControlQueue
from pydanube.receiving.repeated_answers import RepeatedAnswers
from pydanube.receiving.withheld import Behind, Key, Withheld
from pydanube.wire.transport import copy_of

# Acks are gathered because each message to the broker costs both sides some 0.3 ms, whatever its size. They wait at
# most this long, for at most this many messages. A consumer with nothing else to do sends them immediately.
ACK_FLUSH_S: Final = 0.005
ACK_FLUSH_MESSAGES: Final = 2000


class _Delivered(Protocol):
    """A delivery, as far as its answers need it."""

    acks: AckGatherer


class LaneAnswers:
    """The answers of a lane, over its sessions. `acks` are those of the current one."""

    def __init__(
        self,
        options: ReceiverOptions,
        concrete_topic: str,
        control: ControlQueue,
        counters: ConsumeCounters,
        behind: Callable[[Any, Sequence[int]], Behind],
    ) -> None:
        self._behind = behind
        self._withheld = Withheld()
        self.takes_returned = False  # the broker, in a nack
        self._options = options
        self._topic = concrete_topic
        self._control = control
        self._counters = counters
        self.repeated = RepeatedAnswers()
        self.acks = AckGatherer(0, self._arm, self._note_stale)
        self.acks.expire()
        self._error: ClusterError | None = None
        self._unconfirmed = False  # acks were sent in this session since the broker last confirmed
        # A nack or a terminate was written since then. If the stream is cancelled now, the broker may not read it.
        self._unconfirmed_verbs = False
        self.lost_acks = False  # acks may have been lost with a connection, which was not raised yet
        self._ack_messages = 0  # written in the life of this lane
        self._timer: asyncio.TimerHandle | None = None
        self._unflushed = 0  # messages taken since acks were sent
        self._flushed_at = -math.inf

    def _note_stale(self, messages: int, lost: bool = False) -> None:
        self._counters.stale_acks += messages
        if lost and messages:
            self.lost_acks = True

    # -- acks ------------------------------------------------------------------------------------------------

    def taken(self, messages: int, *, more: bool) -> None:
        """Count messages taken by the application, and send the gathered acks if that is due.

        They are sent from `ACK_FLUSH_MESSAGES` messages on. With fewer, they are sent if no `more` deliveries wait for the
        application and the last acks were sent at least `ACK_FLUSH_S` ago.
        """
        self._unflushed += messages
        if self.acks.pending and (
            self._unflushed >= ACK_FLUSH_MESSAGES
            or (not more and time.monotonic() - self._flushed_at >= ACK_FLUSH_S)
        ):
            self.flush()

    def _arm(self) -> None:
        if self._timer is None:
            wait_s = ACK_FLUSH_S
            # Gathering must not make an ack late
            if self._options.ack_timeout_ms:
                wait_s = min(wait_s, self._options.ack_timeout_ms / 10_000)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._flush_by_timer)

    def _flush_by_timer(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send the gathered acks now."""
        self._unflushed = 0
        self._flushed_at = time.monotonic()
        acks = self.acks.requests()
        if acks:
            self._unconfirmed = True
            self._ack_messages += 1
            for ack in acks:
                self.send(pb.ConsumeRequest(ack=ack))

    def send(self, message: pb.ConsumeRequest) -> None:
        """Send an answer about messages, now or at the topic's next owner."""
        self._control.post(self.repeated.note(message))

    @property
    def unsettled(self) -> bool:
        """Whether `confirm` has anything to wait for."""
        return self.acks.pending or self._unconfirmed or self._unconfirmed_verbs

    async def confirm(self) -> None:
        """Send the gathered acks and wait until every ack of this session is durable.

        Raises:
            Unavailable: the stream was lost before the answer. The acks of that session may be lost, and their messages
                are then delivered again.
            ClusterError: the broker's refusal.
        """
        while True:
            await self.repeated.settled.wait()
            if self._error is not None:
                raise copy_of(self._error)
            if not self._options.subscription:
                return
            if not self._control.connected:
                raise Unavailable(f"{self._topic}: not connected. Acknowledged messages may come again")
            try:
                await self._confirm()
            except Unavailable:
                if not self.repeated.between_owners:
                    raise
            else:
                return

    async def _confirm(self) -> None:
        request = self._control.new_request()
        self._unconfirmed = self._unconfirmed or self.acks.pending
        *before, ack = self.acks.requests(confirm=request)
        for part in before:
            self.send(pb.ConsumeRequest(ack=part))
        self._ack_messages += 1
        asked = self._ack_messages
        self._unconfirmed_verbs = False  # earlier requests are read earlier
        await self._control.send_and_wait(request, self.repeated.note(pb.ConsumeRequest(ack=ack)))
        # Otherwise another task has acknowledged since, which is not confirmed yet
        if asked == self._ack_messages:
            self._unconfirmed = False

    def take_lost_acks(self) -> None:
        """Raise once if acknowledgements may have been lost with a connection.

        Raises:
            Unavailable: they may have been lost.
        """
        if self.lost_acks:
            self.lost_acks = False
            raise Unavailable(
                f"{self._topic}: the connection was lost with acks that the broker had not confirmed; "
                "acknowledged messages may come again",
                topic=self._topic,
            )

    # -- other answers ---------------------------------------------------------------------------------------

    async def nack(
        self, delivered: _Delivered, ranges: Sequence[int], delay_ms: int | None, reason: str
    ) -> None:
        """Give messages of a delivery back to the subscription, and with key-shared buffered ones of their keys."""
        acks = delivered.acks
        if delay_ms is not None and delay_ms < 0:
            raise InvalidArgument(
                f"delay_ms is not negative, got {delay_ms}", field="delay_ms", value=delay_ms
            )
        if self._current(acks, ranges):
            self._counters.nacked_messages += sum(ranges[1::2]) - sum(ranges[::2])
            nack = pb.Nack(session=acks.session, ranges=ranges, delay_ms=delay_ms, reason=reason)
            barrier = []
            if self.takes_returned:
                behind = self._behind(delivered, ranges)
                nack.returned.extend(behind.ranges)
                number = self._control.new_request()
                self._withheld.nacked(behind, number)
                barrier.append(self._barrier(number))
            self._unconfirmed_verbs = True
            note = self.repeated.note
            await self._control.written(note(pb.ConsumeRequest(nack=nack)), *map(note, barrier))

    def _barrier(self, number: int) -> pb.ConsumeRequest:
        """Return a request that the broker confirms. Messages that arrive after that were sent with all earlier requests read."""
        self._control.when_answered(number, lambda: self._withheld.confirmed(number))
        return pb.ConsumeRequest(ack=pb.Ack(session=self.acks.session, confirm=number))

    @property
    def withholds(self) -> bool:
        """Whether arriving messages have to be passed to `give_back`."""
        return bool(self._withheld)

    def give_back(
        self, offsets_and_keys: Iterable[tuple[int, Key]], take: Callable[[list[int]], list[int]]
    ) -> None:
        """Give back those of these messages that arrived before an earlier one of their key came again.

        Args:
            take: removes offsets, as flat ranges, from the buffer.
        """
        number = self._control.new_request()
        early = self._withheld.arrived(offsets_and_keys, number)
        if early:
            ranges = take([place for offset in early for place in (offset, offset + 1)])
            back = pb.GivenBack(session=self.acks.session, ranges=ranges)
            self.send(pb.ConsumeRequest(given_back=back))
            self.send(self._barrier(number))

    async def extend(self, acks: AckGatherer, ranges: Sequence[int], ms: int) -> None:
        """Move the ack deadline of messages."""
        if ms <= 0:
            raise InvalidArgument(f"ms is positive, got {ms}", field="ms", value=ms)
        if self._current(acks, ranges):
            extend = pb.Extend(session=acks.session, ranges=ranges, ms=ms)
            await self._control.written(pb.ConsumeRequest(extend=extend))

    async def terminate(self, acks: AckGatherer, ranges: Sequence[int], reason: str) -> None:
        """Give messages up for good."""
        if self._current(acks, ranges):
            terminate = pb.Terminate(session=acks.session, ranges=ranges, reason=reason)
            self._unconfirmed_verbs = True
            await self._control.written(self.repeated.note(pb.ConsumeRequest(terminate=terminate)))

    def _current(self, acks: AckGatherer, ranges: Sequence[int]) -> bool:
        """Return whether an answer about these messages still has an effect. Sends the acks given before it."""
        if acks.error is not None:
            raise copy_of(acks.error)
        if acks.stale:
            self._note_stale(sum(ranges[1::2]) - sum(ranges[::2]))
            return False
        self.flush()
        return True

    # -- sessions --------------------------------------------------------------------------------------------

    def begin_session(self, session: int, *, takes_masks: bool) -> None:
        """Begin another session: answers for the one before have no effect any more."""
        old = self.acks
        if not old.stale:
            old.expire()
        self._counters.acked_messages += old.acked
        self._unconfirmed = self._unconfirmed_verbs = False
        self._withheld.clear()
        self.acks = AckGatherer(session, self._arm, self._note_stale, takes_masks=takes_masks)
        if not self._options.subscription:
            self.acks.fail(
                InvalidArgument(
                    "a plain reader leaves nothing behind: only consumers of a subscription acknowledge",
                    field="subscription",
                    value=None,
                )
            )

    def resume_session(self, session: int) -> None:
        """Continue the session at the topic's next owner: resend answers that the former one did not carry out."""
        self.acks.session = session
        self._withheld.clear()  # the next owner reads the returned messages before it sends any
        for answer in self.repeated.resume(session):
            self._control.queue(answer)
            if answer.nack.returned and not self.takes_returned:  # the next owner is an older build
                back = pb.GivenBack(session=session, ranges=answer.nack.returned)
                self._control.queue(pb.ConsumeRequest(given_back=back))

    def session_lost(self) -> None:
        """Drop unconfirmed acknowledgements: the session has ended with its connection."""
        if self._unconfirmed:
            self.lost_acks = True
        self._unconfirmed = self._unconfirmed_verbs = False
        if not self.acks.stale:
            self.acks.expire(lost=True)

    def end(self, error: ClusterError, *, left: bool) -> None:
        """Accept no more answers, because of `error`. If the lane has `left`, they are dropped without raising it."""
        self._error = error
        if not left:
            self.acks.fail(error)
        elif not self.acks.stale:
            self.acks.expire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
