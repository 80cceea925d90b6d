"""Policies of topics."""

from __future__ import annotations

from pydanube_core.refusals import policies_of_a_partition

from pydanube_admin.context import Context
from pydanube_admin.models import Preview
from pydanube_admin.next_calls import next_call
from pydanube_admin.policy_arguments import check_some, plain
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.topics.models import SetTopicPoliciesRequest, TopicPoliciesRequest, TopicPoliciesResult
from pydanube_admin.topics.reading import Topic, find_topic

__all__ = ["get_topic_policies", "preview_set_topic_policies", "set_topic_policies"]


async def get_topic_policies(context: Context, request: TopicPoliciesRequest) -> TopicPoliciesResult:
    topic = await find_topic(context, request.topic)
    return await _topic_policies(context, topic.own.topic)


async def _topic_policies(context: Context, name: str) -> TopicPoliciesResult:
    found = await context.port.topic_policies(name)
    return TopicPoliciesResult(topic=name, policies=dict(found.own), effective=dict(found.effective))


async def set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> TopicPoliciesResult:
    topic = await _settable(context, request)
    await context.port.set_topic_policies(topic.own.topic, plain(request.policies))
    return await _topic_policies(context, topic.own.topic)


async def preview_set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> Preview:
    topic = await _settable(context, request)
    before = (await context.port.topic_policies(topic.own.topic)).own
    return Preview(
        operation="topics.set_policies",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="change",
        reversible=True,
        diff=changes(f"topics{topic.own.topic}/policies", before, plain(request.policies)),
        blast_radius=blast_radius(topics=1, consumers=topic.consumers),
    )


async def _settable(context: Context, request: SetTopicPoliciesRequest) -> Topic:
    check_some(request.policies)
    topic = await find_topic(context, request.topic)
    if topic.own.parent is not None:
        raise policies_of_a_partition(topic.own.topic).followed_by(
            next_call("topics.get_policies", {"topic": topic.own.parent}, "shows the whole topic's")
        )
    return topic
