"""Batches for tests: drawn by hypothesis, made by hand, and read back as rows that can be compared."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydanube_core.batch import PRODUCER_PART_BYTES, BatchView, Codec

# Examples follow from the test's own text, so that a failure here is a failure everywhere; time is the machine's
# business. Not shrunk: shrinking a batch took minutes, and batches drawn here are small enough to read.
steady = settings(derandomize=True, deadline=None, max_examples=60, phases=(Phase.explicit, Phase.generate))

FIRST_TIME_MS = 1_767_225_600_000  # 2026-01-01

payload_bytes = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=4), st.integers(0, 60)),
)
texts = st.one_of(st.text(alphabet="abcxyz-_/.09", max_size=8), st.text(max_size=6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All that a batch says of one message."""

    payload: bytes
    key: bytes | None
    attributes: Mapping[str, str]
    publish_time_ms: int
    producer: tuple[int, str]
    sequence: int
    schema: tuple[int, int]
    delta: int

    def moved(self, by: int) -> Row:
        """The same message in a batch that begins `by` offsets later."""
        return replace(self, delta=self.delta - by)


@st.composite
def encodings(draw: DrawFn, *, max_messages: int = 20, with_holes: bool = True) -> dict[str, Any]:
    """Arguments of `encode_batch`: any mixture of columns and codecs."""
    payloads = draw(st.lists(payload_bytes, min_size=1, max_size=max_messages))
    n = len(payloads)

    def each(items: SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(items, min_size=n, max_size=n))

    given: dict[str, Any] = {
        "payloads": payloads,
        "producer_id": draw(st.integers(0, 2**64 - 1)),
        "producer_epoch": draw(st.integers(0, 2**32 - 1)),
        "first_sequence": draw(st.integers(0, 2**63 - 1 - n)),
        "publish_time_ms": draw(st.integers(0, 253_402_300_799_999)),
        "schema": draw(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))),
        "codec": draw(st.sampled_from(Codec)),
    }
    if draw(st.booleans()):
        given["keys"] = each(st.none() | texts.map(str.encode))
    if draw(st.booleans()):
        given["attributes"] = each(st.none() | st.dictionaries(texts, texts, max_size=3))
    if draw(st.booleans()):
        given["publish_times_ms"] = [FIRST_TIME_MS + d for d in each(st.integers(-(2**29), 2**29))]
    if draw(st.booleans()):
        rows = draw(st.integers(1, n))
        ids = st.tuples(st.integers(0, 2**64 - 1), texts)
        given["producers"] = draw(st.lists(ids, min_size=rows, max_size=rows))
        if rows > 1:
            given["producer_index"] = each(st.integers(0, rows - 1))
    if draw(st.booleans()):
        given["sequences"] = each(st.integers(0, 2**63 - 1))
    if draw(st.booleans()):
        rows = draw(st.integers(1, n))
        ids = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
        given["schemas"] = draw(st.lists(ids, min_size=rows, max_size=rows))
        given["schema_index"] = each(st.integers(0, rows - 1))
    if with_holes and draw(st.booleans()):
        steps = each(st.integers(1, 1000))
        given["offset_deltas"] = [sum(steps[1 : i + 1]) for i in range(n)]
    return given


def rows_given(given: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a batch encoded with these arguments, worked out without the codec."""
    n = len(given["payloads"])
    indices = range(n)
    keys = given.get("keys") or [None] * n
    attributes = given.get("attributes") or [None] * n
    times = given.get("publish_times_ms") or [given.get("publish_time_ms", 0)] * n
    producers = given.get("producers") or [(given.get("producer_id", 0), "")]
    of_producer = given.get("producer_index") or [0] * n
    first = given.get("first_sequence", 0)
    sequences = given.get("sequences") or [first + i for i in indices]
    schemas = given.get("schemas") or [given.get("schema", (0, 0))]
    of_schema = given.get("schema_index") or [0] * n
    deltas = given.get("offset_deltas") or list(indices)
    return [
        Row(
            payload=given["payloads"][i],
            key=keys[i],
            attributes=attributes[i] or {},
            publish_time_ms=times[i],
            producer=producers[of_producer[i]],
            sequence=sequences[i],
            schema=schemas[of_schema[i]],
            delta=deltas[i],
        )
        for i in indices
    ]


def rows_of(batch: bytes | memoryview) -> list[Row]:
    """All messages of a batch, read through its view."""
    view = BatchView(batch)
    n, part = len(view), view.part
    payloads, times, sequences = view.payloads(), view.publish_times_ms(), view.sequences()
    keys, attributes = view.keys() or [None] * n, view.attributes() or [{} for _ in range(n)]
    producers = view.producers() or [(part.producer_id, "")]
    of_producer, deltas = view.producer_index() or (0,) * n, view.offset_deltas()
    schemas, of_schema = view.schemas() or ([(part.schema_id, part.schema_version)], (0,) * n)
    columns = (payloads, keys, attributes, times, of_producer, sequences, of_schema, deltas)
    assert {len(column) for column in columns} == {n}
    return [
        Row(
            payload=payloads[i],
            key=keys[i],
            attributes=attributes[i],
            publish_time_ms=times[i],
            producer=producers[of_producer[i]],
            sequence=sequences[i],
            schema=schemas[of_schema[i]],
            delta=deltas[i],
        )
        for i in range(n)
    ]


def summed(batch: bytes | bytearray) -> bytes:
    """The batch with its checksum made right: what a hostile producer would send."""
    at = PRODUCER_PART_BYTES - 4
    crc = crc32(batch[PRODUCER_PART_BYTES:], crc32(batch[:at]))
    return bytes(batch[:at]) + crc.to_bytes(4, "little") + bytes(batch[PRODUCER_PART_BYTES:])


def patched(batch: bytes, at: int, code: str, *values: int) -> bytes:
    """The batch with numbers of struct code `code` written at byte `at`, and summed."""
    changed = bytearray(batch)
    struct.pack_into(f"<{len(values)}{code}", changed, at, *values)
    return summed(changed)
