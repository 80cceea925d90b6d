"""The first checks of every request: parsing and names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from pydanube_core.errors import InvalidArgument, InvalidName
from pydanube_core.names import TopicName

M = TypeVar("M", bound=Message)

# The original does not restrict the names of producers and consumers. Here they are stored, so their length is bounded.
MAX_NAME_CHARS: Final = 1024


def parse(kind: type[M], data: bytes) -> M:
    """Parse a request. Raises `InvalidArgument`: the bytes are not such a message, or a text is not UTF-8."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(
            f"the request is not a {kind.DESCRIPTOR.full_name}: {error}",
            field="request",
            value=kind.DESCRIPTOR.name,
        ) from error


@lru_cache(maxsize=4096)
def topic_name(text: str, *, field: str = "topic_name") -> TopicName:
    """Parse a topic's full name, `/namespace/topic`. Official clients have no short form, and compare names as text.

    The result is cached, because every acknowledgement contains a name.
    """
    name = TopicName.parse(text, field=field)
    if text != str(name):
        raise InvalidName(f"{text!r} is not a topic name: use {name}", field=field, value=text)
    return name


def check_ident(request: Any) -> None:
    """Check that a request has a `msg_id`. Raises `InvalidArgument`."""
    if not request.HasField("msg_id"):
        raise InvalidArgument(
            "msg_id is missing: it names the topic and, in an answer, the offset", field="msg_id", value=None
        )


def check_name(text: str, *, field: str) -> str:
    """Check a producer's or consumer's name: any text, even empty, of bounded length. Raises `InvalidName`."""
    if len(text) > MAX_NAME_CHARS:
        raise InvalidName(
            f"{field} has {len(text)} characters, at most {MAX_NAME_CHARS} are taken",
            field=field,
            value=f"{text[:32]}…",
        )
    return text


def enum_value(words: tuple[str, ...], number: int, *, field: str) -> str:
    """Return the word for the number of a proto3 enum. Raises `InvalidArgument`, as the wire allows any number."""
    if not 0 <= number < len(words):
        choices = ", ".join(f"{i} ({word})" for i, word in enumerate(words))
        raise InvalidArgument(f"{field} {number}: use one of {choices}", field=field, value=number)
    return words[number]
