"""What clients were told, and what may never be otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.subscription.cursor import CursorSnapshot

from tests.broker.cluster.simulation.world import require


class Stored(NamedTuple):
    """A message as a broker has it: its place, its producer's number for it, and the stored batch."""

    offset: int
    sequence: int
    batch: bytes


@dataclass(slots=True)
class History:
    """One topic as its clients know it."""

    topic_id: TopicId
    acknowledged: dict[int, int] = field(default_factory=dict)  # sequence → offset, told to the producer
    acks_sent: set[int] = field(default_factory=set)  # offsets, by the consumer
    acks_confirmed: set[int] = field(default_factory=set)
    owners: dict[int, int] = field(default_factory=dict)  # epoch → the broker that served in it
    moves: int = 0

    def check_serves(self, broker: int, epoch: int, truth: Assignment) -> None:
        require(
            truth.broker_id == broker
            and truth.epoch == epoch
            and truth.stage in (Stage.SERVING, Stage.MOVING),
            "a fenced broker serves:",
            broker,
            epoch,
            truth,
        )
        owner = self.owners.setdefault(epoch, broker)
        require(owner == broker, "two owners in epoch", epoch, owner, broker)

    def check_log(self, log: Sequence[Stored], cursor: CursorSnapshot) -> None:
        """The log of a broker that serves."""
        sequences = [stored.sequence for stored in log]
        require(sequences == sorted(set(sequences)), "order, or stored twice:", sequences)
        offsets = [stored.offset for stored in log]
        require(offsets == sorted(set(offsets)), "offsets given twice:", offsets)
        has = {stored.sequence: stored.offset for stored in log}
        for sequence, offset in self.acknowledged.items():
            require(
                has.get(sequence) == offset,
                "acknowledged and not readable: sequence",
                sequence,
                "offset",
                offset,
            )
        self.check_cursor(cursor, len(log))

    def check_cursor(self, cursor: CursorSnapshot, end: int) -> None:
        require(cursor.floor <= end, "a cursor lies beyond the log:", cursor, end)
        done = set(range(cursor.floor)).union(*(range(a, b) for a, b in cursor.acknowledged))
        require(
            done <= self.acks_sent, "a cursor passed what is unacknowledged:", sorted(done - self.acks_sent)
        )
        require(self.acks_confirmed <= done, "a confirmed ack is gone:", sorted(self.acks_confirmed - done))
