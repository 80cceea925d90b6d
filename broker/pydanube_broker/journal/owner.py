"""The journal's interface to the owner of the records' meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.journal.records import RecordHeader


class JournalOwner(Protocol):
    """The owner of the records' meaning: the broker's topics."""

    def restore(self, head: memoryview) -> None:
        """Load the state in a head. Called once, before any record."""

    def replay(self, header: RecordHeader, body: memoryview) -> None:
        """Apply one record that is not a head or a mark. The body is valid only during the call."""

    def encode_head(self) -> Sequence[bytes]:
        """Return the current state, encoded in pieces."""

    def durable(self, lsn: int) -> None:
        """Called when everything below `lsn` is on stable storage."""

    def failed(self, error: ClusterError) -> None:
        """Called when the journal has failed and is read-only. The outcome of records not yet durable is unknown."""
