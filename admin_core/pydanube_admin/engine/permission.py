"""What a call needs: a permission on every thing that it touches, looked at the moment the call is known.

Whatever carries out a call checks its arguments first, and so comes by here: the call itself, the one inside a plan, the
read inside `operations.read`, the change that an undo takes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import PermissionDenied
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName, check_namespace
from pydanube_core.security.identity import current_identity
from pydanube_core.security.permissions import AUDIT_READ, CLUSTER, PRODUCE, Resource

from pydanube_admin.engine.call import Call

#: everybody may ask who he is
FREE: Final = frozenset({"security.whoami"})
#: they write files of the broker's machine, which is for the operator who sits there
ON_THE_MACHINE: Final = frozenset({"objects.export"})
#: arguments that name a topic which the operation writes
WRITTEN: Final = {"topics.replay": "to", "subscriptions.set_failure_policy": "dead_letter_topic"}


def check_permission(port: ClusterPort, call: Call) -> Call:
    """The call, if its caller may make it. Nothing is asked where the locks are off.

    Raises:
        Unauthenticated, PermissionDenied: he may not; whether what he names exists is not told.
    """
    locks, operation = port.locks, call.operation
    if locks is None or operation.name in FREE:
        return call
    identity = current_identity.get()
    for permission, resource in needs(call):
        locks.check(identity, permission, resource)
    if operation.name in ON_THE_MACHINE and locks.required and (identity is None or not identity.everything):
        raise PermissionDenied(
            f"{operation.name} writes files of the broker's machine: call it there, with --admin unix:DATA/admin.sock",
            permission=operation.permission,
        )
    return call


def needs(call: Call) -> Iterator[tuple[str, Resource]]:
    """Each permission with what it is needed on. A name that is none is refused by the operation itself."""
    operation, arguments = call.operation, call.arguments
    resource = _resource(arguments.get("topic"), arguments.get("namespace"))
    yield operation.permission, resource
    if resource.namespace == SYSTEM_NAMESPACE:
        yield AUDIT_READ, CLUSTER
    written = arguments.get(WRITTEN.get(operation.name, ""))
    if isinstance(written, str) and written:
        yield PRODUCE, Resource.of(TopicName.parse(written))


def _resource(topic: object, namespace: object) -> Resource:
    if isinstance(topic, str) and topic:
        return Resource.of(TopicName.parse(topic))
    if isinstance(namespace, str) and namespace:
        return Resource(check_namespace(namespace))
    return CLUSTER
