"""Which clients a lower limit refuses or slows down: sentences of the plans that set policies and quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from pydanube_core.facts import TopicFacts
from pydanube_core.names import TopicName
from pydanube_core.quotas import LONGEST_DEBT_MS, QuotaKind
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.permission import Sight

PLACES_NAMED: Final = 3  # of one limit, those furthest above it

_STAY: Final = "They stay. A client that connects or reconnects is refused until {few} left"
_NO_NEW: Final = "They stay. A new {one} is refused until {few} left"
_FULL: Final = "Publishes are refused until messages are deleted"
_WAITS: Final = "The rest waits, and nothing is refused"
_SLOWED: Final = f"The rest waits. Batches are refused while the debt is above {LONGEST_DEBT_MS // 1000} s"
#: key of a policy or quota → verb, its unit, one and many, and what follows if more of it is in use
_FOLLOWS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "max_producers_per_topic": ("has", "producer", "producers", _STAY),
    "max_consumers_per_topic": ("has", "consumer", "consumers", _STAY),
    "max_consumers_per_subscription": ("has", "consumer", "consumers", _STAY),
    "max_subscriptions_per_topic": ("has", "subscription", "subscriptions", _NO_NEW),
    "topics": ("has", "topic", "topics", _NO_NEW),
    "subscriptions": ("has", "subscription", "subscriptions", _NO_NEW),
    "stored_bytes": ("stores", "byte", "bytes", _FULL),
    "connections": ("has", "connection", "connections", _STAY),
    "producers": ("has", "producer", "producers", _STAY),
    "messages_in_per_s": ("publishes", "message a second", "messages a second", _SLOWED),
    "bytes_in_per_s": ("publishes", "byte a second", "bytes a second", _SLOWED),
    "messages_out_per_s": ("acknowledges", "message a second", "messages a second", _WAITS),
}
#: key of a quota whose use is not measured, or not wholly → what follows from it
_NOT_MEASURED: Final[Mapping[str, str]] = {
    # A delivery counts for the quota, an acknowledged message for the measurement
    "messages_out_per_s": (
        "messages_out_per_s allows {limit}. Deliveries beyond it wait. Acknowledgements are within it now. "
        "Deliveries without one, and redeliveries, are not measured"
    ),
    "bytes_out_per_s": "bytes_out_per_s allows {limit}. Deliveries beyond it wait. How many bytes are delivered now is not known",
    "requests_per_s": "requests_per_s allows {limit}. Calls beyond it are refused. How many are made now is not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """One place, such as a topic or a namespace at a broker, that uses more than a limit allows."""

    key: str
    place: str
    used: int
    limit: int


def refused_then(over: Iterable[Excess]) -> list[str]:
    """Return a sentence for each limit that is below its present use, with the places furthest above it."""
    found: dict[str, list[Excess]] = defaultdict(list)
    for each in over:
        found[each.key].append(each)
    return [_sentence(key, found[key]) for key in sorted(found)]


def _sentence(key: str, over: Sequence[Excess]) -> str:
    verb, one, many, follows = _FOLLOWS[key]
    worst = sorted(over, key=lambda each: (-each.used, each.place))[:PLACES_NAMED]
    named = [f"{each.place} {verb} {counted(each.used, one, many)}" for each in worst]
    if more := len(over) - len(worst):
        named.append(f"{more} more {'is' if more == 1 else 'are'} above it")
    limit = over[0].limit
    few = "none is" if limit == 1 else f"fewer than {limit} are"
    return f"{', '.join(named)}, and {key} allows {limit}. {follows.format(one=one, few=few)}"


def not_measured(
    before: Mapping[str, int], limits: Mapping[str, int | None], over: Iterable[Excess]
) -> list[str]:
    """Return a sentence for each limit that is lower than before, or new, if its present use is not wholly known.

    Args:
        over: their limits have a sentence already.
    """
    known = {each.key for each in over}
    return [
        follows.format(limit=limit)
        for key, follows in _NOT_MEASURED.items()
        if (limit := limits.get(key)) and not 0 < before.get(key, 0) <= limit and key not in known
    ]


async def topics_over(
    context: Context, topics: Iterable[Sequence[TopicFacts]], limits: Mapping[str, Any], *, own_first: bool
) -> list[Excess]:
    """Return the topics that use more than these policies allow. Each partition counts alone.

    Args:
        topics: the facts of each topic itself, and those of its partitions.
        own_first: leave out a topic for the policies that are set on itself.
    """
    sight, over = Sight(context.port, "topics:read"), list[Excess]()
    limits = {key: limit for key, limit in limits.items() if limit and key in _FOLLOWS}
    for own, *parts in topics:
        is_seen, logs = sight.topic(own.topic), parts or [own]
        held = {key: limit for key, limit in limits.items() if not (own_first and key in own.policies)}

        def add(key: str, place: str, used: int, held: Mapping[str, int] = held) -> None:
            if used > held.get(key, used):
                over.append(Excess(key=key, place=place, used=used, limit=held[key]))

        for log in logs:
            place = log.topic if is_seen else "a topic"
            add("max_producers_per_topic", place, log.producers)
            add("max_consumers_per_topic", place, log.consumers)
            add("max_subscriptions_per_topic", place, len(log.subscriptions))
        key = "max_consumers_per_subscription"
        if any(log.consumers > held.get(key, log.consumers) for log in logs):
            for each in await context.port.subscriptions(own.topic, None):
                place = f"{each.subscription} of {each.topic}" if is_seen else "a subscription"
                add(key, place, len(each.consumers))
    return over


async def holders_over(
    context: Context, kind: QuotaKind, applies: Callable[[str], bool], limits: Mapping[str, int | None]
) -> list[Excess]:
    """Return the namespaces or principals that use more than a quota allows, among those that it `applies` to.

    Sessions and stored bytes count per broker, as the quota does. Connections are those of the answering broker.
    """
    given = {key: limit for key, limit in limits.items() if limit and key in _FOLLOWS}
    several = context.port.several
    used: dict[tuple[str, str, str | None], float] = defaultdict(float)  # by key, holder and broker
    if kind == "namespace" and given.keys() & {"topics", "subscriptions", "stored_bytes"}:
        for own, *parts in await context.port.topic_facts(await _topics_in(context, applies)):
            holder = TopicName.parse(own.topic).namespace
            for log in parts or [own]:
                used["topics", holder, None] += 1
                used["subscriptions", holder, None] += len(log.subscriptions)
                used["stored_bytes", holder, log.owner if several else None] += log.bytes
    writes = given.keys() & {"producers", "messages_in_per_s", "bytes_in_per_s"}
    producers = await context.port.producers() if writes else ()
    consumers = await context.port.consumers() if "messages_out_per_s" in given else ()
    owners = await _owners(context, {each.topic for each in (*producers, *consumers)})
    for way, sessions in (("in", producers), ("out", consumers)):
        for each in sessions:
            namespace = TopicName.parse(each.topic).namespace
            name = each.principal if kind == "principal" else namespace
            if name is None or not applies(name):
                continue
            used["producers", name, owners.get(each.topic)] += way == "in"
            used[f"messages_{way}_per_s", name, owners.get(each.topic)] += each.msgs_per_s or 0
            used[f"bytes_{way}_per_s", name, owners.get(each.topic)] += each.bytes_per_s or 0
    for use in context.port.quotas.uses() if "connections" in given else ():
        if use.kind == kind and applies(use.name):
            this = context.port.life.partition("/")[0] if several else None
            used["connections", use.name, this] += use.used.get("connections", 0)
    return [
        Excess(
            key=key,
            place=f"{kind} {name}{'' if broker is None else f' at broker {broker}'}",
            used=ceil(number),  # 5.7 messages a second are above a limit of 5
            limit=given[key],
        )
        for (key, name, broker), number in used.items()
        if number > given.get(key, number)
    ]


async def _topics_in(context: Context, applies: Callable[[str], bool]) -> list[str]:
    index = await context.port.topic_index()
    return [key.topic for key in index if applies(TopicName.parse(key.topic).namespace)]


async def _owners(context: Context, logs: Iterable[str]) -> dict[str, str | None]:
    """Return log → its owner. Only needed where several brokers count alone."""
    if not context.port.several:
        return {}
    topics = sorted({str(TopicName.parse(log).base) for log in logs} | set(logs))
    return {
        log.topic: log.owner
        for own, *parts in await context.port.topic_facts(topics)
        for log in parts or [own]
    }
