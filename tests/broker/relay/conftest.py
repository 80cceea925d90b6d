from tests.broker.delivery.conftest import anyio_backend, one_loop
from tests.broker.serving.test_several_brokers import cluster, etcd

__all__ = ["anyio_backend", "cluster", "etcd", "one_loop"]
