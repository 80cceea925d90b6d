"""Pieces of a journal's chain: their binary form, and which of the stored pieces belong to the chain.

A chain consists of the sent records of a broker's journal, as pieces with the numbers 1, 2, 3 … below
`<cluster>/journals/<journal>/`, each created only if its name is free (docs/data-formats.md#piece-of-a-chain). A piece
names the piece before it by digest. A piece that does not continue the chain is a stray: its writer was fenced while
the piece was in flight. The first missing number ends the chain.

Little-endian. The digest of a piece covers its header, and the header has the digest of the body: headers alone show
which pieces belong together.

Pure: bytes in, values out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256
from typing import Final, TypeAlias
from zlib import crc32

from pydanube_core.errors import CorruptObject, FormatTooNew

Buffer: TypeAlias = bytes | memoryview

VERSION: Final = 1
PIECE_BYTES: Final = 4 << 20  # bytes of items at which a piece is closed: one PUT takes about 0.1 s
MOST_IN_FLIGHT: Final = 4  # pieces that a writer may have sent without an answer
DIGEST_BYTES: Final = 32
NO_PIECE: Final = bytes(DIGEST_BYTES)  # the `before` of a chain's first piece

_MAGIC: Final = b"DANUBECH"
# magic, version, body bytes | number, term, stored lsn, journal | random | digest of the piece before | of the body |
# reserved, crc32 of the bytes before
_HEADER: Final = struct.Struct("<8sIIQQQQ16s32s32sII")
HEADER_BYTES: Final = _HEADER.size
RANDOM_BYTES: Final = 16
_CRC_BYTES: Final = 4
_NUMBER: Final = re.compile(r"[0-9]{20}")
_ITEM: Final = struct.Struct("<B3xI")  # kind, bytes behind these eight
_START: Final = struct.Struct("<Q")  # life
_GROUP: Final = struct.Struct("<QQQ")  # base of the segment, its bytes, lsn, before the records as written
# Base of the segment, number of the head, its bytes, position, followed by a part of the head
_HEAD: Final = struct.Struct("<QQQQ")
_LSN: Final = struct.Struct("<Q")
FENCE_BODY_BYTES: Final = _ITEM.size + _START.size  # of a piece with a `Start` only

assert HEADER_BYTES == 136


class ItemKind(IntEnum):
    START = 1
    GROUP = 2
    HEAD = 3
    DROP = 4
    SAFE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process begins to write, or a successor fences it. `life` is random."""

    life: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Records as written, at `lsn` of the segment that begins at `base` and has `segment_bytes`."""

    base: int
    segment_bytes: int
    lsn: int
    records: bytes

    @property
    def end(self) -> int:
        return self.lsn + len(self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A part of a head that has its own file, beside the segment at `base`: bytes from `position` on, of `size`."""

    base: int
    number: int
    size: int
    position: int
    part: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The segments below `base` are deleted: no topic needs them any more."""

    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Safe:
    """The owner's own disk held everything below `lsn` when the piece was closed."""

    lsn: int


Item: TypeAlias = Start | Group | Head | Drop | Safe


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceHeader:
    """`stored_lsn`: where the groups of this piece end, or of the last one before it that has any."""

    number: int
    term: int
    stored_lsn: int
    journal: int
    random: bytes
    before: bytes
    body_digest: bytes
    body_bytes: int

    def __post_init__(self) -> None:
        assert self.number >= 1
        assert len(self.random) == RANDOM_BYTES
        assert len(self.before) == len(self.body_digest) == DIGEST_BYTES

    def encode(self) -> bytes:
        raw = _HEADER.pack(
            _MAGIC, VERSION, self.body_bytes, self.number, self.term, self.stored_lsn, self.journal, self.random,
            self.before, self.body_digest, 0, 0,
        )[:-_CRC_BYTES]  # fmt: skip
        return raw + crc32(raw).to_bytes(_CRC_BYTES, "little")

    @property
    def digest(self) -> bytes:
        """Return the digest by which the next piece names this one."""
        return sha256(self.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The end of a chain as a reader or writer found it: the next piece has `number` and names `before`."""

    number: int = 1
    before: bytes = NO_PIECE
    term: int = 0
    stored_lsn: int = 0

    def continued_by(self, header: PieceHeader) -> bool:
        """Return whether the piece belongs to the chain here, rather than being a stray."""
        return header.before == self.before and header.term >= self.term

    def after(self, header: PieceHeader) -> Place:
        """Return the end of the chain behind a piece that belongs to it."""
        assert header.number >= self.number
        return Place(
            number=header.number + 1, before=header.digest, term=header.term, stored_lsn=header.stored_lsn
        )

    def past_stray(self) -> Place:
        """Return the end of the chain behind a stray: its name is taken, its content does not count."""
        return replace(self, number=self.number + 1)


def piece_key(cluster: str, journal: int, number: int) -> str:
    return f"{chain_folder(cluster, journal)}/{number:020d}"


def chain_folder(cluster: str, journal: int) -> str:
    return f"{cluster}/journals/{journal}"


def number_in_key(key: str, folder: str) -> int | None:
    """Return the number of a piece in a chain's folder. None for other files: a store on a share may get some."""
    name = key.removeprefix(f"{folder}/")
    return int(name) if _NUMBER.fullmatch(name) else None


def encode_piece(
    place: Place, items: Sequence[Item], *, journal: int, term: int, random: bytes
) -> tuple[PieceHeader, bytes]:
    """Encode the piece that continues a chain at `place`. Returns its header and all of its bytes."""
    body = b"".join(_encode_items(items))
    stored_lsn = max((item.end for item in items if isinstance(item, Group)), default=place.stored_lsn)
    header = PieceHeader(
        number=place.number,
        term=term,
        stored_lsn=stored_lsn,
        journal=journal,
        random=random,
        before=place.before,
        body_digest=sha256(body).digest(),
        body_bytes=len(body),
    )
    return header, header.encode() + body


def _encode_items(items: Sequence[Item]) -> Iterator[bytes]:
    for item in items:
        match item:
            case Start():
                kind, fields, data = ItemKind.START, _START.pack(item.life), b""
            case Group():
                fields = _GROUP.pack(item.base, item.segment_bytes, item.lsn)
                kind, data = ItemKind.GROUP, item.records
            case Head():
                fields = _HEAD.pack(item.base, item.number, item.size, item.position)
                kind, data = ItemKind.HEAD, item.part
            case Drop():
                kind, fields, data = ItemKind.DROP, _LSN.pack(item.base), b""
            case Safe():
                kind, fields, data = ItemKind.SAFE, _LSN.pack(item.lsn), b""
        yield _ITEM.pack(kind, len(fields) + len(data))
        yield fields
        yield data


def decode_header(data: Buffer, *, journal: int, number: int) -> PieceHeader:
    """Parse the header of a piece.

    Raises:
        CorruptObject: the bytes are damaged, or belong to another piece.
        FormatTooNew: a newer version wrote it.
    """
    view = memoryview(data)[:HEADER_BYTES]
    if len(view) < HEADER_BYTES:
        raise _corrupt(journal, number, f"{len(view)} bytes are less than its header")
    raw = bytes(view)
    magic, version, body_bytes, own, term, stored, of, random, before, body, reserved, crc = _HEADER.unpack(
        raw
    )
    if magic != _MAGIC or reserved or crc32(raw[:-_CRC_BYTES]) != crc:
        raise _corrupt(journal, number, "its header is damaged")
    if version > VERSION:
        raise FormatTooNew(
            f"piece {number} of the chain of journal {journal} has format {version}, this version reads up to "
            f"{VERSION}: use the newer version",
            value=version,
        )
    if (of, own) != (journal, number):
        raise _corrupt(journal, number, f"its header names piece {own} of journal {of}")
    return PieceHeader(
        number=own, term=term, stored_lsn=stored, journal=of, random=random, before=before, body_digest=body,
        body_bytes=body_bytes,
    )  # fmt: skip


def decode_piece(data: Buffer, *, journal: int, number: int) -> tuple[PieceHeader, list[Item]]:
    """Parse a whole piece. Raises as `decode_header`."""
    header = decode_header(data, journal=journal, number=number)
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) != header.body_bytes or sha256(body).digest() != header.body_digest:
        raise _corrupt(journal, number, "its items are damaged")
    return header, list(_decode_items(body, journal, number))


def _decode_items(body: memoryview, journal: int, number: int) -> Iterator[Item]:
    at = 0
    while at < len(body):
        try:
            kind, size = _ITEM.unpack_from(body, at)
            data = body[at + _ITEM.size : at + _ITEM.size + size]
            if len(data) != size:
                raise _corrupt(journal, number, "an item reaches beyond its end")
            yield _decode_item(ItemKind(kind), data)
        except (struct.error, ValueError) as error:
            raise _corrupt(journal, number, f"an item cannot be read ({error})") from error
        at += _ITEM.size + size


def _decode_item(kind: ItemKind, data: memoryview) -> Item:
    """Parse one item. Raises `struct.error`, `ValueError`."""
    match kind:
        case ItemKind.START:
            return Start(life=_START.unpack(data)[0])
        case ItemKind.GROUP:
            base, segment_bytes, lsn = _GROUP.unpack_from(data)
            return Group(base=base, segment_bytes=segment_bytes, lsn=lsn, records=bytes(data[_GROUP.size :]))
        case ItemKind.HEAD:
            base, head, size, position = _HEAD.unpack_from(data)
            return Head(base=base, number=head, size=size, position=position, part=bytes(data[_HEAD.size :]))
        case ItemKind.DROP:
            return Drop(base=_LSN.unpack(data)[0])
        case ItemKind.SAFE:
            return Safe(lsn=_LSN.unpack(data)[0])


def _corrupt(journal: int, number: int, why: str) -> CorruptObject:
    return CorruptObject(
        f"piece {number} of the chain of journal {journal} cannot be read: {why}. Restore the object from a backup",
        cause="chain",
    )
