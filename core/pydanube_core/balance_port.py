"""Part of the port between admin core and broker: which broker has which load, and topics that go from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydanube_core.balance import Assessment, LoadReport
from pydanube_core.facts import MoveFacts


class BalancePort(Protocol):
    """See the module. `loads` is what one broker says of itself; the others any broker answers, and all the same."""

    async def takers(self) -> Sequence[str]:
        """Brokers that take topics, those with the fewest first; none where a broker is alone."""

    async def destinations(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        """Where `move_topic` would send a topic, as things stand now: concrete topic → broker. Raises as it does."""

    async def move_topic(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        """Begin to hand a topic over, each partition for itself: concrete topic → the broker it goes to.

        `to_broker`: None for the one with the fewest topics, each moved one counted.

        Raises:
            LastBroker: there is no other broker that takes topics. InvalidArgument: that one does not. Conflict: it is
            moving already, or there.
        """

    async def moves(self) -> Sequence[MoveFacts]:
        """Topics that are on their way, at whichever broker; in no order."""

    async def loads(self) -> Sequence[LoadReport]:
        """How loaded this broker is; of a broker alone only that it is there."""

    def tell_balance(self, found: Assessment | None, silent: Mapping[str, str]) -> None:
        """What the load manager found, for diagnosis and alerts: how loads lie (None: another broker judges), and which
        brokers did not answer it, with why."""
