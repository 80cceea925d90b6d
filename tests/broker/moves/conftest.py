from tests.broker.cluster.conftest import clock, store
from tests.broker.delivery.conftest import broker, client, one_loop, opened

__all__ = ["broker", "client", "clock", "one_loop", "opened", "store"]
