"""The receipts of simulated clients, and the invariants that they must keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_core.facts import JUMP

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
    moved: int = 0
    tiered: list[Stored] = field(default_factory=list)  # what the object store has, by the catalog
    tiered_end: int = 0
    removed: set[int] = field(
        default_factory=set
    )  # brokers: what they do before they hear of it is not promised
    gaps: list[tuple[int, int]] = field(default_factory=list)  # offsets that went with removed brokers
    lost: set[int] = field(default_factory=set)  # sequences that were acknowledged from there
    under_way: int = 0  # the sequence that the producer waits for
    resent: set[int] = field(default_factory=set)  # those of the moments of removals
    meaning: dict[int, int] = field(
        default_factory=dict
    )  # offset → the sequence that somebody was told is there

    def is_lost(self, offset: int) -> bool:
        """Whether an offset went with a removed broker."""
        return any(begin <= offset < end for begin, end in self.gaps)

    def told(self, sequence: int, offset: int) -> None:
        """The producer is told that a message is stored."""
        known = self.meaning.setdefault(offset, sequence)
        require(known == sequence, "an offset means two messages:", offset, known, sequence)
        if self.is_lost(offset):
            self.lost.add(sequence)
        else:
            self.acknowledged[sequence] = offset

    def taken_away(self, begin: int, end: int, cursor: CursorSnapshot) -> None:
        """The topic goes on without its owner: what was in [begin, end) is lost, and acknowledgements since `cursor`."""
        require(end - begin >= JUMP, "a topic goes on too near to what is lost:", begin, end)
        require(
            all(offset < end for offset in self.meaning),
            "a topic goes on among offsets that were given out:",
            end,
        )
        self.gaps.append((begin, end))
        self.resent.add(self.under_way)
        gone = {sequence for sequence, offset in self.acknowledged.items() if begin <= offset < end}
        self.lost |= gone
        for sequence in gone:
            del self.acknowledged[sequence]
        self.acks_confirmed &= self._done(cursor, self.acknowledged.values())

    def check_serves(self, broker: int, epoch: int, truth: Assignment) -> None:
        if broker in self.removed:
            return
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

    def check_log(self, log: Sequence[Stored], end: int, cursor: CursorSnapshot) -> None:
        """What can be read at a broker that serves, up to `end`."""
        sequences = [stored.sequence for stored in log if stored.sequence not in self.resent]
        require(sequences == sorted(set(sequences)), "order, or stored twice:", sequences)
        offsets = [stored.offset for stored in log]
        require(offsets == sorted(set(offsets)), "offsets given twice:", offsets)
        for stored in log:
            known = self.meaning.get(stored.offset, stored.sequence)
            require(
                known == stored.sequence,
                "an offset means two messages:",
                stored.offset,
                known,
                stored.sequence,
            )
        has = {stored.offset: stored.sequence for stored in log}
        for sequence, offset in self.acknowledged.items():
            require(
                has.get(offset) == sequence,
                "acknowledged and not readable: sequence",
                sequence,
                "offset",
                offset,
            )
        self.check_cursor(cursor, end, offsets)

    @staticmethod
    def _done(cursor: CursorSnapshot, offsets: Iterable[int]) -> set[int]:
        """Those of the offsets that count as acknowledged."""
        ranges = [(0, cursor.floor), *cursor.acknowledged]
        return {offset for offset in offsets if any(begin <= offset < end for begin, end in ranges)}

    def check_cursor(self, cursor: CursorSnapshot, end: int, offsets: Iterable[int]) -> None:
        """`offsets`: of the messages that can be read."""
        require(cursor.floor <= end, "a cursor lies beyond the log:", cursor, end)
        done = self._done(cursor, offsets)
        require(
            done <= self.acks_sent, "a cursor passed what is unacknowledged:", sorted(done - self.acks_sent)
        )
        require(self.acks_confirmed <= done, "a confirmed ack is gone:", sorted(self.acks_confirmed - done))
