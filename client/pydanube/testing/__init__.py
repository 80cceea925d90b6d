"""A real broker for tests: in memory, with faults on demand.

    async def test_orders_are_billed(danube_cluster) -> None:        # a fixture of pytest, there once pydanube is installed
        async with danube_cluster.connect() as client:
            ...

`InMemoryCluster()` is the same without pytest. Needs the extra `broker`. `running` (the fixture `danube_running`) runs workers
beside a test, and fails the test when one of them dies.
"""

from pydanube.testing.cluster import InMemoryCluster
from pydanube.testing.workers import running

__all__ = ["InMemoryCluster", "running"]
