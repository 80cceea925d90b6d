"""Places of consumers whose topic came from another broker, until they connect or expire. See `handover`."""

from __future__ import annotations

from pydanube_broker.subscription.effects import Effect
from pydanube_broker.subscription.handover import Handover, handover_of, restore_handover
from pydanube_broker.subscription.members import Members
from pydanube_broker.subscription.set_aside import SettingAside
from pydanube_broker.subscription.window import Window


class ReservedPlaces:
    """The reserved places of one subscription.

    `hand_over` returns the state for the topic's next owner.
    """

    __slots__ = ("_aside", "_members", "_window", "until_ms")

    def __init__(self, members: Members, window: Window, aside: SettingAside) -> None:
        self._members = members
        self._window = window
        self._aside = aside
        self.until_ms: int | None = None  # None if there are none

    def restore(self, handover: Handover, now_ms: int, until_ms: int) -> None:
        """Restore the former owner's handover, before anything else. Places are reserved until `until_ms`."""
        slots = self._members.slots
        self._members.idle = dict(handover.idle)
        if self._members.idle:
            self.until_ms = until_ms
        if restore_handover(
            self._window, handover, self._members.reserve_places, now_ms, keyed=slots is not None
        ):
            self.until_ms = until_ms
            if slots is not None:
                slots.own_in_flight(self._window)

    def hand_over(self, subscription_id: int, now_ms: int) -> Handover | None:
        """Return the state that the topic's next owner needs beside the cursor. Nothing else is called afterwards.

        Messages of consumers for which the next owner reserves no place count as delivered.
        """
        keyed = self._members.slots is not None
        for consumer in tuple(self._members.consumers):
            if not (consumer.reports or consumer.single or consumer.absent or keyed):
                # Its client cannot continue a session, and its stream ends here.
                self._members.leave(consumer.consumer_id)
        members = self._members
        handover = handover_of(
            subscription_id, self._window, members.consumers, members.idle, now_ms, keyed=keyed
        )
        if handover is None:
            for consumer in tuple(self._members.consumers):
                self._members.leave(consumer.consumer_id)
        return handover

    def resumed(self, consumer_id: int) -> bool:
        """Return whether the consumer continued the session that it had at the former owner."""
        consumer = self._members.find(consumer_id)
        return consumer is not None and consumer.resumed

    def due(self, now_ms: int) -> list[Effect]:
        """Give up places that have expired."""
        if self.until_ms is None or now_ms < self.until_ms:
            return []
        self.until_ms = None
        self._members.idle.clear()
        active = self._members.active
        for consumer in [one for one in self._members.consumers if one.absent]:
            self._members.leave(consumer.consumer_id)
        self._aside.settle(now_ms)
        return self._aside.activated(active)
