"""Read the input of `send_many` in slices: payloads and keys as columns, unless a message needs individual treatment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from pydanube_core.errors import InvalidArgument

from pydanube.message import Message
from pydanube.routing import encode_key
from pydanube.sending.arrow_columns import Bounds, is_arrow, packed, slices_of
from pydanube.sending.outbound import PackedMessages
from pydanube.sending.outgoing import OutgoingFields

_ATTRIBUTES: Final = attrgetter("attributes")
Attributes = Mapping[str, str] | None
_CHUNK_MESSAGES: Final = 1024  # big enough to vanish in the mean, small enough for one turn of the loop


def chunks_of(
    messages: Iterable[Any],
    keys: Iterable[str | None] | None,
    attributes: Iterable[Attributes] | None,
    *,
    topic: str,
    whole: Bounds | None,
) -> Iterator[tuple[list[Any] | PackedMessages, list[str | None] | None, list[Attributes] | None]]:
    """Yield messages, and the keys and attributes beside them, in chunks.

    Args:
        whole: limits of a batch, if columns of Arrow may be sent as whole batches.

    Raises:
        InvalidArgument: fewer keys or attributes than messages, columns that are not payloads and keys, or a single payload.
    """
    if isinstance(messages, bytes | bytearray | memoryview | str):
        kind = type(messages).__name__
        raise InvalidArgument(
            f"messages are several payloads, got one of {kind}: send() sends one",
            field="messages",
            value=kind,
        )
    if is_arrow(messages) and (keys is None or is_arrow(keys)) and attributes is None:
        for payloads, own_keys in slices_of(messages, keys, topic=topic):
            batches = None if whole is None else packed(payloads, own_keys, whole)
            if batches is not None:
                yield from ((batch, None, None) for batch in batches)
                continue
            beside = None if own_keys is None else own_keys.to_pylist()
            yield from chunks_of(payloads.to_pylist(), beside, None, topic=topic, whole=None)
        return
    if is_arrow(messages):
        messages = messages.to_pylist()
    source = iter(messages)
    beside = None if keys is None else iter(keys)
    around = None if attributes is None else iter(attributes)
    while chunk := list(islice(source, _CHUNK_MESSAGES)):
        own = None if beside is None else list(islice(beside, len(chunk)))
        if own is not None and len(own) < len(chunk):
            raise InvalidArgument(f"{topic}: fewer keys than messages", field="keys", value=len(own))
        given = None if around is None else list(islice(around, len(chunk)))
        if given is not None and len(given) < len(chunk):
            raise InvalidArgument(
                f"{topic}: fewer attributes than messages", field="attributes", value=len(given)
            )
        yield chunk, own, given


def columns_of(
    chunk: list[Any], own_keys: list[str | None] | None, own_attributes: list[Attributes] | None
) -> tuple[list[bytes], list[bytes | None] | None] | None:
    """Return payloads and keys of a chunk as columns. None if one message needs individual treatment."""
    kinds = set(map(type, chunk))
    if kinds == {bytes}:
        return chunk, None if own_keys is None else encode_keys(own_keys)
    alone = own_keys is None and own_attributes is None
    columns = _columns_to_send(chunk) if kinds == {Message} and alone else None
    if columns is None:
        return None
    payloads, keys = columns
    return payloads, encode_keys(keys)


def encode_keys(keys: list[str | None]) -> list[bytes | None] | None:
    """Encode keys. None if there are none."""
    try:
        return list(map(str.encode, keys))  # type: ignore[arg-type]  # mostly each message has one
    except (TypeError, UnicodeEncodeError):
        if keys.count(None) == len(keys):
            return None
        return [None if key is None else encode_key(key) for key in keys]


def _columns_to_send(messages: Sequence[Message]) -> tuple[list[bytes], list[str | None]] | None:
    """Return payloads and keys of messages made for sending. None if one was received, or has more than a key."""
    outgoing = [message._delivered for message in messages]
    different = set(outgoing)  # as many as there are keys
    if set(map(type, different)) != {OutgoingFields} or any(map(_ATTRIBUTES, different)):
        return None
    payloads = [message.payload for message in messages]
    if set(map(type, payloads)) != {bytes}:
        return None
    return payloads, [each.key for each in outgoing]  # type: ignore[union-attr]  # just looked at
