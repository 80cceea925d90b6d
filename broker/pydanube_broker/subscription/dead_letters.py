"""Copies of messages for a dead-letter topic. Pure.

A copy keeps payload, key, attributes, publish time, producer and schema, and says in attributes of the original's
names where it came from and why. Attributes it had under those names are its own history (a dead letter of a dead
letter) and are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydanube_core.batch import BATCH_TARGET_BYTES, encode_batch, read_producer_part

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of
from pydanube_broker.subscription.ranges import Range, runs_of

# A reason is a consumer's text and must not outgrow the message. With the other attributes of a copy it stays within the
# 4 KiB that the largest message leaves free in its batch.
MAX_REASON_BYTES: Final = 1000


def reason_of(text: str) -> str:
    """A reason as a copy carries it, cut where it is too long."""
    return text.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


def dead_letter_batches(
    batch: CachedBatch, ranges: Sequence[Range], origin: Mapping[str, str]
) -> Iterator[tuple[list[Range], bytes]]:
    """The batches to publish for the messages of `batch` in `ranges`, each about `BATCH_TARGET_BYTES` at most.

    Args:
        origin: attributes that all copies get.

    Yields:
        (ranges of the originals, producer part and body of their copies).

    Raises:
        BatchTooLarge: a single message leaves no room for the attributes.
    """
    view = view_of(batch)
    offsets = list(view.offsets())
    chosen = [i for i, offset in enumerate(offsets) if any(start <= offset < end for start, end in ranges)]
    payloads = view.payloads()
    part: list[int] = []
    size = 0
    for i in chosen:
        if part and size + len(payloads[i]) > BATCH_TARGET_BYTES:
            yield _copies(batch, offsets, part, origin)
            part, size = [], 0
        part.append(i)
        size += len(payloads[i])
    if part:
        yield _copies(batch, offsets, part, origin)


def _copies(
    batch: CachedBatch, offsets: Sequence[int], indices: Sequence[int], origin: Mapping[str, str]
) -> tuple[list[Range], bytes]:
    view = view_of(batch)
    header = read_producer_part(producer_bytes(batch), verify=False)
    payloads, keys, attributes = view.payloads(), view.keys(), view.attributes()
    times, producers, which = view.publish_times_ms(), view.producers(), view.producer_index()
    schemas = view.schemas()

    def attributes_of(i: int) -> dict[str, str]:
        own = attributes[i] if attributes is not None else {}
        producer = producers[which[i] if which is not None else 0][0] if producers else header.producer_id
        return {
            **own,
            **origin,
            "x-original-topic-offset": str(offsets[i]),
            "x-original-producer-id": str(producer),
        }

    given: dict[str, Any] = {"schema": (header.schema_id, header.schema_version)}
    if schemas is not None:
        table, index = schemas
        given = {"schemas": table, "schema_index": [index[i] for i in indices]}
    data = encode_batch(
        [payloads[i] for i in indices],
        publish_times_ms=[times[i] for i in indices],
        keys=None if keys is None else [keys[i] for i in indices],
        attributes=[attributes_of(i) for i in indices],
        producers=producers,
        producer_index=None if which is None else [which[i] for i in indices],
        codec=header.codec,
        **given,
    )
    return runs_of(offsets[i] for i in indices), data
