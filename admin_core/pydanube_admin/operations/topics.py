"""Read topics.

A partitioned topic is one item: its partitions' figures are summed, its subscriptions united. Sessions are counted
as they are, one a partition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from pydanube_core.errors import TopicNotFound, Unavailable
from pydanube_core.facts import TopicFacts
from pydanube_core.list_keys import ListChanges
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName, check_namespace
from pydanube_core.units import format_time, known_time

from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import (
    Effect,
    Page,
    Place,
    Result,
    SortedListRequest,
    TopicRequest,
    is_none,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import Followed, Listing, chosen, glob
from pydanube_admin.engine.permission import Sight
from pydanube_admin.gone_owners import GONE, SILENT
from pydanube_admin.operations.namespaces import no_namespace

PARTITIONED = "partitioned"
UNASSIGNED = "unassigned"
LATELY_MS: Final = 86_400_000  # a topic that was written or read within a day is in use
PARTS_A_TURN: Final = 200  # partitions whose subscriptions are read in one turn of the loop
MOST_REASONS: Final = 20
#: unknown while the owner of a topic is gone
_OF_THE_LOG: Final = ("epoch", "start_offset", "next_offset", "messages", "bytes")
_OF_THE_OWNER: Final = (
    *_OF_THE_LOG, "producers", "consumers", "journal_bytes", "object_bytes", "in_use", "last_published_at", "newest_offset",
    "tiered_offset", "stored_until", "requests_per_hour", "bytes_per_hour",
)  # fmt: skip


class ListTopicsRequest(SortedListRequest):
    namespace: Annotated[str | None, Field(max_length=256, description="Only this namespace")] = None
    broker: Annotated[
        str | None, Field(max_length=MAX_CHARS, description="Only those of this broker"), BROKER
    ] = None


class TopicItem(Result):
    """A topic. A partitioned one is one item with its partitions' figures summed."""

    identity: ClassVar = ("topic",)

    topic: str
    partitions: int  # 0: not partitioned
    dispatch_strategy: str
    messages: int  # next_offset - start_offset
    bytes: int  # stored, as retention_bytes and quotas count it: in the journal until it is tiered, then in objects
    object_bytes: int  # their bytes in objects of the cold tier, compressed
    producers: int  # sessions
    consumers: int  # sessions
    subscriptions: int  # number of subscriptions
    last_published_at: str | None  # None: nothing was published
    newest_offset: int | None  # offset of the newest message, even if it is deleted by now
    newest_offset_reason: str | None = None  # partitioned | nothing_published
    owner: str | None  # broker id
    owner_reason: str | None = None  # partitioned | unassigned
    # Of some partitions the owner does not answer, and the sums lack them. Topics without any answer are in not_seen
    owner_state: Literal["down"] | None = Field(default=None, exclude_if=is_none)


class TopicPart(Result):
    """One partition of a partitioned topic."""

    topic: str
    partition: int
    owner: str | None
    owner_reason: str | None = None
    # None with the reason owner_gone or owner_silent: the owner does not answer
    epoch: str | None
    epoch_reason: str | None = None
    start_offset: int | None
    start_offset_reason: str | None = None
    next_offset: int | None
    next_offset_reason: str | None = None
    messages: int | None
    messages_reason: str | None = None
    bytes: int | None
    bytes_reason: str | None = None


class TopicDescription(Result):
    """All facts of one topic. Offsets and epoch of a partitioned topic are those of its `parts`.

    If the owner is gone, the fields of the owner alone are null with the reason owner_gone, or owner_silent if it is
    registered and does not answer.
    """

    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    owner_state: Literal["up", "down"]  # down: an owner does not answer
    gone_since: str | None = Field(default=None, exclude_if=is_none)
    because: str | None = Field(default=None, exclude_if=is_none)  # which owner, and what to do
    next: list[dict[str, Any]] | None = Field(default=None, exclude_if=is_none)
    messages: int | None
    messages_reason: str | None = None
    bytes: int | None
    bytes_reason: str | None = None
    producers: int | None
    producers_reason: str | None = None
    consumers: int | None
    consumers_reason: str | None = None
    subscriptions: list[str]
    last_published_at: str | None  # None: nothing was published
    last_published_at_reason: str | None = None
    newest_offset: int | None  # offset of the newest message, even if it is deleted by now
    newest_offset_reason: str | None = None  # partitioned | nothing_published
    in_use: bool | None  # False: no client is connected, and none wrote, read or left messages unread lately
    in_use_reason: str | None = None
    in_use_because: list[str]
    owner: str | None
    owner_reason: str | None = None
    epoch: str | None
    epoch_reason: str | None = None
    start_offset: int | None
    start_offset_reason: str | None = None
    next_offset: int | None
    next_offset_reason: str | None = None
    tiered_offset: int | None  # below it everything is in the cold tier
    tiered_offset_reason: str | None = None
    stored_until: int | None  # below it everything is in the object store, in the tier or the chain
    stored_until_reason: str | None = None  # partitioned | not_copied
    requests_per_hour: (
        int | None
    )  # of the chain that all topics of its broker share, on average since its start
    requests_per_hour_reason: str | None = None
    bytes_per_hour: int | None
    bytes_per_hour_reason: str | None = None
    journal_bytes: int | None
    journal_bytes_reason: str | None = None
    object_bytes: int | None
    object_bytes_reason: str | None = None
    policies: dict[str, Any]
    kept_failure_policies: dict[
        str, dict[str, Any]
    ]  # policies of subscriptions that do not exist yet, by name
    topic_schema: Annotated[dict[str, Any] | None, Field(alias="schema")]  # None: no schema is bound
    created_at: str
    mirror_of: str | None  # link and topic of the source, if only a link writes it
    failed_over_to: str | None  # the cluster that writes it now: producers and consumers are refused here
    parts: list[TopicPart] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its partitions, ascending, or without any if it is a log of its own."""

    own: TopicFacts
    parts: tuple[TopicFacts, ...]

    @property
    def logs(self) -> tuple[TopicFacts, ...]:
        """Return the concrete topics, which hold the messages."""
        return self.parts or (self.own,)

    @property
    def messages(self) -> int:
        return sum(log.messages for log in self.logs)

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    @property
    def producers(self) -> int:
        return sum(log.producers for log in self.logs)

    @property
    def consumers(self) -> int:
        return sum(log.consumers for log in self.logs)

    @property
    def subscriptions(self) -> list[str]:
        return sorted({name for log in self.logs for name in log.subscriptions})

    @property
    def object_bytes(self) -> int:
        return sum(log.object_bytes for log in self.logs)

    @property
    def newest_offset(self) -> int | None:
        return None if self.newest_offset_reason else self.own.next_offset - 1

    @property
    def newest_offset_reason(self) -> str | None:
        if self.own.partitions:
            return PARTITIONED
        return None if self.own.next_offset else "nothing_published"

    @property
    def owner_reason(self) -> str | None:
        if self.own.partitions:
            return PARTITIONED
        return UNASSIGNED if self.own.owner is None else None


async def find_topic(context: Context, text: str) -> Topic:
    """Return the topic that a caller named.

    Raises:
        InvalidName: not a name.
        TopicNotFound: names topics that are spelled alike, and the call that would create it.
        NoOwner, NotOwner: it is on its way from one broker to another.
    """
    name = str(TopicName.parse(text))
    found: Sequence[TopicFacts] = ()
    with suppress(TopicNotFound):
        found = await context.port.topic(name)
    if not found:
        raise await _not_found(context, name)
    own, *parts = found
    return Topic(own=own, parts=tuple(sorted(parts, key=_partition)))


async def _not_found(context: Context, name: str) -> TopicNotFound:
    close = list(await context.port.topics_alike(name))
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return TopicNotFound(
        f"there is no topic {name}{hint}",
        field="topic",
        value=name,
        topic=name,
        did_you_mean=close,
        next=[
            *(next_call("topics.describe", {"topic": other}, "a topic spelled alike") for other in close),
            next_call("topics.list", {}, "shows the topics there are"),
            next_call(
                "changes.list",
                {"topic": name, "since": "24h"},
                "shows who deleted it, and the call that undoes that",
            ),
            next_call("topics.create", {"topic": name}, "creates it, if the name is meant so"),
        ],
    )


def _partition(facts: TopicFacts) -> int:
    return -1 if facts.partition is None else facts.partition


@operation(
    "topics.list",
    at=Place.ANYWHERE,
    effect=Effect.READ,
    summary="List topics: messages, bytes, sessions, owner.",
    default_profile=True,
    examples=(
        Example({}, "every topic"),
        Example({"namespace": "default", "filter": "orders*"}, "by namespace and name"),
    ),
)
async def list_topics(context: Context, request: ListTopicsRequest) -> Page[TopicItem]:
    namespace = None if request.namespace is None else check_namespace(request.namespace)
    if namespace not in (None, SYSTEM_NAMESPACE) and all(
        one.namespace != namespace for one in await context.port.namespaces()
    ):
        raise await no_namespace(context, namespace)
    matches, broker, sight = glob(request.filter), request.broker, Sight(context.port, "topics:read")

    def passes(name: str) -> bool:
        return _is_in(name.split("/", 2)[1], namespace) and matches(name) and sight.topic(name)

    async def found() -> list[str]:
        index = await context.port.topic_index()
        keys = await chosen(index, lambda key: passes(key.topic) and (broker is None or broker in key.owners))
        return [key.topic for key in keys]

    async def changed(news: ListChanges) -> list[str]:
        return await chosen(news.topics or (), passes)

    async def made(some: Sequence[str]) -> list[TopicItem]:
        topics = [Topic(own=own, parts=tuple(parts)) for own, *parts in await context.port.topic_facts(some)]
        return [
            _item(topic)
            for topic in topics
            if broker is None or any(log.owner == broker for log in topic.logs)
        ]

    def key(name: str) -> tuple[str]:
        return (name,)

    listing = Listing(context, TopicItem, made, key, key=key, request=request)
    return await listing.followed(Followed(found=found, changed=changed, sight=sight.everything))


def _is_in(own: str, asked: str | None) -> bool:
    """Return whether a topic of the namespace `own` is listed. The broker's own topics need the name of theirs."""
    return own != SYSTEM_NAMESPACE if asked is None else own == asked


def _item(topic: Topic) -> TopicItem:
    return TopicItem.of(
        topic,
        topic.own,
        subscriptions=len(topic.subscriptions),
        last_published_at=known_time(topic.own.last_published_ms),
        owner=None if topic.owner_reason else topic.own.owner,
        owner_state="down" if len(topic.parts) < topic.own.partitions else None,
    )


@operation(
    "topics.describe",
    at=Place.ANYWHERE,
    effect=Effect.READ,
    title="Describe a topic",
    summary="Show one topic: offsets, sizes, owner, policies, subscriptions, partitions. Also whether it is in use, or safe "
    "to delete.",
    default_profile=True,
    examples=(Example({"topic": "orders"}, "/default/orders"),),
)
async def describe_topic(context: Context, request: TopicRequest) -> TopicDescription:
    try:
        topic = await find_topic(context, request.topic)
    except Unavailable as error:
        if error.details.get("state") not in (GONE, SILENT):
            raise
        return await _of_the_metadata(context, str(TopicName.parse(request.topic)), error)
    await asyncio.sleep(0)  # each step over all partitions is a turn of its own
    own = topic.own
    split = PARTITIONED if own.partitions else None
    uncopied = split or ("not_copied" if own.stored_until is None else None)
    because = await _in_use_because(context, topic)
    return TopicDescription.of(
        topic,
        own,
        topic_id=str(own.topic_id),
        last_published_at=known_time(own.last_published_ms),
        in_use=bool(because),
        in_use_because=because,
        owner_state="up",
        owner=None if topic.owner_reason else own.owner,
        epoch=None if split else str(own.epoch),
        epoch_reason=split,
        start_offset=None if split else own.start_offset,
        start_offset_reason=split,
        next_offset=None if split else own.next_offset,
        next_offset_reason=split,
        tiered_offset=None if split else own.tiered_offset,
        tiered_offset_reason=split or ("no_cold_tier" if own.tiered_offset is None else None),
        stored_until=own.stored_until,
        stored_until_reason=uncopied,
        requests_per_hour=own.requests_per_hour,
        requests_per_hour_reason=uncopied,
        bytes_per_hour=own.bytes_per_hour,
        bytes_per_hour_reason=uncopied,
        journal_bytes=sum(log.journal_bytes for log in topic.logs),
        kept_failure_policies={
            name: dict(kept) for log in topic.logs for name, kept in log.kept_failure_policies.items()
        },
        topic_schema=None if own.schema is None else dict(own.schema),
        created_at=format_time(own.created_at_ms),
        parts=[
            TopicPart.of(
                part,
                partition=_partition(part),
                owner_reason=UNASSIGNED if part.owner is None else None,
                epoch=str(part.epoch),
            )
            for part in topic.parts
        ],
    )


async def _of_the_metadata(context: Context, topic: str, error: Unavailable) -> TopicDescription:
    """Describe a topic with an owner that does not answer: from the metadata, and its other partitions as their owners do."""
    state = error.details["state"]
    known = await context.port.created_topic(topic)
    served = {part.topic: part for _, *parts in await context.port.topic_facts([topic]) for part in parts}
    parts = []
    for name, owner in known.owners.items() if known.partitions else ():
        part = served.get(name)
        more = _unknown(_OF_THE_LOG, state) if part is None else {"epoch": str(part.epoch)}
        reason = UNASSIGNED if owner is None else None
        of = {
            "topic": name,
            "partition": TopicName.parse(name).partition,
            "owner": owner,
            "owner_reason": reason,
        }
        parts.append(TopicPart.of(part, **of, **more))
    return TopicDescription.of(
        known,
        topic_id=str(known.topic_id),
        owner_state="down",
        gone_since=error.details["gone_since"],
        because=error.message,
        next=error.next,
        subscriptions=sorted({key.subscription for key in await context.port.lag_index(topic, None)}),
        in_use_because=[],
        owner=None if known.partitions else next(iter(known.owners.values())),
        owner_reason=PARTITIONED if known.partitions else None,
        topic_schema=known.schema,
        created_at=format_time(known.created_at_ms),
        parts=parts,
        **_unknown(_OF_THE_OWNER, state),
    )


def _unknown(fields: Iterable[str], state: str) -> dict[str, str | None]:
    """Return fields without a value, each with its reason."""
    return dict.fromkeys(fields) | {f"{name}_reason": f"owner_{state}" for name in fields}


async def _in_use_because(context: Context, topic: Topic) -> list[str]:
    """Return the clients that the topic's deletion would affect, as far as the broker sees them."""
    found = [
        f"{who} connected: {count}"
        for count, who in ((topic.producers, "producers"), (topic.consumers, "consumers and readers"))
        if count
    ]
    now_ms, written_ms = context.now_ms(), topic.own.last_published_ms
    if written_ms is not None and now_ms - written_ms < LATELY_MS:
        found.append(f"written {format_time(written_ms)}")
    unread: Counter[str] = Counter()
    read_ms: dict[str, int] = {}
    for number, log in enumerate(topic.logs, 1):
        if not number % PARTS_A_TURN:
            await asyncio.sleep(0)
        with suppress(TopicNotFound):  # it went just now
            for each in await context.port.subscriptions(log.topic, None):
                unread[each.subscription] += each.state.lag_messages
                last_ms = each.last_consumed_ms or 0
                read_ms[each.subscription] = max(last_ms, read_ms.get(each.subscription, 0))
    for name, last_ms in sorted(read_ms.items()):
        lately = f", read {format_time(last_ms)}" if now_ms - last_ms < LATELY_MS else ""
        if unread[name] or lately:
            found.append(f"subscription {name}: {unread[name]} unread{lately}")
    return [
        *found[:MOST_REASONS],
        *([f"and {len(found) - MOST_REASONS} more"] if found[MOST_REASONS:] else []),
    ]
