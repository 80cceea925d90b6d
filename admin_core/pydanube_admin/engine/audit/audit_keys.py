"""Which key made the MACs of which audit records: the store knows from which record on each key counts.

So a record that has no MAC, or one of a key that did not count then, is no broker's, whatever it says of itself.
The terms carry a MAC themselves: whoever writes the store, and has no key, can but take them away, and a record that
says a key of no term tells that. Pure. Older records than the first term need not have a MAC.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Final, Self

from pydanube_core.audit_key import AuditKey

KEYS_KEY: Final = "audit/keys"  # in the admin core's state
MAX_TERMS: Final = (
    100  # a term is one change of keys; where there were more, the oldest records are not held against theirs
)


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """(first record, id of its key), ascending."""

    terms: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_json(cls, value: bytes | None, key: AuditKey, *, of_others: bool) -> Self:
        """The terms as they are stored; none where this key's MAC of them is wrong, or they are no terms.

        Args:
            of_others: take them as they are where they carry another key's MAC: at a start, when the key has changed.
        """
        try:
            stored = json.loads(value or b"{}")
            found = cls(tuple((int(seq), str(key_id)) for seq, key_id in stored["terms"]))
            if stored["key_id"] != key.key_id:
                return found if of_others else cls()
            right = hmac.compare_digest(
                found._mac(key).encode(), str(stored["mac"]).encode("ascii", "replace")
            )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return cls()
        return found if right else cls()

    def to_json(self, key: AuditKey) -> bytes:
        return json.dumps({"terms": self.terms, "key_id": key.key_id, "mac": self._mac(key)}).encode()

    def _mac(self, key: AuditKey) -> str:
        return key.mac(f"key terms {json.dumps(self.terms)}")

    @property
    def is_cut(self) -> bool:
        """Whether the oldest may be left out."""
        return len(self.terms) >= MAX_TERMS

    def with_key(self, key_id: str, seq: int) -> KeyTerms:
        """The terms where this key counts from record `seq` on; the same where it does already."""
        kept = [term for term in self.terms if term[0] < seq]
        if not kept or kept[-1][1] != key_id:
            kept.append((seq, key_id))
        return KeyTerms(tuple(kept[-MAX_TERMS:]))

    def key_of(self, seq: int) -> str | None:
        """The id of the key that counts for the record; None for one from before there were MACs."""
        found = None
        for first, key_id in self.terms:
            if first > seq:
                break
            found = key_id
        return found
