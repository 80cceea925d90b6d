"""The payload of a message item: its bytes, its decoded value, and any value as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

TOO_DEEP: Final = '"… nested too deep to be shown"'


def payload_of(item: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message, as far as they were kept."""
    untrusted = item["untrusted"]
    return base64.b64decode(untrusted["base64"]) if "base64" in untrusted else str(untrusted["text"]).encode()


def value_of(item: Mapping[str, Any]) -> Any:
    """Return the payload's value: decoded by its schema, else parsed as JSON; None if it is neither."""
    untrusted = item["untrusted"]
    if "value" in untrusted:
        return untrusted["value"]
    text = untrusted.get("text", "")
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON for any file and terminal: other types as their text, lone surrogates escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return TOO_DEEP
    return text.encode(errors="backslashreplace").decode()
