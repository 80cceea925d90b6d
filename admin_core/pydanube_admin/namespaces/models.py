"""Requests and results of the operations on namespaces."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, Policies, PoliciesArgument, Request, Result

NamespaceArgument = Annotated[str, Field(max_length=256, description="Name of the namespace")]


class ListNamespacesRequest(ListRequest):
    pass


class NamespaceItem(Result):
    namespace: str
    topics: int  # a partitioned topic counts once
    policies: dict[str, int]
    created_at: str


class CreateNamespaceRequest(Request):
    namespace: NamespaceArgument
    policies: Annotated[
        Policies | None, Field(description="Limits of its topics; rates are messages a second")
    ] = None


class DeleteNamespaceRequest(Request):
    namespace: NamespaceArgument


class NamespacePoliciesRequest(Request):
    namespace: NamespaceArgument


class SetNamespacePoliciesRequest(Request):
    namespace: NamespaceArgument
    policies: PoliciesArgument


class NamespacePoliciesResult(Result):
    namespace: str
    policies: dict[str, int]  # set on the namespace
    effective: dict[str, int]  # what holds for a topic that sets nothing


class ChangedNamespace(NamespacePoliciesResult, Change):
    pass


class DeletedNamespace(Change):
    namespace: str
