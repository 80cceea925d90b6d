"""The chain of audit records: each has the hash of the one before, so that none can be altered or removed.

Pure. A record is one JSON object per message. Its `hash` is SHA-256 over the rest in canonical form (sorted
keys, no spaces), which includes `prev_hash`. The last hash verifies the whole chain. It is kept in the
metadata store too, so that a truncated chain is detected as well. Hashes need no secret, so each record
carries a MAC by a key that only brokers have, named by `key_id`: this detects a record that continues the
chain and was not written by a broker.

The metadata store has the number of the first record under each key (`KeyTerms`). A record without a MAC, or with
the MAC of a key that was not valid then, was not written by a broker, whatever its `key_id`. The terms carry a
MAC too. So a program that can write to the store without the key can only remove terms, which is detected by
records that name a key without a term. Records older than the first term need no MAC.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydanube_core.audit_begin import GENESIS
from pydanube_core.audit_key import AuditKey
from pydanube_core.secrets import REDACTED, is_secret_name, without_secrets

KEYS_KEY: Final = "audit/keys"  # in the admin core's state
# A term is one change of keys. With more, the oldest records are not compared with their terms
MAX_TERMS: Final = 100


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The key of each stretch of records: (first record, key id), ascending."""

    terms: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_json(cls, value: bytes | None, key: AuditKey, *, of_others: bool) -> Self:
        """Parse stored terms. Return empty ones if they are invalid or this key's MAC of them is wrong.

        Args:
            of_others: accept terms with another key's MAC unchecked: at a start, when the key has changed.
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
        """Whether older terms may be missing, because only `MAX_TERMS` are kept."""
        return len(self.terms) >= MAX_TERMS

    def with_key(self, key_id: str, seq: int) -> KeyTerms:
        """Return the terms with this key from record `seq` on, unchanged if it already applies."""
        kept = [term for term in self.terms if term[0] < seq]
        if not kept or kept[-1][1] != key_id:
            kept.append((seq, key_id))
        return KeyTerms(tuple(kept[-MAX_TERMS:]))

    def reaching_back(self, key_id: str, seq: int) -> KeyTerms:
        """Return the terms with this key from record `seq` on, up to the first term. Unchanged if that is older."""
        if self.is_cut or self.key_of(seq) is not None:
            return self
        later = self.terms[1:] if self.terms and self.terms[0][1] == key_id else self.terms
        return KeyTerms(((seq, key_id), *later))

    def key_of(self, seq: int) -> str | None:
        """Return the key id for a record, or None for a record older than the first MAC."""
        found = None
        for first, key_id in self.terms:
            if first > seq:
                break
            found = key_id
        return found


MAX_TEXT_CHARS: Final = 256  # of one value in a record: enough to recognise it
MAX_STATE_BYTES: Final = 4096  # of `before` and `after`
MAX_ITEMS: Final = 20
NO_RECORD: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)  # reading it
#: codes of errors for which a record cannot be read at all
DAMAGE: Final = ("CORRUPT_JOURNAL", "CORRUPT_OBJECT", "OBJECT_MISSING", "CHECKSUM_MISMATCH")
_LOOKED_AT: Final = 4096  # characters of a value: far more than are kept, so that no secret is cut in half


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last record of a chain."""

    seq: int
    hash: str


FIRST: Final = Head(seq=-1, hash=GENESIS)  # before the first record


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The first bad record of a chain, and its fault."""

    seq: int
    reason: str


def linked(record: Mapping[str, Any], head: Head, key: AuditKey) -> tuple[bytes, Head]:
    """Return the record as the next of the chain, with its MAC: its bytes, and the new head."""
    body = {"seq": head.seq + 1, **record, "prev_hash": head.hash, "key_id": key.key_id}
    text = _canonical(body)
    digest = hashlib.sha256(text).hexdigest()
    return _stored(text, digest, key.mac(digest)), Head(seq=head.seq + 1, hash=digest)


def _stored(text: bytes, digest: str, mac: str | None) -> bytes:
    """Return the bytes of a record: the hashed part, the hash, and the MAC if it has one."""
    last = "" if mac is None else f',"mac":"{mac}"'
    return text[:-1] + f',"hash":"{digest}"{last}}}'.encode()


def head_of(payload: bytes) -> Head | None:
    """Return the chain's head after a stored record, or None if it is no record."""
    try:
        body = json.loads(payload)
        return Head(seq=int(body["seq"]), hash=str(body["hash"]))
    except NO_RECORD:
        return None


class ChainCheck:
    """Checks records one after another against chain and MACs, and continues after a bad one.

    Args:
        head: of the record before the first one, or None if that was trimmed: the first one's
            `prev_hash` is then not checked.
        key: this broker's. Records of other keys can only be checked against the chain.
        terms: which key is valid for which records.
    """

    def __init__(self, head: Head | None, key: AuditKey, terms: KeyTerms) -> None:
        self._head = head
        self._key = key
        self._terms = terms
        self._named_key: str | None = None  # in the record that was taken last
        self.verified = 0  # linked records with a valid MAC
        # linked records from before the first MAC, or with a MAC by a key that this broker lacks
        self.chain_only = 0
        self.forged = 0  # records that were altered, or not written by a broker
        self.sound = 0  # records before the first bad one
        self.bad: Break | None = None  # the first bad record

    def take(self, offset: int, payload: bytes) -> None:
        """Check the next record, whose sequence number has to be its offset."""
        key_id = self._terms.key_of(offset)
        fault = self._fault(offset, payload, key_id)
        if fault is not None:
            self.forged += 1
            self.found(Break(seq=offset, reason=fault))
        elif self._named_key == self._key.key_id:
            self.verified += 1
        else:
            self.chain_only += 1
        if key_id is None and self._named_key is not None and not self._terms.is_cut:
            self.found(
                Break(seq=offset, reason="the metadata store has lost the key valid then, or was altered")
            )
        if self.bad is None:
            self.sound += 1

    def found(self, bad: Break) -> None:
        """Note a fault. Only the first counts."""
        self.bad = self.bad or bad

    def _fault(self, offset: int, payload: bytes, key_id: str | None) -> str | None:
        self._named_key = None
        before, self._head = self._head, None
        try:
            body = json.loads(payload)
            # The next record is checked against this one's own hash, good or bad.
            self._head = Head(seq=int(body["seq"]), hash=str(body["hash"]))
            digest, mac = body.pop("hash"), body.pop("mac", None)
            seq, previous = body["seq"], body["prev_hash"]
            text = _canonical(body)
            stored = _stored(text, digest, mac)
        except NO_RECORD:
            return "it is no audit record"
        if seq != offset:
            return f"its sequence number is {seq}"
        if before is not None and previous != before.hash:
            return "it does not follow the record before it"
        # Compared byte by byte, because a flipped byte may leave the same JSON.
        if hashlib.sha256(text).hexdigest() != digest or payload != stored:
            return "its content differs from the written one"
        named = body.get("key_id")
        if key_id is not None and (named != key_id or mac is None):
            return "it has no MAC by the key valid then: no broker wrote it"
        self._named_key = named
        if named == self._key.key_id and not hmac.compare_digest(
            self._key.mac(digest).encode(), str(mac).encode()
        ):
            return "its MAC is wrong: no broker wrote it"
        return None


def is_verified(offset: int, payload: bytes, key: AuditKey) -> bool:
    """Return whether a record has a right MAC by this key. Its link to the record before it is not checked."""
    check = ChainCheck(None, key, KeyTerms())
    check.take(offset, payload)
    return check.verified == 1


def _canonical(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return text.encode()


def redacted(arguments: Any, *, depth: int = 4) -> Any:
    """Return arguments as they may be kept: without secrets, by name, and with long values cut."""
    if isinstance(arguments, Mapping):
        if depth == 0:
            return "…"
        return {
            redacted(str(name)): REDACTED
            if is_secret_name(str(name)) and not isinstance(value, bool)
            else redacted(value, depth=depth - 1)
            for name, value in list(arguments.items())[:MAX_ITEMS]
        }
    if isinstance(arguments, (list, tuple)):
        return [redacted(value, depth=depth - 1) for value in arguments[:MAX_ITEMS]] if depth else "…"
    if isinstance(arguments, str):
        text = without_secrets(arguments[:_LOOKED_AT].encode("utf-8", "replace").decode())
        if len(text) <= MAX_TEXT_CHARS:
            return text
        return f"{text[:MAX_TEXT_CHARS]}… ({len(arguments)} characters)"
    if isinstance(arguments, int) and abs(arguments) >= 1 << 63:
        return "an integer beyond 64 bits"
    return arguments


def shortened(state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return `before` or `after` of a record, within a bound."""
    if state is None or len(_canonical(state)) <= MAX_STATE_BYTES:
        return state
    kept: dict[str, Any] = {}
    left = MAX_STATE_BYTES
    for name, value in state.items():
        left -= len(_canonical({name: value}))
        if left < 0:
            break
        kept[name] = value
    return kept | {"…": f"{len(state) - len(kept)} more"}
