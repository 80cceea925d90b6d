"""Check at the start, before either changes, that a data directory's journal and metadata belong together.

The metadata lists the existing topics, and a state in the journal without a topic is dropped as that of a deleted
topic. If the metadata is missing, or an older copy, every topic created since looks deleted, and its id would be
assigned again. If the journal is missing, every topic looks empty and its offsets begin at 0 again. Both would be
silent loss.

Segments are deleted oldest first. So if the oldest segments of a journal were removed by hand, the only sign is that a
topic needs offsets that are neither in the journal nor in the cold tier.

An operator without a backup creates an empty file ACCEPT_LOSS in the journal's folder: the start then continues with
the remaining data, and logs the losses.

The order of writes makes all of this visible. An id comes from a leased block (`cluster.id_blocks`), or is the revision
of the transaction that created its topic or subscription. Either is durable before the journal gets the id, and the
same holds for an epoch. So the journal never has an id that the metadata did not assign, nor an epoch above the
metadata's. And topics are created only by a broker whose journal has a segment, the last of which is never removed. A
segment is deleted when its messages are listed in the cold tier's catalog or trimmed by a durable record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from pydanube_core.errors import CorruptJournal
from pydanube_storage.metadata import CorruptMetadata

from pydanube_broker.cluster.id_blocks import NewestIds
from pydanube_broker.topics.log_state import ORIGIN, LogState

log = logging.getLogger("pydanube.topics")

_RESTORE: Final = (
    "Nothing was changed. Restore the folder from a backup. To go on without the lost messages, put an empty "
    "file ACCEPT_LOSS into it"
)


class LossAccepted:
    """The permission of the file ACCEPT_LOSS to start with a damaged journal."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ACCEPT_LOSS"
        self._given = self._file.exists()

    def __bool__(self) -> bool:
        return self._given

    def used(self) -> None:
        """Delete the permission after a start with it: the next loss needs a new one."""
        self._file.unlink(missing_ok=True)


def ids_in(states: Iterable[LogState], tail_topics: Iterable[int]) -> Iterator[int]:
    """Return the ids of topics and subscriptions in the journal.

    Args:
        states: of all topics, from the proven records.
        tail_topics: topic ids of the records that are not proven.
    """
    yield from tail_topics
    for state in states:
        yield state.topic_id
        yield from state.cursors
        yield from (number for number in state.deltas if not number & ORIGIN)


def check_metadata_there(file: Path, *, journal_is_empty: bool) -> None:
    """Refuse to create a metadata file beside a journal with topics, which has had one.

    Raises:
        CorruptMetadata
    """
    if not journal_is_empty and not file.exists():
        raise CorruptMetadata(
            f"{file} is missing, and the journal beside it holds messages: without it, their topics are unknown. "
            f"Nothing was changed. Restore {file.name} from a backup, or move the journal folder aside "
            "to start without those messages",
            path=str(file),
            reason="missing",
        )


def check_ids(file: Path, newest: NewestIds, given_out: NewestIds) -> None:
    """Check, right after opening, that the metadata is not older than the journal's ids.

    Raises:
        CorruptMetadata
    """
    if newest.is_beyond(given_out):
        there, here = max(newest.revision, newest.leased), max(given_out.revision, given_out.leased)
        raise _older(
            str(file), f"the journal has id {there}, the metadata gave out ids up to {here}", there, here
        )


def check_epoch(topic: str, journal: int, metadata: int, *, store: str) -> None:
    """Check a topic's epoch in the journal against the metadata's last one, before it gets the next.

    Raises:
        CorruptMetadata
    """
    if journal > metadata:
        raise _older(
            store, f"topic {topic} is in epoch {journal} there, in {metadata} here", journal, metadata
        )


def check_journal_there(folder: Path, segments: int, reliable_topics: int, accepted: LossAccepted) -> None:
    """Refuse to create the first segment for metadata whose topics have had a journal.

    Raises:
        CorruptJournal
    """
    if segments or not reliable_topics:
        return
    if accepted:
        log.warning("journal_lost", extra={"topics": reliable_topics})
        return
    raise CorruptJournal(
        f"{folder} holds no segment, and the metadata names {reliable_topics} topics that were stored there: the "
        f"journal is missing. {_RESTORE}",
        segment=None,
        offset=0,
        value=str(folder),
    )


def check_prefixes_there(
    folder: Path,
    topics: Iterable[tuple[str, LogState, int]],
    first_offset: Callable[[int], int | None],
    accepted: LossAccepted,
) -> dict[int, int]:
    """Check, before the first segment is made, that the journal has the oldest offsets that each topic needs.

    Args:
        topics: name, proven state, and the offset below which the cold tier or an unproven trim covers all.
        first_offset: the lowest offset that the journal holds of a topic id.

    Returns:
        Topic id → the offset at which it begins now, where a loss was accepted.

    Raises:
        CorruptJournal
    """
    begins: dict[int, int] = {}
    for name, state, given_up in topics:
        needed = max(state.needed_offset, given_up)
        first = first_offset(state.topic_id)
        there = state.next_offset if first is None else first
        if there <= needed:
            continue
        if not accepted:
            raise CorruptJournal(
                f"offsets {needed} to {there - 1} of topic {name} are neither in {folder} nor in the cold tier: the "
                f"oldest segments are missing. {_RESTORE}",
                segment=None,
                offset=0,
                topic=name,
                message_offset=needed,
            )
        begins[state.topic_id] = there
        log.warning("messages_lost", extra={"topic": name, "first": needed, "end": there})
    return begins


def _older(store: str, evidence: str, journal: int, metadata: int) -> CorruptMetadata:
    return CorruptMetadata(
        f"{store} is older than the journal beside it ({evidence}): it was replaced by an earlier copy or an empty "
        "file, and topics made since would be lost. Nothing was changed. Restore the file that belongs to this "
        "journal, with its -wal file if there is one, or start without it: move the journal folder "
        "aside, make a new one, and put an empty file ACCEPT_LOSS into it",
        path=store,
        reason=evidence,
        journal=journal,
        metadata=metadata,
    )
