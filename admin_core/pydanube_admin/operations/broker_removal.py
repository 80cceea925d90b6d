"""Remove a broker that is gone for good: its plan counts the messages that are lost at least."""

from __future__ import annotations

from typing import Final

from pydanube_core.facts import RemovalFacts
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Place
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.brokers import BrokerChangeRequest
from pydanube_admin.operations.topic_take_over import (
    continued,
    counted_loss,
    lost_messages,
    may_lack,
    partial_loss,
)

MOST_SHOWN: Final = 100  # topics of a broker that is to be removed


class RemovedBroker(Change):
    broker_id: str
    topics: int  # topics that other brokers get
    known_lost_messages: int | None  # at least so many. None: the broker never reported its topics' ends


def _reported(facts: RemovalFacts) -> str:
    """Return how far the broker reported its topics, and the topics whose loss cannot be counted, as sentences."""
    unreported = sum(each.reported_to is None and may_lack(each) for each in facts.topics)
    if facts.said_at_ms is None:
        return "It never reported how far they go" + (
            ", so that the loss cannot be counted" if unreported else ""
        )
    reported = (
        f"It reported at {format_time(facts.said_at_ms)} how far they go, and later messages are not counted"
    )
    return f"{reported}. Of {counted(unreported, 'topic')} it reported nothing" if unreported else reported


def _places(facts: RemovalFacts) -> str:
    return "the object store and the copy of its journal there" if facts.is_copied else "the object store"


async def forecast_remove(context: Context, request: BrokerChangeRequest) -> Forecast:
    facts = await context.port.removal(request.broker_id)
    unread = (
        ""
        if facts.copy_error is None
        else f"The copy of its journal could not be read for this plan ({facts.copy_error}), so that messages which only "
        "the copy has count as lost here. "
        + (
            "It is damaged, and the removal gives it up: restore it first if you can. "
            if facts.is_damaged
            else ""
        )
    )
    return Forecast(
        diff=[
            entry(f"brokers/{facts.broker_id}", None if facts.is_removed else "registered before", "removed"),
            *(
                entry(
                    f"topics{each.topic}",
                    {
                        "stored_to": each.copied_to,
                        "known_to": None
                        if each.reported_to is None
                        else max(each.copied_to, each.reported_to),
                    },
                    {"owner": "another broker", **continued(each)},
                )
                for each in sorted(facts.topics, key=lambda each: each.topic)[:MOST_SHOWN]
            ),
        ],
        blast_radius=blast_radius(
            topics=len(facts.topics),
            subscriptions=sum(each.subscriptions for each in facts.topics),
            messages=counted_loss(facts.topics),
            bytes=None,
        ),
        later=f"{unread}{partial_loss(facts.topics)}The messages of its topics behind {_places(facts)} are lost but for its data directory: started on "
        f"that once more, the broker writes them to lost+found/ in the store. {_reported(facts)}. Subscriptions continue at "
        "the positions of that report, so that messages which were acknowledged since are delivered again. If it still "
        "runs without etcd it may acknowledge messages until it reaches etcd: end it first. It may not register again",
        basis=[
            facts.broker_id,
            facts.is_removed,
            facts.is_damaged,
            sorted(each.topic for each in facts.topics),
        ],
        # The call that applies the plan need not replay the chain again
        pinned={
            "count": len(facts.topics),
            "lost": lost_messages(facts.topics),
            "without_copy": facts.is_damaged,
        },
    )


@operation(
    "brokers.remove",
    at=Place.ANYWHERE,
    effect=Effect.DESTROY,
    title="Remove a broker",
    summary="Remove a broker that is gone for good: others serve its topics from the object store, the rest of its journal is lost.",
    forecast=forecast_remove,
    long_running=True,
    examples=(Example({"broker_id": "10203040506070809"}, "shows the loss, then needs a confirmation"),),
)
async def remove_broker(context: Context, request: BrokerChangeRequest) -> RemovedBroker:
    """Remove a broker: it cannot register again, and the leader gives its topics to others."""
    assert context.pinned is not None, "it is planned"
    await context.port.remove_broker(request.broker_id, without_copy=context.pinned["without_copy"])
    return RemovedBroker(
        broker_id=request.broker_id,
        topics=context.pinned["count"],
        known_lost_messages=context.pinned["lost"],
    )
