"""The methods of `danube_admin`, and the changing ones of SchemaRegistry: path → handler.

Each takes the bytes of its request and gives the bytes of its answer, or raises the error that becomes the status.
The composition root hands them to the broker's admin server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError, Message
from pydanube_core.errors import InvalidArgument
from pydanube_core.services import (
    BROKER_ADMIN,
    CLUSTER_ADMIN,
    NAMESPACE_ADMIN,
    SCHEMA_REGISTRY,
    SECURITY_ADMIN,
    TOPIC_ADMIN,
    Method,
    Service,
)

from pydanube_admin.compat.asking import Asking, Metadata
from pydanube_admin.compat.brokers import Brokers
from pydanube_admin.compat.schemas import SchemaChanges
from pydanube_admin.compat.security import Security
from pydanube_admin.compat.topics import Namespaces, Subscriptions, Topics
from pydanube_admin.core import AdminCore

Serve = Callable[[bytes], Awaitable[bytes]]


def compat_methods(core: AdminCore, metadata: Metadata = tuple) -> Mapping[str, Serve]:
    """Return every method of the five services. Fails here, and not in a call, if one has no handler.

    Args:
        metadata: returns that of the call under way, which names the principal.
    """
    ask = Asking(core, metadata)
    brokers = Brokers(ask)
    owners: tuple[tuple[Service, tuple[object, ...]], ...] = (
        (BROKER_ADMIN, (brokers,)),
        (CLUSTER_ADMIN, (brokers,)),
        (NAMESPACE_ADMIN, (Namespaces(ask),)),
        (TOPIC_ADMIN, (Topics(ask), Subscriptions(ask))),
        (SECURITY_ADMIN, (Security(ask),)),
    )
    methods: dict[str, Serve] = {}
    for service, objects in owners:
        for method in service:
            name = _python_name(method.name)
            answer = next(getattr(each, name) for each in objects if hasattr(each, name))
            methods[method.path] = _served(method, answer)
    changes = SchemaChanges(ask)
    for method in SCHEMA_REGISTRY:
        change = getattr(changes, _python_name(method.name), None)
        if change is not None:
            methods[method.path] = _served(method, change)
    return methods


def _python_name(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _served(method: Method, answer: Callable[[Any], Awaitable[Message]]) -> Serve:
    async def serve(data: bytes) -> bytes:
        try:
            request = method.request.FromString(data)
        except DecodeError as error:
            raise InvalidArgument(
                f"the request is no {method.request.DESCRIPTOR.name}", field="request"
            ) from error
        return (await answer(request)).SerializeToString()

    return serve
