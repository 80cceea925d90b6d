"""When a broker leaves a mark of the metadata in the object store."""

from __future__ import annotations

import pytest
from pydanube_broker.tier.metadata_witness import EVERY_S, MetadataWitness
from pydanube_storage.metadata import Put
from pydanube_storage.objects import OwnerMark

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio


async def test_a_mark_is_left_at_once_and_then_only_when_the_metadata_have_changed_and_a_minute_is_over() -> (
    None
):
    made: list[OwnerMark] = []
    now_s = 0.0

    async def newest() -> OwnerMark | None:
        return made[-1] if made else None

    async def make(mark: OwnerMark) -> None:
        made.append(mark)

    async with MemoryStore() as metadata:
        witness = MetadataWitness(
            metadata, "s3://b", newest=newest, make=make, me=("1", "/d"), monotonic=lambda: now_s
        )
        await witness.look()
        assert len(made) == 1
        now_s += EVERY_S
        await witness.look()
        assert len(made) == 1, "the metadata have changed by the mark alone"
        for n in range(2):
            await metadata.transact([Put(f"/{n}", b"x")])
        await witness.look()
        assert len(made) == 2
        for n in range(2):
            await metadata.transact([Put(f"/{n}", b"y")])
        await witness.look()
        assert len(made) == 2, "a minute is not over"
        now_s += EVERY_S
        await witness.look()
        assert len(made) == 3
        assert [each.incarnation for each in made] == sorted({each.incarnation for each in made})
