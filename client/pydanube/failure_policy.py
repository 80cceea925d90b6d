"""The handling of failed messages: a policy of the subscription, which a consumer may set when it opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydanube_core.errors import InvalidArgument
from pydanube_core.failure_policy import POLICY_FIELDS, POLICY_NAMES

from pydanube.arguments import check_choice, check_text, check_whole

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin


Backoff = Literal["fixed", "exponential"]
Poison = Literal["block", "drop", "dead_letter"]


class FailurePolicy(TypedDict, total=False):
    """A failure policy as `client.admin.subscriptions.set_failure_policy` takes it; a field not given stays as it is."""

    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: Backoff
    poison_policy: Poison
    dead_letter_topic: str


assert tuple(FailurePolicy.__annotations__) == POLICY_NAMES, "type checkers see every field"


def check_failure_policy(policy: Mapping[str, Any]) -> None:
    """Check a policy before the broker is asked. Raises `InvalidArgument`."""
    fields = {each.name: each for each in POLICY_FIELDS}
    for name, value in policy.items():
        field = f"failure_policy.{name}"
        if name not in fields:
            raise InvalidArgument(
                f"failure_policy has no {name!r:.100}; it has {', '.join(fields)}",
                field="failure_policy",
                value=name,
            )
        if fields[name].choices:
            check_choice(field, value, fields[name].type)
        elif fields[name].is_text:
            check_text(field, value)
            if not value:
                raise InvalidArgument(f"{field} is the name of a topic, got ''", field=field, value="")
        else:
            check_whole(field, value, 0)


class PolicyKeeper:
    """Makes sure that a subscription has the policy that its consumer asks for, on every topic."""

    def __init__(self, admin: Callable[[], Admin], subscription: str, wanted: FailurePolicy) -> None:
        self._admin = admin
        self._subscription = subscription
        self._wanted = wanted
        self._held: set[str] = set()

    async def hold(self, topics: Iterable[str]) -> None:
        """Set the policy if it differs; a topic is asked only once.

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
