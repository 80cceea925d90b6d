"""Operations on policies of topics and namespaces, and on namespaces themselves, over the cluster port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.errors import AlreadyExists, InvalidArgument, NamespaceNotFound
from pydanube_core.names import check_namespace
from pydanube_core.units import format_time

from pydanube_admin.arguments import close_names
from pydanube_admin.context import Context
from pydanube_admin.models import (
    CreateNamespaceRequest,
    ListNamespacesRequest,
    NamespaceItem,
    NamespacePoliciesRequest,
    NamespacePoliciesResult,
    Page,
    Policies,
    Preview,
    SetNamespacePoliciesRequest,
    SetTopicPoliciesRequest,
    TopicPoliciesRequest,
    TopicPoliciesResult,
)
from pydanube_admin.paging import cut, glob
from pydanube_admin.policy_names import POLICIES
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.registry import next_call
from pydanube_admin.topics import Topic, find_topic

__all__ = [
    "create_namespace",
    "get_namespace_policies",
    "get_topic_policies",
    "list_namespaces",
    "preview_create_namespace",
    "preview_set_namespace_policies",
    "preview_set_topic_policies",
    "set_namespace_policies",
    "set_topic_policies",
]


# Topics


async def get_topic_policies(context: Context, request: TopicPoliciesRequest) -> TopicPoliciesResult:
    topic = await find_topic(context, request.topic)
    return await _topic_policies(context, topic.own.topic)


async def _topic_policies(context: Context, name: str) -> TopicPoliciesResult:
    found = await context.port.topic_policies(name)
    return TopicPoliciesResult(topic=name, policies=dict(found.own), effective=dict(found.effective))


async def set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> TopicPoliciesResult:
    topic = await _settable(context, request)
    await context.port.set_topic_policies(topic.own.topic, _plain(request.policies))
    return await _topic_policies(context, topic.own.topic)


async def preview_set_topic_policies(context: Context, request: SetTopicPoliciesRequest) -> Preview:
    topic = await _settable(context, request)
    before = (await context.port.topic_policies(topic.own.topic)).own
    return Preview(
        operation="topics.set_policies",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="change",
        reversible=True,
        diff=changes(f"topics{topic.own.topic}/policies", before, _plain(request.policies)),
        blast_radius=blast_radius(topics=1, consumers=topic.consumers),
    )


async def _settable(context: Context, request: SetTopicPoliciesRequest) -> Topic:
    _check_some(request.policies)
    topic = await find_topic(context, request.topic)
    if topic.own.parent is not None:
        raise InvalidArgument(
            f"{topic.own.topic} is a partition; policies are set on {topic.own.parent}, for all of its partitions",
            field="topic",
            value=topic.own.topic,
            next=[next_call("topics.get_policies", {"topic": topic.own.parent}, "shows the whole topic's")],
        )
    return topic


def _plain(policies: Policies | None) -> dict[str, int | None]:
    return {str(name): value for name, value in (policies or {}).items()}


def _check_some(policies: Policies) -> None:
    if not policies:
        raise InvalidArgument(
            f"policies is empty; name at least one of {', '.join(POLICIES)}",
            field="policies",
            value={},
        )


# Namespaces


async def list_namespaces(context: Context, request: ListNamespacesRequest) -> Page[NamespaceItem]:
    matches = glob(request.filter)
    found = [facts for facts in await context.port.namespaces() if matches(facts.namespace)]
    page = cut(found, key=lambda facts: (facts.namespace,), operation="namespaces.list", request=request)
    return Page[NamespaceItem](
        items=[
            NamespaceItem(
                namespace=facts.namespace,
                topics=facts.topics,
                policies=dict(facts.policies),
                created_at=format_time(facts.created_at_ms),
            )
            for facts in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def create_namespace(context: Context, request: CreateNamespaceRequest) -> NamespacePoliciesResult:
    name = check_namespace(request.namespace)
    try:
        await context.port.create_namespace(name, _plain(request.policies))
    except AlreadyExists as error:
        raise _taken(name) from error
    return await _namespace_policies(context, name)


async def preview_create_namespace(context: Context, request: CreateNamespaceRequest) -> Preview:
    name = check_namespace(request.namespace)
    if any(facts.namespace == name for facts in await context.port.namespaces()):
        raise _taken(name)
    return Preview(
        operation="namespaces.create",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="create",
        reversible=True,
        diff=[
            {
                "path": f"namespaces/{name}",
                "before": None,
                "after": {"policies": request.policies or {}},
            }
        ],
        blast_radius=blast_radius(),
    )


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"the namespace {name} exists already",
        field="namespace",
        value=name,
        next=[next_call("namespaces.get_policies", {"namespace": name}, "shows the one that has the name")],
    )


async def get_namespace_policies(
    context: Context, request: NamespacePoliciesRequest
) -> NamespacePoliciesResult:
    return await _namespace_policies(context, check_namespace(request.namespace))


async def _namespace_policies(context: Context, name: str) -> NamespacePoliciesResult:
    try:
        found = await context.port.namespace_policies(name)
    except NamespaceNotFound as error:
        raise await _no_namespace(context, name) from error
    return NamespacePoliciesResult(namespace=name, policies=dict(found.own), effective=dict(found.effective))


async def _no_namespace(context: Context, name: str) -> NamespaceNotFound:
    close = close_names(name, [facts.namespace for facts in await context.port.namespaces()])
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return NamespaceNotFound(
        f"there is no namespace {name}{hint}",
        field="namespace",
        value=name,
        did_you_mean=close,
        next=[
            next_call("namespaces.create", {"namespace": name}, "creates it"),
            next_call("namespaces.list", {}, "shows the namespaces there are"),
        ],
    )


async def set_namespace_policies(
    context: Context, request: SetNamespacePoliciesRequest
) -> NamespacePoliciesResult:
    name = await _known(context, request)
    await context.port.set_namespace_policies(name, _plain(request.policies))
    return await _namespace_policies(context, name)


async def preview_set_namespace_policies(context: Context, request: SetNamespacePoliciesRequest) -> Preview:
    name = await _known(context, request)
    before: Mapping[str, Any] = (await context.port.namespace_policies(name)).own
    topics = next((facts.topics for facts in await context.port.namespaces() if facts.namespace == name), 0)
    return Preview(
        operation="namespaces.set_policies",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="change",
        reversible=True,
        diff=changes(f"namespaces/{name}/policies", before, _plain(request.policies)),
        blast_radius=blast_radius(topics=topics),
    )


async def _known(context: Context, request: SetNamespacePoliciesRequest) -> str:
    _check_some(request.policies)
    return (await _namespace_policies(context, check_namespace(request.namespace))).namespace
