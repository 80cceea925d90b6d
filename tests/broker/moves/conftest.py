from tests.broker.delivery.conftest import broker, client, one_loop, opened

__all__ = ["broker", "client", "one_loop", "opened"]
