from tests.broker.delivery.conftest import one_loop
from tests.broker.serving.test_several_brokers import cluster

__all__ = ["cluster", "one_loop"]
