"""Take over a topic whose broker is lost: its plan shows how far the copy of that broker's journal reaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydanube_core.facts import JUMP, TakeOverFacts
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Place, TopicRequest
from pydanube_admin.engine.operation import operation

_WHOLE: Final = "The copy has all that was acknowledged, and the topic continues without a gap"
_MIRROR: Final = (
    "The topic is a mirror: its link copies missing messages again, as far as the source still has them"
)


class TakenOverTopic(Change):
    topic: str
    topics: int  # concrete topics that others take over
    may_be_missing: dict[str, int | None]  # {messages, ms}; messages: at least so many, ms: null if unknown


def _missing(each: TakeOverFacts) -> dict[str, int | None]:
    """Return the messages that are missing at least, and the time between the copy's newest message and the broker's last report."""
    ms = None
    if each.reported_at_ms is not None and each.copied_at_ms is not None:
        ms = max(0, each.reported_at_ms - each.copied_at_ms) if each.missing_messages else 0
    is_unknown = may_lack(each) and each.reported_to is None
    return {"messages": (each.missing_messages or None) if is_unknown else each.missing_messages, "ms": ms}


def _found(each: TakeOverFacts) -> dict[str, Any]:
    return {
        "owner": each.broker_id,
        "copied_until": each.copied_to,
        "reported_until": each.reported_to,
        "may_be_missing": _missing(each),
    }


def continued(each: TakeOverFacts) -> dict[str, int]:
    """Return the offset at which the next owner continues, or the one above which it does if messages may be missing."""
    if not may_lack(each):
        return {"goes_on_at": each.copied_to}
    return {"goes_on_above": max(each.copied_to, each.reported_to or 0) + JUMP}


def lost_messages(facts: Iterable[TakeOverFacts]) -> int | None:
    """Return how many messages are lost at least, None if they cannot be counted. Links copy those of mirrors again."""
    own = [each for each in facts if not each.is_mirror]
    unreported = [each.reported_to is None for each in own if may_lack(each)]
    if unreported and all(unreported):
        return None
    missing = sum(each.missing_messages for each in own)
    return None if any(unreported) and not missing else missing


def counted_loss(facts: Iterable[TakeOverFacts]) -> int | None:
    """Return how many messages are lost, None as soon as one topic's loss cannot be counted. Quotas count this number."""
    facts = tuple(facts)
    is_unknown = any(each.reported_to is None and may_lack(each) for each in facts)
    return None if is_unknown else lost_messages(facts)


def partial_loss(facts: Iterable[TakeOverFacts]) -> str:
    """Return a sentence with the known part of a loss that cannot be counted, or nothing."""
    facts = tuple(facts)
    known = lost_messages(facts)
    if not known or counted_loss(facts) is not None:
        return ""
    return f"At least {counted(known, 'message')} would be lost, and the rest of the loss cannot be counted. "


def may_lack(each: TakeOverFacts) -> bool:
    """Return whether the topic may lose messages. The copy may have all of them, and a mirror's are copied again."""
    return not (each.is_whole or each.is_mirror)


def _all_missing(facts: list[TakeOverFacts]) -> dict[str, int | None]:
    times = [ms for each in facts if (ms := _missing(each)["ms"]) is not None]
    return {
        "messages": lost_messages(facts),
        "ms": max(times) if len(times) == len(facts) else None,
    }


async def forecast_take_over(context: Context, request: TopicRequest) -> Forecast:
    facts = list(await context.port.take_over_facts(request.topic))
    reported = min((each.reported_at_ms for each in facts if each.reported_at_ms is not None), default=None)
    report = "never reported" if reported is None else f"reported at {format_time(reported)}"
    without_copy = sorted(each.topic for each in facts if each.copy_error is not None)
    damage = next((each.copy_error for each in facts if each.copy_error is not None), None)
    unread = (
        ""
        if damage is None
        else f"The copy of the lost broker's journal is damaged ({damage}). {counted(len(without_copy), 'topic')} would continue "
        "without it, and messages that only the copy has count as lost: restore the object from a backup first if you can. "
        "If the broker has returned since, its report no longer has these topics: their subscriptions begin again at their "
        "start offsets, and the sessions of their producers end. "
    )
    return Forecast(
        diff=[
            entry(
                f"topics{each.topic}",
                _found(each),
                {"owner": "another broker", **continued(each)},
            )
            for each in sorted(facts, key=lambda each: each.topic)
        ],
        blast_radius=blast_radius(
            topics=len(facts),
            subscriptions=sum(each.subscriptions for each in facts),
            messages=counted_loss(facts),
        ),
        later=unread
        + partial_loss(facts)
        + (
            _WHOLE
            if all(each.is_whole for each in facts)
            else _MIRROR
            if all(each.is_mirror for each in facts)
            else f"The lost broker {report} how far its topics went. Messages that it acknowledged behind the end of the copy "
            "are missing, and perhaps not all are counted. If it still runs without etcd it goes on acknowledging until it "
            "reaches etcd: end it first. When it comes back, it writes messages that only it has to lost+found/ in the store, "
            "and keeps its other topics"
        ),
        basis=[sorted((each.topic, each.broker_id, each.copied_to) for each in facts), without_copy],
        # The call that applies the plan need not replay the chain again
        pinned={"count": len(facts), "missing": _all_missing(facts), "without_copy": without_copy},
    )


@operation(
    "topics.take_over",
    effect=Effect.DESTROY,
    at=Place.ANYWHERE,
    title="Take over a topic",
    summary="Serve a lost broker's topic elsewhere, from its copied journal.",
    forecast=forecast_take_over,
    long_running=True,
    examples=(Example({"topic": "orders"}, "shows the possible loss, then needs a confirmation"),),
)
async def take_over_topic(context: Context, request: TopicRequest) -> TakenOverTopic:
    """Have other brokers serve a topic whose broker is lost. The leader begins within a second."""
    assert context.pinned is not None, "it is planned"
    await context.port.take_over(request.topic, without_copy=context.pinned["without_copy"])
    return TakenOverTopic(
        topic=request.topic, topics=context.pinned["count"], may_be_missing=context.pinned["missing"]
    )
