"""NamespaceAdmin and TopicAdmin, without the subscriptions."""

from __future__ import annotations

import json
from typing import Any, Final

from pydanube_core.errors import ClusterError, InvalidArgument, NamespaceNotFound
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import Asking

# In the original's order; every one is an unsigned 32-bit number there, 0 for no limit.
POLICIES: Final = (
    "max_producers_per_topic", "max_subscriptions_per_topic", "max_consumers_per_topic",
    "max_consumers_per_subscription", "max_publish_rate", "max_subscription_dispatch_rate",
    "max_message_size",
)  # fmt: skip
U32: Final = 2**32 - 1
DELIVERY: Final = {"reliable": "Reliable", "non_reliable": "NonReliable"}
STRATEGIES: Final = {
    pb.DispatchStrategy.NonReliable: "non_reliable",
    pb.DispatchStrategy.Reliable: "reliable",
}


class Namespaces:
    """The methods of NamespaceAdmin on the admin port."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    async def get_namespace_topics(self, request: pb.NamespaceRequest) -> pb.TopicListResponse:
        topics = await _topics(self._ask, {"namespace": request.name})
        return pb.TopicListResponse(topics=[topic.name.removeprefix("/") for topic in topics])

    async def get_namespace_policies(self, request: pb.NamespaceRequest) -> pb.PolicyResponse:
        """Return the policies in force in the namespace; the tool refuses a number of more than 32 bits."""
        found = await self._ask("namespaces.get_policies", {"namespace": request.name})
        effective = found["effective"]
        return pb.PolicyResponse(
            policies=json.dumps({key: min(effective.get(key, 0), U32) for key in POLICIES})
        )

    async def create_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        await self._ask("namespaces.create", {"namespace": request.name})
        return pb.NamespaceResponse(success=True)

    async def delete_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        await self._ask("namespaces.delete", {"namespace": request.name})
        return pb.NamespaceResponse(success=True)


class Topics:
    """The methods of TopicAdmin that are about topics."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

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
                "partitions: must be 1 or more; a topic without partitions is made by CreateTopic",
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
        """Of an unknown topic TOPIC_NOT_FOUND, where the original describes a topic that is not there."""
        found = await self._ask("topics.describe", {"topic": request.name})
        answer = pb.DescribeTopicResponse(
            name=found["topic"],
            subscriptions=found["subscriptions"],
            broker_id=_owner(found),
            delivery=DELIVERY[found["dispatch_strategy"]],
        )
        subject = (await self._ask("topics.get_schema_config", {"topic": request.name}))["schema_subject"]
        if subject is not None:
            answer.schema_subject = subject
            try:
                schema = await self._ask("schemas.get", {"subject": subject})
            except ClusterError:  # every version was deleted: there is the name and no more
                return answer
            answer.schema_id = int(schema["schema_id"])
            answer.schema_version = schema["version"]
            answer.schema_type = schema["schema_type"]
            answer.compatibility_mode = schema["compatibility_mode"].upper()
        return answer


def dispatch_strategy(number: int) -> str:
    """Our word for the original's number."""
    try:
        return STRATEGIES[number]  # type: ignore[index]  # any number may come over the wire
    except KeyError:
        raise InvalidArgument(
            f"dispatch_strategy: {number} is none; 0 is NonReliable, 1 is Reliable",
            field="dispatch_strategy",
            value=number,
        ) from None


async def _topics(ask: Asking, arguments: dict[str, Any]) -> list[pb.TopicInfo]:
    """Topics as the original has them: each partition is one. What nobody knows has none."""
    try:
        items = await ask.every("topics.list", arguments)
    except NamespaceNotFound:
        return []
    found = []
    for item in items:
        parts = [item]
        if item["partitions"]:
            parts = (await ask("topics.describe", {"topic": item["topic"]}))["parts"]
        delivery = DELIVERY[item["dispatch_strategy"]]
        found += [
            pb.TopicInfo(name=part["topic"], broker_id=part["owner"] or "", delivery=delivery)
            for part in parts
        ]
    return found


def _owner(found: dict[str, Any]) -> str:
    """Of a partitioned topic the owner of its first part."""
    owners = [found["owner"], *(part["owner"] for part in found["parts"])]
    return next((owner for owner in owners if owner is not None), "")
