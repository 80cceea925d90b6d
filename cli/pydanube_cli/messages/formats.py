"""Formats of consumed messages on stdout: text, raw, hex, JSON.

`raw` is the payload's bytes and a line end, so that `produce -f F` and `consume --format raw` give F again.
`text` is for people: invalid UTF-8 and characters that would control the terminal are escaped, and a message
stays one line. All formats take a batch and return the bytes to write in one piece. A null payload is marked
in `text` and `hex`, and left out of `raw`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, assert_never

# Anything a terminal might act on, and the line end that would make two lines of one message. \t is harmless.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


NULL_TEXT: Final = b"(null: its key is deleted)"
NO_SUBJECTS: Final[Mapping[Any, str]] = {}


class Format(StrEnum):
    TEXT = "text"
    RAW = "raw"
    JSON = "json"
    HEX = "hex"


class Received(Protocol):
    """A batch of the SDK, as formats use it."""

    @property
    def payloads(self) -> Sequence[bytes]: ...

    @property
    def nulls(self) -> Sequence[bool]: ...

    def messages(self) -> Sequence[Any]: ...


def formatter(format: Format, subjects: Mapping[Any, str] = NO_SUBJECTS) -> Callable[[Received], bytes]:
    """Return the function that turns a batch into bytes to write. Every message ends with `\n`.

    Args:
        subjects: of the schemas of messages, by their references. JSON shows them.
    """
    match format:
        case Format.RAW:
            return _raw
        case Format.TEXT:
            return _text
        case Format.HEX:
            return _hex
        case Format.JSON:
            return partial(_json, subjects)
        case _:
            assert_never(format)


def _raw(batch: Received) -> bytes:
    payloads = batch.payloads
    if any(nulls := batch.nulls):
        payloads = [payload for payload, null in zip(payloads, nulls, strict=True) if not null]
    return b"\n".join((*payloads, b""))


def _text(batch: Received) -> bytes:
    payloads = batch.payloads
    if any(nulls := batch.nulls):
        payloads = [NULL_TEXT if null else payload for payload, null in zip(payloads, nulls, strict=True)]
    # Ordinary log lines, the usual case, cost two scans in C and no Python per message.
    joined = b"".join(payloads)
    if joined.isascii() and _CONTROL.search(joined) is None:
        return b"\n".join((*payloads, b""))
    return "".join([_escaped(payload) + "\n" for payload in payloads]).encode()


def _escaped(payload: bytes) -> str:
    text = payload.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _hex(batch: Received) -> bytes:
    rows = zip(batch.payloads, batch.nulls, strict=True)
    return "".join(["null\n" if null else payload.hex() + "\n" for payload, null in rows]).encode()


def _json(subjects: Mapping[Any, str], batch: Received) -> bytes:
    dump = json.dumps
    return "".join(
        [dump(json_object(message, subjects), ensure_ascii=False) + "\n" for message in batch.messages()]
    ).encode()


def json_object(message: Any, subjects: Mapping[Any, str]) -> dict[str, Any]:
    """Return one line of `consume --json` (docs/interface.md#4-commands)."""
    body: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_time": rfc3339(message.append_time),
        "publish_time": rfc3339(message.publish_time),
        "producer": message.producer,
        "delivery_count": message.delivery_count,
        "schema_subject": None,
        "schema_version": None,
        "key": message.key,
        "attributes": dict(message.attributes),
    }
    if (schema := message.schema) is not None:
        body["schema_subject"] = subjects.get(schema)
        if body["schema_subject"] is None:
            body["schema_subject_reason"] = f"the registry does not have that of schema id {schema.schema_id}"
        body["schema_version"] = schema.schema_version
    try:
        body["payload"] = None if message.is_null else message.payload.decode()
    except UnicodeDecodeError:
        body["payload_base64"] = base64.b64encode(message.payload).decode()
    return body


def rfc3339(moment: datetime) -> str:
    """Return the time in UTC with milliseconds: `2026-01-31T12:00:00.000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
