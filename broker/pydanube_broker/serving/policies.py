"""Policies in effect for topics and subscriptions: their own, else their namespace's, else the settings'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydanube_core.errors import ClusterError
from pydanube_core.failure_policy import POLICY_FIELDS
from pydanube_core.links import link_of, writer_elsewhere
from pydanube_core.names import SYSTEM_NAMESPACE
from pydanube_core.refusals import written_elsewhere

from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.settings.sections import Settings
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.topic import Topic

KEEP_ALL: Final = {"retention_bytes": 0, "retention_age_s": 0, "drop_unread": 0}


class Policies:
    """Read from the catalog's index and the settings at each call."""

    def __init__(self, index: RegistryIndex, settings: Settings) -> None:
        self._index = index
        self._settings = settings

    def of_failures(self, stored: Mapping[str, Any]) -> SubscriptionPolicy:
        """Return the failure policy that results from these fields and the settings."""
        delivery = self._settings.delivery
        defaults = {field.name: field.default_of(delivery) for field in POLICY_FIELDS if field.setting}
        return SubscriptionPolicy.of(stored, defaults)

    def layers(self, record: TopicRecord | None, namespace: str) -> list[Mapping[str, Any]]:
        """Return the sources of limits, nearest first: the topic, its namespace, the settings.

        The broker's own topics have none of them, so that no policy applies to the audit.
        """
        if namespace == SYSTEM_NAMESPACE:
            return []
        found = self._index.find_namespace(namespace)
        return [
            {} if record is None else record.settings.policies,
            KEEP_ALL if found is None else found.spec.policies,  # None: it is quarantined
            self._settings.policies.model_dump(),
        ]

    def limits_of(self, record: TopicRecord) -> Limits:
        """Return the limits in effect for a topic now."""
        limits = Limits.of(*self.layers(record, record.topic.namespace))
        # A mirror follows its source's start, and deletes nothing itself
        if link_of(record.settings.options) is not None:
            limits = replace(limits, retention_bytes=0, retention_age_s=0, retention_offset=0)
        largest = self._settings.topics.max_message_bytes
        return replace(limits, max_message_size=min(limits.max_message_size or largest, largest))

    def apply(self, topic: Topic) -> None:
        """Apply the limits in effect to a topic, after its record or its namespace's has changed."""
        record = self._index.find_topic(topic.options.topic)
        if record is not None:
            topic.options = record
            topic.gate.set_limits(self.limits_of(record))
            topic.link = link_of(record.settings.options)
            elsewhere, before = writer_elsewhere(record.settings.options), topic.failed_over_to
            topic.failed_over_to = elsewhere
            if elsewhere is not None and before is None:
                end_clients(topic, written_elsewhere(topic.name, elsewhere))


def end_clients(topic: Topic, error: ClusterError) -> None:
    """End the streams of a topic's producers and consumers, which connect again elsewhere."""
    for _, _, _, producer in topic.gate.attached():
        producer.end(error)
    for pump in list(topic.subscriptions.values()):
        pump.give_up(error)
