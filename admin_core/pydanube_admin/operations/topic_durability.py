"""Change the durability of a topic, the level at which a publish is acknowledged."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.refusals import reused, system_is_kept

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, changes
from pydanube_admin.engine.models import Change, Effect, Request, TopicArgument
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.topics import Topic, find_topic

Level = Literal["fsynced", "stored"]


class SetDurabilityRequest(Request):
    topic: TopicArgument
    durability: Annotated[Level, Field(description="For the broker's disk, or the object store")]


class ChangedDurability(Change):
    topic: str
    durability: str
    reached: bool  # False: receipts have the former durability until the owner has reached the new one


async def forecast_set_durability(context: Context, request: SetDurabilityRequest) -> Forecast:
    topic = await _settable(context, request)
    before = topic.own.durability
    falls = (before, request.durability) == ("stored", "fsynced")
    return Forecast(
        diff=changes(f"topics{topic.own.topic}", {"durability": before}, {"durability": request.durability}),
        blast_radius=blast_radius(
            topics=len(topic.logs) if falls else 0,
            subscriptions=len(topic.subscriptions) if falls else 0,
            consumers=topic.consumers if falls else 0,
        ),
        effect=Effect.DESTROY if falls else None,
        image={"durability": before, "topic_id": str(topic.own.topic_id)},
        basis=[str(topic.own.topic_id), before],
        later="Receipts are sent once the message is on the owner's disk. If the owner is lost, the topic waits for it. Messages "
        "that only its disk has are lost with the disk. Producers connect again"
        if falls
        else None,
    )


async def undo_set_durability(context: Context, request: SetDurabilityRequest, done: Done) -> Undo:
    topic = await _settable(context, request)
    if str(topic.own.topic_id) != done.image["topic_id"]:
        raise reused("topic", topic.own.topic)
    back = request.model_copy(update={"durability": done.image["durability"]})
    return Undo(
        act=partial(set_durability, context, back), forecast=await forecast_set_durability(context, back)
    )


@operation(
    "topics.set_durability",
    effect=Effect.CHANGE,
    may_destroy=True,
    title="Set the durability of a topic",
    permission="topics:change",
    summary="Set the durability that publishes to a topic wait for: the disk of its broker, or the object store.",
    forecast=forecast_set_durability,
    undo=undo_set_durability,
    required_flags=("durability",),
    examples=(Example({"topic": "orders", "durability": "stored"}, "acknowledged when the store has it"),),
)
async def set_durability(context: Context, request: SetDurabilityRequest) -> ChangedDurability:
    """Change the durability, and wait some seconds for the owner to reach it."""
    topic = await _settable(context, request)
    reached = await context.port.set_durability(topic.own.topic, request.durability)
    return ChangedDurability(topic=topic.own.topic, durability=request.durability, reached=reached)


async def _settable(context: Context, request: SetDurabilityRequest) -> Topic:
    topic = await find_topic(context, request.topic)
    name = topic.own.topic
    if TopicName.parse(name).is_system:
        raise system_is_kept(name)
    if topic.own.parent is not None:
        raise InvalidArgument(
            f"{name} is a partition: set the durability of {topic.own.parent}", field="topic", value=name
        ).followed_by(
            next_call(
                "topics.set_durability",
                {"topic": topic.own.parent, "durability": request.durability},
                "sets that of all partitions",
            )
        )
    if topic.own.dispatch_strategy == "non_reliable":
        raise InvalidArgument(
            f"{name} is non_reliable and stores nothing: create a reliable topic",
            field="durability",
            value=request.durability,
        )
    return topic
