"""The limits of a topic, from its policies, its namespace's and the broker's settings. Pure.

Each key is taken from the topic if it is set there, else from the namespace, else from `[policies]`. 0 is no limit,
and a 0 that is set counts as set: a topic can be freed from its namespace's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydanube_core.errors import InvalidArgument, LimitReached
from pydanube_core.quotas import TOPIC_LIMITS

#: How much of a topic stays. `retention_offset`: messages below may go. `drop_unread` 1: also unread ones.
RETENTION_KEYS: Final = ("retention_bytes", "retention_age_s", "retention_offset", "drop_unread")
#: Thresholds of alerts for each subscription (`pydanube_core.diagnosis.causes.pace`).
ALERT_KEYS: Final = ("alert_unread_messages", "alert_unread_age_s")
POLICY_KEYS: Final = (*TOPIC_LIMITS, *RETENTION_KEYS, *ALERT_KEYS)
#: Policy of namespaces and settings: the durability of reliable topics that are created without one.
DURABILITY_KEY: Final = "durability"
DURABILITIES: Final = ("fsynced", "stored")
MAX_VALUE: Final = (1 << 53) - 1  # the largest integer that JSON keeps exactly


def check_policies(policies: Mapping[str, Any], *, field: str = "policies") -> dict[str, int]:
    """Check policies and return them. Raises `InvalidArgument`: an unknown key, or no count."""
    checked: dict[str, int] = {}
    for key, value in policies.items():
        if key == DURABILITY_KEY:
            raise InvalidArgument(
                "durability is a policy of namespaces, for topics that are created later. Change that of a topic with "
                "topics.set_durability",
                field=f"{field}.{key}",
                value=value,
            )
        if key not in POLICY_KEYS:
            raise InvalidArgument(
                f"there is no policy {key!r}. Use {', '.join(POLICY_KEYS)}",
                field=f"{field}.{key}",
                value=value,
            )
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_VALUE:
            raise InvalidArgument(
                f"{key}: {value!r} is not a count. Give 0 (no limit) or more",
                field=f"{field}.{key}",
                value=value,
            )
        if key == "drop_unread" and value > 1:
            raise InvalidArgument(
                f"drop_unread: {value} is neither 0 (retention waits for the slowest cursor) nor 1 (it does not)",
                field=f"{field}.{key}",
                value=value,
            )
        checked[key] = value
    return checked


def check_namespace_policies(policies: Mapping[str, Any]) -> dict[str, int | str]:
    """Check policies of a namespace, which may have a durability. Raises as `check_policies`."""
    counts = dict(policies)
    durability = counts.pop(DURABILITY_KEY, None)
    checked: dict[str, int | str] = {**check_policies(counts)}
    if durability is not None:
        if durability not in DURABILITIES:
            raise InvalidArgument(
                f"durability: {durability!r} is no durability of reliable topics. Use {' or '.join(DURABILITIES)}",
                field=f"policies.{DURABILITY_KEY}",
                value=durability,
            )
        checked[DURABILITY_KEY] = durability
    return checked


def default_durability(*layers: Mapping[str, Any]) -> str:
    """Return the durability of a reliable topic that is created without one, from the first layer that sets it."""
    return next((str(layer[DURABILITY_KEY]) for layer in layers if DURABILITY_KEY in layer), DURABILITIES[0])


def effective_policies(*layers: Mapping[str, Any]) -> dict[str, int]:
    """Return every policy, from the first layer that sets it, or 0 if none does."""
    return {key: next((int(layer[key]) for layer in layers if key in layer), 0) for key in POLICY_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one topic. 0 is no limit. Units are in the names of the policies."""

    max_producers_per_topic: int = 0
    max_subscriptions_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_publish_rate: int = 0  # messages a second and topic
    max_subscription_dispatch_rate: int = 0  # messages a second and subscription
    max_message_size: int = 0  # bytes
    retention_bytes: int = 0
    retention_age_s: int = 0
    retention_offset: int = 0
    drop_unread: int = 0  # 1: retention does not wait for cursors
    alert_unread_messages: int = 0
    alert_unread_age_s: int = 0

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> Limits:
        """Return the limits of layers of policies, nearest first."""
        return cls(**effective_policies(*layers))

    def as_policies(self) -> dict[str, int]:
        return asdict(self)

    def check_room(self, key: str, present: int, *, what: str, topic: str) -> None:
        """Raise `LimitReached` if one more would be too many."""
        limit: int = getattr(self, key)
        if limit and present >= limit:
            raise LimitReached(
                f"{topic} has {present} {what}, and {key} is {limit}: wait until one leaves, or raise the policy",
                field=key,
                value=present,
                limit=limit,
                topic=topic,
                retry_after_ms=1000,
            )
