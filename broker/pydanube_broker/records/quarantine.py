"""Metadata that cannot be read or applied is quarantined, so that a single record does not prevent a start.

The broker does not serve a quarantined key, and does not change it in the store. `/status` and diagnosis list it
until the next start, or until its table has read a newer value. A call that uses it by name raises its error. The
broker keeps its log, cursors and objects.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from pydanube_core.errors import ClusterError, DiskFull, FormatTooNew, StoreUnavailable
from pydanube_core.facts import QuarantinedKey
from pydanube_storage.metadata import CorruptMetadata, KeyRange, KeyValue

log = logging.getLogger("pydanube.cluster")


def counted_at_most(counter: KeyValue, error: ClusterError) -> int:
    """Return an upper bound of a counter that cannot be read.

    Each step of the counter took one revision of the store, so its value is at most the revision of its last change.
    """
    log.warning("counter_unreadable", extra={"key": counter.key, "why": error.message})
    return counter.mod_revision


class Quarantine:
    """The metadata quarantined since the start, by key. Single user: the loop."""

    def __init__(self) -> None:
        self.found: dict[str, QuarantinedKey] = {}

    @contextlib.contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Context for reading a key's value. If that fails, the key is quarantined."""
        try:
            yield
        except FormatTooNew as error:
            self._add(
                QuarantinedKey(
                    key=key, why=error.message, mend="start the version of the broker that wrote it"
                )
            )
        except (ClusterError, ValueError, TypeError, LookupError) as error:
            mend = "restore the metadata from a backup (docs/backup.md)"
            why = error.message if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
            self._add(QuarantinedKey(key=key, why=why, mend=mend))

    @contextlib.contextmanager
    def finishing(self, key: str, operation: str, **arguments: Any) -> Iterator[None]:
        """Context for finishing an interrupted change. If that fails, the key is quarantined with the operation that mends it."""
        try:
            yield
        except (StoreUnavailable, DiskFull):
            raise  # the cause is not this key
        except ClusterError as error:
            mend = f"call {operation} with {', '.join(f'{k}={v}' for k, v in arguments.items())}"
            self._add(
                QuarantinedKey(
                    key=key, why=error.message, mend=mend, operation=operation, arguments=arguments
                )
            )

    def take_out(self, key: str) -> None:
        """Take a key out whose newest value was read. One whose interrupted change could not be finished stays."""
        if key in self.found and self.found[key].operation is None:
            del self.found[key]

    def error(self, key: str) -> CorruptMetadata:
        """Return the error for a use of a quarantined key, with the cause and the remedy."""
        one = self.found[key]
        return CorruptMetadata(f"{key} is quarantined: {one.why}: {one.mend}", key=key)

    def any_in(self, keys: KeyRange) -> bool:
        return any(key in keys for key in self.found)

    def _add(self, one: QuarantinedKey) -> None:
        if one.key not in self.found:
            log.error("metadata_set_aside", extra={"key": one.key, "why": one.why})
        self.found[one.key] = one
