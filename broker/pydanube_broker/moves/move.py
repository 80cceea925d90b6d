"""The protocol of a move: its steps, their guards, and the leader's part. Pure.

```text
 serving (A, e) --begin--> moving (A, e) --ready--> moving (A, e), stopped --arrive--> serving (B, e')   e' > e
        <------- cancel --------+----------------------+
        ------- take away, of A that was removed ----> sealed (A, e) --assign--> assigned (B, e') --open--> serving (B, e')
```

Each step is one transaction guarded by the revision at which the assignment was read, so of two concurrent steps from
one assignment exactly one succeeds. The properties of a move:

- *The pause does not grow with the log.* The target copies the topic from its owner, round by round, while the owner
  serves. After a small round the target commits `ready`, and the owner stops. The target copies the rest with the state.
- *The target sends `arrive`* when the whole copy is safe in its journal, marked with the revision of `ready`. `arrive`
  seals the old epoch and assigns the next one. It is also guarded by the target's registration, so that an earlier life of
  the target cannot end the move. The record names the revision of its `ready` (`moved`), so that a start keeps the copy of
  that attempt and no other.
- *The owner serves again only after `cancel`.* Until it sees that record, or one that names another owner, it does not
  serve the topic. An unchanged assignment is not sufficient, because `arrive` may be in flight.
- *One owner an epoch.* The end of a move takes the next epoch of the topic's name. It raises the epoch of the catalog's
  head too, so that no object of the sealed epoch enters the catalog afterwards.
- *A lost owner is sealed by the leader* (`take_away`): it was removed, or its topics are taken over (`take_over`).
  Messages that only its journal had are no longer part of the topic. Between the seal and `open` no broker accepts
  anything, so the leader may assign the topic to any.
- *A damaged chain holds nothing up for good.* Its heirs note the reason in the record (`damaged`). A plan that shows the
  loss has the leader assign the topic without the chain (`give_up`).
- *A move ends.* The leader cancels a move without progress, and assigns a topic again that is not opened.

Brokers of the previous release hand over through fragments: the owner seals, the leader assigns. The target's side of
this is kept for one release (`tier.fragments`).

`participant` is one broker's part in the move of one topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from pydanube_core.errors import ClusterError, Conflict, Unavailable
from pydanube_storage.catalog.catalog import Committed, head_key
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Absent, Guard, ModRevision, Put, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import EpochCounter, EpochRecord
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation
from pydanube_broker.cluster.move_record import ChainRange, MoveFailure, MoveRecord, Stage

# Time without progress of a move after which the leader takes the next step itself.
PATIENCE_MS: Final = 60_000
# Rounds of copying after which the owner stops, however much the last round copied.
MAX_ROUNDS: Final = 8
# Maximum length in characters of the reason that a cancelled move leaves in the assignment.
_WHY_CHARS: Final = 500


class MoveStep(StrEnum):
    BEGIN = "begin"
    READY = "ready"
    CANCEL = "cancel"
    ARRIVE = "arrive"
    TAKE_AWAY = "take away"
    DAMAGED = "damaged"
    GIVE_UP = "give up"
    ASSIGN = "assign"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step from the assignment read at `revision` to the next assignment."""

    step: MoveStep
    revision: Revision
    after: Assignment


def begin(
    now: Assignment,
    revision: Revision,
    target: BrokerId,
    *,
    at_ms: int,
    ready: Incarnation | None = None,
) -> Change:
    """Begin a move. Each step raises `Conflict` if the assignment is at another stage.

    `ready`: the target's incarnation, for a topic with so little to copy that its owner stops immediately.
    """
    if now.move is not None:
        raise _conflict(
            now, f"{now.topic} is on its way to broker {now.move.target} already: wait until it is there"
        )
    if target == now.broker_id:
        raise _conflict(now, f"{now.topic} is with broker {target} already")
    move = MoveRecord(source=str(now.broker_id), target=str(target), begun_at_ms=at_ms, ready=ready)
    after = replace(now, stage=Stage.MOVING, move=move)
    return Change(step=MoveStep.BEGIN, revision=revision, after=after)


def ready(now: Assignment, revision: Revision, incarnation: Incarnation) -> Change:
    """Request the owner to stop, because the target has copied nearly all of the topic."""
    move = _check(now, MoveStep.READY, Stage.MOVING)
    return Change(
        step=MoveStep.READY, revision=revision, after=replace(now, move=replace(move, ready=incarnation))
    )


def cancel(now: Assignment, revision: Revision, error: ClusterError) -> Change:
    """End the move because of `error`. The topic stays with its owner. An `arrive` in flight fails by its guard."""
    move = _check(now, MoveStep.CANCEL, Stage.MOVING)
    failed = MoveFailure(
        target=move.target, begun_at_ms=move.begun_at_ms, code=error.code, why=error.message[:_WHY_CHARS]
    )
    after = replace(now, stage=Stage.SERVING, move=None, failed=failed)
    return Change(step=MoveStep.CANCEL, revision=revision, after=after)


def arrive(now: Assignment, revision: Revision, incarnation: Incarnation) -> Change:
    """Make the target the owner: it has the whole topic safe in its journal. `with_epoch` sets the epoch."""
    move = _check(now, MoveStep.ARRIVE, Stage.MOVING)
    if move.ready != incarnation:
        raise _conflict(now, f"the owner of {now.topic} did not stop for this start of broker {move.target}")
    after = replace(
        now,
        stage=Stage.SERVING,
        broker_id=BrokerId(int(move.target)),
        incarnation=incarnation,
        sealed_at_ms=None,
        sealed_epoch=now.epoch,
        moved=revision,
        move=None,
        failed=None,
    )
    return Change(step=MoveStep.ARRIVE, revision=revision, after=after)


def take_away(
    now: Assignment, revision: Revision, target: BrokerId, *, at_ms: int, chain: ChainRange | None = None
) -> Change:
    """Seal the topic for a lost owner, as the leader. It was removed (`removal`), or is taken over (`take_over`)."""
    _check(now, MoveStep.TAKE_AWAY, Stage.SERVING, Stage.MOVING)
    move = MoveRecord(
        source=str(now.broker_id),
        target=str(target),
        begun_at_ms=at_ms,
        from_store=True,
        chain=None if chain is None else replace(chain, above_epoch=now.sealed_epoch),
        parts=now.offered,
    )
    return Change(
        step=MoveStep.TAKE_AWAY,
        revision=revision,
        after=replace(
            now, stage=Stage.SEALED, sealed_at_ms=at_ms, sealed_epoch=now.epoch, move=move, failed=None
        ),
    )


def damaged(now: Assignment, revision: Revision, error: ClusterError) -> Change:
    """Note why the next owner cannot rebuild the topic. It tries again, and the operator reads the reason."""
    move = _check(now, MoveStep.DAMAGED, Stage.ASSIGNED)
    failed = MoveFailure(
        target=str(now.broker_id),
        begun_at_ms=move.begun_at_ms,
        code=error.code,
        why=error.message[:_WHY_CHARS],
    )
    return Change(step=MoveStep.DAMAGED, revision=revision, after=replace(now, failed=failed))


def give_up(now: Assignment, revision: Revision) -> Change:
    """Have the topic rebuilt without the chain of its lost owner, which is damaged, as the leader. `assign` follows."""
    move = _check(now, MoveStep.GIVE_UP, Stage.SEALED, Stage.ASSIGNED)
    after = replace(now, stage=Stage.SEALED, move=replace(move, chain=None), failed=None)
    return Change(step=MoveStep.GIVE_UP, revision=revision, after=after)


def assign(
    now: Assignment, revision: Revision, to: BrokerId, *, incarnation: Incarnation, epoch: Epoch
) -> Change:
    """Name the broker that opens the topic, as the leader, in an epoch above all earlier ones.

    The failure of a former heir does not stay: it may be that heir's alone.
    """
    _check(now, MoveStep.ASSIGN, Stage.SEALED, Stage.ASSIGNED)
    if epoch <= now.epoch:
        raise _conflict(now, f"epoch {epoch} of {now.topic} is not above {now.epoch}")
    return Change(
        step=MoveStep.ASSIGN,
        revision=revision,
        after=replace(
            now, stage=Stage.ASSIGNED, broker_id=to, incarnation=incarnation, epoch=epoch, failed=None
        ),
    )


def open_topic(now: Assignment, revision: Revision, incarnation: Incarnation) -> Change:
    """Serve the topic as its next owner, which has the whole topic on its disk."""
    _check(now, MoveStep.OPEN, Stage.ASSIGNED)
    return Change(
        step=MoveStep.OPEN,
        revision=revision,
        after=replace(
            now, stage=Stage.SERVING, incarnation=incarnation, sealed_at_ms=None, move=None, failed=None
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """Values that guard a change beside the assignment. The shell reads them immediately before.

    take away, give up: `start_offset` and `resumes_at` of the log, which is not complete in the store.
    take away: the revision of the owner's journal record, None if neither its chain nor a plan is used.
    arrive, take away, give up: the catalog's head, None for a topic without objects, which would be stored in `folder`.
    arrive: the revision of the target's registration.
    assign: the leader's key.
    arrive, assign: the epoch counter of the topic's name.
    """

    head: Committed | None = None
    folder: str = ""
    start_offset: int = 0
    resumes_at: int = 0
    journal: Revision | None = None
    member: Revision | None = None
    leadership: Leadership | None = None
    counter: EpochCounter | None = None


def with_epoch(change: Change, preconditions: Preconditions) -> Change:
    """Return the change with its epoch. For `arrive` the epoch comes from the counter."""
    if change.step is not MoveStep.ARRIVE:
        return change
    assert preconditions.counter is not None
    epoch = Epoch(max(preconditions.counter.epoch, change.after.sealed_epoch) + 1)
    return replace(change, after=replace(change.after, epoch=epoch))


def transaction(change: Change, preconditions: Preconditions) -> tuple[list[Put], list[Guard]]:
    """Return the writes of a settled change and their guards."""
    after = change.after
    key = keys.assignment_key(after.topic_id)
    writes: list[Put] = [Put(key, after.to_json())]
    guards: list[Guard] = [ModRevision(key, change.revision)]
    match change.step:
        case MoveStep.TAKE_AWAY | MoveStep.GIVE_UP:
            _raise_head(Epoch(after.epoch + 1), preconditions, after, writes, guards)
            if preconditions.journal is not None and change.step is MoveStep.TAKE_AWAY:
                # A plan: it ends if the owner comes back, until the topic is sealed
                guards += [
                    Absent(keys.member_key(after.broker_id)),
                    ModRevision(keys.journal_key(after.broker_id), preconditions.journal),
                ]
        case MoveStep.ARRIVE:
            assert preconditions.member is not None, "the target is registered"
            _raise_head(after.epoch, preconditions, after, writes, guards)
            guards += [
                ModRevision(keys.member_key(after.broker_id), preconditions.member),
                Absent(keys.removed_key(after.broker_id)),
            ]
            _count_epoch(preconditions, after, writes, guards)
        case MoveStep.ASSIGN:
            assert preconditions.leadership is not None, "only the leader assigns"
            guards.append(preconditions.leadership.guard)
            _count_epoch(preconditions, after, writes, guards)
        case MoveStep.BEGIN | MoveStep.READY | MoveStep.CANCEL | MoveStep.OPEN | MoveStep.DAMAGED:
            pass
        case _:
            assert_never(change.step)
    return writes, guards


def joined(
    taken: Change, assigned: Change, preconditions: Preconditions, by: Preconditions
) -> tuple[list[Put], list[Guard]]:
    """Return the writes and guards of `take_away` or `give_up` and the `assign` that follows, as one transaction.

    Args:
        preconditions: of `taken`.
        by: of `assigned`.
    """
    assert taken.step in (MoveStep.TAKE_AWAY, MoveStep.GIVE_UP)
    assert assigned.step is MoveStep.ASSIGN
    before, conditions = transaction(taken, preconditions)
    writes, guards = transaction(assigned, by)
    assert guards[0] == conditions[0], "both change the assignment that was read"
    return [writes[0], *before[1:], *writes[1:]], [*conditions, *guards[1:]]


def _count_epoch(
    preconditions: Preconditions, after: Assignment, writes: list[Put], guards: list[Guard]
) -> None:
    assert preconditions.counter is not None
    assert preconditions.counter.epoch < after.epoch, "no epoch of a name is given twice"
    guards += preconditions.counter.guards
    writes.append(Put(keys.epoch_key(after.topic), EpochRecord(epoch=after.epoch).to_json()))


def _raise_head(
    epoch: Epoch, preconditions: Preconditions, after: Assignment, writes: list[Put], guards: list[Guard]
) -> None:
    key, found = head_key(after.topic_id), preconditions.head
    writes.append(Put(key, _raised(found, epoch, preconditions).to_json()))
    guards.append(Absent(key) if found is None else ModRevision(key, found.revision))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """The leader's view. `alive`: brokers that may be given a topic, most preferred first."""

    alive: Mapping[BrokerId, Incarnation]
    waited_ms: int  # since the last sign of progress, by the leader's clock
    last_epoch: Epoch  # of the topic's name


def leaders_change(now: Assignment, revision: Revision, view: LeaderView) -> Change | None:
    """Return the leader's change about a topic, if one is due."""
    match now.stage:
        case Stage.SERVING:
            return None
        case Stage.MOVING:
            assert now.move is not None
            if BrokerId(int(now.move.target)) not in view.alive:
                why = f"broker {now.move.target} takes no topics any more"
            elif view.waited_ms >= PATIENCE_MS:
                why = f"broker {now.move.target} copied nothing of it for {PATIENCE_MS // 1000} s"
            else:
                return None
            return cancel(now, revision, Unavailable(f"{now.topic} was not moved: {why}"))
        case Stage.SEALED | Stage.ASSIGNED:
            assert now.move is not None
            wanted = [BrokerId(int(now.move.target)), BrokerId(int(now.move.source)), *view.alive]
            choice = [broker for broker in wanted if broker in view.alive]
            if now.stage is Stage.ASSIGNED:
                if now.broker_id in view.alive and view.waited_ms < PATIENCE_MS:
                    return None
                # Choose another broker than the one that did not open the topic in time. Without another, do nothing.
                choice = [broker for broker in choice if broker != now.broker_id]
            if not choice:
                return None
            epoch = Epoch(max(view.last_epoch, now.epoch) + 1)
            return assign(now, revision, choice[0], incarnation=view.alive[choice[0]], epoch=epoch)
        case _:
            assert_never(now.stage)


def _raised(found: Committed | None, epoch: Epoch, preconditions: Preconditions) -> CatalogHead:
    if found is not None:
        resumes_at = max(found.head.resumes_at, preconditions.resumes_at)
        return replace(found.head, epoch=max(found.head.epoch, epoch), resumes_at=resumes_at)
    start = preconditions.start_offset
    return CatalogHead(
        epoch=epoch,
        folder=preconditions.folder,
        start_offset=start,
        tiered_offset=start,
        resumes_at=preconditions.resumes_at,
    )


def _check(now: Assignment, step: MoveStep, *stages: Stage) -> MoveRecord:
    if now.stage not in stages or (now.move is None) != (now.stage is Stage.SERVING):
        raise _conflict(now, f"{now.topic} is {now.stage}: no step {step} from there")
    return now.move or MoveRecord(source="", target="", begun_at_ms=0)


def _conflict(now: Assignment, why: str) -> Conflict:
    return Conflict(why, topic=str(now.topic), stage=now.stage.value, owner=str(now.broker_id))
