"""When the format of the metadata may be raised, and what keeps builds of format 1 away afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.format_gate import (
    METADATA_FORMAT,
    are_starting,
    holding_up,
    object_format,
    refuse_older_builds,
)
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import BrokerState, MemberRecord, Membership
from pydanube_core.errors import ClusterMismatch, FormatTooNew
from pydanube_core.facts import BrokerAddress
from pydanube_storage.metadata import EmbeddedStore, Put, read_all
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.metadata.sqlite_rows import METADATA_FORMAT_VERSION
from pydanube_storage.parquet.columns import FORMAT_VERSION, READS_VERSION

from tests.storage.metadata.adapters import options
from tests.support.etcd import EtcdMembers
from tests.support.memory_store import MemoryStore
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@dataclass(frozen=True)
class Member:
    metadata_format: int


MEMBER_RECORD = {
    "version": 1, "broker_id": "7", "incarnation": 1, "broker_url": "", "admin_url": "", "metrics_url": None,
    "state": "active", "reason": "boot", "registered_at_ms": 5, "software": "",
}  # fmt: skip


def test_member_of_a_build_without_the_field_announces_format_1_and_ours_the_newest() -> None:
    assert MemberRecord.from_json(json.dumps(MEMBER_RECORD).encode(), key="k").metadata_format == 1
    ours = MemberRecord(
        broker_id="7",
        incarnation=1,
        broker_url="",
        admin_url="",
        state=BrokerState.ACTIVE,
        reason="boot",
        registered_at_ms=5,
        metadata_format=METADATA_FORMAT,
    )
    assert json.loads(ours.to_json())["metadata_format"] == METADATA_FORMAT == METADATA_FORMAT_VERSION


IDS = st.builds(BrokerId, st.integers(1, 6))


@given(
    members=st.dictionaries(IDS, st.builds(Member, st.integers(1, 3))),
    owners=st.lists(IDS),
    removed=st.sets(IDS),
)
def test_step_waits_for_each_broker_that_may_read_the_metadata(
    members: dict[BrokerId, Member], owners: list[BrokerId], removed: set[BrokerId]
) -> None:
    waits_for = holding_up(members, owners, removed)
    for broker in {*members, *owners}:
        announces = broker in members and members[broker].metadata_format >= METADATA_FORMAT
        assert (broker in waits_for) == (not announces and broker not in removed)


async def test_a_start_that_was_let_in_before_the_step_holds_it_up_until_it_is_a_member() -> None:
    async with MemoryStore() as store:

        async def starting() -> set[BrokerId]:
            residents, _ = await read_all(store, keys.RESIDENTS)
            return are_starting(residents, (await read_all(store, keys.INCARNATIONS))[0])

        for start in (1, 2):
            await store.transact([Put("/cluster/brokers/7", b"life %d" % start)])
            assert await starting() == {BrokerId(7)}
            me = BrokerAddress(broker_id="7", broker_url="", admin_url="")
            async with Membership(store, me, ttl_ms=None, wall_ms=lambda: 5):
                assert await starting() == set()
            assert await starting() == set(), "it has stopped"


async def test_identity_of_format_2_is_refused_by_a_build_of_format_1_and_read_by_this_one(
    etcd: EtcdMembers,
) -> None:
    async with EtcdStore(options(etcd)) as store:
        before = Identity(cluster_id="c", recovery="r")
        await store.transact([Put(IDENTITY, before.to_json())])
        await refuse_older_builds(store)
        await refuse_older_builds(store)
        item = await store.get(IDENTITY)
        assert item is not None
        assert Identity.of(item.value) == Identity(cluster_id="c", recovery="r", metadata_format=2)
        seen_by_format_1 = json.loads(item.value)  # which refuses to start if `released` is not empty
        assert seen_by_format_1["cluster_id"] == "c"
        assert "format 2" in seen_by_format_1["released"]


async def test_released_cluster_stays_as_it_is(etcd: EtcdMembers) -> None:
    async with EtcdStore(options(etcd)) as store:
        await store.transact([Put(IDENTITY, Identity(cluster_id="c", released="7").to_json())])
        with pytest.raises(ClusterMismatch):
            await refuse_older_builds(store)


async def test_file_of_a_higher_format_is_refused(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "metadata.sqlite"
    async with EmbeddedStore(path) as store:
        await refuse_older_builds(store)
        await refuse_older_builds(store)
    async with EmbeddedStore(path):
        pass
    monkeypatch.setattr("pydanube_storage.metadata.sqlite_rows.METADATA_FORMAT_VERSION", 1)
    with pytest.raises(FormatTooNew):
        async with EmbeddedStore(path):
            pass


def test_identity_of_format_1_is_written_as_before() -> None:
    assert json.loads(Identity(cluster_id="c").to_json()) == {"cluster_id": "c"}
    assert json.loads(Identity(cluster_id="c", released="7").to_json()) == {
        "cluster_id": "c",
        "released": "7",
    }


@given(
    st.builds(
        Identity,
        cluster_id=st.sampled_from(["c", "0a"]),
        recovery=st.sampled_from(["", "r"]),
        released=st.sampled_from(["", "7", "(none"]),
        metadata_format=st.integers(1, METADATA_FORMAT),
    )
)
def test_identity_is_read_as_it_was_written(identity: Identity) -> None:
    assert asdict(Identity.of(identity.to_json())) == asdict(identity)


def test_identity_of_a_later_format_is_refused() -> None:
    later = json.loads(Identity(cluster_id="c", metadata_format=2).to_json()) | {"metadata_format": 3}
    with pytest.raises(FormatTooNew, match="start the newer build"):
        Identity.of(json.dumps(later).encode())


def test_objects_have_the_newest_format_that_each_build_of_the_metadata_s_format_reads() -> None:
    assert (object_format(1), object_format(METADATA_FORMAT)) == (FORMAT_VERSION, READS_VERSION)
