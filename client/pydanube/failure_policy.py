"""What becomes of failed messages: a policy of the subscription, which a consumer may ask for when it opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from pydanube_core.errors import InvalidArgument

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin


class FailurePolicy(TypedDict, total=False):
    """As `client.admin.subscriptions.set_failure_policy` takes it; what is not given stays as it is."""

    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: Literal["fixed", "exponential"]
    poison_policy: Literal["block", "drop", "dead_letter"]
    dead_letter_topic: str


_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "backoff_strategy": ("fixed", "exponential"),
    "poison_policy": ("block", "drop", "dead_letter"),
}


def check_failure_policy(policy: Mapping[str, Any]) -> None:
    """Raises `InvalidArgument`, before anything is asked of the broker."""
    names = FailurePolicy.__annotations__
    for name, value in policy.items():
        field = f"failure_policy.{name}"
        if name not in names:
            raise InvalidArgument(
                f"failure_policy has no {name!r:.100}; it has {', '.join(names)}",
                field="failure_policy",
                value=name,
            )
        if name in _WORDS:
            good = value in _WORDS[name]
            wanted = f"one of {', '.join(_WORDS[name])}"
        elif name == "dead_letter_topic":
            good, wanted = isinstance(value, str) and bool(value), "the name of a topic"
        else:
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            wanted = "a whole number, 0 or more"
        if not good:
            raise InvalidArgument(f"{field} is {wanted}, got {value!r:.100}", field=field, value=value)


class PolicyKeeper:
    """Sees to it that a subscription has the policy that its consumer asks for, on every topic of the consumer."""

    def __init__(self, admin: Callable[[], Admin], subscription: str, wanted: FailurePolicy) -> None:
        self._admin = admin
        self._subscription = subscription
        self._wanted = wanted
        self._held: set[str] = set()

    async def hold(self, topics: Iterable[str]) -> None:
        """Set the policy where it is another; nothing is asked for a topic where that was done.

        Raises:
            ClusterError: of `subscriptions.set_failure_policy`.
        """
        for topic in dict.fromkeys(topics):
            if topic in self._held:
                continue
            subscriptions = self._admin().subscriptions
            there = await subscriptions.get_failure_policy(topic, self._subscription)
            if any(getattr(there, name) != value for name, value in self._wanted.items()):
                await subscriptions.set_failure_policy(topic, self._subscription, **self._wanted)
            self._held.add(topic)
