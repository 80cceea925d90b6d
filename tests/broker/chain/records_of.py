"""The chain of a journal's folder, made from its files: what the broker's own writer sends while it writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydanube_broker.chain import ChainStore, Group, Head, Item, Place, piece_key
from pydanube_broker.chain.piece import encode_piece
from pydanube_broker.journal.records import FILE_HEADER_BYTES, read_file_header
from pydanube_broker.journal.scan import scan

JOURNAL = 77
CLUSTER = "c"
LARGE_HEAD = struct.Struct("<8sIIQQQII")  # the header of a head's own file


def groups_of(folder: Path, *, each: int) -> Iterator[Group | Head]:
    """Every record of a journal's segments, `each` in a group, and the large heads that stand beside them."""
    for path in sorted(folder.glob("*.journal")):
        data = path.read_bytes()
        found = read_file_header(data)
        assert found is not None
        _, base, size = found
        places: list[tuple[int, int]] = []
        for item in scan(data, base, base + FILE_HEADER_BYTES, bodies=True):
            if isinstance(item, int):
                break
            starts = [int(lsn) for lsn in item.lsn]
            places += zip(starts, [*starts[1:], item.end], strict=True)
        for at in range(0, len(places), each):
            start, end = places[at][0], places[min(at + each, len(places)) - 1][1]
            yield Group(base=base, segment_bytes=size, lsn=start, records=data[start - base : end - base])
        head = path.with_suffix(".head")
        if head.exists():
            whole = head.read_bytes()
            number, body = LARGE_HEAD.unpack_from(whole)[4], whole[LARGE_HEAD.size :]
            for at in range(0, len(body), 5000):
                part = body[at : at + 5000]
                yield Head(base=base, number=number, size=len(body), position=at, part=part)


async def send(store: ChainStore, place: Place, items: Sequence[Item], *, term: int = 1) -> Place:
    """Append one piece to the chain, and return its new end."""
    header, data = encode_piece(place, items, journal=JOURNAL, term=term, random=bytes(16))
    assert await store.create(piece_key(CLUSTER, JOURNAL, place.number), data)
    return place.after(header)
