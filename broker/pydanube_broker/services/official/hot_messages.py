"""The messages of the hot calls, read and written by hand: each of their few fields costs what it costs in Python, and no
object stands in between.

Reading takes the plain form only, which is what clients send: known fields, each at most once where twice would mean
something, lengths and numbers as any encoder writes them. For everything else a reader returns None, and its caller asks
the generated classes, which decide alone what is malformed, unknown or merged. So the two can only agree
(`tests/broker/official/test_hot_messages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError
from pydanube_core.generated import danube_pb2 as pb

_BYTE: Final = tuple(bytes((value,)) for value in range(256))
_LONG: Final = 1 << 32
# Of the last of a number's bytes: nine of them for a number, four for a length. More is left to the generated classes.
_NUMBER_SHIFT: Final = 56
_LENGTH_SHIFT: Final = 21
_REMEMBERED_BYTES: Final = 1024  # of a name that is worth remembering


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message as a producer sends it (`StreamMessage`)."""

    request_id: int
    producer_id: int
    topic_name: str
    payload: bytes
    publish_time: int
    producer_name: str
    attributes: Mapping[str, str] | None = None
    schema_id: int = 0
    schema_version: int = 0
    routing_key: bytes | None = None

    @classmethod
    def of(cls, message: pb.StreamMessage) -> SentMessage:
        """Convert a generated message to this class."""
        return cls(
            message.request_id,
            message.msg_id.producer_id,
            message.msg_id.topic_name,
            message.payload,
            message.publish_time,
            message.producer_name,
            dict(message.attributes) or None,
            message.schema_id,
            message.schema_version,
            message.routing_key.encode() if message.HasField("routing_key") else None,
        )


def read_sent(data: bytes) -> SentMessage | None:
    """Parse a `StreamMessage` from a producer; None if it has attributes or is not in the plain form."""
    at, size = 0, len(data)
    request_id = publish_time = schema_id = schema_version = 0
    payload, name = b"", b""
    ident: bytes | None = None
    key: bytes | None = None
    try:
        while at < size:
            tag = data[at]
            value = data[at + 1]
            at += 2
            if value >= 0x80:
                value &= 0x7F
                shift = 7
                while (byte := data[at]) >= 0x80:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                value |= byte << shift
                at += 1
                if shift > (_LENGTH_SHIFT if tag & 7 == 2 else _NUMBER_SHIFT):
                    return None
            if tag == 0x1A:
                end = at + value
                payload = data[at:end]
                at = end
            elif tag == 0x12:
                end = at + value
                if ident is not None:
                    return None
                ident = data[at:end]
                at = end
            elif tag == 0x2A:
                end = at + value
                if name:  # the first of two may be no text
                    return None
                name = data[at:end]
                at = end
            elif tag == 0x08:
                request_id = value
            elif tag == 0x20:
                publish_time = value
            elif tag == 0x52:
                end = at + value
                key = data[at:end]
                key.decode()
                at = end
            elif tag == 0x40:
                schema_id = value
            elif tag == 0x48 and value < _LONG:
                schema_version = value
            else:
                return None
        if at != size or ident is None or len(ident) > _REMEMBERED_BYTES or len(name) > _REMEMBERED_BYTES:
            return None
        producer_id, topic, _ = _ident(ident)
        return SentMessage(
            request_id, producer_id, topic, payload, publish_time, _text(name),
            None, schema_id, schema_version, key,
        )  # fmt: skip
    except (IndexError, UnicodeDecodeError, DecodeError):
        return None


@dataclass(slots=True, eq=False)
class Answer:
    """The content of an `AckRequest`."""

    request_id: int
    topic_name: str
    offset: int
    subscription_name: str


def read_answer(data: bytes) -> Answer | None:
    """Parse an `AckRequest`; None if it is not in the plain form."""
    at, size = 0, len(data)
    request_id = offset = 0
    subscription = b""
    ident: bytes | None = None
    try:
        while at < size:
            tag = data[at]
            value = data[at + 1]
            at += 2
            if value >= 0x80:
                value &= 0x7F
                shift = 7
                while (byte := data[at]) >= 0x80:
                    value |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                value |= byte << shift
                at += 1
                if shift > (_LENGTH_SHIFT if tag & 7 == 2 else _NUMBER_SHIFT):
                    return None
            if tag == 0x12:
                if ident is not None:
                    return None
                ident = data[at : at + value]
                at += value
            elif tag == 0x1A:
                if subscription:
                    return None
                subscription = data[at : at + value]
                at += value
            elif tag == 0x08:
                request_id = value
            else:
                return None
        if at != size or ident is None or len(ident) + len(subscription) > _REMEMBERED_BYTES:
            return None
        # The offset is the last field in all clients' encoders: what stands before it repeats with each message.
        cut = ident.rfind(b"\x28", -11) if len(ident) > 1 else -1
        if cut > 0:
            head, rest = ident[:cut], ident[cut + 1 :]
            shift = 0
            for byte in rest[:-1]:
                if byte < 0x80:
                    return None
                offset |= (byte & 0x7F) << shift
                shift += 7
            if not rest or rest[-1] >= 0x80 or shift > _NUMBER_SHIFT:
                return None
            offset |= rest[-1] << shift
            _, topic, before = _ident(head)
            if before:
                return None
        else:
            _, topic, offset = _ident(ident)
        return Answer(request_id, topic, offset, _text(subscription))
    except (IndexError, UnicodeDecodeError, DecodeError):
        return None


def request_id_only(request_id: int) -> bytes:
    """Encode a message that has only the request's id, as its first field."""
    return b"\x08" + varint(request_id) if request_id else b""


def encode_delivery(
    request_id: int,
    producer_id: int,
    topic: str,
    broker_url: str,
    offset: int,
    payload: bytes,
    publish_time: int,
    producer_name: str,
    attributes: Mapping[str, str] | None = None,
    schema_id: int = 0,
    schema_version: int = 0,
    routing_key: bytes | None = None,
) -> bytes:
    """Encode a `StreamMessage` for a consumer; absent fields stay absent."""
    ident = _ident_head(producer_id, topic, broker_url)
    if offset:
        number = varint(offset)
        ident = b"".join((ident, b"\x28", number))
    parts = [b"\x08" + varint(request_id) if request_id else b"", b"\x12", varint(len(ident)), ident]
    if payload:
        parts += (b"\x1a", varint(len(payload)), payload)
    if publish_time:
        parts += (b"\x20", varint(publish_time))
    parts.append(
        _name_field(producer_name) if len(producer_name) < _REMEMBERED_BYTES else _text_field(producer_name)
    )
    if attributes:
        for name, value in attributes.items():
            key_bytes, value_bytes = name.encode(), value.encode()
            entry = b"".join(
                (b"\x0a", varint(len(key_bytes)), key_bytes, b"\x12", varint(len(value_bytes)), value_bytes)
            )
            parts += (b"\x3a", varint(len(entry)), entry)
    if schema_id:
        parts += (b"\x40", varint(schema_id))
    if schema_version:
        parts += (b"\x48", varint(schema_version))
    if routing_key is not None:
        parts += (b"\x52", varint(len(routing_key)), routing_key)
    return b"".join(parts)


def varint(value: int) -> bytes:
    if value < 0x80:
        return _BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Names come again with every message of a client.


@lru_cache(maxsize=4096)
def _ident(data: bytes) -> tuple[int, str, int]:
    """Return producer, topic and offset of a `MsgID`."""
    message = pb.MsgID.FromString(data)
    return message.producer_id, message.topic_name, message.topic_offset


@lru_cache(maxsize=4096)
def _text(data: bytes) -> str:
    return data.decode()


@lru_cache(maxsize=4096)
def _ident_head(producer_id: int, topic: str, broker_url: str) -> bytes:
    return pb.MsgID(producer_id=producer_id, topic_name=topic, broker_addr=broker_url).SerializeToString()


def _text_field(name: str) -> bytes:
    data = name.encode()
    return b"".join((b"\x2a", varint(len(data)), data)) if data else b""


_name_field = lru_cache(maxsize=4096)(_text_field)
