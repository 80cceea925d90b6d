"""Bugs planted on purpose: each is a broker that does one thing wrong, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.copying.piece import Piece
from pydanube_broker.journal.records import RecordKind
from pydanube_broker.moves.move import Change, LeaderView, MoveStep, Preconditions
from pydanube_broker.moves.participant import CopyEnd, Effect, Hold, Participant, Phase, Serve, Stopped
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.topics.log_state import LogState
from pydanube_core.errors import ClusterError
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Guard, Revision, Write

from tests.broker.cluster.simulation.broker import SUBSCRIPTION, Run, SimBroker
from tests.broker.cluster.simulation.world import Unknown


class NoGuard(SimBroker):
    """Steps are not guarded by the assignment's revision."""

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        return writes, guards[1:]


class EpochGivenTwice(SimBroker):
    """The leader assigns in the epoch that the last owner had."""

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        change = super().leaders_change(record, revision, standing)
        if change is None or change.step is not MoveStep.ASSIGN:
            return change
        return replace(change, after=replace(change.after, epoch=record.epoch))

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Write], list[Guard]]:
        if change.step is MoveStep.ASSIGN:
            assert witnesses.counter is not None
            witnesses = replace(witnesses, counter=replace(witnesses.counter, epoch=Epoch(0)))
        return super().transaction(change, witnesses)


class HeadNotRaised(SimBroker):
    """The end of a move leaves the catalog's head as it is."""

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        if change.step is not MoveStep.ARRIVE:
            return writes, guards
        return [writes[0], *writes[2:]], [guards[0], *guards[2:]]


class HeadNotGuarded(SimBroker):
    """The end of a move writes the catalog's head as it was read: an object that came since is forgotten."""

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        return (writes, [guards[0], *guards[2:]]) if change.step is MoveStep.ARRIVE else (writes, guards)


class RegistrationNotGuarded(SimBroker):
    """An earlier life of the target may end the move of which the present one has no copy."""

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        member = keys.member_key(change.after.broker_id)
        return writes, [guard for guard in guards if guard.key != member]


class ServesBeforeItArrives(SimBroker):
    """The target serves as soon as it has its copy."""

    class _Participant(Participant):
        def copied(self, turn: int, error: ClusterError | None = None) -> list[Effect]:
            effects = super().copied(turn, error)
            if self.phase is Phase.ARRIVING and self.record is not None:
                self.serving = True
                return [Serve(Epoch(self.record.epoch + 1)), *effects]
            return effects

    def new_participant(self, held: Epoch) -> Participant:
        return self._Participant(self.id, Incarnation(self.life), held=held)


class OwnerServesAfterATimeOut(SimBroker):
    """An owner that has stopped serves again when nothing has come of it for a while, without a cancel."""

    def perform(self, topic_id: TopicId, run: Run, effect: Effect) -> None:
        super().perform(topic_id, run, effect)
        if isinstance(effect, Stopped):
            self.later(4_000, lambda: self._again(run, effect.turn))

    @staticmethod
    def _again(run: Run, turn: int) -> None:
        if run.participant.turn == turn:
            run.participant.serving = True


class ReleasedTooEarly(SimBroker):
    """The owner forgets the topic once it has sent the end."""

    def end_was_sent(self, topic_id: TopicId, run: Run) -> None:
        self.forget(topic_id, run)


class CopiesForAnyBroker(SimBroker):
    """The owner does not check which broker the move names."""

    def may_copy(self, participant: Participant, to: BrokerId, revision: Revision | None) -> bool:
        return True


class FailedAttemptBelieved(SimBroker):
    """A copy of a move that was cancelled is kept, and taken for that of the next move."""

    def is_the_topic(self, copy: LogState, record: Assignment) -> bool:
        return record.broker_id == self.id

    def drop_copy(self, topic_id: TopicId, run: Run) -> None:
        pass

    def perform(self, topic_id: TopicId, run: Run, effect: Effect) -> None:
        if isinstance(effect, CopyEnd) and run.state is not None and run.state.awaiting:
            turn = effect.turn
            self.when_copied(lambda: self.act(topic_id, lambda participant: participant.copied(turn)))
        else:
            super().perform(topic_id, run, effect)


class WatchFromNow(SimBroker):
    """A start reads the assignments and watches from the answer on, not from what was read."""

    def _follow(self) -> None:
        def done(outcome: Any) -> None:
            if isinstance(outcome, (Unknown, ClusterError)):
                self._follow()
                return
            self.later(self.reading_ms(), lambda: begin(outcome))

        def begin(found: list[tuple[TopicId, Assignment, Revision]]) -> None:
            self.watching, self._watched_at_ms = True, self.world.now_ms
            self.saw_all(found)

        self.ask(lambda: [(topic_id, *self.etcd.assignment(topic_id)) for topic_id in self.histories], done)


class ServesWhileStopped(SimBroker):
    """The owner takes calls until the move has ended."""

    def perform(self, topic_id: TopicId, run: Run, effect: Effect) -> None:
        if isinstance(effect, Hold) and run.participant.phase is Phase.STOPPED:
            run.participant.serving = True
        super().perform(topic_id, run, effect)


class ReleaseForgotten(SimBroker):
    """What was handed over is not forgotten, and what comes back is put behind it."""

    def forget(self, topic_id: TopicId, run: Run) -> None:
        pass


class CopyKept(SimBroker):
    """What was copied stays when the move is off."""

    def drop_copy(self, topic_id: TopicId, run: Run) -> None:
        pass


class RestNotCopied(SimBroker):
    """The next owner takes the state out of the last part, and its messages for copied."""

    def append_to(self, run: Run, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.BATCH and run.participant.phase is Phase.COPYING:
            return
        super().append_to(run, kind, body)


class CopyNotSynced(SimBroker):
    """The target ends the move before its copy is on disk."""

    def when_copied(self, done: Callable[[], None]) -> None:
        self.later(0, done)


class RestForgotten(SimBroker):
    """The last part is of the state alone: what came since the first is not in it."""

    def piece(self, topic_id: TopicId, run: Run, first: int, *, last: bool) -> Piece:
        piece = super().piece(topic_id, run, first, last=last)
        return replace(piece, batches=()) if last else piece


class SessionsForgotten(SimBroker):
    """Producer sessions come without the answers to their last batches."""

    def piece(self, topic_id: TopicId, run: Run, first: int, *, last: bool) -> Piece:
        piece = super().piece(topic_id, run, first, last=last)
        if piece.state is not None:
            for session in piece.state.producers.sessions()[:1]:
                session.recent.clear()
        return piece


class CursorsAtTheEnd(SimBroker):
    """Subscriptions begin anew behind the hand-over."""

    def piece(self, topic_id: TopicId, run: Run, first: int, *, last: bool) -> Piece:
        piece = super().piece(topic_id, run, first, last=last)
        if piece.state is not None:
            piece.state.cursors[SUBSCRIPTION] = CursorSnapshot(floor=piece.end_offset)
        return piece


class CursorsForgotten(SimBroker):
    """Subscriptions begin anew at the beginning."""

    def piece(self, topic_id: TopicId, run: Run, first: int, *, last: bool) -> Piece:
        piece = super().piece(topic_id, run, first, last=last)
        if piece.state is not None:
            piece.state.cursors.clear()
        return piece


class LeaderIgnoresStages(SimBroker):
    """The leader gives a topic that is opened, and whose owner it does not see, to somebody else."""

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        if record.stage is Stage.SERVING and record.broker_id not in standing.alive and standing.alive:
            to = next(iter(standing.alive))
            after = replace(record, broker_id=to, epoch=Epoch(standing.last_epoch + 1))
            return Change(step=MoveStep.ASSIGN, revision=revision, after=after)
        return super().leaders_change(record, revision, standing)


class LeaderGivesUp(SimBroker):
    """Nobody takes on a move that hangs."""

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        return super().leaders_change(record, revision, replace(standing, waited_ms=0))


class RemovedGoesOn(SimBroker):
    """A broker does not ask whether it was removed."""

    def is_removed(self) -> bool:
        return False


class GoesOnWhereTheStoreEnds(SimBroker):
    """The topic of a removed broker goes on right behind what the store has of it."""

    def end_of_rebuilt(self, state: LogState, begin: int, head: CatalogHead | None) -> int:
        return begin


class SecondRemovalForgotten(SimBroker):
    """Where a topic of a removed broker went on is forgotten when its next owner is removed, too."""

    def end_of_rebuilt(self, state: LogState, begin: int, head: CatalogHead | None) -> int:
        return super().end_of_rebuilt(state, begin, None)


#: by what they are called
BUGS: Final[tuple[type[SimBroker], ...]] = (
    NoGuard,
    EpochGivenTwice,
    HeadNotRaised,
    HeadNotGuarded,
    RegistrationNotGuarded,
    ServesBeforeItArrives,
    OwnerServesAfterATimeOut,
    ReleasedTooEarly,
    CopiesForAnyBroker,
    FailedAttemptBelieved,
    WatchFromNow,
    ServesWhileStopped,
    ReleaseForgotten,
    CopyKept,
    RestNotCopied,
    CopyNotSynced,
    RestForgotten,
    SessionsForgotten,
    CursorsAtTheEnd,
    CursorsForgotten,
    LeaderIgnoresStages,
    LeaderGivesUp,
    RemovedGoesOn,
    GoesOnWhereTheStoreEnds,
    SecondRemovalForgotten,
)
