"""A broker in this process, on a directory of its own, with a client on its gRPC port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings

from tests.support.broker_process import SMALL_SEGMENT_BYTES
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture

PORTS = ("grpc_port", "admin_port", "metrics_port")

Opener = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """Start a broker on the test's directory; one after another is a restart."""

    @asynccontextmanager
    async def open_broker(**overrides: Any) -> AsyncIterator[Broker]:
        given = {name.replace("__", "."): value for name, value in overrides.items()}
        settings = load_settings(
            None,
            {},
            {
                "data.dir": str(tmp_path / "data"),
                **{f"server.{name}": 0 for name in PORTS},
                "journal.segment_bytes": SMALL_SEGMENT_BYTES,
                **given,
            },
        )
        async with Broker(settings) as broker:
            yield broker

    return open_broker


@pytest.fixture
async def broker(opened: Opener) -> AsyncIterator[Broker]:
    async with opened() as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with connect(broker.broker_url) as client:
        yield client
