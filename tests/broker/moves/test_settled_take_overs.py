"""The leader settles a closing record of a broker that is back by the store, because its own view may lag."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.chain import ChainStore
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.journal_record import JournalRecord, JournalState, fenced, taken_over
from pydanube_broker.moves.take_over import TakeOvers
from pydanube_broker.records import Quarantine
from pydanube_core.errors import Conflict
from pydanube_storage.metadata import Absent, Put

from tests.support.memory_store import MemoryStore

OWNER, HEIR = BrokerId(1), BrokerId(2)
LEADS: Any = SimpleNamespace(
    members={OWNER: None},  # as this leader's watch has it
    moving_places=list,
    leadership=SimpleNamespace(guard=Absent("/another leader")),
)


@pytest.mark.anyio
async def test_a_plan_is_not_dropped_for_a_return_that_is_over(store: MemoryStore) -> None:
    planned = taken_over(JournalRecord(journal=7, term=3, copies=True), [TopicId(9)])
    planned = fenced(planned, 7, [HEIR])
    await store.transact([Put(keys.journal_key(OWNER), planned.to_json())])
    take_overs = TakeOvers(store, cast(ChainStore, None), "c", Quarantine(), HEIR)
    found = (await take_overs.records())[OWNER]
    with pytest.raises(Conflict, match="is lost again"):
        await take_overs.settle(LEADS, OWNER, found)
    assert (await take_overs.records())[OWNER] == found

    await store.transact([Put(keys.member_key(OWNER), b"{}")])
    await take_overs.settle(LEADS, OWNER, found)
    after = (await take_overs.records())[OWNER].record
    assert after == replace(planned, state=JournalState.OPEN, topics=(), until=0, heirs=(), copies=False)
