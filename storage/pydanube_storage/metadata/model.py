"""The values of the metadata store: keys with two revisions, guarded transactions, ranges, events.

The store is one ordered map from key to value with one counter, the revision. A transaction that changes anything
raises the revision by one. Each key has the revision that created it and the one that changed it last. Revisions are
cluster-wide, grow, and are never reused, also across a restart. So a create revision serves as an identity (our topic
and subscription ids), and a modification revision as a guard against a concurrent change. The model is etcd's
(comparisons of revisions only, leases by id, watches whose history may be compacted), so that code that works on the
embedded adapter works there.

A key is text that begins with `/`. Keys are ordered by code point, which is also the order of their UTF-8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType, TypeAlias

from pydanube_core.errors import InvalidArgument

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

MAX_OPERATIONS: Final = 100  # guards + writes. etcd refuses more than 128 by default
MAX_TRANSACTION_BYTES: Final = 512 * 1024  # etcd refuses requests over 1.5 MiB by default
MAX_VALUE_BYTES: Final = 256 * 1024
MAX_KEY_BYTES: Final = 2048  # the longest of ours: a prefix and 256 characters of 4 bytes
MAX_PAGE_ITEMS: Final = 1000
_AFTER_EVERY_KEY: Final = "0"  # the character after "/": the end of the range with prefix "/"
_OPERATION_BYTES: Final = 64  # overhead of an operation beside key and value, rounded up

assert MAX_VALUE_BYTES + MAX_KEY_BYTES + _OPERATION_BYTES <= MAX_TRANSACTION_BYTES, "one full value must fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """One key as read. `lease_id` is None for a key without a lease."""

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The keys in `[start, end)`."""

    start: str
    end: str

    def __post_init__(self) -> None:
        _check_text(self.start, field="start")  # bounds may be one character longer than keys
        if self.end != _AFTER_EVERY_KEY:
            _check_text(self.end, field="end")

    @classmethod
    def prefix(cls, prefix: str) -> KeyRange:
        """Return the range of keys that begin with `prefix`. End it with `/`, or `/a/orders` also matches `/a/orders-eu`."""
        return cls(start=prefix, end=_after_prefix(prefix))

    @classmethod
    def only(cls, key: str) -> KeyRange:
        """Return the range of this key only. Keys have no U+0000, so no other key lies in between."""
        return cls(start=key, end=key + "\x01")

    def __contains__(self, key: str) -> bool:
        return self.start <= key < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePage:
    """A part of a range: at most `limit` items in key order (or its reverse).

    `revision` is the store's when the page was read. Pages of one range may be of different revisions. For a
    consistent view, watch from the first page's revision + 1 (`MetadataStore.watch`). If `more` is true, call again
    with `after=items[-1].key`.
    """

    items: tuple[KeyValue, ...]
    revision: Revision
    more: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """Holds if the key does not exist (etcd: create revision = 0)."""

    key: str


@dataclass(frozen=True, slots=True)
class ModRevision:
    """Holds if the key exists and was last changed by that revision."""

    key: str
    revision: Revision


Guard: TypeAlias = Absent | ModRevision


@dataclass(frozen=True, slots=True)
class Put:
    """Store a value. The key is deleted when its lease ends. Without a lease it is detached from a former one."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key. No error if it does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete every key of a range, which counts as one operation."""

    range: KeyRange


Write: TypeAlias = Put | Delete | DeleteRange


class EventKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of one key. Events of a transaction have the same `revision` and follow one another."""

    kind: EventKind
    revision: Revision
    key: str
    value: bytes  # b"" for a deletion
    create_revision: Revision  # of the key, also if it was deleted
    lease_id: LeaseId | None = None

    @classmethod
    def put(cls, item: KeyValue) -> Event:
        """Return the event of a key that was written with these values."""
        return cls(
            kind=EventKind.PUT,
            revision=item.mod_revision,
            key=item.key,
            value=item.value,
            create_revision=item.create_revision,
            lease_id=item.lease_id,
        )

    @property
    def key_value(self) -> KeyValue:
        """Return the result of `get` at that revision. Only for PUT."""
        assert self.kind is EventKind.PUT, "a deleted key has no value"
        return KeyValue(
            key=self.key,
            value=self.value,
            create_revision=self.create_revision,
            mod_revision=self.revision,
            lease_id=self.lease_id,
        )


def _after_prefix(prefix: str) -> str:
    """Return the first text greater than every text with that prefix."""
    head = prefix.rstrip("\U0010ffff")
    if not head:
        raise InvalidArgument(
            f"prefix {prefix!r} must begin with '/'", field="prefix", value=prefix, rule="begins with /"
        )
    following = ord(head[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are no characters and cannot be encoded
        following = 0xE000
    return head[:-1] + chr(following)


def _invalid_key(key: str, *, field: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"metadata key {key!r}: {rule}", field=field, value=key[:200], rule=rule)


def _check_text(key: str, *, field: str) -> int:
    if not key.startswith("/"):
        raise _invalid_key(key, field=field, rule="a key begins with '/'")
    if "\0" in key:
        raise _invalid_key(key, field=field, rule="a key holds no U+0000")
    try:
        return len(key.encode())
    except UnicodeEncodeError as error:
        raise _invalid_key(ascii(key), field=field, rule="a key is valid Unicode") from error


def check_key(key: str, *, field: str = "key") -> int:
    """Return the key's size in bytes. Raises `InvalidArgument` if it cannot be a key."""
    size_bytes = _check_text(key, field=field)
    if size_bytes > MAX_KEY_BYTES:
        raise _invalid_key(key[:80] + "…", field=field, rule=f"a key has at most {MAX_KEY_BYTES} bytes")
    return size_bytes


def check_limit(limit: int) -> None:
    """Raise `InvalidArgument` unless `1 <= limit <= MAX_PAGE_ITEMS`."""
    if not 1 <= limit <= MAX_PAGE_ITEMS:
        raise InvalidArgument(
            f"limit {limit}: a page has 1 to {MAX_PAGE_ITEMS} items", field="limit", value=limit
        )


def check_from_revision(revision: Revision) -> None:
    """Raise `InvalidArgument` unless a watch may begin there."""
    if revision < 1:
        raise InvalidArgument(
            f"from_revision {revision}: revisions begin at 1", field="from_revision", value=int(revision)
        )


def check_transaction(guards: tuple[Guard, ...], writes: tuple[Write, ...]) -> None:
    """Check a transaction against the limits of all adapters. Every adapter calls this first.

    Raises:
        InvalidArgument: no operation or too many, too many bytes, a value too large, a bad key, or a key that one
            transaction would write twice. `details` has `field`, `value` and `limit`.
    """
    operations = len(guards) + len(writes)
    if not 1 <= operations <= MAX_OPERATIONS:
        raise InvalidArgument(
            f"a transaction has 1 to {MAX_OPERATIONS} guards and writes, not {operations}. Split it",
            field="operations",
            value=operations,
            limit=MAX_OPERATIONS,
        )
    size_bytes = operations * _OPERATION_BYTES + sum(check_key(guard.key) for guard in guards)
    put_keys: set[str] = set()
    deleted_keys: set[str] = set()
    deleted_ranges: list[KeyRange] = []
    for write in writes:
        match write:
            case Put(key, value):
                size_bytes += check_key(key) + len(value)
                if len(value) > MAX_VALUE_BYTES:
                    raise InvalidArgument(
                        f"value of {key}: {len(value)} bytes, at most {MAX_VALUE_BYTES} are allowed",
                        field="value_bytes",
                        value=len(value),
                        limit=MAX_VALUE_BYTES,
                        key=key,
                    )
                if key in put_keys:
                    raise _written_twice(key)
                put_keys.add(key)
            case Delete(key):
                size_bytes += check_key(key)
                deleted_keys.add(key)
            case DeleteRange(range_):
                size_bytes += len(range_.start.encode()) + len(range_.end.encode())
                deleted_ranges.append(range_)
    if size_bytes > MAX_TRANSACTION_BYTES:
        raise InvalidArgument(
            f"a transaction has at most {MAX_TRANSACTION_BYTES} bytes, not {size_bytes}. Split it",
            field="transaction_bytes",
            value=size_bytes,
            limit=MAX_TRANSACTION_BYTES,
        )
    for key in put_keys:  # ≤ 100 × 100 comparisons
        if key in deleted_keys or any(key in range_ for range_ in deleted_ranges):
            raise _written_twice(key)


def _written_twice(key: str) -> InvalidArgument:
    return InvalidArgument(
        f"{key} is written twice in one transaction, which etcd refuses: write it once",
        field="key",
        value=key,
    )
