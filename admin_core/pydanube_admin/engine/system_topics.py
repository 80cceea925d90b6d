"""Refuse changes of the broker's own topics, such as the audit, except by operations that destroy nothing there."""

from __future__ import annotations

from typing import Final

from pydanube_core.names import SYSTEM_NAMESPACE, TopicName
from pydanube_core.refusals import system_is_kept

from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Call

#: They read a system topic, move a subscription's own cursor, or are refused by a check of their own
ALLOWED: Final = frozenset({
    "audit.export", "dead_letters.replay", "messages.publish", "objects.compact", "objects.export", "objects.flush",
    "subscriptions.create", "subscriptions.delete", "subscriptions.purge", "subscriptions.seek",
    "subscriptions.set_failure_policy", "subscriptions.skip", "topics.replay",
})  # fmt: skip


def check_system_topics(call: Call) -> Call:
    """Return the call. Raises `PermissionDenied` if it would change a system topic or the namespace `system`."""
    operation, arguments = call.operation, call.arguments
    if operation.effect is Effect.READ or operation.name in ALLOWED:
        return call
    topic, namespace = arguments.get("topic"), arguments.get("namespace")
    if isinstance(topic, str) and topic and TopicName.parse(topic).is_system:
        raise system_is_kept(topic)
    if namespace == SYSTEM_NAMESPACE:
        raise system_is_kept(SYSTEM_NAMESPACE, field="namespace")
    return call
