"""Requests and results of the operations on messages. What producers wrote is under `untrusted`, cut to size."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from pydanube_admin.models import (
    Change,
    ListRequest,
    Page,
    Request,
    Result,
    SubscriptionArgument,
    TopicArgument,
)

Begin = Annotated[
    str,
    Field(
        alias="from",
        max_length=64,
        description="Position: earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m",
    ),
]
MaxBytes = Annotated[int, Field(ge=1, le=1_000_000, description="Bytes of payload in the answer")]


class PeekRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Begin = "earliest"
    limit: Annotated[int, Field(ge=1, le=100, description="Messages")] = 10
    max_bytes: MaxBytes = 16_384


class MessageItem(Result):
    """One stored message."""

    topic: str
    partition: int | None
    offset: int
    append_time: str
    publish_time: str
    schema_id: str | None
    schema_version: int | None
    payload_bytes: int
    truncated: bool
    untrusted: dict[str, Any]  # text or base64, key, attributes, producer


class PeekedMessages(Result):
    items: list[MessageItem]
    next_offsets: dict[str, int]  # concrete topic → where to go on
    truncated: bool  # whether max_bytes left something out
    as_of: str


class SearchRequest(ListRequest):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    key: Annotated[str | None, Field(max_length=512, description="Exactly this key")] = None
    attribute: Annotated[str | None, Field(max_length=512, description="name=value, or a name")] = None
    contains: Annotated[str | None, Field(max_length=512, description="Text in the payload")] = None
    start: Begin = "earliest"
    until: Annotated[str | None, Field(max_length=64, description="Position up to which, exclusive")] = None
    max_bytes: MaxBytes = 65_536


class SearchPage(Page[MessageItem]):
    scanned: int  # messages that were looked at for this page


class PublishRequest(Request):
    topic: TopicArgument
    payload: Annotated[str, Field(max_length=4_000_000, description="Text of the message")]
    key: Annotated[str | None, Field(max_length=512, description="Its key")] = None
    attributes: Annotated[dict[str, str] | None, Field(description="Its attributes")] = None


class PublishedMessage(Change):
    topic: str
    partition: int | None
    offset: int


class ListDeadLettersRequest(ListRequest):
    topic: TopicArgument
    subscription: SubscriptionArgument
    max_bytes: MaxBytes = 16_384


class DeadLetterItem(Result):
    """A copy in the dead-letter topic."""

    dead_letter_topic: str
    offset: int  # in the dead-letter topic
    original_topic: str
    original_offset: int | None
    append_time: str
    payload_bytes: int
    truncated: bool
    untrusted: dict[str, Any]  # reason, attempts, text or base64, key, attributes


class ReplayDeadLettersRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    offsets: Annotated[
        str | None,
        Field(max_length=4096, description="In the dead-letter topic: 3,7,9; without it, all up to 1000"),
    ] = None


class ReplayedDeadLetters(Change):
    topic: str
    subscription: str
    dead_letter_topic: str
    replayed: int
    offsets: list[int]  # of the dead letters that were copied back
