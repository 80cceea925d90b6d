"""The part of the port between admin core and broker about loads, and topics that move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydanube_core.balance import Assessment, LoadReport
from pydanube_core.facts import FailedMoveFacts, MoveFacts
from pydanube_core.port_marks import reads


class BalancePort(Protocol):
    """Loads and moves. `loads` is about the answering broker. The other methods return the same at every broker."""

    async def takers(self) -> Sequence[str]:
        """Return the brokers that take topics, those with the fewest first. Empty for a lone broker."""

    async def destinations(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        """Return the targets that `move_topic` would choose now: concrete topic → broker. Raises as it does."""

    async def move_topic(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        """Begin to move a topic, each partition separately. Return concrete topic → the target broker.

        `to_broker`: None for the broker with the fewest topics. Each move begun by this call counts.

        Raises:
            LastBroker: no other broker takes topics.
            InvalidArgument: that broker does not take topics.
            Conflict: the topic is moving already, or is at that broker.
        """

    async def moves(self) -> Sequence[MoveFacts]:
        """Return the topics that are moving, anywhere in the cluster, in no order."""

    async def failed_moves(self) -> Sequence[FailedMoveFacts]:
        """Return the moves that were cancelled, of topics that have not moved since, in no order."""

    @reads
    async def loads(self) -> Sequence[LoadReport]:
        """Return this broker's load. For a lone broker only that it exists."""

    def note_balance(self, found: Assessment | None, silent: Mapping[str, str]) -> None:
        """Give diagnosis and alerts the load manager's result.

        Args:
            found: the assessment of the loads. None: another broker leads and assesses them.
            silent: broker id → why it did not report its load.
        """
