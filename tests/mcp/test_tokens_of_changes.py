"""What a model reads of `what_changed` on a cluster that is administered: at most 1 500 tokens at p95."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from pydanube_core.errors import ClusterError
from pydanube_mcp import build_server

from tests.admin.real_broker import Administered, administered
from tests.mcp.test_tools_on_both_wires import tokens

pytestmark = pytest.mark.anyio
MOST = 1_500
TOPICS = [
    f"/{namespace}/{name}-{n}"
    for n in range(6)
    for namespace, name in (("shop", "orders"), ("default", "payments"))
]
WHY = "the disk of the second broker fills up since Monday, see OPS-1234: keep what billing needs and no more"


async def change(cluster: Administered, operation: str, **arguments: Any) -> None:
    outcome = await cluster.call(operation, arguments, "ann@example.org")
    if isinstance(outcome, ClusterError):
        assert outcome.code == "PLAN_REQUIRED", outcome
        token = outcome.details["plan"]["plan_token"]
        outcome = await cluster.call(operation, {**arguments, "plan_token": token}, "ann@example.org")
        assert not isinstance(outcome, ClusterError), outcome


async def a_day_of_changes(cluster: Administered) -> None:
    """Seventy changes of eight kinds, some with a reason, some that destroy."""
    await change(cluster, "namespaces.create", namespace="shop")
    for n, topic in enumerate(TOPICS):
        policies = {"retention_age_s": 86_400, "max_publish_rate": 500}
        await change(
            cluster, "topics.create", topic=topic, partitions=3 if n % 4 == 0 else 0, policies=policies
        )
        of = {"topic": topic, "subscription": "billing-service"}
        await change(cluster, "subscriptions.create", type="shared", **of)
        if n % 4:
            await cluster.publish(topic, *(b"x" * 100 for _ in range(50)))
            await change(cluster, "subscriptions.seek", to="latest", why=WHY, **of)
        less = {"retention_bytes": 10**9, "max_message_size": 65_536}
        await change(
            cluster, "topics.set_policies", topic=topic, policies=less, **({"why": WHY} if n % 3 == 0 else {})
        )
        if n % 5 == 0:
            await change(cluster, "subscriptions.set_failure_policy", poison_policy="dead_letter", **of)
        if n % 6 == 5:
            await change(cluster, "topics.delete", topic=topic, why=WHY)


async def test_what_changed_is_short() -> None:
    calls: list[dict[str, Any]] = [
        {}, {"since": "24h"}, {"since": "2h"}, {"since": "30m"}, {"since": "5m"}, {"limit": 5}, {"limit": 10},
        {"by": "ann@example.org"}, {"since": "1d", "by": "nobody"},
        *({"since": "24h", "topic": topic} for topic in TOPICS),
    ]  # fmt: skip
    async with administered() as cluster:
        await a_day_of_changes(cluster)
        async with build_server(cluster.broker.admin_url) as server, Client(server) as client:
            sizes = []
            for arguments in calls:
                answer = await client.call_tool("what_changed", arguments)
                assert not answer.is_error, answer
                assert answer.structured_content is not None
                assert "limit" in arguments or "rest" not in answer.structured_content, "one answer is enough"
                sizes.append(tokens(answer.structured_content))
            assert len((await client.call_tool("what_changed", {})).structured_content["items"]) >= 7
    sizes.sort()
    assert sizes[int(0.95 * len(sizes))] <= MOST, sizes
    assert sizes[len(sizes) // 2] > 300, "the changes are there"
