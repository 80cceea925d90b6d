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


@pytest.mark.parametrize(
    ("owner", "url"), [(ME, ME.broker_url), (OTHER, OTHER.broker_url), (None, ME.broker_url)]
)
def test_clients_connect_to_the_owner_of_a_topic_and_here_if_it_has_none(
    owner: BrokerAddress | None, url: str
) -> None:
    topic: Any = SimpleNamespace(topic_id=7)
    assert owned_by(owner).url(topic) == url


@pytest.mark.parametrize("address", [OTHER, None])
def test_a_moving_topic_was_last_at_its_former_owner_also_if_that_was_never_seen(
    address: BrokerAddress | None,
) -> None:
    ownership = owned_by(None)
    place = SimpleNamespace(is_served=False, broker_id=BrokerId(2))
    ownership.coordinator = cast(
        Any, SimpleNamespace(place=lambda topic_id: place, address=lambda broker_id: address)
    )
    assert ownership.owner(7) is None
    assert ownership.last_known(7) == (address or BrokerAddress(broker_id="2", broker_url="", admin_url=""))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_deleted_topic_loses_its_data_only_if_it_cannot_be_restored_and_its_owner_only_if_no_other_restores_it(
    kept: bool, several: bool
) -> None:
    forgotten: list[int] = []
    dropped: list[int] = []
    catalog: Any = SimpleNamespace(restorable=SimpleNamespace(keeps_data=lambda topic_id: kept))
    hub: Any = SimpleNamespace(drop=dropped.append)
    nothing: Any = None
    ownership = Ownership(catalog, nothing, nothing, hub, nothing, memory=True, several=several)
    ownership.coordinator = cast(Any, SimpleNamespace(forget=forgotten.append))
    topic: Any = SimpleNamespace(topic_id=7)
    ownership.held[7] = topic
    ownership.deleted(RECORD)
    assert dropped == ([] if kept else [7])
    assert forgotten == ([] if kept and several else [7])
