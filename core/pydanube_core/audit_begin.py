"""Where the chain of audit records begins: kept outside the audit topic, so that missing records at its start are found.

Pure. Before the broker deletes old records by its audit retention, it moves this begin to the first record that stays. No
other deletion moves it, so `audit.verify` reports records that are missing from it on.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Final, Self

from pydanube_core.audit_key import AuditKey

BEGIN_KEY: Final = "audit/begin"  # in the admin core's state
GENESIS: Final = "0" * 64  # before record 0


@dataclass(frozen=True, slots=True)
class AuditBegin:
    """The first record that must exist, and the hash of the record before it."""

    seq: int = 0
    prev_hash: str = GENESIS

    def to_json(self, key: AuditKey) -> bytes:
        return json.dumps(
            {"seq": self.seq, "prev_hash": self.prev_hash, "key_id": key.key_id, "mac": self._mac(key)}
        ).encode()

    @classmethod
    def from_json(cls, value: bytes, key: AuditKey) -> Self | None:
        """Parse a stored begin. Return None if it is invalid or its MAC is wrong. The MAC of another key is not checked."""
        try:
            stored = json.loads(value)
            found = cls(int(stored["seq"]), str(stored["prev_hash"]))
            right = stored["key_id"] != key.key_id or hmac.compare_digest(
                found._mac(key).encode(), str(stored["mac"]).encode("ascii", "replace")
            )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return None
        return found if right else None

    def _mac(self, key: AuditKey) -> str:
        return key.mac(f"audit begins {self.seq} {self.prev_hash}")
