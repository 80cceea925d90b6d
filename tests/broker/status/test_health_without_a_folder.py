"""A data folder that vanishes makes the broker refuse and say so; it goes on when the folder is back."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from pydanube_broker.status import health as health_module
from pydanube_broker.status.health import Health
from pydanube_core.errors import Unavailable

from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_publishes_are_refused_while_the_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "SAMPLE_S", 0.01)
    folder = tmp_path / "data"
    folder.mkdir()
    health = Health(folder, min_free_bytes=1, explicit=True, memory=False)
    health.start()
    health.recovering = False
    try:
        with anyio.fail_after(60):
            health.check_publish()
            shutil.rmtree(folder)
            await until(lambda: health.reasons())  # it looks at the folder by a timer, and tells nobody
            assert [reason.code for reason in health.reasons()] == ["DATA_DIR_GONE"]
            with pytest.raises(Unavailable, match=str(folder)) as caught:
                health.check_publish()
            assert caught.value.retryable
            folder.mkdir()
            await until(lambda: not health.reasons())
            health.check_publish()
    finally:
        health.close()
