"""Publish one message."""

from __future__ import annotations

import zlib
from itertools import chain
from typing import Annotated, Final

from pydantic import Field
from pydanube_core.batch import MAX_BATCH_BYTES
from pydanube_core.batch.nulls import NULL
from pydanube_core.errors import MessageTooLarge
from pydanube_core.names import TopicName
from pydanube_core.refusals import system_is_closed

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Request, TopicArgument
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.topics import find_topic

LARGEST_BYTES: Final = MAX_BATCH_BYTES - 4096  # of one message, as the SDK sends it


class PublishRequest(Request):
    topic: TopicArgument
    payload: Annotated[
        str | None,
        Field(max_length=4_000_000, description="Text of the message, null to mark its key as deleted"),
    ]
    key: Annotated[str | None, Field(max_length=512, description="Without: none")] = None
    attributes: Annotated[dict[str, str] | None, Field(description="Name to text. Default: none")] = None

    @property
    def stored(self) -> tuple[str, dict[str, str]]:
        """Return the payload and the attributes as they are stored: a null is empty, beside an attribute."""
        attributes = self.attributes or {}
        return ("", {**attributes, NULL: "1"}) if self.payload is None else (self.payload, attributes)


class PublishedMessage(Change):
    topic: str
    partition: int | None
    offset: int


async def _log_for(context: Context, request: PublishRequest) -> str:
    topic = await find_topic(context, request.topic)
    if TopicName.parse(topic.own.topic).is_system:
        raise system_is_closed(topic.own.topic)
    payload, attributes = request.stored
    texts = (payload, request.key or "", *chain.from_iterable(attributes.items()))
    size = sum(len(text.encode()) + 8 for text in texts)  # each with its place in a column
    if size > LARGEST_BYTES:
        raise MessageTooLarge(
            f"the message has {size} bytes with its key and attributes, at most {LARGEST_BYTES} are taken",
            field="payload",
            value=size,
            limit=LARGEST_BYTES,
        )
    chosen = (payload if request.key is None else request.key).encode()
    return topic.logs[zlib.crc32(chosen) % len(topic.logs)].topic


async def forecast_publish(context: Context, request: PublishRequest) -> Forecast:
    log = await _log_for(context, request)
    added = {"messages": 1, "bytes": len(request.stored[0].encode())}
    return Forecast(
        diff=[entry(f"topics{log}/messages", None, {"added": added["messages"]})],
        blast_radius=blast_radius(topics=1, **added),
    )


@operation(
    "messages.publish",
    effect=Effect.CREATE,
    title="Publish a message",
    summary="Publish one message. It is on stable storage when the answer comes.",
    idempotent=False,
    forecast=forecast_publish,
    required_flags=("payload",),
    text_argument="payload",
    examples=(Example({"topic": "orders", "payload": "hello"}, "a test message"),),
)
async def publish_message(context: Context, request: PublishRequest) -> PublishedMessage:
    log = await _log_for(context, request)
    payload, attributes = request.stored
    offset = await context.port.publish_message(
        log, payload=payload.encode(), key=request.key, attributes=attributes
    )
    name = TopicName.parse(log)
    return PublishedMessage(topic=str(name.base), partition=name.partition, offset=offset)
