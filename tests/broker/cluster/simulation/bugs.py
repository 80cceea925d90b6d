"""Bugs planted on purpose: each is a broker that does one thing wrong, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move import Change, LeaderView, Step, Witnesses
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.move_seat import Effect, Hold, Phase, Seat
from pydanube_broker.journal.records import Kind
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.topics.fragment import Section
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.rebuilt_state import rebuilt_state
from pydanube_core.errors import ClusterError
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Guard, Revision, Write

from tests.broker.cluster.simulation.broker import SUBSCRIPTION, Run, SimBroker
from tests.broker.cluster.simulation.world import Unknown


class NoGuard(SimBroker):
    """Steps are not guarded by the assignment's revision."""

    def transaction(self, change: Change, witnesses: Witnesses) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        return writes, guards[1:]


class EpochGivenTwice(SimBroker):
    """The leader assigns in the epoch that the last owner had."""

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        change = super().leaders_change(record, revision, standing)
        if change is None or change.step is not Step.ASSIGN:
            return change
        return replace(change, after=replace(change.after, epoch=record.epoch))

    def transaction(self, change: Change, witnesses: Witnesses) -> tuple[list[Write], list[Guard]]:
        if change.step is Step.ASSIGN:
            assert witnesses.counter is not None
            witnesses = replace(witnesses, counter=replace(witnesses.counter, epoch=Epoch(0)))
        return super().transaction(change, witnesses)


class HeadNotRaised(SimBroker):
    """The seal leaves the catalog's head as it is."""

    def transaction(self, change: Change, witnesses: Witnesses) -> tuple[list[Write], list[Guard]]:
        writes, guards = super().transaction(change, witnesses)
        return (writes[:1], guards[:1]) if change.step is Step.SEAL else (writes, guards)


class OpenSkipped(SimBroker):
    """The next owner serves as soon as it has its copy."""

    class _Seat(Seat):
        def _open(self, record: Assignment) -> list[Effect]:
            return [*self._take_calls(record), *super()._open(record)]

    def new_seat(self, held: Epoch) -> Seat:
        return self._Seat(self.id, Incarnation(self.life), held=held)


class UnknownSealIsNoSeal(SimBroker):
    """A seal whose outcome is not known, and that is not to be seen, is taken for one that did not happen."""

    class _Seat(Seat):
        def _same(self) -> list[Effect]:
            if self._looking and self.phase is Phase.SEALING and self.record is not None:
                self._looking, self._pending = False, None
                self.phase = Phase.SERVING
                return self._take_calls(self.record)
            return super()._same()

    def new_seat(self, held: Epoch) -> Seat:
        return self._Seat(self.id, Incarnation(self.life), held=held)


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


class ServesWhileSealing(SimBroker):
    """The owner takes calls until the seal is carried out."""

    def perform(self, topic_id: TopicId, run: Run, effect: Effect) -> None:
        if isinstance(effect, Hold) and run.seat.phase is Phase.STOPPED:
            run.seat.serving = True
        super().perform(topic_id, run, effect)


class ReleaseForgotten(SimBroker):
    """What was handed over is not forgotten, and what comes back is put behind it."""

    def forget(self, topic_id: TopicId, run: Run) -> None:
        pass


class NotReadBack(SimBroker):
    """What was given to the store is taken for stored."""

    def read_back(self, key: str, data: bytes, answered: bool, done: Callable[[bool], None]) -> None:
        done(True)


class CopyKept(SimBroker):
    """What was copied ahead stays when the move is off."""

    def drop_copy(self, topic_id: TopicId, run: Run) -> None:
        pass


class RestNotCopied(SimBroker):
    """The next owner takes the state out of the last part, and its messages for copied."""

    def append_to(self, run: Run, kind: Kind, body: bytes) -> None:
        if kind is Kind.BATCH and run.arrived and not run.seat.serving:
            return
        super().append_to(run, kind, body)


class CopyNotSynced(SimBroker):
    """The next owner opens before its copy is on disk."""

    def when_copied(self, done: Callable[[], None]) -> None:
        self.later(0, done)


class RestForgotten(SimBroker):
    """The last part is of the state alone: what came since the first is not in it."""

    def section(self, topic_id: TopicId, run: Run, first: int, *, final: bool) -> Section:
        section = super().section(topic_id, run, first, final=final)
        return replace(section, batches=()) if final else section


class SessionsForgotten(SimBroker):
    """Producer sessions come without the answers to their last batches."""

    def section(self, topic_id: TopicId, run: Run, first: int, *, final: bool) -> Section:
        section = super().section(topic_id, run, first, final=final)
        if section.state is not None:
            section.state.producers.sessions()[0].recent.clear()
        return section


class CursorsAtTheEnd(SimBroker):
    """Subscriptions begin anew behind the hand-over."""

    def section(self, topic_id: TopicId, run: Run, first: int, *, final: bool) -> Section:
        section = super().section(topic_id, run, first, final=final)
        if section.state is not None:
            section.state.cursors[SUBSCRIPTION] = CursorSnapshot(floor=section.end_offset)
        return section


class CursorsForgotten(SimBroker):
    """Subscriptions begin anew at the beginning."""

    def section(self, topic_id: TopicId, run: Run, first: int, *, final: bool) -> Section:
        section = super().section(topic_id, run, first, final=final)
        if section.state is not None:
            section.state.cursors.clear()
        return section


class LeaderIgnoresStages(SimBroker):
    """The leader gives a topic that is opened, and whose owner it does not see, to somebody else."""

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        if record.stage is Stage.SERVING and record.broker_id not in standing.alive and standing.alive:
            to = next(iter(standing.alive))
            after = replace(record, broker_id=to, epoch=Epoch(standing.last_epoch + 1))
            return Change(step=Step.ASSIGN, revision=revision, after=after)
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

    def last_section(self, now: Assignment, said: LogState | None, head: CatalogHead | None) -> Section:
        section = super().last_section(now, said, head)
        assert section.state is not None
        section.state.next_offset = end = max(section.first_offset, section.state.needed_offset)
        section.state.cursors.clear()
        return replace(section, end_offset=end)


class SecondRemovalForgotten(SimBroker):
    """Where a topic of a removed broker went on is forgotten when its next owner is removed, too."""

    def last_section(self, now: Assignment, said: LogState | None, head: CatalogHead | None) -> Section:
        return super().last_section(now, said, head and replace(head, resumes_at=0))


class ObjectsPassedOver(SimBroker):
    """Of a removed broker's topic what came into the store behind the parts that it had offered counts as lost."""

    def last_section(self, now: Assignment, said: LogState | None, head: CatalogHead | None) -> Section:
        section = super().last_section(now, said, head)
        left = rebuilt_state(
            said or LogState(now.topic_id),
            begin=section.first_offset,
            resumed_at=0 if head is None else head.resumes_at,
            starts={SUBSCRIPTION: 0},
        )
        assert section.state is not None
        section.state.cursors = left.cursors
        return section


#: by what they are called
BUGS: Final[tuple[type[SimBroker], ...]] = (
    NoGuard,
    EpochGivenTwice,
    HeadNotRaised,
    OpenSkipped,
    UnknownSealIsNoSeal,
    NotReadBack,
    WatchFromNow,
    ServesWhileSealing,
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
    ObjectsPassedOver,
)
