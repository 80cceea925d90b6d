"""Topics go to other brokers: to a named one, or to the one with the fewest.

Begun at any broker. What a move needs is asked before its owner stops anything, and the target reads what is handed over
before that, too: a move that cannot be carried out leaves the topic where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field
from pydanube_core.errors import Conflict, InvalidArgument, LastBroker, Unavailable
from pydanube_core.facts import TopicFacts
from pydanube_core.refusals import changed_since

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry
from pydanube_admin.engine.models import Change, Request, TopicArgument, TopicRequest
from pydanube_admin.engine.next_calls import next_call
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.operations.topics import Topic, find_topic


class MoveTopicRequest(Request):
    topic: TopicArgument
    to_broker: Annotated[
        str | None,
        Field(min_length=1, max_length=32, description="Without it, the one with the fewest topics"),
    ] = None


class MovedTopic(Change):
    topic: str
    moves: dict[str, str]  # concrete topic → the broker it goes to


async def undo_move(context: Context, request: Request, done: Done) -> Undo:
    """Hand the topics back to the brokers they came from. What is there already stays there.

    Raises:
        Conflict: a topic has gone to another broker since, or is still on its way.
        LastBroker: a broker that they came from takes no topics now.
    """
    moves = (done.result or done.image)["moves"]
    back: dict[str, str] = {}
    for topic, target in moves.items():
        source = done.image["sources"].get(topic)
        (owner,) = await context.port.owners(topic)
        at = None if owner is None else owner.broker_id
        if at not in (source, target):
            raise changed_since(f"the owner of {topic}")
        if source is not None and at == target:
            back[topic] = source
    missing = set(back.values()) - set(await context.port.takers())
    if missing:
        raise LastBroker(
            f"the topics came from broker {', '.join(sorted(missing))}, which takes none now", field="call_id"
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are, and their states"))
    return Undo(
        act=partial(_hand_over, context, back),
        forecast=Forecast(
            diff=[entry(f"topics{topic}/owner", moves[topic], source) for topic, source in back.items()],
            blast_radius=blast_radius(topics=len(back)),
        ),
    )


async def _hand_over(context: Context, moves: Mapping[str, str]) -> None:
    for topic, target in moves.items():
        await context.port.move_topic(topic, target)
    context.desk.balancer.moved(moves)


async def forecast_move(context: Context, request: MoveTopicRequest) -> Forecast:
    topic = await find_topic(context, request.topic)
    moves = await _moves(context, topic, request.to_broker)
    sources = {log.topic: log.owner for log in topic.logs if log.topic in moves}
    return Forecast(
        diff=[entry(f"topics{log}/owner", source, moves[log]) for log, source in sources.items()],
        image={"sources": sources, "moves": dict(moves)},
        blast_radius=blast_radius(
            topics=1, subscriptions=len(topic.subscriptions), consumers=topic.consumers
        ),
    )


async def _moves(context: Context, topic: Topic, to_broker: str | None) -> Mapping[str, str]:
    """Where each log would go, by what is known now."""
    takers = await context.port.takers()
    if not any(set(takers) - {log.owner} for log in topic.logs):
        raise LastBroker(
            f"{topic.own.topic} has nowhere to go: no other broker takes topics",
            field="topic",
            value=topic.own.topic,
        )
    if to_broker is not None and to_broker not in takers:
        raise InvalidArgument(
            f"broker {to_broker} takes no topics; {', '.join(takers)} would",
            field="to_broker",
            value=to_broker,
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are, and their states"))
    found = {log.topic: target for log in topic.logs if (target := _target(log, takers, to_broker))}
    if not found:
        raise Conflict(
            f"{topic.own.topic} is with broker {to_broker} already", topic=topic.own.topic, retryable=False
        )
    if to_broker is not None:
        await _check_store(context, to_broker)
    return found


def _target(log: TopicFacts, takers: Sequence[str], to_broker: str | None) -> str | None:
    if to_broker is not None:
        return None if log.owner == to_broker else to_broker
    return next((broker for broker in takers if broker != log.owner), None)


async def _check_store(context: Context, broker_id: str) -> None:
    """The target reads the hand-over from the store: one that says it cannot is not asked."""
    for facts in await context.port.statuses():
        if facts.broker_id != broker_id:
            continue
        for reason in facts.reasons:
            if reason.code.startswith("TIER_STORE") or reason.code == "TIER_NOT_SHARED":
                raise Unavailable(
                    f"broker {broker_id} cannot read what is handed over: {reason.message}",
                    broker_id=broker_id,
                    retry_after_ms=1000,
                )
        return
    raise Unavailable(
        f"broker {broker_id} is registered and does not answer", broker_id=broker_id, retry_after_ms=1000
    ).followed_by(next_call("brokers.list", {}, "shows who answers"))


@operation(
    "topics.move",
    effect=Effect.CHANGE,
    title="Move a topic",
    permission="topics:change",
    summary="Move a topic to another broker, a named one or the one with the fewest topics.",
    forecast=forecast_move,
    undo=undo_move,
    examples=(Example({"topic": "orders", "to_broker": "10203040506070809"}, "to the one that is named"),),
)
async def move_topic(context: Context, request: MoveTopicRequest) -> MovedTopic:
    """It begins to be handed over: who publishes or consumes meanwhile waits for a moment, and nothing is lost."""
    topic = await find_topic(context, request.topic)
    await _moves(context, topic, request.to_broker)
    moves = await context.port.move_topic(topic.own.topic, request.to_broker)
    return MovedTopic(topic=topic.own.topic, moves=dict(moves))


async def forecast_unload(context: Context, request: TopicRequest) -> Forecast:
    return await forecast_move(context, MoveTopicRequest(topic=request.topic))


@operation(
    "topics.unload",
    effect=Effect.CHANGE,
    title="Unload a topic",
    permission="topics:change",
    summary="Move a topic to another broker; a lone broker answers LAST_BROKER.",
    forecast=forecast_unload,
    undo=undo_move,
    examples=(Example({"topic": "orders"}, "to the one with the fewest topics"),),
)
async def unload_topic(context: Context, request: TopicRequest) -> MovedTopic:
    """As `topics.move` without a target."""
    return await move_topic(context, MoveTopicRequest(topic=request.topic))
