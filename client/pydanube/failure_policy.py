"""The failure policy of a subscription, which a consumer may set when it opens the subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydanube_core.errors import InvalidArgument, PlanRequired
from pydanube_core.failure_policy import POLICY_FIELDS, POLICY_NAMES

from pydanube.arguments import check_choice, check_text, check_whole

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin


Backoff = Literal["fixed", "exponential"]
Poison = Literal["block", "drop", "dead_letter"]


class FailurePolicy(TypedDict, total=False):
    """A failure policy as in `client.admin.subscriptions.set_failure_policy`. A field not given is unchanged."""

    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: Backoff
    poison_policy: Poison
    dead_letter_topic: str
    max_unacked_messages: int


assert tuple(FailurePolicy.__annotations__) == POLICY_NAMES, "type checkers see every field"


def check_failure_policy(policy: Mapping[str, Any]) -> None:
    """Check a policy before it is sent to the broker. Raises `InvalidArgument`."""
    fields = {each.name: each for each in POLICY_FIELDS}
    for name, value in policy.items():
        field = f"failure_policy.{name}"
        if name not in fields:
            raise InvalidArgument(
                f"failure_policy has no {name!r:.100}. It has {', '.join(fields)}",
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
            check_whole(field, value, fields[name].least)


class PolicyKeeper:
    """Ensures that a subscription has the policy of its consumer, on every topic."""

    def __init__(self, admin: Callable[[], Admin], subscription: str, policy: FailurePolicy) -> None:
        self._admin = admin
        self._subscription = subscription
        self._policy = policy
        self._checked: set[str] = set()
        self._blocking: set[str] = set()

    async def apply(self, topics: Iterable[str]) -> None:
        """Set the policy on the topics where it differs. Each topic is checked only once.

        Raises:
            PlanRequired: the policy drops messages. `next` has the command that sets it, once for all consumers.
            ClusterError: the error of `subscriptions.set_failure_policy`.
        """
        for topic in dict.fromkeys(topics):
            if topic in self._checked:
                continue
            subscriptions = self._admin().subscriptions
            current = await subscriptions.get_failure_policy(topic, self._subscription)
            poison = current.poison_policy
            if any(getattr(current, name) != value for name, value in self._policy.items()):
                try:
                    changed = await subscriptions.set_failure_policy(
                        topic, self._subscription, **self._policy
                    )
                except PlanRequired as error:
                    raise self._without_plan_token(topic, error) from error
                poison = changed.poison_policy
            self._checked.add(topic)
            if poison == "block":
                self._blocking.add(topic)

    def blocks(self, topic: str) -> bool:
        """Return whether an exhausted message of this topic blocks delivery."""
        return topic in self._blocking

    def _without_plan_token(self, topic: str, error: PlanRequired) -> PlanRequired:
        """Return the error without plan tokens, so that a later start of the program shows the same command."""
        steps = []
        for step in error.next:
            arguments = {name: value for name, value in step["arguments"].items() if name != "plan_token"}
            command = str(step["command"]).partition(" --plan-token ")[0]
            why = "sets the policy after a confirmation; then the consumer opens"
            steps.append({**step, "arguments": arguments, "command": command, "why": why})
        command = steps[0]["command"] if steps else "danube subscriptions set-failure-policy"
        return PlanRequired(
            f"the failure policy of {self._subscription!r} of {topic} drops messages, and a program may not decide that: run "
            f"`{command}` once. The consumer opens when the policy is set",
            **{**error.details, "topic": topic},
        ).followed_by(*steps)
