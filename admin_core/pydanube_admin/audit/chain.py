"""The chain of audit records: each holds the hash of the one before, so that none can be altered or taken out.

Pure. A record is one JSON object a message; its `hash` is SHA-256 over the rest in canonical form (sorted keys, no
spaces), which holds `prev_hash`. Whoever holds the last hash holds the whole chain; the head is kept in the metadata
store too, so that a chain that lost its end is noticed as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.secrets import REDACTED, is_secret_name, without_secrets

GENESIS: Final = "0" * 64
MAX_TEXT_CHARS: Final = 256  # of one value in a record: enough to recognise it
MAX_STATE_BYTES: Final = 4096  # of `before` and `after`
MAX_ITEMS: Final = 20
_LOOKED_AT: Final = 4096  # characters of a value; far more than are kept, so that no secret is cut in half


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last record of a chain."""

    seq: int
    hash: str


FIRST: Final = Head(seq=-1, hash=GENESIS)  # before the first record


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a chain is not what it was, and why."""

    seq: int
    reason: str


def linked(record: Mapping[str, Any], head: Head) -> tuple[bytes, Head]:
    """The record as the next of the chain: its bytes, and the head it makes."""
    body = {"seq": head.seq + 1, **record, "prev_hash": head.hash}
    text = _canonical(body)
    digest = hashlib.sha256(text).hexdigest()
    return text[:-1] + f',"hash":"{digest}"}}'.encode(), Head(seq=head.seq + 1, hash=digest)


def head_of(payload: bytes) -> Head | None:
    """The head that a stored record makes; None if it is no record."""
    try:
        body = json.loads(payload)
        return Head(seq=int(body["seq"]), hash=str(body["hash"]))
    except (ValueError, KeyError, TypeError):
        return None


def check_chain(
    records: Iterable[tuple[int, bytes]], head: Head | None
) -> tuple[int, Head | None, Break | None]:
    """Check records in their order.

    Args:
        records: (offset, payload); a record's seq is its offset.
        head: of the record before the first one; None if that was trimmed: then the first says itself.

    Returns:
        How many are sound, the head behind them, and the first that is not.
    """
    sound = 0
    for offset, payload in records:
        try:
            body = json.loads(payload)
            claimed = body.pop("hash")
            seq, previous = body["seq"], body["prev_hash"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return sound, head, Break(seq=offset, reason="it is no audit record")
        if seq != offset:
            return sound, head, Break(seq=offset, reason=f"it calls itself {seq}")
        if head is not None and previous != head.hash:
            return sound, head, Break(seq=offset, reason="it does not follow the record before it")
        if hashlib.sha256(_canonical(body)).hexdigest() != claimed or not _is_exact(payload, body, claimed):
            return sound, head, Break(seq=offset, reason="its content is not what was written")
        head = Head(seq=seq, hash=claimed)
        sound += 1
    return sound, head, None


def _is_exact(payload: bytes, body: Mapping[str, Any], claimed: str) -> bool:
    """Whether the bytes are the very ones that `linked` makes: a flipped byte may leave the same JSON."""
    return payload == _canonical(body)[:-1] + f',"hash":"{claimed}"}}'.encode()


def _canonical(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return text.encode()


def redacted(arguments: Any, *, depth: int = 4) -> Any:
    """Arguments as they may be kept: secrets out by their name, long values cut."""
    if isinstance(arguments, Mapping):
        if depth == 0:
            return "…"
        return {
            str(name)[:MAX_TEXT_CHARS]: REDACTED
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
    """`before` or `after` of a record, bounded."""
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
