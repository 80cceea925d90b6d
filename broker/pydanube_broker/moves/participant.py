"""The part of one broker in a move of one topic. Pure: records and events go in, effects come out.

A participant has the newest assignment that it has seen, and the epoch of the topic in the journal. It serves only while
the assignment names its broker and the journal's epoch is above the last sealed one. The shell carries out the effects in order and
answers each effect that has a `turn`. An answer to an earlier turn belongs to a replaced record, and is ignored. `tick`
repeats failed work.

An unknown outcome of a transaction is read back. If the record has not changed, the same transaction is sent again:
the first may still be in flight, and the guard lets only one of them succeed.

A restarted broker continues from the record. An owner does not serve while the record names a target as ready, because its
earlier process may have stopped and sent everything. A target that was ready before its restart cancels the move, because
its copy is gone, and the stopped owner would have to wait for a whole new copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from pydanube_core.errors import ClusterError, Unavailable
from pydanube_storage.metadata import Revision

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.moves.move import Change, MoveStep, arrive, cancel, damaged, open_topic, ready


class Phase(StrEnum):
    AWAY = "away"
    RELEASING = "releasing"  # another broker owns the topic, which is being noted in the journal
    SERVING = "serving"
    LEAVING = "leaving"  # serves, and is copied
    STOPPED = "stopped"  # does not serve, the rest is copied
    COPYING_AHEAD = "copying ahead"  # is the target, the owner serves
    COPYING = "copying"  # is the target, the owner has stopped
    ARRIVING = "arriving"  # the whole copy is safe
    # Was assigned the topic of a removed owner, or one that was handed over in fragments
    REBUILDING = "rebuilding"
    OPENING = "opening"  # the rebuilt topic is safe
    LOST = "lost"  # the metadata names this broker as the owner, but its journal does not hold the topic


@dataclass(frozen=True, slots=True)
class Serve:
    """Take calls, in this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Hold:
    """Accept nothing, hold callers, and finish accepted work. May be repeated."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """`Hold` is done: the target may copy the end."""

    turn: int


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """Copy the topic from its owner, round by round, until a round is small. This broker does not own it yet."""

    turn: int


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """Copy the rest with the state, and make the copy safe in the journal, awaiting the move `revision`."""

    turn: int
    revision: Revision


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Make the topic safe in the journal in this epoch, from the store alone."""

    turn: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Drop the copy: the topic does not move here."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Carry out a change, with its preconditions. Answer `committed`, `refused` (by a guard) or `unknown`."""

    turn: int
    change: Change


@dataclass(frozen=True, slots=True)
class Read:
    """Read the current assignment."""


@dataclass(frozen=True, slots=True)
class Release:
    """Note in the journal that the topic, up to this epoch, belongs to another broker, and forget it.

    It is repeated if the assignment changes before it is answered. A release that is noted already need not be noted
    again.
    """

    turn: int
    epoch: Epoch


Effect: TypeAlias = (
    Serve | Hold | Stopped | CopyAhead | CopyEnd | Rebuild | DropCopy | Commit | Read | Release
)


class Participant:
    """See the module.

    Args:
        held: the epoch of the topic in the journal. 0 if the journal has nothing, or a copy that is not the topic yet.
    """

    __slots__ = (
        "_adopted",
        "_copying",
        "_failed",
        "_is_unknown",
        "_me",
        "_pending",
        "held",
        "incarnation",
        "phase",
        "record",
        "revision",
        "serving",
        "turn",
    )

    def __init__(self, me: BrokerId, incarnation: Incarnation, *, held: Epoch) -> None:
        self._me = me
        self.incarnation = incarnation
        self.held = held
        self.phase = Phase.AWAY
        self.record: Assignment | None = None
        self.revision = Revision(0)
        self.serving = False
        self.turn = 0
        self._pending: Change | None = None
        self._is_unknown = False  # whether the outcome of `_pending` is unknown
        self._failed = False  # the work of this turn has failed
        self._copying = Epoch(0)  # the epoch of the record by which a copy was begun, or 0
        self._adopted = Revision(0)  # the move that the safe copy awaits, or 0

    # -- the record ------------------------------------------------------------------------------------------

    def see(self, record: Assignment | None, revision: Revision) -> list[Effect]:
        """Take in the assignment as read or watched, None if the topic is gone. Older ones are ignored."""
        if revision < self.revision:
            return []
        if revision == self.revision:
            return self._same()
        self.record, self.revision = record, revision
        return self._next()

    def _same(self) -> list[Effect]:
        if self._pending is None or not self._is_unknown:
            return []
        self._is_unknown = False
        return [Commit(self.turn, self._pending)]

    def _next(self) -> list[Effect]:
        self.turn += 1
        self._pending, self._is_unknown, self._failed = None, False, False
        record = self.record
        if self._adopted and record is not None and self._has_arrived(record):
            self.held, self._copying, self._adopted = record.epoch, Epoch(0), Revision(0)
        elif self._copying and (record is None or not self._still_comes(record)):
            self._copying, self._adopted = Epoch(0), Revision(0)
            return [DropCopy(), *self._decide()]
        return self._decide()

    def _has_arrived(self, record: Assignment) -> bool:
        return record.broker_id == self._me and record.moved == self._adopted

    def _still_comes(self, record: Assignment) -> bool:
        return record.next_owner == self._me and record.epoch == self._copying

    def _decide(self) -> list[Effect]:
        record = self.record
        if record is None:
            return self._hold(Phase.AWAY)
        if 0 < self.held <= record.sealed_epoch:
            return [*self._hold(Phase.RELEASING), Release(self.turn, self.held)]
        mine = record.broker_id == self._me
        match record.stage:
            case Stage.SERVING if mine:
                return self._serve(record)
            case Stage.MOVING if mine:
                return self._leave(record)
            case Stage.MOVING if record.next_owner == self._me:
                return self._come(record)
            case Stage.ASSIGNED if mine:
                return self._rebuild(record)
            case Stage.SERVING | Stage.MOVING | Stage.ASSIGNED | Stage.SEALED:
                return self._hold(Phase.AWAY)
            case _:
                assert_never(record.stage)

    def _serve(self, record: Assignment) -> list[Effect]:
        if record.sealed_epoch and not self.held:
            return self._hold(Phase.LOST)
        is_back = self.phase is Phase.LEAVING
        self.phase = Phase.SERVING
        # The move was cancelled. A deleted topic was made only readable for it, and may have been restored since.
        return self._take_calls(record) or ([Serve(record.epoch)] if is_back else [])

    def _take_calls(self, record: Assignment) -> list[Effect]:
        if self.serving:
            return []
        self.serving = True
        self.held = self.held or record.epoch  # 0 for a topic that was never moved: the journal has all of it
        return [Serve(record.epoch)]

    def _leave(self, record: Assignment) -> list[Effect]:
        assert record.move is not None
        if record.move.ready is None:
            effects = self._take_calls(record)
            self.phase = Phase.LEAVING
            return effects
        if record.sealed_epoch and not self.held:
            return self._hold(Phase.LOST)
        self.held = self.held or record.epoch
        # Hold also if this life has not served the topic yet: the copy is read from the held topic.
        return [*(self._hold(Phase.STOPPED) or [Hold()]), Stopped(self.turn)]

    def _come(self, record: Assignment) -> list[Effect]:
        assert record.move is not None
        # An owner of the previous release: it stops, and seals the fragments that it wrote to the store
        if record.move.parts:
            effects = self._hold(Phase.AWAY)
            return effects if record.move.ready is not None else [*effects, *self._get_ready(record)]
        if record.move.ready is None:
            self._copying = record.epoch
            return [*self._hold(Phase.COPYING_AHEAD), CopyAhead(self.turn)]
        if record.move.ready != self.incarnation:
            why = Unavailable(f"broker {self._me} was restarted, and its copy is gone")
            return [*self._hold(Phase.AWAY), *self._commit(cancel(record, self.revision, why))]
        self._copying = record.epoch
        return [*self._hold(Phase.COPYING), CopyEnd(self.turn, self.revision)]

    def _get_ready(self, record: Assignment) -> list[Effect]:
        return self._commit(ready(record, self.revision, self.incarnation))

    def _rebuild(self, record: Assignment) -> list[Effect]:
        assert record.move is not None
        effects = self._hold(Phase.REBUILDING)
        if self.held > record.sealed_epoch:
            return [*effects, *self._open(record)]
        self._copying = record.epoch
        return [*effects, Rebuild(self.turn, record.epoch)]

    def _open(self, record: Assignment) -> list[Effect]:
        self.phase = Phase.OPENING
        return self._commit(open_topic(record, self.revision, self.incarnation))

    def _hold(self, phase: Phase) -> list[Effect]:
        self.phase = phase
        if not self.serving:
            return []
        self.serving = False
        return [Hold()]

    def _commit(self, change: Change) -> list[Effect]:
        self._pending = change
        return [Commit(self.turn, change)]

    # -- permission ------------------------------------------------------------------------------------------

    def may_copy(self, to: BrokerId, revision: Revision, *, last: bool) -> bool | None:
        """Return whether another broker may copy the topic from here. None if this participant has not seen its record yet.

        `last`: for the end of the copy, the owner must have stopped for the move of exactly that record.
        """
        if self.revision < revision:
            return None
        record = self.record
        if record is None or record.broker_id != self._me or record.stage is not Stage.MOVING:
            return False
        assert record.move is not None
        if record.next_owner != to:
            return False
        return not last or (self.phase is Phase.STOPPED and self.revision == revision)

    # -- results ---------------------------------------------------------------------------------------------

    def copied_ahead(self, turn: int, error: ClusterError | None = None) -> list[Effect]:
        """Called when the target has nearly all of the topic, or failed to copy it, which cancels the move."""
        record = self.record
        if turn != self.turn or record is None or self.phase is not Phase.COPYING_AHEAD or self._pending:
            return []
        if error is not None:
            return self._commit(cancel(record, self.revision, error))
        return self._get_ready(record)

    def copied(self, turn: int, error: ClusterError | None = None) -> list[Effect]:
        """Called when the whole copy is safe in the journal, awaiting this move, or failed, which cancels the move."""
        record = self.record
        if turn != self.turn or record is None or self.phase is not Phase.COPYING or self._pending:
            return []
        if error is not None:
            return self._commit(cancel(record, self.revision, error))
        self._adopted, self.phase = self.revision, Phase.ARRIVING
        return self._commit(arrive(record, self.revision, self.incarnation))

    def rebuilt(self, turn: int, epoch: Epoch) -> list[Effect]:
        """Called when the journal holds the topic in the epoch of its assignment, synced."""
        if turn != self.turn or self.record is None or self.phase is not Phase.REBUILDING:
            return []
        self.held, self._copying = epoch, Epoch(0)
        return self._open(self.record)

    def give_up(self, error: ClusterError) -> list[Effect]:
        """End a move of this broker's topic before the broker has stopped for it, because the target cannot copy."""
        record = self.record
        if record is None or self.phase is not Phase.LEAVING or self._pending:
            return []
        return self._commit(cancel(record, self.revision, error))

    def released(self, turn: int) -> list[Effect]:
        """Called when the release is noted in the journal, synced."""
        if self.phase is not Phase.RELEASING:
            return []
        self.held = Epoch(0)
        return self._decide() if turn == self.turn else []

    def failed(self, turn: int, error: ClusterError | None = None) -> list[Effect]:
        """Called when a rebuild or release failed. `tick` repeats it. `error`: of a rebuild from damaged objects."""
        record = self.record
        if error is not None and turn == self.turn and record is not None and self.phase is Phase.REBUILDING:
            change = damaged(record, self.revision, error)
            if change.after != record:
                return self._commit(change)
        self._failed = self._failed or turn == self.turn
        return []

    # -- transactions ----------------------------------------------------------------------------------------

    def committed(self, turn: int, after: Assignment, revision: Revision) -> list[Effect]:
        """Called when the change was carried out, at this revision."""
        if turn != self.turn or self._pending is None:
            return []
        self.record, self.revision = after, revision
        return self._next()

    def refused(self, turn: int) -> list[Effect]:
        """Called when a guard of the change failed: the assignment or a witness has changed."""
        return self.unknown(turn)

    def unknown(self, turn: int) -> list[Effect]:
        """Called when the outcome of the change is unknown: it may still be carried out."""
        if turn != self.turn or self._pending is None:
            return []
        self._is_unknown = True
        return [Read()]

    def tick(self) -> list[Effect]:
        """Repeat failed work. Called about once a second."""
        if self._is_unknown:
            return [Read()]
        if self._failed:
            self._failed = False
            return self._decide()
        return []

    @property
    def pending(self) -> MoveStep | None:
        """The step whose outcome is awaited."""
        return None if self._pending is None else self._pending.step
