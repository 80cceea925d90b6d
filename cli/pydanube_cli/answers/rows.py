"""Items of lists as rows of a table: what stands nested in them where people look for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MOST_CHARS: Final = 60  # of a payload; `--json` has it whole


def row_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """`key`, `payload` and `reason` of a message, and whom a finding is about, beside the item's own fields."""
    row = dict(item)
    if isinstance(fenced := item.get("untrusted"), Mapping):
        row.setdefault("key", fenced.get("key"))
        row.setdefault("reason", fenced.get("reason"))
        row.setdefault("payload", _payload(fenced))
    if isinstance(subject := item.get("subject"), Mapping):
        row["subject"] = " ".join(str(value) for value in subject.values() if value is not None)
    return row


def _payload(fenced: Mapping[str, Any]) -> str | None:
    text, encoded = fenced.get("text"), fenced.get("base64")
    if isinstance(text, str):
        return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + "…"
    return None if not isinstance(encoded, str) else f"base64 {encoded[:MOST_CHARS]}"
