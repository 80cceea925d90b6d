"""Snapshots of the metadata in the object store: their format, reading one back, and the comparison with the metadata.

The keys are `<cluster>/metadata/<number>-<random>/<piece>.json.gz`. A folder is one snapshot and grows: its first pieces
have every key, later ones what changed since. An object is created once and never changed. After each piece that is
marked `whole`, the pieces up to there are the metadata at the piece's revision.

A piece is gzip of JSON lines: a head, one line for each changed key, and a line with their count and SHA-256. A changed
key is `[key, create revision, revision, value in base64]`, and `[key]` if it was deleted. The value of a secret is null.
Keys with a lease are left out, because they end with the process that holds them.

The store may be a folder that people and other programs write into: objects of other names are ignored, and a piece is
checked before it is used.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from pydanube_core.errors import CorruptObject, FormatTooNew, ObjectMissing

from pydanube_storage.metadata.model import Event, EventKind, KeyValue
from pydanube_storage.objects import ObjectStore

FORMAT: Final = 1
#: bytes of a piece, as stored and decompressed. One of ten thousand keys has about 10 MB
MOST_STORED: Final = 128 << 20
MOST_BYTES: Final = 512 << 20
_PIECE: Final = re.compile(
    r".+/metadata/((?=0)[0-9]{20}-[0-9a-f]{8})/[0-9]{8}\.json\.gz", re.ASCII | re.DOTALL
)
_MOST_NUMBER: Final = 1 << 63  # revisions and times are below it
#: the values below are secrets, or hashes of secrets. A restored cluster makes them anew
SECRETS: Final = ("/relay/secret", "/admin/security/tokens/", "/admin/plans/")


def is_secret(key: str) -> bool:
    return key.startswith(SECRETS)


class Kept(NamedTuple):
    """A key in a snapshot. `value`: None for a secret."""

    created: int
    revision: int
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line of a piece. `written_ms`: the writer's clock, for people."""

    cluster: str
    snapshot: str
    piece: int
    revision: int
    whole: bool
    written_ms: int
    format: int = FORMAT


def folder_of(cluster: str) -> str:
    return f"{cluster}/metadata"


def piece_key(cluster: str, snapshot: str, piece: int) -> str:
    return f"{folder_of(cluster)}/{snapshot}/{piece:08d}.json.gz"


def by_snapshot(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the pieces of each snapshot, both ascending: the newest snapshot is the last one. Other keys are ignored."""
    found: dict[str, list[str]] = {}
    for key in sorted(keys):
        if (piece := _PIECE.fullmatch(key)) is not None:
            found.setdefault(piece[1], []).append(key)
    return found


def encode_piece(head: Head, changes: Iterable[KeyValue | Event]) -> bytes:
    """Encode a piece. Blocking: a few milliseconds for a thousand keys."""
    lines = [json.dumps(asdict(head))]
    for each in changes:
        if each.lease_id is not None or (isinstance(each, Event) and each.kind is EventKind.DELETE):
            if isinstance(each, Event):
                lines.append(json.dumps([each.key], ensure_ascii=False))
            continue
        revision = each.revision if isinstance(each, Event) else each.mod_revision
        value = None if is_secret(each.key) else base64.b64encode(each.value).decode()
        lines.append(json.dumps([each.key, each.create_revision, revision, value], ensure_ascii=False))
    text = "".join(f"{line}\n" for line in lines).encode()
    end = {"lines": len(lines), "sha256": hashlib.sha256(text).hexdigest()}
    return gzip.compress(text + json.dumps(end).encode(), 6, mtime=0)


def decode_piece(key: str, data: bytes) -> tuple[Head, list[tuple[str, Kept | None]]]:
    """Decode a piece: its changed keys, None for a deleted one. Raises `CorruptObject`, `FormatTooNew`."""
    try:
        text = _decompressed(data)
        body, _, last = text.rpartition(b"\n")
        body += b"\n"
        first, *lines = [json.loads(line) for line in body.splitlines()]
        end = json.loads(last)
        if first["format"] > FORMAT:
            raise FormatTooNew(
                f"{key} has format {first['format']}, this version reads up to {FORMAT}: upgrade",
                value=first["format"],
                limit=FORMAT,
            )
        is_whole = end == {"lines": 1 + len(lines), "sha256": hashlib.sha256(body).hexdigest()}
        head = _head(first)
        changes = [_change(line) for line in lines]
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptObject(f"{key} is no piece of a metadata snapshot: {error}", key=key) from error
    if not is_whole or key != piece_key(head.cluster, head.snapshot, head.piece):
        raise CorruptObject(f"{key} is damaged, or was written under another name", key=key)
    return head, changes


def _decompressed(data: bytes) -> bytes:
    """Decompress gzip. Raises `ValueError`: it is cut off, has more behind it, or is longer than `MOST_BYTES`."""
    stream = zlib.decompressobj(wbits=31)
    text = stream.decompress(data, MOST_BYTES)
    if not stream.eof or stream.unused_data:
        raise ValueError(f"it is no gzip of at most {MOST_BYTES} bytes")
    return text


def _head(fields: Mapping[str, Any]) -> Head:
    head = Head(**fields)
    numbers = (head.piece, head.revision, head.written_ms)
    if not all(type(each) is int and 0 <= each < _MOST_NUMBER for each in numbers):
        raise ValueError("a number of its head is none")
    if not (
        isinstance(head.cluster, str) and isinstance(head.snapshot, str) and isinstance(head.whole, bool)
    ):
        raise TypeError("a field of its head has another type")
    return head


def _change(line: Any) -> tuple[str, Kept | None]:
    key, *values = line
    if not (isinstance(line, list) and isinstance(key, str)):
        raise TypeError("a line of it names no key")
    if not values:
        return key, None
    created, revision, value = values
    if not (type(created) is int and type(revision) is int):
        raise TypeError(f"a revision of {key} is none")
    return key, Kept(created, revision, None if value is None else base64.b64decode(value, validate=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The newest whole state that the store has."""

    snapshot: str
    revision: int
    written_ms: int
    pieces: int
    bytes: int
    keys: Mapping[str, Kept]

    @property
    def withheld(self) -> list[str]:
        """Return the keys of secrets, whose values are not in the snapshot."""
        return sorted(key for key, kept in self.keys.items() if kept.value is None)


def read_newest(store: ObjectStore, cluster: str) -> Snapshot:
    """Read the newest whole snapshot of a cluster back. Blocking.

    Raises:
        ObjectMissing: there is none, or a piece of it is missing.
        CorruptObject, FormatTooNew, StoreUnavailable.
    """
    found = by_snapshot(fact.key for fact in store.list(folder_of(cluster)))
    for snapshot in reversed(found):
        keys: dict[str, Kept] = {}
        whole: Snapshot | None = None
        size = 0
        pending: dict[str, Kept | None] = {}
        for number, key in enumerate(found[snapshot]):
            if key != piece_key(cluster, snapshot, number):
                raise ObjectMissing(
                    f"{piece_key(cluster, snapshot, number)} is missing: the snapshot cannot be read beyond it",
                    key=piece_key(cluster, snapshot, number),
                )
            stored = store.size(key)
            if stored > MOST_STORED:
                raise CorruptObject(
                    f"{key} has {stored} bytes: no piece has more than {MOST_STORED}", key=key
                )
            size += stored
            head, changes = decode_piece(key, store.read(key, 0, stored))
            pending.update(changes)
            if head.whole:
                for name, kept in pending.items():
                    if kept is None:
                        keys.pop(name, None)
                    else:
                        keys[name] = kept
                pending.clear()
                whole = Snapshot(
                    snapshot=snapshot,
                    revision=head.revision,
                    written_ms=head.written_ms,
                    pieces=number + 1,
                    bytes=size,
                    keys=keys,
                )
        if whole is not None:
            return whole
    raise ObjectMissing(
        f"{store.url} has no whole snapshot of the metadata of {cluster} yet: the leader writes one within a minute",
        key=folder_of(cluster),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A snapshot beside the metadata.

    Attributes:
        same: keys that both have at one revision, with equal values.
        changed_since: keys that were changed or made after the snapshot's revision.
        gone: keys that only the snapshot has: they were deleted since, or the snapshot is wrong if `exact`.
        wrong: keys that the snapshot has otherwise, or lacks, though they have not changed since.
        exact: whether the metadata are still at the snapshot's revision.
    """

    same: int = 0
    changed_since: int = 0
    gone: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    exact: bool = False

    @property
    def agrees(self) -> bool:
        return not self.wrong and not (self.exact and self.gone)


def compare(snapshot: Snapshot, items: Iterable[KeyValue], revision: int) -> Comparison:
    """Compare a snapshot with the metadata, which were read at `revision` or later. Pure."""
    left = dict(snapshot.keys)
    same = changed = 0
    wrong = []
    for item in items:
        kept = left.pop(item.key, None)
        if item.lease_id is not None:
            continue
        if item.mod_revision > snapshot.revision:
            changed += 1
        elif (
            kept is None
            or (kept.created, kept.revision) != (item.create_revision, item.mod_revision)
            or (kept.value != item.value and not (kept.value is None and is_secret(item.key)))
        ):
            wrong.append(item.key)
        else:
            same += 1
    return Comparison(
        same=same,
        changed_since=changed,
        gone=sorted(left),
        wrong=wrong,
        exact=revision == snapshot.revision and not changed,
    )
