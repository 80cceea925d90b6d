"""Operations on the policies of topics."""

from __future__ import annotations

from functools import partial

from pydanube_core.names import TopicName
from pydanube_core.refusals import policies_of_a_partition, reused

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, changes
from pydanube_admin.engine.models import Change, Effect, Request, Result, TopicArgument, TopicRequest
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.namespaces import (
    PoliciesArgument,
    check_some,
    later_text,
    plain,
    restored,
    shortens_retention,
    with_changes,
)
from pydanube_admin.operations.present_use import refused_then, topics_over
from pydanube_admin.operations.topics import Topic, find_topic
from pydanube_admin.operations.unused import was_live


class SetTopicPoliciesRequest(Request):
    topic: TopicArgument
    policies: PoliciesArgument


class TopicPoliciesResult(Result):
    topic: str
    policies: dict[str, int]  # set on the topic itself
    effective: dict[
        str, int
    ]  # effective values: the topic's, else its namespace's, else the broker's settings


class ChangedTopicPolicies(TopicPoliciesResult, Change):
    pass


@operation(
    "topics.get_policies",
    effect=Effect.READ,
    title="Policies of a topic",
    summary="Show the limits set on a topic, and those that hold: its own, its namespace's, the broker's.",
    examples=(Example({"topic": "orders"}, "set and effective"),),
)
async def get_topic_policies(context: Context, request: TopicRequest) -> TopicPoliciesResult:
    topic = await find_topic(context, request.topic)
    return await _topic_policies(context, topic.own.topic)


async def _topic_policies(context: Context, name: str) -> TopicPoliciesResult:
    found = await context.port.topic_policies(name)
    return TopicPoliciesResult(topic=name, policies=dict(found.own), effective=dict(found.effective))


async def forecast_set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> Forecast:
    topic = await _settable(context, request)
    before = await context.port.topic_policies(topic.own.topic)
    above = await context.port.namespace_policies(TopicName.parse(topic.own.topic).namespace)
    given = plain(request.policies)
    after = with_changes(before.effective, given, above.effective)
    destroys = shortens_retention(before.effective, after)
    loss = await context.port.forecast_retention({topic.own.topic: after} if destroys else {})
    limits = {key: after[key] for key in given}
    over = await topics_over(context, [[topic.own, *topic.parts]], limits, own_first=False)
    return Forecast(
        diff=changes(f"topics{topic.own.topic}/policies", before.own, given),
        blast_radius=blast_radius(
            topics=1,
            subscriptions=len(topic.subscriptions) if destroys else 0,
            consumers=topic.consumers,
            messages=loss.messages,
            bytes=loss.bytes,
        ),
        effect=Effect.DESTROY if destroys else None,
        reversible=not destroys,
        image={"own": dict(before.own), "topic_id": str(topic.own.topic_id)},
        basis=[str(topic.own.topic_id), dict(before.own), dict(before.effective), destroys],
        counts=loss.messages,
        was_live=await was_live(context, [topic.own]) if destroys else None,
        later=". ".join([*([later_text(loss)] if destroys else []), *refused_then(over)]) or None,
    )


async def undo_set_topic_policies(context: Context, request: SetTopicPoliciesRequest, done: Done) -> Undo:
    topic = await _settable(context, request)
    if str(topic.own.topic_id) != done.image.get("topic_id", str(topic.own.topic_id)):
        raise reused("topic", topic.own.topic)
    own = (await context.port.topic_policies(topic.own.topic)).own
    before = restored(own, plain(request.policies), done.image["own"], topic.own.topic)
    back = request.model_copy(update={"policies": before})
    return Undo(
        act=partial(set_topic_policies, context, back),
        forecast=await forecast_set_topic_policies(context, back),
    )


@operation(
    "topics.set_policies",
    effect=Effect.CHANGE,
    may_destroy=True,
    title="Set policies of a topic",
    permission="topics:change",
    summary="Set limits of a topic, immediately. A limit that is not named stays, null removes it, 0 lifts it.",
    forecast=forecast_set_topic_policies,
    undo=undo_set_topic_policies,
    required_flags=("policies",),
    examples=(
        Example(
            {"topic": "orders", "policies": {"max_publish_rate": 1000}}, "at most 1000 messages a second"
        ),
    ),
)
async def set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> ChangedTopicPolicies:
    topic = await _settable(context, request)
    await context.port.set_topic_policies(topic.own.topic, plain(request.policies))
    found = await _topic_policies(context, topic.own.topic)
    return ChangedTopicPolicies(**found.model_dump())


async def _settable(context: Context, request: SetTopicPoliciesRequest) -> Topic:
    check_some(request.policies)
    topic = await find_topic(context, request.topic)
    if topic.own.parent is not None:
        raise policies_of_a_partition(topic.own.topic).followed_by(
            next_call("topics.get_policies", {"topic": topic.own.parent}, "shows the whole topic's")
        )
    return topic
