"""What a message's item holds under `untrusted`: its bytes, and what they mean."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def payload_of(item: Mapping[str, Any]) -> bytes:
    """The bytes of a message, as far as they were kept."""
    untrusted = item["untrusted"]
    return base64.b64decode(untrusted["base64"]) if "base64" in untrusted else str(untrusted["text"]).encode()


def value_of(item: Mapping[str, Any]) -> Any:
    """What the payload means: decoded by its schema, else as JSON where it is some, else None."""
    untrusted = item["untrusted"]
    if "value" in untrusted:
        return untrusted["value"]
    text = untrusted.get("text", "")
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
