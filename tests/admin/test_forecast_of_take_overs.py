"""The plan of `topics.take_over` says where a topic continues: without a gap only if nothing can be missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydanube_admin.engine.models import TopicRequest
from pydanube_admin.operations.topic_take_over import forecast_take_over
from pydanube_core.facts import TakeOverFacts


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("is_whole", "is_mirror", "continued", "later"),
    [
        (True, False, {"goes_on_at": 15}, "without a gap"),
        (False, False, {"goes_on_above": 18 + (1 << 32)}, "behind the end of the copy are missing"),
        (
            False,
            True,
            {"goes_on_at": 15},
            "copies missing messages again, as far as the source still has them",
        ),
    ],
)
async def test_topic_continues_without_a_gap_only_where_the_copy_is_whole(
    is_whole: bool, is_mirror: bool, continued: dict[str, int], later: str
) -> None:
    facts = TakeOverFacts(
        topic="/default/t",
        broker_id="7",
        copied_to=15,
        copied_at_ms=1,
        reported_to=18,
        reported_at_ms=2,
        missing_messages=0 if is_whole else 3,
        subscriptions=1,
        is_whole=is_whole,
        is_mirror=is_mirror,
    )
    context: Any = SimpleNamespace(port=SimpleNamespace(take_over_facts=AsyncMock(return_value=[facts])))
    found = await forecast_take_over(context, TopicRequest(topic="t"))
    assert found.diff[0]["after"] == {"owner": "another broker", **continued}
    assert found.later is not None
    assert later in found.later
    assert ("without a gap" in found.later) is is_whole
