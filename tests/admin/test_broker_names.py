"""Brokers are named by id, URL, `host:port` or `[server] name`, in every call and at every broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pydanube_admin.arguments import parse_call
from pydanube_admin.engine.broker_names import broker_id_of, with_broker_ids
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.membership import BrokerState, MemberRecord
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.sections import Settings
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.facts import BrokerAddress
from pydanube_core.security.permissions import CLUSTER, Resource

from tests.admin.test_any_broker_administers import administered, ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import several_brokers


def member(broker_id: str, name: str, state: str = "active") -> BrokerAddress:
    return BrokerAddress(
        broker_id=broker_id,
        broker_url=f"http://host{broker_id}:6650",
        admin_url=f"https://host{broker_id}:50051",
        name=name,
        state=state,
    )


class Known:
    """The port of a cluster with these brokers, perhaps with locks."""

    def __init__(self, *brokers: BrokerAddress, locks: object = None) -> None:
        self.brokers = brokers
        self.locks = locks

    def known_brokers(self) -> tuple[BrokerAddress, ...]:
        return self.brokers


def port(*brokers: BrokerAddress) -> ClusterPort:
    return cast(ClusterPort, Known(*brokers))


THREE = port(
    member("11", "east"), member("12", "west"), member("13", ""), member("14", "twin"), member("15", "twin")
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("11", "11"),
        ("99", "99"),  # an id need not be of a broker: its operation says so
        ("east", "11"),
        ("http://host12:6650", "12"),
        ("http://host12:6650/", "12"),
        ("https://host12:50051", "12"),
        ("host13:6650", "13"),
        ("host13:50051", "13"),
    ],
)
def test_a_broker_is_named_by_id_name_or_address(given: str, found: str) -> None:
    assert broker_id_of(THREE, given) == found


def test_a_name_of_two_brokers_is_refused_with_their_ids() -> None:
    with pytest.raises(InvalidArgument, match="2 brokers are called 'twin': 14, 15") as caught:
        broker_id_of(THREE, "twin", field="to_broker")
    assert caught.value.details["field"] == "to_broker"
    assert caught.value.details["brokers"] == ["14", "15"]
    assert caught.value.next[0]["operation"] == "brokers.list"


def test_an_unknown_name_is_refused_with_close_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"no broker 'easst'.*'east'") as caught:
        broker_id_of(THREE, "easst")
    assert caught.value.details["did_you_mean"][0] == "east"
    with pytest.raises(InvalidArgument, match=r"There are .*host13:6650"):
        broker_id_of(THREE, "Moskwa 7")


class Sees:
    """Locks of a caller that has one permission on the whole cluster."""

    def __init__(self, permission: str) -> None:
        self.permission = permission

    def allows(self, identity: object, permission: str, resource: Resource) -> bool:
        return (permission, resource) == (self.permission, CLUSTER)


@pytest.mark.parametrize("given", ["easst", "Moskwa 7", "twin"])
def test_only_who_may_list_brokers_is_told_their_names(given: str) -> None:
    brokers = (member("11", "east"), member("14", "twin"), member("15", "twin"))
    with pytest.raises(InvalidArgument) as caught:
        broker_id_of(cast(ClusterPort, Known(*brokers, locks=Sees("topics:read"))), given, field="broker")
    told = str(caught.value.to_dict())
    assert given in told
    assert caught.value.details["field"] == "broker"
    assert not any(hidden in told for hidden in ("11", "14", "15", "'east'", "brokers.list", "did_you_mean"))
    with pytest.raises(InvalidArgument) as caught:
        broker_id_of(cast(ClusterPort, Known(*brokers, locks=Sees("brokers:read"))), given)
    assert any(seen in caught.value.message for seen in ("'east'", "There are east", "14, 15"))
    assert caught.value.next[0]["operation"] == "brokers.list"


def test_an_empty_name_is_refused_and_stands_for_no_broker() -> None:
    """Models often send an empty string for an argument that is not needed. One broker here has no name."""
    with pytest.raises(InvalidArgument, match=r"broker is empty.*leave broker out") as caught:
        broker_id_of(THREE, "", field="broker")
    assert caught.value.details["field"] == "broker"
    for name, operation in OPERATIONS.items():
        for field in {"broker_id", "to_broker", "broker"} & operation.request.model_fields.keys():
            example = next((dict(e.arguments) for e in reversed(operation.examples)), dict[str, Any]())
            with pytest.raises(InvalidArgument, match=field):
                with_broker_ids(THREE, parse_call(name, {**example, field: ""}))


def test_a_registered_broker_goes_before_one_that_is_gone() -> None:
    replaced = port(member("12", "east"), member("11", "east", "gone"), member("10", "old", "gone"))
    assert broker_id_of(replaced, "east") == "12"
    assert broker_id_of(replaced, "old") == "10"


def test_every_argument_that_takes_a_brokers_id_takes_its_name() -> None:
    """Calls and plans keep the id, since the name may go to another broker."""
    found = set()
    for name, operation in OPERATIONS.items():
        for field in {"broker_id", "to_broker", "broker"} & operation.request.model_fields.keys():
            example = next((dict(e.arguments) for e in reversed(operation.examples)), dict[str, Any]())
            call = with_broker_ids(THREE, parse_call(name, {**example, field: "west"}))
            assert getattr(call.request, field) == call.arguments[field] == "12", name
            found.add(name)
    assert len(found) >= 14


@pytest.mark.parametrize("name", ["12", "a b", "http://a", "a:1", "-a", "x" * 64, "ä"])
def test_a_name_that_looks_like_an_id_or_an_address_is_no_setting(name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        load_settings(None, env={}, overrides={"server.name": name})


def test_the_record_of_a_broker_without_a_name_is_that_of_older_builds() -> None:
    record = MemberRecord(
        broker_id="1",
        incarnation=1,
        broker_url="",
        admin_url="",
        state=BrokerState.ACTIVE,
        reason="",
        registered_at_ms=0,
    )
    assert b'"name"' not in record.to_json()
    named = MemberRecord.from_json(record.to_json()[:-1] + b',"name":"east"}', key="/k")
    assert named.name == "east"
    assert MemberRecord.from_json(named.to_json(), key="/k") == named


@pytest.mark.anyio
async def test_brokers_with_and_without_a_name_are_listed_and_named(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def named(settings: Settings) -> AsyncIterator[Broker]:
        assert settings.data.dir is not None
        name = {"broker-1": "east", "broker-2": "west"}.get(settings.data.dir.name)
        server = settings.server.model_copy(update={"name": name})
        async with administered(settings.model_copy(update={"server": server})) as broker:
            yield broker

    async with several_brokers(etcd, tmp_path, named) as cluster:
        ids = {n: str(broker.data_dir.broker_id) for n, broker in cluster.brokers.items()}
        by_name = {
            broker.settings.server.name or broker.broker_url.rpartition("://")[2]: str(
                broker.data_dir.broker_id
            )
            for broker in cluster.brokers.values()
        }
        assert len(by_name) == 3
        assert {"east", "west"} < by_name.keys()
        for broker in cluster.brokers.values():
            items = (await ask(broker, "brokers.list"))["items"]
            assert {each["name"]: each["broker_id"] for each in items} == by_name
            filtered = (await ask(broker, "brokers.list", filter="eas*"))["items"]
            assert [each["name"] for each in filtered] == ["east"]
            for name, broker_id in by_name.items():
                for operation in ("brokers.status", "brokers.config", "journal.describe"):
                    answer = await ask(broker, operation, broker_id=name)
                    assert answer.get("broker_id", broker_id) == broker_id
                within = await ask(
                    broker,
                    "operations.read",
                    operation="brokers.logs",
                    arguments={"broker_id": name, "lines": 1},
                )
                assert within["result"]["broker_id"] == broker_id
            with pytest.raises(ClusterError) as caught:
                await ask(broker, "brokers.status", broker_id="north")
            assert caught.value.code == "INVALID_ARGUMENT"
        here = cluster.brokers[min(ids)]
        await ask(here, "topics.create", topic="moved")
        owner = (await ask(here, "topics.describe", topic="moved"))["owner"]
        target = next(name for name, broker_id in by_name.items() if broker_id != owner)
        plan = await ask(
            here, "plans.create", operation="topics.move", arguments={"topic": "moved", "to_broker": target}
        )
        assert str(by_name[target]) in str(plan["diff"])
        moved = await ask(here, "topics.move", topic="moved", to_broker=target)
        assert set(moved["moves"].values()) == {by_name[target]}
