"""The interface of every object store. Adapters: `LocalStore`, `FsspecStore` (S3 and compatibles, memory).

The calls block, because stores are used in the tier's own process and in commands, never in the broker's loop. A key is
text like `a/b/c.parquet`, without a slash at either end and without empty, `.` or `..` parts. An object is written once,
whole, under a unique name, and never changed. No method appends or renames.

Every method raises `ObjectMissing` if the key has no object, `CorruptObject` if a body is shorter or longer than the
store's size of it, and `StoreUnavailable` for everything else (down, refused, full), after the retries of the adapter.
Their details have `store`, `key`, `cause` and `remedy`, and no secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydanube_core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFact:
    """An object in a listing. `modified_ms` is the store's time, None if the store returns none."""

    key: str
    bytes: int
    modified_ms: int | None


class ObjectStore(Protocol):
    """See the module. Safe to use from several threads."""

    @property
    def url(self) -> str:
        """The URL for people and tools. `url + "/" + key` is an object's."""

    @property
    def spool(self) -> Path:
        """An existing folder on disk in which to write objects before `put`. It is never listed."""

    def put(self, key: str, source: Path | bytes) -> None:
        """Store an object atomically. On return it is as durable as the store.

        A `source` file in `spool` belongs to the store afterwards, which may move it.
        """

    def create(self, key: str, data: bytes) -> bool:
        """Store an object by one request if the key has none. Return False, without a change, if it has one.

        False may also mean that an earlier attempt of this call succeeded and its answer was lost, so read the object. A
        store without conditional writes replaces the object and returns True.
        """

    def put_new(self, key: str, data: bytes) -> None:
        """Store an object like `put`. An existing object is kept without an error."""

    def read(self, key: str, start: int, end: int) -> bytes:
        """Read all bytes `[start, end)` of an object."""

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""

    def list(self, prefix: str) -> Iterator[ObjectFact]:
        """Return every object below a folder (`a/b`, not `a/b*`), ordered by key. Nothing if there is none."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly below a folder, ascending. `""` is the top folder."""

    def delete(self, key: str) -> None:
        """Delete an object. No error if it does not exist."""

    def close(self) -> None: ...


def check_key(key: str) -> str:
    """Return the key. Raises `InvalidArgument` if it could leave the store's folder or be an alias of another key."""
    if not key or any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key or "\\" in key:
        raise InvalidArgument(
            f"object key {key!r}: use parts between single slashes, none of them . or ..",
            field="key",
            value=key,
        )
    return key
