"""Names from the broker, over a plain socket: `pydanube_core.http2` would nearly triple a tab key's time.

One call of `danube.ops/Call` is a handful of HTTP/2 frames. Its headers need no compression, and of the
answer only the data counts. On any failure (no broker, no answer in time, an error) there are no names, and
the shell shows none.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

DEADLINE_S: Final = 0.25  # of the whole call, connecting too
MAX_NAMES: Final = 500
MAX_ANSWER_BYTES: Final = 4 << 20
PATH: Final = "/danube.ops.Ops/Call"

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_INITIAL_WINDOW_SIZE: Final = 4  # the setting
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Kind of name -> the operation that lists it, and the field of an item.
_SOURCES: Final[dict[str, tuple[str, str]]] = {
    "topics": ("topics.list", "topic"),
    "subscriptions": ("subscriptions.list", "subscription"),
    "namespaces": ("namespaces.list", "namespace"),
    "subjects": ("schemas.list", "subject"),
    "plans": ("plans.list", "plan_id"),
    "tasks": ("tasks.list", "task_id"),
    "brokers": ("brokers.list", "broker_id"),
}


def names_of(kind: str, begin: str, *, topic: str | None, address: str, principal: str) -> list[str]:
    """Return names of that kind that start with `begin`, as they are typed, or none if unavailable."""
    operation, field = _SOURCES[kind]
    arguments: dict[str, Any] = {"limit": MAX_NAMES}
    if any(character in begin for character in "*?[]"):
        return []
    if kind == "topics":
        arguments |= _topics_that_start(begin)
    elif kind in ("plans", "tasks"):
        pass  # their filter is of the operation
    else:
        arguments["filter"] = f"{begin}*"
        if kind == "subscriptions" and topic:
            arguments["topic"] = topic
    try:
        answer = call(address, operation, arguments, principal=principal)
    except (OSError, ValueError, EOFError):
        return []
    items = answer.get("items")
    if not isinstance(items, Sequence):
        return []
    found = [str(item.get(field)) for item in items if isinstance(item, Mapping)]
    if kind == "topics":
        found = [_as_typed(name, begin) for name in found]
    return sorted({name for name in found if name.startswith(begin)})


def _topics_that_start(begin: str) -> dict[str, str]:
    """Return topics: a name without a slash is in /default, else its namespace comes first."""
    if not begin:
        return {}
    if "/" in begin:
        return {"filter": f"/{begin.removeprefix('/')}*"}
    return {"filter": f"/default/{begin}*"}


def _as_typed(topic: str, begin: str) -> str:
    if begin.startswith("/"):
        return topic
    if "/" in begin:
        return topic.removeprefix("/")
    return topic.removeprefix("/default/")


def call(
    address: str,
    operation: str,
    arguments: Mapping[str, Any],
    *,
    principal: str,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """Call one operation at `host:port` and return its result.

    Raises:
        OSError, EOFError: there is no answer, or not in time, or the stream ended early.
        ValueError: the answer is not of this protocol, or is an error.
    """
    until = time.monotonic() + deadline_s
    host, _, port = address.rpartition(":")
    body = (
        b"".join(
            _field(number, text.encode())
            for number, text in ((1, operation), (2, json.dumps(dict(arguments))), (4, principal), (5, "cli"))
        )
        + b"\x30\x01"
    )  # read_only
    with socket.create_connection((host.strip("[]"), int(port)), timeout=deadline_s) as connection:
        connection.sendall(_request(address, body))
        data = _answer(connection, until)
    if len(data) < 5 or data[0] != 0:
        raise ValueError("the answer is no gRPC message")
    number, text = _first_field(data[5 : 5 + int.from_bytes(data[1:5], "big")])
    if number != 1:
        raise ValueError("the operation was refused")
    result = json.loads(text)
    if not isinstance(result, dict):
        raise ValueError("the result is no object")
    return result


def _request(address: str, body: bytes) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": PATH,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Literal, not indexed, not Huffman coded: the form of a header field that needs no table (RFC 7541, 6.2.2).
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    message = b"\x00" + len(body).to_bytes(4, "big") + body
    window = struct.pack("!HI", _INITIAL_WINDOW_SIZE, MAX_ANSWER_BYTES)
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, window)
        + _frame(_WINDOW_UPDATE, 0, 0, MAX_ANSWER_BYTES.to_bytes(4, "big"))
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, message)
    )


def _answer(connection: socket.socket, until: float) -> bytes:
    """Return the data of stream 1, to its end."""
    found = bytearray()
    waiting = bytearray()
    while True:
        while len(waiting) < 9 or len(waiting) < 9 + int.from_bytes(waiting[:3], "big"):
            left_s = until - time.monotonic()
            if left_s <= 0 or len(waiting) + len(found) > MAX_ANSWER_BYTES:
                raise TimeoutError("no answer in time, or too long a one")
            connection.settimeout(left_s)
            piece = connection.recv(1 << 16)
            if not piece:
                raise EOFError("the connection ended within the answer")
            waiting += piece
        length = int.from_bytes(waiting[:3], "big")
        kind, flags = waiting[3], waiting[4]
        stream = int.from_bytes(waiting[5:9], "big") & 0x7FFF_FFFF
        payload = bytes(waiting[9 : 9 + length])
        del waiting[: 9 + length]
        if kind == _DATA and stream == 1:
            found += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _GOAWAY:
            raise EOFError("the server goes away")
        if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return bytes(found)
        if stream == 1 and kind not in (_DATA, _HEADERS, _WINDOW_UPDATE):
            raise EOFError("the stream was reset")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of a protobuf message whose value is bytes."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _first_field(message: bytes) -> tuple[int, bytes]:
    """Return number and value of the only field, which is bytes."""
    if not message or message[0] & 7 != 2:
        raise ValueError("the message has no field of bytes")
    length, shift, at = 0, 0, 1
    while True:
        if at >= len(message) or shift > 28:
            raise ValueError("the message is cut")
        length |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not message[at - 1] & 0x80:
            break
    value = message[at : at + length]
    if len(value) != length:
        raise ValueError("the message is cut")
    return message[0] >> 3, value
