"""The payload of a message's item: its bytes, and their value where they can be decoded; any value as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

TOO_DEEP: Final = '"… nested too deep to be shown"'


def payload_of(item: Mapping[str, Any]) -> bytes:
    """The bytes of a message, as far as they were kept."""
    untrusted = item["untrusted"]
    return base64.b64decode(untrusted["base64"]) if "base64" in untrusted else str(untrusted["text"]).encode()


def value_of(item: Mapping[str, Any]) -> Any:
    """The payload's value: decoded by its schema, else parsed as JSON; None where it is neither."""
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
    """A value as JSON that any file and terminal takes: what JSON has no word for as its text, lone surrogates escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return TOO_DEEP
    return text.encode(errors="backslashreplace").decode()
