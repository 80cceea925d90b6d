"""One loop for all tests here, uvloop's, as brokers have it; those of tests/broker/official run on asyncio's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.one_loop import one_loop  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})
