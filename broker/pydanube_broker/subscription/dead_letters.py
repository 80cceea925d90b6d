"""Copies of messages for a dead-letter topic. Pure.

A copy keeps payload, key, attributes, publish time, producer and schema, and says in attributes of the original's
names where it came from and why. Attributes it had under those names are its own history (a dead letter of a dead
letter) and are overwritten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from pydanube_core.batch import read_producer_part

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of
from pydanube_broker.subscription.copies import copied
from pydanube_broker.subscription.ranges import Range, runs_of

# A reason is a consumer's text and must not outgrow the message.
MAX_REASON_BYTES: Final = 1000


def reason_of(text: str) -> str:
    """A reason as a copy carries it, cut where it is too long."""
    return text.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


class Wanted(NamedTuple):
    """Offsets `[start, end)` to copy, and the attributes that their copies get."""

    start: int
    end: int
    attributes: Mapping[str, str]


def dead_letter_batches(batch: CachedBatch, wanted: Sequence[Wanted]) -> Iterator[tuple[list[Range], bytes]]:
    """The batches to publish for the messages of `batch` in `wanted`, which is ascending; it may reach beyond the batch.

    Yields:
        (ranges of the originals, producer part and body of their copies).
    """
    view = view_of(batch)
    offsets, producers, which = list(view.offsets()), view.producers(), view.producer_index()
    own_id = read_producer_part(producer_bytes(batch), verify=False).producer_id
    origins: dict[int, Mapping[str, str]] = {}  # of the message at an index
    for start, end, attributes in takewhile(lambda one: one.start < batch.end, wanted):
        indices = range(bisect_left(offsets, start), bisect_left(offsets, end))
        origins |= dict.fromkeys(indices, attributes)

    def added(i: int) -> Mapping[str, str]:
        producer = producers[which[i] if which is not None else 0][0] if producers else own_id
        return {
            **origins[i],
            "x-original-topic-offset": str(offsets[i]),
            "x-original-producer-id": str(producer),
        }

    for part, data in copied(batch, list(origins), added):
        yield runs_of(offsets[i] for i in part), data
