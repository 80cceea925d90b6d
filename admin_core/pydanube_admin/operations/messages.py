"""Read stored messages: a few from a position on, or those that match."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field
from pydanube_core.batch.nulls import is_null
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import MessageFacts, TopicFacts
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, ListRequest, Page, Request, Result, TopicArgument
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.page_tokens import begin_of, next_token
from pydanube_admin.engine.paging import TURN_S, glob, none_because
from pydanube_admin.operations.topics import find_topic

MAX_PAYLOAD_BYTES: Final = 8192  # of one message in an answer
MAX_KEY_BYTES: Final = 1024  # of one message. A search takes keys of up to 512 characters
MAX_ATTRIBUTES_BYTES: Final = 4096  # of one message
MAX_SCANNED: Final = 50_000  # messages a page. A page may hold none, and have a next one
MAX_SCANNED_BYTES: Final = 256 * 1024 * 1024  # of payload a page
CHUNK: Final = 1000
CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_GLOBBED_CHARS: Final = 16_384  # of a key: comparing it with the worst glob takes 6 ms, and holds the loop


Begin = Annotated[
    str,
    Field(
        alias="from",
        max_length=64,
        description="earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m",
    ),
]


MaxBytes = Annotated[int, Field(ge=1, le=1_000_000, description="Content bytes. The rest is cut")]


class PeekRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Begin = "earliest"
    limit: Annotated[int, Field(ge=1, le=100, description="Most messages")] = 10
    max_bytes: MaxBytes = 16_384


class MessageItem(Result):
    """One stored message, as operations show it."""

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
    key: Annotated[str | None, Field(max_length=512, description="Only messages of exactly this key")] = None
    attribute: Annotated[
        str | None,
        Field(max_length=512, description="Only messages with this attribute: name=value, or a name"),
    ] = None
    contains: Annotated[
        str | None, Field(max_length=512, description="Only messages with this text in the payload")
    ] = None
    start: Begin = "earliest"
    until: Annotated[str | None, Field(max_length=64, description="End, exclusive. Default: the newest")] = (
        None
    )
    max_bytes: MaxBytes = 65_536


class SearchPage(Page[MessageItem]):
    scanned: int  # messages that were looked at for this page


def fenced(message: MessageFacts, room: int) -> tuple[dict[str, Any], bool, int]:
    """Return the untrusted parts of a message within `room` bytes, whether they were cut, and the bytes used.

    The key comes first, then the payload, then the attributes. `left_out` has the missing bytes of key and attributes.
    """
    key = None if message.key is None else text_within(message.key, min(room, MAX_KEY_BYTES))
    left = room - size_of(key)
    shown = message.payload[: max(0, min(left, MAX_PAYLOAD_BYTES))]
    cut = len(shown) < len(message.payload)
    body: dict[str, Any]
    try:
        # A cut may fall inside a character: up to three bytes of it are left out.
        text = shown.decode("utf-8", "ignore" if cut else "strict")
        if cut and len(text.encode()) < len(shown) - 3:
            raise ValueError("no text")
        body = {"text": None if is_null(message.payload, message.attributes) else text}
    except ValueError:
        body = {"base64": base64.b64encode(shown).decode()}
    left -= len(shown)
    attributes, for_attributes = {}, min(left, MAX_ATTRIBUTES_BYTES)
    for name, value in message.attributes.items():
        for_attributes -= size_of(name)
        if for_attributes < 0:
            break  # a name is shown whole
        attributes[name] = text_within(value, for_attributes)
        for_attributes -= size_of(attributes[name])
    body |= {"key": key, "attributes": attributes, "producer": message.producer}
    used = size_of(key) + len(shown) + _bytes_of(attributes)
    left_out = {
        "key": size_of(message.key) - size_of(key),
        "attributes": _bytes_of(message.attributes) - _bytes_of(attributes),
    }
    if any(left_out.values()):
        body["left_out"] = {name: count for name, count in left_out.items() if count}
        cut = True
    return body, cut, used


def size_of(text: str | None) -> int:
    return 0 if text is None else len(text.encode("utf-8", "surrogatepass"))


def text_within(text: str, room: int) -> str:
    """Return the beginning of a text, at most `room` bytes of UTF-8."""
    return text[: max(0, room)].encode("utf-8", "surrogatepass")[: max(0, room)].decode("utf-8", "ignore")


def _bytes_of(attributes: Mapping[str, str]) -> int:
    return sum(size_of(name) + size_of(value) for name, value in attributes.items())


def message_item(message: MessageFacts, room: int) -> tuple[MessageItem, int]:
    body, cut, used = fenced(message, room)
    return (
        MessageItem(
            topic=str(TopicName.parse(message.topic).base),
            partition=TopicName.parse(message.topic).partition,
            offset=message.offset,
            append_time=format_time(message.append_time_ms),
            publish_time=format_time(message.publish_time_ms),
            schema_id=str(message.schema_id) if message.schema_id else None,
            schema_version=message.schema_version if message.schema_id else None,
            payload_bytes=len(message.payload),
            truncated=cut,
            untrusted=body,
        ),
        used,
    )


@operation(
    "messages.peek",
    effect=Effect.READ,
    title="Peek at messages",
    summary="Show messages from a position on. Nothing is consumed.",
    default_profile=True,
    examples=(
        Example({"topic": "orders"}, "the oldest ten"),
        Example({"topic": "orders", "from": "offset:42", "limit": 1}, "one message"),
    ),
)
async def peek_messages(context: Context, request: PeekRequest) -> PeekedMessages:
    """Return the first messages from a position on, of every partition in turn."""
    Position.parse(request.start, now_ms=context.now_ms(), field="from")
    topic = await find_topic(context, request.topic)
    starts = await context.port.resolve_position(topic.own.topic, request.start)
    items: list[MessageItem] = []
    room, ends = request.max_bytes, dict(starts)
    for log in topic.logs:
        if len(items) >= request.limit or room <= 0:
            break
        found = await context.port.read_messages(
            log.topic,
            start=starts[log.topic],
            end=log.next_offset,
            max_messages=request.limit - len(items),
            max_bytes=CHUNK_BYTES,
        )
        for message in found:
            if items and room <= 0:
                break
            item, used = message_item(message, room)
            items.append(item)
            room -= used
            ends[log.topic] = message.offset + 1
    return PeekedMessages(
        items=items,
        next_offsets=ends,
        truncated=room <= 0 or any(item.truncated for item in items),
        as_of=format_time(context.now_ms()),
    )


@operation(
    "messages.search",
    effect=Effect.READ,
    summary="Find messages by key, attribute or text in a range of a topic. Pages continue where the last ended.",
    examples=(Example({"topic": "orders", "contains": "refund", "from": "time:-1h"}, "by text"),),
)
async def search_messages(context: Context, request: SearchRequest) -> SearchPage:
    """Return messages that match, by partition and offset. A page may be empty and still have a next one."""
    Position.parse(request.start, now_ms=context.now_ms(), field="from")
    topic = await find_topic(context, request.topic)
    starts = await context.port.resolve_position(topic.own.topic, request.start)
    ends = {log.topic: log.next_offset for log in topic.logs}
    if request.until is not None:
        Position.parse(request.until, now_ms=context.now_ms(), field="until")
        ends |= await context.port.resolve_position(topic.own.topic, request.until)
    matches = matcher(request)
    begin = begin_of("messages.search", request, numbers=2)
    index, offset = (0, None) if begin is None else (begin[0], begin[1])
    items: list[MessageItem] = []
    room, scanned, scanned_bytes, begun = request.max_bytes, 0, 0, time.perf_counter()
    logs: list[TopicFacts] = list(topic.logs)
    while (
        index < len(logs)
        and len(items) < request.limit
        and room > 0
        and scanned < MAX_SCANNED
        and scanned_bytes < MAX_SCANNED_BYTES
    ):
        log = logs[index].topic
        at = starts[log] if offset is None else offset
        found = (
            await context.port.read_messages(
                log, start=at, end=ends[log], max_messages=CHUNK, max_bytes=CHUNK_BYTES
            )
            if at < ends[log]
            else ()
        )
        if not found:
            index, offset = index + 1, None
            continue
        for message in found:
            scanned += 1
            scanned_bytes += len(message.payload)
            offset = message.offset + 1
            if time.perf_counter() - begun > TURN_S:  # a key may be long, and a glob slow
                await asyncio.sleep(0)
                begun = time.perf_counter()
            if matches(message):
                item, used = message_item(message, room)
                items.append(item)
                room -= used
                if len(items) == request.limit or room <= 0:
                    break
    more = index < len(logs)
    key = (index, starts[logs[index].topic] if offset is None else offset) if more else (0, 0)
    return SearchPage(
        items=items,
        items_reason=none_because(request) if not items and not more and begin is None else None,
        next_page=next_token(key, "messages.search", request) if more else None,
        total=None,
        as_of=format_time(context.now_ms()),
        scanned=scanned,
    )


def matcher(request: SearchRequest) -> Callable[[MessageFacts], bool]:
    if request.key is None and request.attribute is None and request.contains is None and not request.filter:
        raise InvalidArgument(
            "nothing to look for: give key, attribute, contains, or filter (a glob over the key). messages.peek shows "
            "messages as they come",
            field="contains",
            value=None,
        )
    name, equals, value = (request.attribute or "").partition("=")
    wanted = None if request.contains is None else request.contains.encode()
    by_key = glob(request.filter)

    def fits_glob(key: str | None) -> bool:
        return key is not None and len(key) <= MAX_GLOBBED_CHARS and by_key(key)

    def matches(message: MessageFacts) -> bool:
        return (
            request.key in (None, message.key)
            and (wanted is None or wanted in message.payload)
            and (request.filter is None or fits_glob(message.key))
            and (
                request.attribute is None
                or (name in message.attributes and (not equals or message.attributes[name] == value))
            )
        )

    return matches
