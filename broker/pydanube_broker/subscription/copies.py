"""Copies of stored messages with attributes of the broker's beside their own: dead letters and replays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydanube_core.batch import BATCH_TARGET_BYTES, MAX_COPY_BYTES, encode_batch, read_producer_part
from pydanube_core.batch.timing import NAMES

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of

_MESSAGE_BYTES: Final = 64  # what the columns of fixed width take for each, at most
_ATTRIBUTE_BYTES: Final = 8  # offsets of name and value


def copied(
    batch: CachedBatch, indices: Sequence[int], added: Callable[[int], Mapping[str, str]]
) -> Iterator[tuple[list[int], bytes]]:
    """Copy some messages of a batch: payload, key, attributes, publish time, producer and schema stay.

    Each batch has about `BATCH_TARGET_BYTES` at most, with all that its messages hold. A message that is larger is a batch
    of its own, and fits: what is added has room above what a producer may send.

    Args:
        added: attributes that the copy of the message at an index gets; they win over its own of the same names.

    Yields:
        (indices, producer part and body of their copies)
    """
    view = view_of(batch)
    payloads, keys, own = view.payloads(), view.keys(), view.attributes()
    part: list[int] = []
    attributes: list[dict[str, str]] = []
    size = 0
    for i in indices:
        given = {**(own[i] if own is not None else {}), **added(i)}
        for name in NAMES:
            given.pop(name, None)  # a copy neither waits nor expires
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
