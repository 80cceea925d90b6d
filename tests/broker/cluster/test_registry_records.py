"""Records in the store: they round-trip, say their version, and are read by the build before and the next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import BrokerState, MemberRecord
from pydanube_broker.cluster.move_record import MoveRecord
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    Durability,
    PartitionedSpec,
    Stage,
    SubscriptionSpec,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.records.json_record import RECORD_VERSION
from pydanube_core.errors import FormatTooNew
from pydanube_core.names import TopicName
from pydanube_storage.metadata import CorruptMetadata

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=4)
SETTINGS = st.builds(TopicSettings, policies=OBJECTS, schema=st.none() | OBJECTS, options=OBJECTS)


def spec(**changes: Any) -> TopicSpec:
    given_: dict[str, Any] = {
        "name": "/d/t",
        "created_at_ms": 1,
        "partition": None,
        "settings": TopicSettings(),
    }
    return TopicSpec(**(given_ | changes))


@given(settings=SETTINGS, created_at_ms=st.integers(0, 2**53), partition=st.none() | st.integers(0, 999))
def test_topic_round_trips(settings: TopicSettings, created_at_ms: int, partition: int | None) -> None:
    record = spec(settings=settings, created_at_ms=created_at_ms, partition=partition)
    data = record.to_json()
    assert TopicSpec.from_json(data, key="/k") == record
    body = json.loads(data)
    assert next(iter(body)) == "version"
    assert body["version"] == 1
    assert TopicSpec.from_json(json.dumps(body, indent=1, sort_keys=True).encode(), key="/k") == record


def test_enums_come_back_as_enums() -> None:
    settings = TopicSettings(dispatch_strategy=DispatchStrategy.NON_RELIABLE, durability=Durability.MEMORY)
    parent = PartitionedSpec(
        name="/d/t", created_at_ms=0, partitions=2, declared=True, stage=Stage.CREATING, settings=settings
    )
    read = PartitionedSpec.from_json(parent.to_json(), key="/k")
    assert read.stage is Stage.CREATING
    assert read.settings.dispatch_strategy is DispatchStrategy.NON_RELIABLE


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"created_at_ms": "1"}, "created_at_ms"),
        ({"version": None}, "version"),
        ({"version": True}, "version"),
        ({"settings": {"dispatch_strategy": "maybe"}}, "settings.dispatch_strategy"),
    ],
)
def test_what_cannot_be_is_refused_and_named(change: dict[str, Any], field: str) -> None:
    body = json.loads(spec().to_json()) | change
    with pytest.raises(CorruptMetadata) as caught:
        TopicSpec.from_json(json.dumps(body).encode(), key="/registry/x")
    assert (caught.value.details["key"], caught.value.details["field"]) == ("/registry/x", field)
    assert "pydantic" not in str(caught.value)


def test_what_a_newer_build_has_added_is_passed_over() -> None:
    body = json.loads(spec().to_json()) | {"colour": "red"}
    body["settings"]["colour"] = "red"
    assert TopicSpec.from_json(json.dumps(body).encode(), key="/k") == spec()


def test_the_build_before_reads_what_does_not_use_a_new_field() -> None:
    move = MoveRecord(source="1", target="2", begun_at_ms=0)
    assert {"copied", "offers"} & json.loads(move.to_json()).keys() == set()
    further = replace(move, copied=3, offers=2)
    assert MoveRecord.from_json(further.to_json(), key="/k") == further
    member = MemberRecord(
        broker_id="1",
        incarnation=1,
        broker_url="",
        admin_url="",
        metrics_url=None,
        state=BrokerState.ACTIVE,
        reason="",
        registered_at_ms=0,
    )
    assert {"zone", "load"} & json.loads(member.to_json()).keys() == set()
    told = replace(member, load={})
    assert MemberRecord.from_json(told.to_json(), key="/k") == told, "idle is not the same as untold"


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"version":1,', b'{"version":1,}', b"\xff"])
def test_what_is_not_a_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        TopicSpec.from_json(data, key="/k")


def test_record_of_a_newer_version_is_refused_as_such() -> None:
    body = json.loads(spec().to_json()) | {"version": RECORD_VERSION + 1, "colour": "red"}
    with pytest.raises(FormatTooNew, match="upgrade"):
        TopicSpec.from_json(json.dumps(body).encode(), key="/k")


def test_value_that_no_constructor_takes_is_refused_when_read_too() -> None:
    good = SubscriptionSpec(name="s", topic="/d/t", type="shared", start_offset=0, created_at_ms=0)
    bad = good.to_json().replace(b'"start_offset":0', b'"start_offset":-1')
    with pytest.raises(CorruptMetadata):
        SubscriptionSpec.from_json(bad, key="/k")


def test_keys_and_their_parts() -> None:
    topic = TopicName("default", "orders-part-3")
    assert keys.topic_of_key(keys.topic_key(topic)) == topic
    assert keys.topic_of_key(keys.epoch_key(topic)) == topic
    assert keys.subscription_of_key(keys.subscription_key(TopicId(7), "s é")) == (7, "s é")
    assert keys.number_in_key(keys.member_key(BrokerId(2**63 - 1))) == 2**63 - 1
    assert keys.number_in_key(keys.assignment_key(TopicId(12))) == 12


def test_watched_trees_hold_nothing_that_changes_with_traffic() -> None:
    busy = ["/catalog/00000000000000000001/"]
    for watched in (keys.MEMBERS, keys.ASSIGNMENTS, keys.REGISTRY, keys.only(keys.LEADER)):
        assert not any(key in watched for key in busy)
