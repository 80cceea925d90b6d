"""Following changes that other brokers made: in turns, beside all else that the loop has to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.serving.following import Following
from pydanube_broker.serving.registry import Registry

pytestmark = pytest.mark.anyio

CHANGED = 1000


async def test_others_get_their_turn_between_changes_that_come_at_once() -> None:
    """A rebalance of ten thousand topics is ten thousand changed keys. A survivor of `make mutants`."""
    dropped: list[TopicId] = []
    followed = SimpleNamespace(follow=anyio.sleep_forever, on_key=None)
    registry = SimpleNamespace(
        ownership=SimpleNamespace(several=True),
        catalog=SimpleNamespace(records=followed),
        quotas=SimpleNamespace(records=followed),
        schemas=SimpleNamespace(registry=SimpleNamespace(records=followed)),
        deleted=SimpleNamespace(drop=dropped.append),
    )
    following = Following(cast(Registry, registry))
    for number in range(1, CHANGED + 1):
        cast(Any, followed).on_key(keys.topic_tombstone_key(TopicId(number)))
    most = 0
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            while len(dropped) < CHANGED:
                before = len(dropped)
                await anyio.lowlevel.checkpoint()
                most = max(most, len(dropped) - before)
            group.cancel_scope.cancel()
    assert dropped == list(range(1, CHANGED + 1))
    assert most <= 16
