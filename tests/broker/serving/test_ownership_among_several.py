"""Whose a topic is: what a caller is told where several brokers are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.records import TopicRecord, TopicSettings, TopicSpec
from pydanube_broker.serving.ownership import Ownership
from pydanube_core.errors import NoOwner, NotOwner
from pydanube_core.facts import BrokerAddress
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Revision

ME, OTHER = (
    BrokerAddress(broker_id=str(number), broker_url=f"http://b{number}", admin_url="") for number in (1, 2)
)
TOPIC = TopicName.parse("orders")
SPEC = TopicSpec(name=TOPIC, created_at_ms=1, partition=None, settings=TopicSettings())
RECORD = TopicRecord(topic_id=TopicId(7), revision=Revision(1), topic=TOPIC, spec=SPEC, key="k")


def owned_by(owner: BrokerAddress | None) -> Ownership:
    """Return the ownership of a broker that serves nothing yet, and a topic assigned to `owner`."""
    place = None if owner is None else Assignment(
        topic_id=TopicId(7), topic=TOPIC, broker_id=BrokerId(int(owner.broker_id)), incarnation=Incarnation(1),
        epoch=Epoch(3),
    )  # fmt: skip
    held: Any = None
    ownership = Ownership(held, held, held, held, held, memory=True, several=True)
    ownership.me = ME
    ownership.coordinator = cast(
        Any, SimpleNamespace(place=lambda topic_id: place, address=lambda broker_id: owner)
    )
    return ownership


def test_a_caller_repeats_a_call_for_a_topic_that_its_owner_does_not_serve_yet() -> None:
    """A redirection would lead here again."""
    ownership = owned_by(ME)
    assert isinstance(ownership.elsewhere(RECORD), NoOwner)
    with pytest.raises(NoOwner):
        ownership.check_served([RECORD])


def test_a_caller_is_led_to_the_owner_of_a_topic() -> None:
    ownership = owned_by(OTHER)
    error = ownership.elsewhere(RECORD)
    assert isinstance(error, NotOwner)
    assert error.details["broker_url"] == OTHER.broker_url
    ownership.check_served([RECORD])


def test_a_topic_without_an_owner_is_said_to_have_none() -> None:
    ownership = owned_by(None)
    assert isinstance(ownership.elsewhere(RECORD), NoOwner)
    ownership.check_served([RECORD])
