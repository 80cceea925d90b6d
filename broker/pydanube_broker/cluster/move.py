"""The protocol of a move: its steps, their guards, and the leader's part. Pure.

```text
 serving (A, e) --begin--> moving (A, e) --offer, copied, ready--> moving (A, e) --seal--> sealed (A, e)
        <------- cancel -------+--------------------------------------+                         | assign
        ------- take away, of A that was removed --------------------------------------> sealed (A, e)
 serving (B, e') <--open-- assigned (B, e')  e' > e, and again higher while nobody has opened it
```

Each step is one transaction guarded by the revision at which the assignment was read, so that of two steps from one
assignment one happens. What follows from that:

- *One owner an epoch.* Every `assign` takes the next epoch of the topic's name. Only the broker that is named may
  open, and only once: opening changes the revision.
- *The seal ends an epoch.* A broker sends it after it has stopped taking anything, and after all of the hand-over was
  read back from the store. Until it knows that the seal was carried out or never will be, it takes nothing: that the
  assignment is unchanged when it looks says nothing, since the transaction may be under way. It sends the same seal
  again; of both at most one happens. The seal raises the epoch of the catalog's head too, so that no object of the
  sealed epoch gets into the catalog afterwards.
- *The pause does not grow with the log.* What there is goes to the target while the owner serves: the owner offers it, the
  target copies it, and where that took long, because it was much, says only `copied`: then the owner offers what came
  meanwhile. After little, or `MAX_OFFERS`, it says `ready`, and the owner stops. Nobody is held to a copy of a topic that is not
  handed over: it is a state of epoch 0 in the target's journal, and forgotten when the move is off.
- *A removed owner is sealed by the leader* (`take_away`): what it wrote behind what the store has is not part of the topic any more.
- *`opened` ends the leader's freedom.* Before it nobody has accepted anything since the seal, so that the hand-over is
  the topic, and the leader may give it to anyone, the old owner included. Afterwards it never does so by itself.
- *A move ends.* What hangs before the seal is cancelled by the leader, what hangs behind it is assigned anew.

`move_seat` is what a broker does about one topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final, assert_never

from pydanube_core.errors import Conflict
from pydanube_storage.catalog.catalog import Committed, head_key
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Absent, Guard, ModRevision, Put, Revision, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment, EpochCounter, EpochRecord
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation
from pydanube_broker.cluster.move_record import MAX_PARTS, HandOverPart, MoveRecord, Stage

# How long the leader sees no step of a move before it takes the next itself: an object of the largest size, written
# and read back over a slow line, takes a part of it.
PATIENCE_MS: Final = 60_000
# Of bytes that are offered at once: the target has written and synced them in less time than a transaction takes.
LITTLE_BYTES: Final = 2 << 20
# A topic that is written faster than it is copied would be offered for ever.
MAX_OFFERS: Final = 8


class Step(StrEnum):
    BEGIN = "begin"
    OFFER = "offer"
    COPIED = "copied"
    READY = "ready"
    CANCEL = "cancel"
    SEAL = "seal"
    TAKE_AWAY = "take away"
    ASSIGN = "assign"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step from an assignment, as it was read at `revision`, to the next."""

    step: Step
    revision: Revision
    after: Assignment


def begin(now: Assignment, revision: Revision, target: BrokerId, *, at_ms: int) -> Change:
    """Ask the owner to hand over. The steps raise `Conflict` where the assignment is at another stage."""
    if now.move is not None:
        raise _conflict(
            now, f"{now.topic} is on its way to broker {now.move.target} already: wait until it is there"
        )
    if target == now.broker_id:
        raise _conflict(now, f"{now.topic} is with broker {target} already")
    move = MoveRecord(source=str(now.broker_id), target=str(target), begun_at_ms=at_ms)
    return Change(step=Step.BEGIN, revision=revision, after=replace(now, stage=Stage.MOVING, move=move))


def offer(now: Assignment, revision: Revision, parts: tuple[HandOverPart, ...]) -> Change:
    """The owner has written and read back the first part, or what was appended since the last one."""
    move = _check(now, Step.OFFER, Stage.MOVING)
    _check_parts(now, parts)
    offered = replace(move, parts=parts, ready=None, offers=move.offers + bool(move.parts))
    return Change(step=Step.OFFER, revision=revision, after=replace(now, move=offered))


def copied(
    now: Assignment, revision: Revision, incarnation: Incarnation, *, little_bytes: int = LITTLE_BYTES
) -> Change:
    """The target has all offered parts on its disk. It asks for a further part, or is ready if little can be missing."""
    move = _check(now, Step.COPIED, Stage.MOVING)
    copied_bytes = sum(part.end - part.start for part in move.parts[move.copied :])
    if copied_bytes <= little_bytes or move.offers + 1 >= MAX_OFFERS:
        return ready(now, revision, incarnation)
    return Change(
        step=Step.COPIED, revision=revision, after=replace(now, move=replace(move, copied=len(move.parts)))
    )


def ready(now: Assignment, revision: Revision, incarnation: Incarnation) -> Change:
    """The owner may stop: the target has every offered byte."""
    move = _check(now, Step.READY, Stage.MOVING)
    if not move.parts:
        raise _conflict(now, f"nothing of {now.topic} is offered yet")
    return Change(
        step=Step.READY, revision=revision, after=replace(now, move=replace(move, ready=incarnation))
    )


def cancel(now: Assignment, revision: Revision) -> Change:
    """End the move; the topic stays with its owner. After this change no seal of this move is possible."""
    _check(now, Step.CANCEL, Stage.MOVING)
    return Change(step=Step.CANCEL, revision=revision, after=replace(now, stage=Stage.SERVING, move=None))


def seal(now: Assignment, revision: Revision, parts: tuple[HandOverPart, ...], *, at_ms: int) -> Change:
    """The owner has stopped; `parts` are the whole hand-over, and were read back."""
    move = _check(now, Step.SEAL, Stage.MOVING)
    if move.ready is None:
        raise _conflict(
            now, f"broker {move.target} has not shown that it can read the hand-over of {now.topic}"
        )
    _check_parts(now, parts)
    return Change(
        step=Step.SEAL,
        revision=revision,
        after=replace(
            now,
            stage=Stage.SEALED,
            sealed_at_ms=at_ms,
            sealed_epoch=now.epoch,
            move=replace(move, parts=parts),
        ),
    )


def take_away(
    now: Assignment, revision: Revision, parts: tuple[HandOverPart, ...], target: BrokerId, *, at_ms: int
) -> Change:
    """The owner was removed from the cluster (`removal`): the leader seals for it, with what the store has of the topic."""
    _check(now, Step.TAKE_AWAY, Stage.SERVING, Stage.MOVING)
    _check_parts(now, parts)
    move = MoveRecord(source=str(now.broker_id), target=str(target), begun_at_ms=at_ms, parts=parts)
    return Change(
        step=Step.TAKE_AWAY,
        revision=revision,
        after=replace(now, stage=Stage.SEALED, sealed_at_ms=at_ms, sealed_epoch=now.epoch, move=move),
    )


def assign(
    now: Assignment, revision: Revision, to: BrokerId, *, incarnation: Incarnation, epoch: Epoch
) -> Change:
    """The leader names the broker that opens the topic, in an epoch above all earlier ones."""
    _check(now, Step.ASSIGN, Stage.SEALED, Stage.ASSIGNED)
    if epoch <= now.epoch:
        raise _conflict(now, f"epoch {epoch} of {now.topic} is not above {now.epoch}")
    return Change(
        step=Step.ASSIGN,
        revision=revision,
        after=replace(now, stage=Stage.ASSIGNED, broker_id=to, incarnation=incarnation, epoch=epoch),
    )


def open_topic(now: Assignment, revision: Revision, incarnation: Incarnation) -> Change:
    """The next owner has the whole topic on its disk, and serves it."""
    _check(now, Step.OPEN, Stage.ASSIGNED)
    return Change(
        step=Step.OPEN,
        revision=revision,
        after=replace(now, stage=Stage.SERVING, incarnation=incarnation, sealed_at_ms=None, move=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """Values that guard a change beside the assignment: the shell reads them right before.

    take away: where the log goes on, of which the store has not all.
    seal, take away: the catalog's head, None for a topic without objects, whose objects would lie in `folder`.
    assign: the leader's key and the topic name's counter of epochs.
    """

    head: Committed | None = None
    folder: str = ""
    start_offset: int = 0
    resumes_at: int = 0
    leadership: Leadership | None = None
    counter: EpochCounter | None = None


def transaction(change: Change, witnesses: Witnesses) -> tuple[list[Write], list[Guard]]:
    """The writes of a change and what must hold for them."""
    after = change.after
    key = keys.assignment_key(after.topic_id)
    writes: list[Write] = [Put(key, after.to_json())]
    guards: list[Guard] = [ModRevision(key, change.revision)]
    match change.step:
        case Step.SEAL | Step.TAKE_AWAY:
            head_at, found = head_key(after.topic_id), witnesses.head
            head = _raised(found, Epoch(after.epoch + 1), witnesses)
            writes.append(Put(head_at, head.to_json()))
            guards.append(Absent(head_at) if found is None else ModRevision(head_at, found.revision))
        case Step.ASSIGN:
            assert witnesses.leadership is not None, "only the leader assigns"
            assert witnesses.counter is not None
            assert witnesses.counter.epoch < after.epoch, "no epoch of a name is given twice"
            guards += [witnesses.leadership.guard, witnesses.counter.guard]
            writes.append(Put(keys.epoch_key(after.topic), EpochRecord(epoch=after.epoch).to_json()))
        case Step.BEGIN | Step.OFFER | Step.COPIED | Step.READY | Step.CANCEL | Step.OPEN:
            pass
        case _:
            assert_never(change.step)
    return writes, guards


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """The leader's knowledge. `alive`: brokers that may be given a topic, in the order it prefers them."""

    alive: Mapping[BrokerId, Incarnation]
    waited_ms: int  # since the assignment changed last, by the leader's clock
    last_epoch: Epoch  # of the topic's name


def leaders_change(now: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
    """Return the leader's change about a topic, if one is due."""
    match now.stage:
        case Stage.SERVING:
            return None
        case Stage.MOVING:
            assert now.move is not None
            hangs = standing.waited_ms >= PATIENCE_MS or BrokerId(int(now.move.target)) not in standing.alive
            return cancel(now, revision) if hangs else None
        case Stage.SEALED | Stage.ASSIGNED:
            assert now.move is not None
            wanted = [BrokerId(int(now.move.target)), BrokerId(int(now.move.source)), *standing.alive]
            choice = [broker for broker in wanted if broker in standing.alive]
            if now.stage is Stage.ASSIGNED:
                if now.broker_id in standing.alive and standing.waited_ms < PATIENCE_MS:
                    return None
                # Who did not open it in time may be the next again, where there is nobody else.
                choice = [broker for broker in choice if broker != now.broker_id]
            if not choice:
                return None
            epoch = Epoch(max(standing.last_epoch, now.epoch) + 1)
            return assign(now, revision, choice[0], incarnation=standing.alive[choice[0]], epoch=epoch)
        case _:
            assert_never(now.stage)


def _raised(found: Committed | None, epoch: Epoch, witnesses: Witnesses) -> CatalogHead:
    if found is not None:
        resumes_at = max(found.head.resumes_at, witnesses.resumes_at)
        return replace(found.head, epoch=max(found.head.epoch, epoch), resumes_at=resumes_at)
    start = witnesses.start_offset
    return CatalogHead(
        epoch=epoch,
        folder=witnesses.folder,
        start_offset=start,
        tiered_offset=start,
        resumes_at=witnesses.resumes_at,
    )


def _check(now: Assignment, step: Step, *stages: Stage) -> MoveRecord:
    if now.stage not in stages or (now.move is None) != (now.stage is Stage.SERVING):
        raise _conflict(now, f"{now.topic} is {now.stage}: no step {step} from there")
    return now.move or MoveRecord(source="", target="", begun_at_ms=0)


def _check_parts(now: Assignment, parts: tuple[HandOverPart, ...]) -> None:
    fits = 0 < len(parts) <= MAX_PARTS and all(a.end_offset == b.first_offset for a, b in pairwise(parts))
    if not fits:
        raise _conflict(
            now, f"{len(parts)} parts of {now.topic} do not follow each other, or are more than {MAX_PARTS}"
        )


def _conflict(now: Assignment, why: str) -> Conflict:
    return Conflict(why, topic=str(now.topic), stage=now.stage.value, owner=str(now.broker_id))
