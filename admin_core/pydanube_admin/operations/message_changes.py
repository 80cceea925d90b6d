"""Publish one message; list dead letters and replay them."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from itertools import chain
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.batch import MAX_BATCH_BYTES
from pydanube_core.errors import InvalidArgument, MessageTooLarge, TopicNotFound
from pydanube_core.facts import MessageFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import system_is_closed
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import (
    Change,
    Effect,
    ListRequest,
    Page,
    Request,
    Result,
    SubscriptionArgument,
    TopicArgument,
)
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import cut, glob, none_because
from pydanube_admin.operations.messages import CHUNK, CHUNK_BYTES, MaxBytes, fenced
from pydanube_admin.operations.subscriptions import subscription_facts
from pydanube_admin.operations.topics import find_topic

MAX_DEAD_LETTERS: Final = 10_000  # that are looked at
LARGEST_BYTES: Final = MAX_BATCH_BYTES - 4096  # of one message, as the SDK sends it
MAX_REPLAYED: Final = 1000  # a call


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


async def _log_for(context: Context, request: PublishRequest) -> str:
    topic = await find_topic(context, request.topic)
    if TopicName.parse(topic.own.topic).is_system:
        raise system_is_closed(topic.own.topic)
    texts = (request.payload, request.key or "", *chain.from_iterable((request.attributes or {}).items()))
    size = sum(len(text.encode()) + 8 for text in texts)  # each with its place in a column
    if size > LARGEST_BYTES:
        raise MessageTooLarge(
            f"the message has {size} bytes with its key and attributes, at most {LARGEST_BYTES} are taken",
            field="payload",
            value=size,
            limit=LARGEST_BYTES,
        )
    chosen = (request.payload if request.key is None else request.key).encode()
    return topic.logs[zlib.crc32(chosen) % len(topic.logs)].topic


async def forecast_publish(context: Context, request: PublishRequest) -> Forecast:
    log = await _log_for(context, request)
    added = {"messages": 1, "bytes": len(request.payload.encode())}
    return Forecast(
        diff=[entry(f"topics{log}/messages", None, {"added": added["messages"]})],
        blast_radius=blast_radius(topics=1, **added),
    )


@operation(
    "messages.publish",
    effect=Effect.CREATE,
    title="Publish a message",
    summary="Publish one message; it is on stable storage when the answer comes.",
    idempotent=False,
    forecast=forecast_publish,
    required_flags=("payload",),
    text_argument="payload",
    examples=(Example({"topic": "orders", "payload": "hello"}, "a test message"),),
)
async def publish_message(context: Context, request: PublishRequest) -> PublishedMessage:
    log = await _log_for(context, request)
    offset = await context.port.publish_message(
        log, payload=request.payload.encode(), key=request.key, attributes=request.attributes or {}
    )
    name = TopicName.parse(log)
    return PublishedMessage(topic=str(name.base), partition=name.partition, offset=offset)


async def _dead_letters(
    context: Context, topic: str, subscription: str
) -> tuple[str, AsyncIterator[MessageFacts]]:
    """Return the dead-letter topic of a subscription, and its letters there, up to a bound."""
    found = await find_topic(context, topic)
    await subscription_facts(context, found.own.topic, subscription)
    policy = await context.port.failure_policy(found.own.topic, subscription)
    target = str(policy["dead_letter_topic"] or f"{found.own.topic}-dlq-{subscription}")
    logs = {log.topic for log in found.logs}

    async def letters() -> AsyncIterator[MessageFacts]:
        try:
            own, *parts = await context.port.topic(target)
        except TopicNotFound:
            return  # nothing has become one yet
        looked_at = 0
        for log in parts or [own]:
            at = log.start_offset
            while at < log.next_offset and looked_at < MAX_DEAD_LETTERS:
                chunk = await context.port.read_messages(
                    log.topic, start=at, end=log.next_offset, max_messages=CHUNK, max_bytes=CHUNK_BYTES
                )
                if not chunk:
                    break
                for message in chunk:
                    looked_at += 1
                    at = message.offset + 1
                    attributes = message.attributes
                    if (
                        attributes.get("x-original-topic") in logs
                        and attributes.get("x-original-subscription") == subscription
                    ):
                        yield message

    return target, letters()


@operation(
    "dead_letters.list",
    effect=Effect.READ,
    summary="List messages of a subscription that failed too often, with why.",
    examples=(Example({"topic": "orders", "subscription": "billing"}, "all of them"),),
)
async def list_dead_letters(context: Context, request: ListDeadLettersRequest) -> Page[DeadLetterItem]:
    _, letters = await _dead_letters(context, request.topic, request.subscription)
    matches = glob(request.filter)
    found = [letter async for letter in letters if matches(letter.attributes["x-original-topic"])]
    page = cut(
        found,
        key=lambda letter: (letter.topic, letter.offset),
        operation="dead_letters.list",
        request=request,
    )
    room, items = request.max_bytes, []
    for letter in page.items:
        body, is_cut, used = fenced(letter, room)
        room -= used
        original = letter.attributes.get("x-original-topic-offset", "")
        body |= {
            "reason": letter.attributes.get("x-failure-reason"),
            "delivery_attempt": letter.attributes.get("x-delivery-attempt"),
        }
        items.append(
            DeadLetterItem(
                dead_letter_topic=letter.topic,
                offset=letter.offset,
                original_topic=letter.attributes["x-original-topic"],
                original_offset=int(original) if original.isdecimal() else None,
                append_time=format_time(letter.append_time_ms),
                payload_bytes=len(letter.payload),
                truncated=is_cut,
                untrusted=body,
            )
        )
    return Page[DeadLetterItem](
        items=items,
        items_reason=None if page.total else none_because(request),
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


def _wanted(text: str | None) -> set[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise InvalidArgument(
            f"offsets {text[:80]!r}: write offsets of the dead-letter topic, such as 3,7,9",
            field="offsets",
            value=text[:80],
        )
    return {int(part) for part in parts}


async def _chosen(context: Context, request: ReplayDeadLettersRequest) -> tuple[str, list[MessageFacts]]:
    wanted = _wanted(request.offsets)
    target, letters = await _dead_letters(context, request.topic, request.subscription)
    chosen = []
    async for letter in letters:
        if wanted is None or letter.offset in wanted:
            chosen.append(letter)
            if len(chosen) == MAX_REPLAYED:
                break
    missing = sorted((wanted or set()) - {letter.offset for letter in chosen})
    if missing:
        raise InvalidArgument(
            f"offsets: {target} has no dead letter of {request.subscription!r} at {missing[:10]}",
            field="offsets",
            value=missing[:10],
        )
    return target, chosen


async def forecast_replay_dead_letters(context: Context, request: ReplayDeadLettersRequest) -> Forecast:
    _, chosen = await _chosen(context, request)
    topics = sorted({letter.attributes["x-original-topic"] for letter in chosen})
    return Forecast(
        diff=[
            entry(
                f"topics{topic}/messages",
                None,
                {"added": sum(letter.attributes["x-original-topic"] == topic for letter in chosen)},
            )
            for topic in topics
        ],
        blast_radius=blast_radius(
            topics=len(topics), messages=len(chosen), bytes=sum(len(letter.payload) for letter in chosen)
        ),
    )


@operation(
    "dead_letters.replay",
    effect=Effect.CHANGE,
    summary="Copy dead letters back to the topic they came from, with the attribute x-replayed-from.",
    idempotent=False,
    forecast=forecast_replay_dead_letters,
    examples=(Example({"topic": "orders", "subscription": "billing", "offsets": "0,2"}, "two of them"),),
)
async def replay_dead_letters(context: Context, request: ReplayDeadLettersRequest) -> ReplayedDeadLetters:
    """Copy dead letters to the original topic, where every subscription gets them; the letters stay."""
    target, chosen = await _chosen(context, request)
    done: list[int] = []
    for letter in chosen:
        attributes = {name: value for name, value in letter.attributes.items() if not name.startswith("x-")}
        attributes["x-replayed-from"] = f"{letter.topic}@{letter.offset}"
        await context.port.publish_message(
            letter.attributes["x-original-topic"],
            payload=letter.payload,
            key=letter.key,
            attributes=attributes,
        )
        done.append(letter.offset)
    topic = (await find_topic(context, request.topic)).own.topic
    return ReplayedDeadLetters(
        topic=topic,
        subscription=request.subscription,
        dead_letter_topic=target,
        replayed=len(done),
        offsets=done,
    )
