"""Consumers, which acknowledge for a subscription, and readers, which leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING

from pydanube_core.errors import Unavailable

from pydanube.failure_policy import FailurePolicy, PolicyKeeper
from pydanube.message import Delivered, Message
from pydanube.options import ClientSide, ReceiverOptions
from pydanube.receiving.receiver import Receiver
from pydanube.topic_watch import Partitions, TopicWatch

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin


class Consumer(Receiver):
    """A consumer of a subscription. Leaving the block waits until acknowledgements are durable, 5 s at most.

    At least once: a message that was not acknowledged, or whose ack was lost with a connection, is redelivered, with a
    higher `delivery_count` if the broker has a record of the first delivery.
    """

    def __init__(
        self,
        options: ReceiverOptions,
        side: ClientSide,
        closed: Callable[[Receiver], None],
        watch: TopicWatch,
        admin: Callable[[], Admin],
        policy: FailurePolicy | None,
    ) -> None:
        super().__init__(options, side, closed, watch)
        self._policy = None if policy is None else PolicyKeeper(admin, options.subscription, policy)
        self._take: Callable[[Message], None] | None = None

    def hear(self, take: Callable[[Message], None]) -> None:
        """Call `take` with each message as it is read, two turns of the loop before a task would have it.

        `take` does not wait or raise. Iterations then have no messages, and end as usual.
        """
        self._take = take

    def _arrived(self, delivered: Delivered) -> None:
        if self._take is None:
            super()._arrived(delivered)
            return
        self._begun += 1
        payloads = delivered.batch.payloads(delivered.low, delivered.high)
        for message in map(Message, repeat(delivered), delivered.offsets, payloads):
            self._take(message)
        delivered.lane.taken(delivered, len(delivered))

    async def _open_lanes(self, topics: dict[str, Partitions], options: ReceiverOptions) -> None:
        await super()._open_lanes(topics, options)
        await self.hold_policy(topics)

    async def hold_policy(self, topics: Iterable[str]) -> None:
        """Set the subscription's failure policy on these topics, if one was given."""
        if self._policy is not None:
            await self._policy.apply(topics)

    def blocks(self, topic: str) -> bool:
        """Return whether a message of this topic that is given up stops delivery, by the policy held here."""
        return self._policy is not None and self._policy.blocks(topic)

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._subscription

    @property
    def active(self) -> bool:
        """False for the standby of a failover subscription."""
        return any(lane.active for lane in self._lanes)

    def drain(self) -> None:
        """Stop handing out messages, which ends iterations. Those handed out may be answered, the others are redelivered."""
        self.pause()
        self._drained = True
        self._wake(everyone=True)

    async def flush_acks(self) -> None:
        """Send the acks given so far and wait until they are durable: they survive a crash of the broker.

        Raises:
            Unavailable: a connection was lost, now or since the last call, with acks that the broker had not confirmed.
                Those that it did not receive are void, and their messages come again. Raised once.
        """
        self._check_usable()
        self._raise_failure(())
        try:
            await self._confirm()
        except Unavailable:
            for lane in self._lanes:
                lane.answers.lost_acks = False  # this error reports it
            raise
        for lane in self._lanes:
            lane.answers.take_lost_acks()


class Reader(Receiver):
    """A plain reader: no subscription, no acknowledgements, no trace. Ends at its `stop`, if it has one."""
