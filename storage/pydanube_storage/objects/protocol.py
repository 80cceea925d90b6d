"""The interface of every object store. Adapters: `LocalStore`, `FsspecStore` (S3 and compatibles, memory).

Blocking on purpose: stores live in the tier's own process and in commands, never in the broker's loop. A key is text
like `a/b/c.parquet`, without a slash at either end and without empty, `.` or `..` parts. An object is written once,
whole, under a name of its own, and never changed: nothing here appends or renames.

Errors of every method: `ObjectMissing` where the key has no object, `CorruptObject` where a body is not as long as
the store says, `StoreUnavailable` for everything else (away, refused, full), after the retries of the adapter. Their
details name `store`, `key`, `cause` and `remedy`; none holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydanube_core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFact:
    """An object in a listing; `modified_ms` is the store's time, None if it gives none."""

    key: str
    bytes: int
    modified_ms: int | None


class ObjectStore(Protocol):
    """See the module. Safe to use from several threads."""

    @property
    def url(self) -> str:
        """The URL for people and tools: `url + "/" + key` opens an object."""

    @property
    def spool(self) -> Path:
        """A folder on disk where objects may be written before `put`; it exists, and is never listed."""

    def put(self, key: str, source: Path | bytes) -> None:
        """Store an object: on return it is as durable as the store; before, nobody sees a part of it.

        A `source` that is a file in `spool` may be moved: it is the store's afterwards.
        """

    def create(self, key: str, data: bytes) -> bool:
        """As `put`, but only where there is no object, by one request; return False where there is one, which stays as it is.

        False may also mean that an earlier attempt of this call came through without an answer: read the object. A store
        that does not know the condition replaces the object, and returns True.
        """

    def put_new(self, key: str, data: bytes) -> None:
        """As `put`, but an existing object stays as it is, without an error."""

    def read(self, key: str, start: int, end: int) -> bytes:
        """Read the bytes `[start, end)` of an object, all of them."""

    def size(self, key: str) -> int:
        """Return the bytes of an object."""

    def list(self, prefix: str) -> Iterator[ObjectFact]:
        """Return every object below a folder (`a/b`, not `a/b*`), by key; nothing if there is none."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly below a folder, ascending; `""` is the top. Nothing if there are none."""

    def delete(self, key: str) -> None:
        """Delete an object; no error if it does not exist."""

    def close(self) -> None: ...


def check_key(key: str) -> str:
    """Return the key. Raises `InvalidArgument` if it could leave the store's folder or mean another key."""
    if not key or any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key or "\\" in key:
        raise InvalidArgument(
            f"object key {key!r}: use parts between single slashes, none of them . or ..",
            field="key",
            value=key,
        )
    return key
