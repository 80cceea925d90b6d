"""The secret key of audit records' MACs: only brokers have it, so a forged record is found.

Pure. HMAC-SHA-256 (RFC 2104) of a record's hash, which stands for its content and for all records before it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class AuditKey:
    """One key, its id, and the MACs it makes."""

    secret: bytes = field(repr=False)
    key_id: str = field(init=False)  # identifies the key without revealing it

    def __post_init__(self) -> None:
        assert len(self.secret) == KEY_BYTES
        digest = hashlib.sha256(b"pydanube audit key" + self.secret).hexdigest()
        object.__setattr__(self, "key_id", digest[:16])

    def mac(self, record_hash: str) -> str:
        """Return the MAC, in hexadecimal digits, of the record with this hash."""
        return hmac.digest(self.secret, record_hash.encode(), "sha256").hex()
