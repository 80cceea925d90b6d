"""The broker's place in the cluster: membership, election, assignment, and the catalog of topics.

A broker alone on its own metadata is `lone`, one of several on etcd is `joined`; both offer the same.
"""

from pydanube_broker.cluster.assignment import Assigner, Assignment, OfficeView
from pydanube_broker.cluster.election import Election, ElectionState, Leadership
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, SubscriptionId, TopicId
from pydanube_broker.cluster.joined import JoinedBroker
from pydanube_broker.cluster.lone import LoneBroker
from pydanube_broker.cluster.membership import BrokerIdentity, BrokerState, Membership, Registration
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    Durability,
    NamespaceRecord,
    PartitionedRecord,
    SubscriptionRecord,
    TopicRecord,
    TopicSettings,
)
from pydanube_broker.cluster.registry_index import RegistryIndex
from pydanube_broker.cluster.topic_catalog import TopicCatalog

__all__ = [
    "Assigner",
    "Assignment",
    "BrokerId",
    "BrokerIdentity",
    "BrokerState",
    "DispatchStrategy",
    "Durability",
    "Election",
    "ElectionState",
    "Epoch",
    "FencingToken",
    "Incarnation",
    "JoinedBroker",
    "Leadership",
    "LoneBroker",
    "Membership",
    "NamespaceRecord",
    "OfficeView",
    "PartitionedRecord",
    "Registration",
    "RegistryIndex",
    "SubscriptionId",
    "SubscriptionRecord",
    "TopicCatalog",
    "TopicId",
    "TopicRecord",
    "TopicSettings",
]
