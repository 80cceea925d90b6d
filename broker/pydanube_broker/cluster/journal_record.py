"""The record of a broker's journal, `/journals/<broker>`, and the steps of a take-over. Pure.

```text
 open (term t) --a plan names topics--> closing (term t + 1) --the leader fences the chain--> closing, fenced
      <-- the broker is back, and none of its topics is under way ----------------------------------+
                                                                    closed <-- no topic is left ----+
```

A broker writes its record when it registers. A record of a broker that copies its journal (`copies`) has a chain in the
object store (`chain`). A take-over raises the term in the transaction that names its first topics. The leader then fences
the chain under that term, and records the number of the fence (`until`). Only pieces in [`from_piece`, `until`) are read,
so every heir finds the same end of each topic, regardless of later pieces of the lost broker. While a record is closing,
the chain is neither continued nor deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord


class JournalState(StrEnum):
    OPEN = "open"  # its broker may continue the chain
    CLOSING = "closing"  # other brokers take topics over from the chain
    CLOSED = "closed"  # no topic is left at its broker


Journal = Annotated[int, BeforeValidator(int), PlainSerializer(str)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord(JsonRecord):
    """See the module.

    journal: random id, made with an empty journal folder.
    from_piece: number of the first piece that a reader needs. It is raised before older pieces are deleted.
    until: number of the fence in this term, 0 if the chain is not fenced yet.
    heirs: brokers that were chosen for topics, as decimal numbers.
    topics: ids of the topics that are to be taken over, as decimal numbers.
    copies: whether the broker copies its journal into a chain.
    on_loss: "take_over" if the broker's fsynced topics are taken over without a plan when its lease ends. Without its
        lease such a broker acknowledges only records that its chain has. "" for a broker whose topics wait for it.
    is_whole: the broker has stopped, and its chain has all that it acknowledged, so that heirs continue without a gap.
    given_up: ids of those `topics` that continue without the chain, which is damaged. A plan has shown the loss.
    """

    journal: Journal
    term: int
    from_piece: int = 1
    state: JournalState = JournalState.OPEN
    until: int = 0
    heirs: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    copies: bool = False
    on_loss: Annotated[str, UNLESS_DEFAULT] = ""
    is_whole: Annotated[bool, UNLESS_DEFAULT] = False
    given_up: Annotated[tuple[str, ...], Field(exclude_if=lambda topics: not topics)] = ()

    def __post_init__(self) -> None:
        assert self.term >= 1
        assert self.from_piece >= 1
        assert self.state is JournalState.CLOSING or not self.topics, "only a take-over names topics"

    @property
    def is_needed_by_heirs(self) -> bool:
        """Whether topics of the broker may be only in this chain."""
        return self.copies and self.state is not JournalState.CLOSED

    @property
    def is_fenced(self) -> bool:
        """Whether the chain may be read: the predecessor is fenced, and the end is recorded."""
        return self.until > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJournal:
    """The journal of a broker that registers. `is_needed`: topics are stored by its chain, so that it copies always."""

    number: int
    is_needed: bool = False


def registered(found: JournalRecord | None, own: OwnJournal, *, is_start: bool) -> JournalRecord:
    """Return the record of a broker that registers with this journal, the found one if nothing changes.

    While topics are taken over the record stays closing, because their heirs still read the chain. The leader opens it
    afterwards. The broker keeps the topics that are not sealed, and acknowledges messages of them that the chain does not
    get, so nothing planned for them holds any more. The leader names those that are sealed again (`settled`).

    A process that starts has no chain until it sets `copies`, because it may not copy any more. A process that registers
    again after its lease has ended continues its chain.
    """
    journal = own.number
    if found is not None and found.state is JournalState.CLOSING:
        on_loss = "" if is_start or found.is_fenced else found.on_loss
        return replace(found, topics=(), given_up=(), is_whole=False, on_loss=on_loss)
    if found is None or found.journal != journal:
        # A term is never used twice under a broker's id, even with another journal
        return JournalRecord(journal=journal, term=1 if found is None else found.term + 1)
    copies = found.copies and (own.is_needed or not is_start)
    return replace(
        found,
        state=JournalState.OPEN,
        until=0,
        heirs=(),
        copies=copies,
        on_loss="" if is_start else found.on_loss,
        is_whole=False,
    )


def taken_over(
    found: JournalRecord, topics: Collection[TopicId], given_up: Collection[TopicId] = ()
) -> JournalRecord:
    """Return the record after a plan to take over topics. The first plan raises the term, later ones add topics."""
    assert found.copies, "without a chain there is nothing to take over from"
    names = tuple(sorted({*found.topics, *map(str, topics)}, key=int))
    found = replace(found, given_up=tuple(sorted({*found.given_up, *map(str, given_up)}, key=int)))
    if found.state is JournalState.CLOSING:
        return replace(found, topics=names)
    return replace(found, state=JournalState.CLOSING, term=found.term + 1, until=0, heirs=(), topics=names)


def fenced(found: JournalRecord, until: int, heirs: Collection[BrokerId]) -> JournalRecord:
    """Return the record once the chain is fenced at this number under the record's term."""
    assert found.state is JournalState.CLOSING
    assert until >= found.from_piece
    return replace(found, until=until, heirs=tuple(sorted(map(str, heirs), key=int)))


def settled(
    found: JournalRecord, *, is_back: bool, under_way: Collection[TopicId], left: Mapping[TopicId, bool]
) -> JournalRecord:
    """Return the record once topics were taken over, the found one if nothing changes.

    Args:
        is_back: whether the broker is registered again. Topics that were not sealed by then stay with it.
        under_way: topics of the broker that an heir has not opened yet.
        left: topics whose assignment names the broker → whether that is its audit, which stays with it for good.
    """
    if found.state is not JournalState.CLOSING or (under_way and not is_back):
        return found
    if under_way:
        # The broker acknowledges messages of its other topics that the fenced chain does not get
        sealed = tuple(sorted(map(str, under_way), key=int))
        given_up = tuple(each for each in found.given_up if each in sealed)
        return replace(found, topics=sealed, given_up=given_up, is_whole=False, on_loss="")
    if is_back:
        # The fence has ended the chain. The broker sets `copies` when it begins the chain again. Without a fence, a
        # process that has only lost its lease continues the chain.
        copies = found.copies and not found.is_fenced
        return replace(
            found,
            state=JournalState.OPEN,
            until=0,
            heirs=(),
            topics=(),
            copies=copies,
            on_loss=found.on_loss if copies else "",
            is_whole=False,
            given_up=(),
        )
    waiting = tuple(each for each in found.topics if TopicId(int(each)) in left)
    if not waiting and all(left.values()):
        return replace(found, state=JournalState.CLOSED, topics=(), given_up=())
    return replace(found, topics=waiting, given_up=tuple(each for each in found.given_up if each in waiting))
