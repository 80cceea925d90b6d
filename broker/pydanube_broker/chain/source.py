"""The journal as its chain reads it: the records in its files, and its durable, written and oldest positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydanube_broker.chain.piece import Group
from pydanube_broker.journal.records import HEADER_BYTES, read_header, record_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole records `[start, end)` that are written to the segment at `base`, synced or not."""

    base: int
    segment_bytes: int
    start: int
    end: int


class ChainSource(Protocol):
    """A journal. Everything but `read` is called from the loop and is cheap."""

    @property
    def durable_lsn(self) -> int:
        """Everything below is on the disk."""

    @property
    def written_lsn(self) -> int:
        """Everything below is written."""

    @property
    def oldest_base(self) -> int:
        """Base of the oldest segment that is still needed."""

    def next_stretch(self, lsn: int) -> Stretch | None:
        """Return the written records at or above `lsn` up to the end of their segment, or None if there are none."""

    def read(self, stretch: Stretch, count: int) -> bytes:
        """Read `count` bytes from the start of a stretch. Blocking. Raises `OSError`."""


def read_group(source: ChainSource, stretch: Stretch, most_bytes: int) -> Group:
    """Read whole records from the start of a stretch: about `most_bytes`, and at least one record. Blocking.

    Raises `OSError`.
    """
    length, most_bytes = stretch.end - stretch.start, max(most_bytes, HEADER_BYTES)
    data = source.read(stretch, min(length, most_bytes))
    if length > most_bytes:
        whole = _whole_records(data, stretch.start)
        if not whole:  # the first record is larger than `most_bytes`
            header = read_header(data, 0, stretch.start)
            if header is None:
                raise OSError(f"there is no record at {stretch.start} of the journal")
            whole = record_bytes(header.body_bytes)
            data = source.read(stretch, whole)
        data = data[:whole]
    return Group(base=stretch.base, segment_bytes=stretch.segment_bytes, lsn=stretch.start, records=data)


def _whole_records(data: bytes, lsn: int) -> int:
    """Return the end of the last whole record in `data`."""
    at = 0
    while at + HEADER_BYTES <= len(data) and (header := read_header(data, at, lsn + at)) is not None:
        end = at + record_bytes(header.body_bytes)
        if end > len(data):
            break
        at = end
    return at
