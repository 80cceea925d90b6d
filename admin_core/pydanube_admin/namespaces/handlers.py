"""Namespaces and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.errors import AlreadyExists, NamespaceNotFound
from pydanube_core.names import check_namespace
from pydanube_core.refusals import namespace_taken
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Page, Preview
from pydanube_admin.namespaces.models import (
    CreateNamespaceRequest,
    ListNamespacesRequest,
    NamespaceItem,
    NamespacePoliciesRequest,
    NamespacePoliciesResult,
    SetNamespacePoliciesRequest,
)
from pydanube_admin.next_calls import next_call
from pydanube_admin.paging import cut, glob
from pydanube_admin.policy_arguments import check_some, plain
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.spelling import close_names

__all__ = [
    "create_namespace",
    "get_namespace_policies",
    "list_namespaces",
    "preview_create_namespace",
    "preview_set_namespace_policies",
    "set_namespace_policies",
]


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
        await context.port.create_namespace(name, plain(request.policies))
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
    return namespace_taken(name).followed_by(
        next_call("namespaces.get_policies", {"namespace": name}, "shows the one that has the name")
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
    await context.port.set_namespace_policies(name, plain(request.policies))
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
        diff=changes(f"namespaces/{name}/policies", before, plain(request.policies)),
        blast_radius=blast_radius(topics=topics),
    )


async def _known(context: Context, request: SetNamespacePoliciesRequest) -> str:
    check_some(request.policies)
    return (await _namespace_policies(context, check_namespace(request.namespace))).namespace
