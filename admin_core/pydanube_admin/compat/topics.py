"""The original's gRPC services `NamespaceAdmin` and `TopicAdmin`, answered by our operations."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    NamespaceNotFound,
    TopicNotFound,
)
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.names import SUBSCRIPTION_TYPES
from pydanube_core.quotas import TOPIC_LIMITS

from pydanube_admin.compat.asking import Asking, AskingService

U32: Final = 2**32 - 1
DELIVERY: Final = {"reliable": "Reliable", "non_reliable": "NonReliable"}
STRATEGIES: Final = {
    pb.DispatchStrategy.NonReliable: "non_reliable",
    pb.DispatchStrategy.Reliable: "reliable",
}


class Namespaces(AskingService):
    """The methods of NamespaceAdmin on the admin port."""

    async def get_namespace_topics(self, request: pb.NamespaceRequest) -> pb.TopicListResponse:
        topics = await _topics(self._ask, {"namespace": request.name})
        return pb.TopicListResponse(topics=[topic.name.removeprefix("/") for topic in topics])

    async def get_namespace_policies(self, request: pb.NamespaceRequest) -> pb.PolicyResponse:
        """Return the policies in force in the namespace. The tool refuses a number of more than 32 bits."""
        found = await self._ask("namespaces.get_policies", {"namespace": request.name})
        effective = found["effective"]
        return pb.PolicyResponse(
            policies=json.dumps({key: min(effective.get(key, 0), U32) for key in TOPIC_LIMITS})
        )

    async def create_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        await self._ask("namespaces.create", {"namespace": request.name})
        return pb.NamespaceResponse(success=True)

    async def delete_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        await self._ask("namespaces.delete", {"namespace": request.name})
        return pb.NamespaceResponse(success=True)


class Topics(AskingService):
    """The methods of TopicAdmin that are about topics."""

    async def list_namespace_topics(self, request: pb.NamespaceRequest) -> pb.TopicInfoListResponse:
        return pb.TopicInfoListResponse(topics=await _topics(self._ask, {"namespace": request.name}))

    async def list_broker_topics(self, request: pb.BrokerRequest) -> pb.TopicInfoListResponse:
        topics = await _topics(self._ask, {})
        return pb.TopicInfoListResponse(
            topics=[topic for topic in topics if topic.broker_id == request.broker_id]
        )

    async def create_topic(self, request: pb.NewTopicRequest) -> pb.TopicResponse:
        arguments = {"topic": request.name, "dispatch_strategy": dispatch_strategy(request.dispatch_strategy)}
        return await self._create(arguments, request)

    async def create_partitioned_topic(self, request: pb.PartitionedTopicRequest) -> pb.TopicResponse:
        if request.partitions == 0:
            raise InvalidArgument(
                "partitions: must be 1 or more. CreateTopic makes a topic without partitions",
                field="partitions",
                value=0,
            )
        arguments = {
            "topic": request.base_name,
            "partitions": request.partitions,
            "dispatch_strategy": dispatch_strategy(request.dispatch_strategy),
        }
        return await self._create(arguments, request)

    async def _create(
        self, arguments: dict[str, Any], request: pb.NewTopicRequest | pb.PartitionedTopicRequest
    ) -> pb.TopicResponse:
        if request.HasField("schema_subject"):
            arguments["schema_subject"] = request.schema_subject
        if arguments["dispatch_strategy"] == "non_reliable":
            arguments["durability"] = "memory"
        await self._ask("topics.create", arguments)
        return pb.TopicResponse(success=True)

    async def delete_topic(self, request: pb.TopicRequest) -> pb.TopicResponse:
        await self._ask("topics.delete", {"topic": request.name})
        return pb.TopicResponse(success=True)

    async def unload_topic(self, request: pb.TopicRequest) -> pb.TopicResponse:
        await self._ask("topics.unload", {"topic": request.name})
        return pb.TopicResponse(success=True)

    async def describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """Describe a topic. An unknown one is TOPIC_NOT_FOUND, where the original describes one that does not exist."""
        found = await self._ask("topics.describe", {"topic": request.name})
        answer = pb.DescribeTopicResponse(
            name=found["topic"],
            subscriptions=found["subscriptions"],
            broker_id=_owner(found),
            delivery=DELIVERY[found["dispatch_strategy"]],
        )
        if found["schema"] is not None:
            answer.schema_subject = subject = found["schema"]["subject"]
            try:
                schema = await self._ask("schemas.get", {"subject": subject})
            except ClusterError:  # every version was deleted: only the name is left
                return answer
            answer.schema_id = int(schema["schema_id"])
            answer.schema_version = schema["version"]
            answer.schema_type = schema["schema_type"]
            answer.compatibility_mode = schema["compatibility_mode"].upper()
        return answer


def dispatch_strategy(number: int) -> str:
    """Return our word for the original's number."""
    try:
        return STRATEGIES[number]  # type: ignore[index]  # any number may come over the wire
    except KeyError:
        raise InvalidArgument(
            f"dispatch_strategy: {number} is none. 0 is NonReliable, 1 is Reliable",
            field="dispatch_strategy",
            value=number,
        ) from None


async def _topics(ask: Asking, arguments: dict[str, Any]) -> list[pb.TopicInfo]:
    """Return topics in the original's form: each partition is one. An unknown topic has none."""
    try:
        items, away = await ask.every_and_away("topics.list", arguments)
    except NamespaceNotFound:
        return []
    found: dict[str, list[pb.TopicInfo]] = {}
    for item in items:
        name, delivery = item["topic"], DELIVERY[item["dispatch_strategy"]]
        found[name] = [pb.TopicInfo(name=name, broker_id=item["owner"] or "", delivery=delivery)]
    # The tool cannot show which topics a list lacks. Their owners did not answer, and are not waited for again
    for name in away.union(item["topic"] for item in items if item["partitions"]):
        with suppress(TopicNotFound):  # deleted meanwhile
            known = await ask.created(name)
            delivery = DELIVERY[known.dispatch_strategy]
            found[name] = [
                pb.TopicInfo(name=log, broker_id=owner or "", delivery=delivery)
                for log, owner in known.owners.items()
            ]
    return [topic for _, topics in sorted(found.items()) for topic in topics]


def _owner(found: dict[str, Any]) -> str:
    """Return the id of a topic's owner, for a partitioned one the owner of its first partition."""
    owners = [found["owner"], *(part["owner"] for part in found["parts"])]
    return next((owner for owner in owners if owner is not None), "")


BACKOFF: Final = {0: "fixed", 1: "exponential"}
POISON: Final = {0: "dead_letter", 1: "block", 2: "drop"}
MAX_UNACKED: Final = 10_000


class Subscriptions(AskingService):
    """The methods of SubscriptionAdmin, as the module describes them."""

    async def _of(self, topic: str) -> list[dict[str, Any]]:
        return await self._ask.every("subscriptions.list", {"topic": topic})

    async def list_subscriptions(self, request: pb.TopicRequest) -> pb.SubscriptionListResponse:
        """List subscriptions, each once. The original lists one once for each of its stored keys."""
        found = await self._of(request.name)
        return pb.SubscriptionListResponse(subscriptions=[item["subscription"] for item in found])

    async def unsubscribe(self, request: pb.SubscriptionRequest) -> pb.SubscriptionResponse:
        """Delete a subscription. Refused while consumers are attached, as in the original: the tool cannot show them."""
        await self._ask(
            "subscriptions.delete", {"topic": request.topic, "subscription": request.subscription}
        )
        return pb.SubscriptionResponse(success=True)

    async def set_subscription_failure_policy(
        self, request: pb.SetSubscriptionFailurePolicyRequest
    ) -> pb.SubscriptionResponse:
        """Replace the whole policy, so that a field left out is 0 and not a default."""
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
            SUBSCRIPTION_TYPES[0],
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
            failure_policy=policy, subscription_type=SUBSCRIPTION_TYPES.index(kind)
        )

    async def set_subscription_dispatch_config(
        self, request: pb.SetSubscriptionDispatchConfigRequest
    ) -> pb.SubscriptionResponse:
        """Set the subscription's window, which the original stores and ignores. In force from a consumer's next connection."""
        config = request.dispatch_config
        count = config.max_unacked_messages
        if not 1 <= count <= MAX_UNACKED:
            raise InvalidArgument(
                f"max_unacked_messages: must be 1 to {MAX_UNACKED}", field="max_unacked_messages", value=count
            )
        await self._ask(
            "subscriptions.set_failure_policy",
            {
                "topic": request.topic,
                "subscription": request.subscription,
                "max_unacked_messages": count,
                "keep": True,  # as in the original, whose tools set it before the first consumer comes
            },
        )
        return pb.SubscriptionResponse(success=True)

    async def get_subscription_dispatch_config(
        self, request: pb.GetSubscriptionDispatchConfigRequest
    ) -> pb.GetSubscriptionDispatchConfigResponse:
        """Return the window in force, also if it is the broker's default."""
        arguments = {"topic": request.topic, "subscription": request.subscription}
        found = await self._ask("subscriptions.get_failure_policy", arguments)
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=found["max_unacked_messages"])
        return pb.GetSubscriptionDispatchConfigResponse(dispatch_config=config)


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
