"""Which key made the MACs of which audit records: the store knows from which record on each key counts.

So a record that has no MAC, or one of a key that did not count then, is no broker's, whatever it says of itself.
Pure. Older records than the first term need not have one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

KEYS_KEY: Final = "audit/keys"  # in the admin core's state
MAX_TERMS: Final = (
    100  # a term is one change of keys; where there were more, the oldest records are not held against theirs
)


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """(first record, id of its key), ascending."""

    terms: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_json(cls, value: bytes | None) -> Self:
        return cls() if value is None else cls(tuple((seq, key_id) for seq, key_id in json.loads(value)))

    def to_json(self) -> bytes:
        return json.dumps(self.terms).encode()

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
