from __future__ import annotations

from tests.broker.delivery.conftest import anyio_backend, broker, client, one_loop, opened

__all__ = ["anyio_backend", "broker", "client", "one_loop", "opened"]
