"""Copy stored messages, with attributes added by the broker: dead letters and replays. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from pydanube_core.batch import BATCH_TARGET_BYTES, MAX_COPY_BYTES, encode_batch, read_producer_part
from pydanube_core.batch.timing import NAMES

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of
from pydanube_broker.subscription.ranges import Range, runs_of

_MESSAGE_BYTES: Final = 64  # of a message's columns of fixed width, at most
_ATTRIBUTE_BYTES: Final = 8  # offsets of name and value


def copied(
    batch: CachedBatch,
    indices: Sequence[int],
    added: Callable[[int], Mapping[str, str]],
    without: Collection[str] = (),
) -> Iterator[tuple[list[int], bytes]]:
    """Copy some messages of a batch. Payload, key, attributes, publish time, producer and schema stay.

    Each batch has at most about `BATCH_TARGET_BYTES`, with all columns of its messages. A larger message is a
    batch of its own. It fits, because added attributes have room above the maximum for producers.

    Args:
        added: returns the attributes to add to the copy of the message at an index. They replace its own of
            the same names.
        without: names of attributes that copies do not keep.

    Yields:
        (indices, producer part and body of their copies)
    """
    view = view_of(batch)
    payloads, keys, own = view.payloads(), view.keys(), view.attributes()
    part: list[int] = []
    attributes: list[dict[str, str]] = []
    size = 0
    for i in indices:
        given = dict(own[i]) if own is not None else {}
        for name in (*without, *NAMES):
            given.pop(name, None)  # a copy neither waits nor expires
        given |= added(i)
        needed = _MESSAGE_BYTES + len(payloads[i]) + (0 if keys is None else len(keys[i] or b""))
        needed += sum(
            len(name.encode()) + len(value.encode()) + _ATTRIBUTE_BYTES for name, value in given.items()
        )
        if part and size + needed > BATCH_TARGET_BYTES:
            yield part, _encoded(batch, part, attributes)
            part, attributes, size = [], [], 0
        part.append(i)
        attributes.append(given)
        size += needed
    if part:
        yield part, _encoded(batch, part, attributes)


def _encoded(batch: CachedBatch, part: Sequence[int], attributes: Sequence[Mapping[str, str]]) -> bytes:
    view = view_of(batch)
    header = read_producer_part(producer_bytes(batch), verify=False)
    payloads, keys, times = view.payloads(), view.keys(), view.publish_times_ms()
    which, schemas = view.producer_index(), view.schemas()
    given: dict[str, Any] = {"schema": (header.schema_id, header.schema_version)}
    if schemas is not None:
        table, index = schemas
        given = {"schemas": table, "schema_index": [index[i] for i in part]}
    return encode_batch(
        [payloads[i] for i in part],
        publish_times_ms=[times[i] for i in part],
        keys=None if keys is None else [keys[i] for i in part],
        attributes=attributes,
        producers=view.producers() or [(header.producer_id, "")],
        producer_index=None if which is None else [which[i] for i in part],
        codec=header.codec,
        max_bytes=MAX_COPY_BYTES,
        **given,
    )


# Bytes. A reason is a consumer's text and must not outgrow the message.
MAX_REASON_BYTES: Final = 1000


def reason_of(text: str) -> str:
    """Return a reason as a copy's attribute, cut if it is too long."""
    return text.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


class Wanted(NamedTuple):
    """Offsets `[start, end)` to copy, and the attributes that their copies get."""

    start: int
    end: int
    attributes: Mapping[str, str]


def dead_letter_batches(batch: CachedBatch, wanted: Sequence[Wanted]) -> Iterator[tuple[list[Range], bytes]]:
    """Return the batches to publish for the messages of `batch` in `wanted`.

    `wanted` ascends and may reach beyond the batch. Attributes of a copy give its origin and the reason, with
    the names that the original Danube uses. Attributes that the message has under these names are its own
    history (a dead letter of a dead letter) and are overwritten.

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
