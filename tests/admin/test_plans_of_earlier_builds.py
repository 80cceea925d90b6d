"""Plans made by an earlier build pin less: they are stale, not an internal error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydanube_admin.engine.forecast import made_again
from pydanube_admin.operations.cluster_balance import _as_planned


@pytest.mark.anyio
async def test_a_rebalance_planned_without_ids_of_topics_is_forecast() -> None:
    """It was a KeyError."""
    port = SimpleNamespace(
        takers=AsyncMock(return_value=["2"]),
        owners=AsyncMock(return_value=[SimpleNamespace(broker_id="1")]),
        topic_facts=AsyncMock(return_value=[]),
    )
    context: Any = SimpleNamespace(port=port)
    found = await _as_planned(context, {"moves": [["/default/a", "1", "2"]]})
    assert [(each["before"], each["after"]) for each in found.diff] == [("1", "2")]


def test_pinned_names_without_ids_name_no_topic_made_again() -> None:
    """It was an AttributeError."""
    now = {"topics": {"/default/a": "7"}}
    assert made_again({"topics": ["/default/a"]}, now) == []
    assert made_again({"topics": {"/default/a": "3"}}, {"topics": ["/default/a"]}) == []
