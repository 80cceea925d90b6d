"""A chain is shortened, whatever else is in its folder."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from pydanube_broker.chain import Drop, Place, Safe, piece_key
from pydanube_broker.chain.forgetting import Forgetting
from pydanube_broker.chain.piece import encode_piece
from pydanube_broker.chain.store import ChainObjects
from pydanube_storage.objects import LocalStore

pytestmark = pytest.mark.anyio
CLUSTER, JOURNAL = "cluster-1", 5


async def test_files_of_others_in_the_folder_do_not_end_it(tmp_path: Path) -> None:
    store = ChainObjects(LocalStore(tmp_path))
    place = Place()
    for _ in range(4):
        header, data = encode_piece(
            place, [Drop(base=1), Safe(lsn=3)], journal=JOURNAL, term=1, random=bytes(16)
        )
        assert await store.create(piece_key(CLUSTER, JOURNAL, header.number), data)
        place = place.after(header)
    folder = (tmp_path / piece_key(CLUSTER, JOURNAL, 1)).parent
    (folder / ".DS_Store").touch()
    (folder / ".snapshots").mkdir()
    (folder / ".snapshots" / "x").touch()

    async def keep_from(number: int) -> None:
        pass

    forgetting = Forgetting(store, CLUSTER, JOURNAL, keep_from)
    async with anyio.create_task_group() as group:
        group.start_soon(forgetting.run)
        forgetting.begin_at(place.number - 1)
        with anyio.fail_after(30):
            while len([each for each in folder.iterdir() if each.name.isdecimal()]) > 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert {each.name for each in folder.iterdir()} == {
        f"{place.number - 1:020d}", ".DS_Store", ".snapshots",
    }  # fmt: skip
