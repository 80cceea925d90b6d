"""Policies of topics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydanube_core.names import TopicName
from pydanube_core.refusals import changed_since, policies_of_a_partition, reused

from pydanube_admin.context import Context
from pydanube_admin.effect import Effect
from pydanube_admin.forecast import Forecast, Undo, blast_radius, changes
from pydanube_admin.next_calls import next_call
from pydanube_admin.policy_arguments import (
    check_some,
    later_text,
    plain,
    restoring,
    shortens_retention,
    with_changes,
)
from pydanube_admin.topics.models import (
    ChangedTopicPolicies,
    SetTopicPoliciesRequest,
    TopicPoliciesRequest,
    TopicPoliciesResult,
)
from pydanube_admin.topics.reading import Topic, find_topic


async def get_topic_policies(context: Context, request: TopicPoliciesRequest) -> TopicPoliciesResult:
    topic = await find_topic(context, request.topic)
    return await _topic_policies(context, topic.own.topic)


async def _topic_policies(context: Context, name: str) -> TopicPoliciesResult:
    found = await context.port.topic_policies(name)
    return TopicPoliciesResult(topic=name, policies=dict(found.own), effective=dict(found.effective))


async def set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> ChangedTopicPolicies:
    topic = await _settable(context, request)
    await context.port.set_topic_policies(topic.own.topic, plain(request.policies))
    found = await _topic_policies(context, topic.own.topic)
    return ChangedTopicPolicies(**found.model_dump())


async def forecast_set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> Forecast:
    topic = await _settable(context, request)
    before = await context.port.topic_policies(topic.own.topic)
    above = await context.port.namespace_policies(TopicName.parse(topic.own.topic).namespace)
    given = plain(request.policies)
    after = with_changes(before.effective, given, above.effective)
    destroys = shortens_retention(before.effective, after)
    loss = await context.port.forecast_retention({topic.own.topic: after} if destroys else {})
    at_work = topic.producers or topic.consumers
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
        basis=[
            str(topic.own.topic_id),
            dict(before.own),
            dict(before.effective),
            destroys,
            None if at_work else loss.messages,
        ],
        later=later_text(loss) if destroys else None,
    )


async def undo_set_topic_policies(
    context: Context,
    request: SetTopicPoliciesRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    topic = await _settable(context, request)
    if str(topic.own.topic_id) != image.get("topic_id", str(topic.own.topic_id)):
        raise reused("topic", topic.own.topic)
    own = (await context.port.topic_policies(topic.own.topic)).own
    given = plain(request.policies)
    if restoring(own, given) not in (given, restoring(image["own"], given)):
        raise changed_since(f"a policy of {topic.own.topic}")
    back = request.model_copy(update={"policies": restoring(image["own"], given)})
    return Undo(
        act=partial(set_topic_policies, context, back),
        forecast=await forecast_set_topic_policies(context, back),
    )


async def _settable(context: Context, request: SetTopicPoliciesRequest) -> Topic:
    check_some(request.policies)
    topic = await find_topic(context, request.topic)
    if topic.own.parent is not None:
        raise policies_of_a_partition(topic.own.topic).followed_by(
            next_call("topics.get_policies", {"topic": topic.own.parent}, "shows the whole topic's")
        )
    return topic
