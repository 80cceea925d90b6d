"""The methods of TopicAdmin that are about subscriptions."""

from __future__ import annotations

from typing import Any, Final

from pydanube_core.errors import ConsumerBusy, InvalidArgument, NotImplementedYet
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import Asking

BACKOFF: Final = {0: "fixed", 1: "exponential"}
POISON: Final = {0: "dead_letter", 1: "block", 2: "drop"}
TYPES: Final = ("exclusive", "shared", "failover", "key-shared")  # by the number they have on the wire
MAX_UNACKED: Final = 10_000


class Subscriptions:
    """The methods of SubscriptionAdmin, as the module describes them."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    async def _of(self, topic: str) -> list[dict[str, Any]]:
        return await self._ask.every("subscriptions.list", {"topic": topic})

    async def list_subscriptions(self, request: pb.TopicRequest) -> pb.SubscriptionListResponse:
        """Each once; the original names a subscription once for each of its stored keys."""
        found = await self._of(request.name)
        return pb.SubscriptionListResponse(subscriptions=[item["subscription"] for item in found])

    async def unsubscribe(self, request: pb.SubscriptionRequest) -> pb.SubscriptionResponse:
        """Refused while somebody reads by it, as in the original: the tool cannot show whom it would cut off."""
        for item in await self._of(request.topic):
            if item["subscription"] == request.subscription and item["consumers"]:
                raise ConsumerBusy(
                    f"{request.subscription!r} of {item['topic']} has {item['consumers']} active consumers: stop "
                    f"them first, or use `danube subscriptions delete`, which shows what it would do",
                    field="subscription",
                    value=request.subscription,
                )
        await self._ask(
            "subscriptions.delete", {"topic": request.topic, "subscription": request.subscription}
        )
        return pb.SubscriptionResponse(success=True)

    async def set_subscription_failure_policy(
        self, request: pb.SetSubscriptionFailurePolicyRequest
    ) -> pb.SubscriptionResponse:
        """The policy replaces the one before as a whole, so a field that was left out is 0 and not a default."""
        if not request.HasField("failure_policy"):
            raise InvalidArgument("failure_policy: must be given", field="failure_policy", value=None)
        policy = request.failure_policy
        poison = _word(POISON, policy.poison_policy, "poison_policy")
        if poison == "dead_letter" and not policy.dead_letter_topic:
            raise InvalidArgument(
                "dead_letter_topic: must be given when the poison policy is DeadLetter",
                field="dead_letter_topic",
                value="",
            )
        await self._ask(
            "subscriptions.set_failure_policy",
            {
                "topic": request.topic,
                "subscription": request.subscription,
                "max_redelivery_count": policy.max_redelivery_count,
                "ack_timeout_ms": policy.ack_timeout_ms,
                "base_redelivery_delay_ms": policy.base_redelivery_delay_ms,
                "max_redelivery_delay_ms": policy.max_redelivery_delay_ms,
                "backoff_strategy": _word(BACKOFF, policy.backoff_strategy, "backoff_strategy"),
                "poison_policy": poison,
                "dead_letter_topic": policy.dead_letter_topic,
                "keep": True,  # as in the original, whose tools set it before the first consumer comes
            },
        )
        return pb.SubscriptionResponse(success=True)

    async def get_subscription_failure_policy(
        self, request: pb.GetSubscriptionFailurePolicyRequest
    ) -> pb.GetSubscriptionFailurePolicyResponse:
        arguments = {"topic": request.topic, "subscription": request.subscription}
        found = await self._ask("subscriptions.get_failure_policy", arguments)
        kind = next(
            (
                item["type"]
                for item in await self._of(request.topic)
                if item["subscription"] == request.subscription
            ),
            TYPES[0],
        )
        policy = pb.SubscriptionFailurePolicy(
            max_redelivery_count=found["max_redelivery_count"],
            ack_timeout_ms=found["ack_timeout_ms"],
            base_redelivery_delay_ms=found["base_redelivery_delay_ms"],
            max_redelivery_delay_ms=found["max_redelivery_delay_ms"],
            backoff_strategy=_number(BACKOFF, found["backoff_strategy"]),  # type: ignore[arg-type]
            poison_policy=_number(POISON, found["poison_policy"]),  # type: ignore[arg-type]
        )
        if found["dead_letter_topic"] is not None:
            policy.dead_letter_topic = found["dead_letter_topic"]
        return pb.GetSubscriptionFailurePolicyResponse(
            failure_policy=policy, subscription_type=TYPES.index(kind)
        )

    async def set_subscription_dispatch_config(
        self, request: pb.SetSubscriptionDispatchConfigRequest
    ) -> pb.SubscriptionResponse:
        """Refused: here the consumer says by its credit how much it takes. The original stores it and ignores it."""
        count = request.dispatch_config.max_unacked_messages
        if not 1 <= count <= MAX_UNACKED:
            raise InvalidArgument(
                f"max_unacked_messages: must be 1 to {MAX_UNACKED}", field="max_unacked_messages", value=count
            )
        raise NotImplementedYet(
            "a subscription has no dispatch window of its own: delivery.max_unacked_messages of the broker's "
            "settings holds for all, and a consumer's credit for itself"
        )

    async def get_subscription_dispatch_config(
        self, request: pb.GetSubscriptionDispatchConfigRequest
    ) -> pb.GetSubscriptionDispatchConfigResponse:
        """Never an override, of a subscription that is there."""
        arguments = {"topic": request.topic, "subscription": request.subscription}
        await self._ask("subscriptions.get_failure_policy", arguments)
        return pb.GetSubscriptionDispatchConfigResponse()


def _word(words: dict[int, str], number: int, field: str) -> str:
    try:
        return words[number]
    except KeyError:
        raise InvalidArgument(
            f"{field}: {number} is none of {', '.join(f'{key} ({word})' for key, word in words.items())}",
            field=field,
            value=number,
        ) from None


def _number(words: dict[int, str], word: str) -> int:
    return next(number for number, known in words.items() if known == word)
