"""The part of one broker in a move of one topic; pure. Records and events go in, effects come out.

A seat knows the assignment as it was seen last and the epoch of what the journal holds. It serves only while the
assignment names its broker and the journal holds the topic from after the last seal. The shell carries out the
effects in order and answers each of those that have a `turn`; an answer to an earlier turn is about a record that was
replaced, and is ignored. `tick` repeats what failed.

What a transaction with an unknown outcome did is read back; where nothing has changed, the same transaction is sent
again: it may still be under way, and the guard lets one of them happen. While that is a seal, nothing is served.

After a start a move goes on where the record stands. An earlier life may have sent a seal that is still under way, but
only of a record that says the target is ready, and while it says so nothing is served in this life either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from pydanube_storage.metadata import Revision

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation
from pydanube_broker.cluster.move import LITTLE_BYTES, Change, Step, cancel, copied, offer, open_topic, seal
from pydanube_broker.cluster.move_record import HandOverPart, Stage


class Phase(StrEnum):
    AWAY = "away"
    RELEASING = "releasing"  # what the journal has is somebody else's: it is noted there
    COPYING = "copying"
    OPENING = "opening"  # the copy is on disk
    SERVING = "serving"
    OFFERING = "offering"  # serves, and writes what there is
    OFFERED = "offered"  # serves, and waits for the target
    COPYING_AHEAD = "copying ahead"  # is the target, and copies what is offered
    STOPPED = "stopped"  # takes nothing, and writes the rest
    SEALING = "sealing"
    LOST = "lost"  # the journal does not hold what the metadata says this broker has


@dataclass(frozen=True, slots=True)
class Serve:
    """Take calls, in this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Hold:
    """Take nothing, and hold callers; finish what was accepted. May be repeated."""


@dataclass(frozen=True, slots=True)
class WriteParts:
    """Write what no part has yet, up to the commit offset, and read it back; `final`: with the state."""

    turn: int
    final: bool


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """Copy the missing parts into the journal and sync; the topic does not belong to this broker yet."""

    turn: int
    parts: tuple[HandOverPart, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the whole hand-over; once it is synced the journal holds the topic in this epoch."""

    turn: int
    epoch: Epoch
    parts: tuple[HandOverPart, ...]


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Forget what was copied ahead: the topic does not come here."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Carry out a change, with its witnesses; answer `committed`, `refused` by a guard, or `unknown`."""

    turn: int
    change: Change


@dataclass(frozen=True, slots=True)
class Read:
    """Read the assignment, as it is now."""


@dataclass(frozen=True, slots=True)
class Release:
    """Note in the journal that the topic, up to this epoch, belongs to another broker, and forget it.

    Comes again where the assignment changes meanwhile: what was noted need not be noted twice.
    """

    turn: int
    epoch: Epoch


Effect: TypeAlias = Serve | Hold | WriteParts | CopyAhead | Copy | DropCopy | Commit | Read | Release


class Seat:
    """See the module.

    Args:
        held: the epoch of what the journal holds of the topic, whole; 0 for nothing, or a copy that was not finished.
        little_bytes: see `move.copied`.
    """

    __slots__ = (
        "_copying",
        "_failed",
        "_little_bytes",
        "_looking",
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

    def __init__(
        self, me: BrokerId, incarnation: Incarnation, *, held: Epoch, little_bytes: int = LITTLE_BYTES
    ) -> None:
        self._me = me
        self._little_bytes = little_bytes
        self.incarnation = incarnation
        self.held = held
        self.phase = Phase.AWAY
        self.record: Assignment | None = None
        self.revision = Revision(0)
        self.serving = False
        self.turn = 0
        self._pending: Change | None = None
        self._looking = False  # its outcome is not known
        self._failed = False  # the work of this turn
        self._copying = (
            False  # some of the topic is in the journal, or on its way there, and `held` does not say so
        )

    # -- the record ------------------------------------------------------------------------------------------

    def see(self, record: Assignment | None, revision: Revision) -> list[Effect]:
        """Take in the assignment as read or watched; None: the topic is gone. Older ones are ignored."""
        if revision < self.revision:
            return []
        if revision == self.revision:
            return self._same()
        self.record, self.revision = record, revision
        return self._next()

    def _same(self) -> list[Effect]:
        if self._pending is None or not self._looking:
            return []
        self._looking = False
        return [Commit(self.turn, self._pending)]

    def _next(self) -> list[Effect]:
        self.turn += 1
        self._pending, self._looking, self._failed = None, False, False
        effects = self._decide()
        if self._copying and (self.record is None or self.record.next_owner != self._me):
            self._copying = False
            effects.insert(0, DropCopy())
        return effects

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
                return self._hand_over(record)
            case Stage.MOVING if self._is_target(record):
                assert record.move is not None
                self._copying = True
                return [*self._hold(Phase.COPYING_AHEAD), CopyAhead(self.turn, record.move.parts)]
            case Stage.ASSIGNED if mine:
                return self._take_over(record)
            case Stage.SERVING | Stage.MOVING | Stage.ASSIGNED | Stage.SEALED:
                return self._hold(Phase.AWAY)
            case _:
                assert_never(record.stage)

    def _serve(self, record: Assignment) -> list[Effect]:
        if record.sealed_epoch and not self.held:
            return self._hold(Phase.LOST)
        is_back = self.phase in (Phase.OFFERING, Phase.OFFERED)
        self.phase = Phase.SERVING
        # A move that is off: to be offered a deleted topic was made ready to be read alone, and it may be back by now
        return self._take_calls(record) or ([Serve(record.epoch)] if is_back else [])

    def _take_calls(self, record: Assignment) -> list[Effect]:
        if self.serving:
            return []
        self.serving = True
        self.held = (
            self.held or record.epoch
        )  # of a topic that was never handed over: what it has is all there is
        return [Serve(record.epoch)]

    def _hand_over(self, record: Assignment) -> list[Effect]:
        assert record.move is not None
        if record.move.ready is not None:
            # Held also where this life has not served it yet: what is to be written is read from there.
            return [*(self._hold(Phase.STOPPED) or [Hold()]), WriteParts(self.turn, final=True)]
        effects = self._take_calls(record)
        if len(record.move.parts) > record.move.copied:
            self.phase = Phase.OFFERED
            return effects
        self.phase = Phase.OFFERING
        return [*effects, WriteParts(self.turn, final=False)]

    def _take_over(self, record: Assignment) -> list[Effect]:
        assert record.move is not None
        effects = self._hold(Phase.COPYING)
        if self.held > record.sealed_epoch:
            return [*effects, *self._open(record)]
        self._copying = True
        return [*effects, Copy(self.turn, record.epoch, record.move.parts)]

    def _open(self, record: Assignment) -> list[Effect]:
        self.phase = Phase.OPENING
        return self._commit(open_topic(record, self.revision, self.incarnation))

    def _is_target(self, record: Assignment) -> bool:
        move = record.move
        if move is None or move.target != str(self._me) or move.ready is not None:
            return False
        return len(move.parts) > move.copied

    def _hold(self, phase: Phase) -> list[Effect]:
        self.phase = phase
        if not self.serving:
            return []
        self.serving = False
        return [Hold()]

    def _commit(self, change: Change) -> list[Effect]:
        self._pending = change
        return [Commit(self.turn, change)]

    # -- what was done ---------------------------------------------------------------------------------------

    def written(self, turn: int, parts: tuple[HandOverPart, ...], *, at_ms: int) -> list[Effect]:
        """All parts of the hand-over so far, earlier ones included, are in the store and were read back."""
        record = self.record
        if turn != self.turn or record is None or self._pending is not None:
            return []
        if self.phase is Phase.OFFERING:
            return self._commit(offer(record, self.revision, parts))
        if self.phase is Phase.STOPPED:
            self.phase = Phase.SEALING
            return self._commit(seal(record, self.revision, parts, at_ms=at_ms))
        return []

    def not_written(self, turn: int) -> list[Effect]:
        """The store does not take the hand-over: end the move; nothing was sealed."""
        record = self.record
        if turn != self.turn or record is None or self._pending is not None:
            return []
        if self.phase not in (Phase.OFFERING, Phase.STOPPED):
            return []
        self.phase = Phase.OFFERED
        return [*self._take_calls(record), *self._commit(cancel(record, self.revision))]

    def copied_ahead(self, turn: int, *, done: bool) -> list[Effect]:
        """The target has copied what is offered, or cannot: then the owner continues with the topic."""
        record = self.record
        if turn != self.turn or record is None or self.phase is not Phase.COPYING_AHEAD or self._pending:
            return []
        if not done:
            return self._commit(cancel(record, self.revision))
        return self._commit(copied(record, self.revision, self.incarnation, little_bytes=self._little_bytes))

    def copied(self, turn: int, epoch: Epoch) -> list[Effect]:
        """The journal holds the topic as it was handed over, synced."""
        if turn != self.turn or self.record is None or self.phase is not Phase.COPYING:
            return []
        self.held, self._copying = epoch, False
        return self._open(self.record)

    def released(self, turn: int) -> list[Effect]:
        """The journal says that it holds nothing of the topic, synced."""
        if self.phase is not Phase.RELEASING:
            return []
        self.held = Epoch(0)
        return self._decide() if turn == self.turn else []

    def failed(self, turn: int) -> list[Effect]:
        """A copy or release failed for now; `tick` asks for it again."""
        self._failed = self._failed or turn == self.turn
        return []

    # -- transactions ----------------------------------------------------------------------------------------

    def committed(self, turn: int, revision: Revision) -> list[Effect]:
        """The change was carried out, at this revision."""
        if turn != self.turn or self._pending is None:
            return []
        self.record, self.revision = self._pending.after, revision
        return self._next()

    def refused(self, turn: int) -> list[Effect]:
        """A guard of the change did not hold: the assignment, or a witness, is another."""
        return self.unknown(turn)

    def unknown(self, turn: int) -> list[Effect]:
        """The outcome of the change is not known: it may still be carried out."""
        if turn != self.turn or self._pending is None:
            return []
        self._looking = True
        return [Read()]

    def tick(self) -> list[Effect]:
        """Try again what failed; called every second or so."""
        if self._looking:
            return [Read()]
        if self._failed:
            self._failed = False
            return self._decide()
        return []

    @property
    def pending(self) -> Step | None:
        """The step whose outcome is awaited."""
        return None if self._pending is None else self._pending.step
