"""The operations on namespaces."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.namespaces.handlers import (
    create_namespace,
    delete_namespace,
    forecast_create_namespace,
    forecast_delete_namespace,
    forecast_set_namespace_policies,
    get_namespace_policies,
    list_namespaces,
    set_namespace_policies,
    undo_create_namespace,
    undo_delete_namespace,
    undo_set_namespace_policies,
)
from pydanube_admin.namespaces.models import (
    ChangedNamespace,
    CreateNamespaceRequest,
    DeletedNamespace,
    DeleteNamespaceRequest,
    ListNamespacesRequest,
    NamespaceItem,
    NamespacePoliciesRequest,
    NamespacePoliciesResult,
    SetNamespacePoliciesRequest,
)
from pydanube_admin.operation import Example, Operation

NAMESPACE_OPERATIONS: Final = (
    Operation(
        name="namespaces.list",
        tool="list_namespaces",
        title="List namespaces",
        effect=Effect.READ,
        permission="namespaces:read",
        reversible=None,
        summary="List namespaces with their topics and policies.",
        request=ListNamespacesRequest,
        result=Page[NamespaceItem],
        handler=list_namespaces,
        examples=(Example(arguments={}, note="every namespace"),),
        default_profile=False,
    ),
    Operation(
        name="namespaces.create",
        tool="create_namespace",
        title="Create a namespace",
        effect=Effect.CREATE,
        permission="namespaces:create",
        reversible=True,
        summary="Create a namespace, optionally with limits for its topics.",
        request=CreateNamespaceRequest,
        result=ChangedNamespace,
        handler=create_namespace,
        forecast=forecast_create_namespace,
        undo=undo_create_namespace,
        examples=(
            Example(arguments={"namespace": "shop"}, note="without limits of its own"),
            Example(
                arguments={"namespace": "shop", "policies": {"max_consumers_per_topic": 10}},
                note="with a limit",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="namespaces.delete",
        tool="delete_namespace",
        title="Delete a namespace",
        effect=Effect.DESTROY,
        permission="namespaces:delete",
        reversible=True,
        summary="Delete a namespace that holds no topics.",
        request=DeleteNamespaceRequest,
        result=DeletedNamespace,
        handler=delete_namespace,
        forecast=forecast_delete_namespace,
        undo=undo_delete_namespace,
        examples=(Example(arguments={"namespace": "shop"}, note="its policies go with it"),),
        default_profile=False,
    ),
    Operation(
        name="namespaces.get_policies",
        tool="get_namespace_policies",
        title="Policies of a namespace",
        effect=Effect.READ,
        permission="namespaces:read",
        reversible=None,
        summary="Show the limits set on a namespace, and those that hold for a topic that sets none.",
        request=NamespacePoliciesRequest,
        result=NamespacePoliciesResult,
        handler=get_namespace_policies,
        examples=(Example(arguments={"namespace": "default"}, note="set and effective"),),
        default_profile=False,
    ),
    Operation(
        name="namespaces.set_policies",
        tool="set_namespace_policies",
        title="Set policies of a namespace",
        effect=Effect.CHANGE,
        permission="namespaces:change",
        reversible=True,
        summary="Set limits of every topic in a namespace that does not set its own; live at once.",
        request=SetNamespacePoliciesRequest,
        result=ChangedNamespace,
        handler=set_namespace_policies,
        forecast=forecast_set_namespace_policies,
        undo=undo_set_namespace_policies,
        required_flags=("policies",),
        examples=(
            Example(
                arguments={"namespace": "shop", "policies": {"max_message_size": 65536}},
                note="messages of 64 KiB at most",
            ),
        ),
        default_profile=False,
    ),
)
