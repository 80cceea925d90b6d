from __future__ import annotations

from typing import Any

import anyio
import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def deadline(anyio_backend: str) -> Any:
    with anyio.fail_after(60):
        yield
