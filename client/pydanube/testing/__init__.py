"""A cluster inside the test's process.

    async def test_orders_are_billed() -> None:
        cluster = InMemoryCluster()
        async with cluster.connect() as client:
            ...

The client is the real one; only what carries its bytes is replaced, and the conformance suite of the SDK runs over
this cluster and over the real broker alike. It keeps everything in memory and says so in its receipts.
"""

from pydanube.testing.cluster import InMemoryCluster

__all__ = ["InMemoryCluster"]
