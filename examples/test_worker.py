"""Tests of worker.py: a real broker in memory for each test, and a network that breaks.

pip install "pydanube[broker]" pytest;  pytest test_worker.py
"""

import json

import pytest
from pydanube.testing import InMemoryCluster, running
from worker import bill

pytestmark = pytest.mark.anyio


async def billed(cluster: InMemoryCluster, *totals: int) -> list[int]:
    """Publish orders, let the worker run until it has answered all, and return the bills."""
    async with cluster.connect() as client:
        async with client.producer("orders") as producer:
            for number, total in enumerate(totals):
                await producer.send(json.dumps({"id": number, "total": total}).encode(), key="customer-7")
        options = {"start": "earliest", "publish": "bills", "dead_letter": True}
        work = running(client.run(bill, "orders", "billing", **options))
        async with work, client.consumer("bills", "test", create=True) as bills:
            cluster.drop_connections()  # a worker must not mind
            wanted = sum(total >= 0 for total in totals)
            return [json.loads((await anext(bills)).payload)["due"] for _ in range(wanted)]


async def test_each_order_is_billed(danube_cluster: InMemoryCluster) -> None:
    assert await billed(danube_cluster, 5, 20) == [5, 20]


async def test_a_negative_total_is_set_aside_and_the_next_is_billed(danube_cluster: InMemoryCluster) -> None:
    assert await billed(danube_cluster, -1, 20) == [20]
    assert len(danube_cluster.payloads("orders-dlq-billing")) == 1
