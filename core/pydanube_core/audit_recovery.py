"""The note that `danube cluster recover` leaves for a broker: its next start rebuilds the audit's key terms and records that.

Pure. An etcd that was restored from an older snapshot may lack the terms, which the broker wrote after it. The note carries
a MAC by the broker's key, so a writer of etcd without the key cannot have terms rebuilt that it has removed itself.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Final, Self

from pydanube_core.audit_key import AuditKey

RECOVERY_KEY: Final = "audit/recovery"  # in the admin core's state


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecovery:
    """One recovery of one broker's directory. `by`: the principal that called it."""

    recovery: str
    by: str
    time_ms: int

    def to_json(self, key: AuditKey) -> bytes:
        return json.dumps(
            {"recovery": self.recovery, "by": self.by, "time_ms": self.time_ms, "mac": self._mac(key)}
        ).encode()

    @classmethod
    def from_json(cls, value: bytes, key: AuditKey) -> Self | None:
        """Parse a stored note. Return None if it is invalid or has no MAC by this key."""
        try:
            stored = json.loads(value)
            found = cls(
                recovery=str(stored["recovery"]), by=str(stored["by"]), time_ms=int(stored["time_ms"])
            )
            right = hmac.compare_digest(
                found._mac(key).encode(), str(stored["mac"]).encode("ascii", "replace")
            )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return None
        return found if right else None

    def _mac(self, key: AuditKey) -> str:
        return key.mac(f"audit recovery {json.dumps([self.recovery, self.by, self.time_ms])}")
