"""One loop for all tests here, uvloop's, as brokers have it; those of tests/broker/official run on asyncio's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session", autouse=True)
async def on_uvloop(one_loop: None) -> None:  # noqa: F811
    """Fail if another folder's loop is still there: the runner that began first stays for all."""
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
