"""A change whose loss cannot be counted reaches the quota of destroyed messages as unknown, not as 0."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from pydanube_admin.engine import forecast
from pydanube_admin.operations import topic_changes as operations

from tests.admin.real_broker import administered

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lost", [None, 0, 3])
async def test_an_unknown_loss_is_not_zero_for_a_quota(
    monkeypatch: pytest.MonkeyPatch, lost: int | None
) -> None:
    def counted(**numbers: Any) -> dict[str, int | None]:
        return {**forecast.blast_radius(**numbers), "messages": lost}

    async with administered() as cluster:
        await cluster("topics.create", topic="t")
        monkeypatch.setattr(operations, "blast_radius", counted)
        plan = await cluster("topics.delete", topic="t", plan_only=True)
        asked = Mock()
        monkeypatch.setattr(cluster.broker.port.quotas, "change", asked)
        await cluster("topics.delete", topic="t", plan_token=plan["plan_token"])
    ((_, destroyed),) = [each.args for each in asked.call_args_list]
    assert destroyed == lost
