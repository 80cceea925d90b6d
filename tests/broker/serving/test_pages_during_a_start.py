"""The pages of the metrics port tell the truth from the moment the port listens."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.journal import Journal
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings.load import load_settings

from tests.support.broker_process import SMALL_SEGMENT_BYTES

pytestmark = pytest.mark.anyio


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


async def test_every_page_answers_truthfully_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {f"server.{name}_port": 0 for name in ("grpc", "admin", "metrics")}
    small = {"journal.segment_bytes": SMALL_SEGMENT_BYTES}
    broker = Broker(load_settings(overrides={"data.dir": str(tmp_path / "data"), **ports, **small}))
    seen: list[dict[str, tuple[int, str]]] = []

    async def look() -> None:
        pages = ("healthz", "readyz", "status", "metrics")
        urls = {page: f"{broker.metrics_url}/{page}" for page in pages}
        seen.append({page: await anyio.to_thread.run_sync(ask, url) for page, url in urls.items()})

    def watched(owner: Any, name: str) -> None:
        """Look before this step of the start."""
        step = getattr(owner, name)

        async def looked_at(*arguments: Any) -> Any:
            await look()
            return await step(*arguments)

        monkeypatch.setattr(owner, name, looked_at)

    bind = broker.bind

    async def bound(*arguments: Any) -> None:
        await bind(*arguments)
        await look()

    monkeypatch.setattr(broker, "bind", bound)
    watched(Registry, "check_journal")
    watched(Journal, "begin")
    async with broker:
        await look()
    assert len(seen) == 4
    *starting, started = seen
    for pages in starting:
        assert {page: code for page, (code, _) in pages.items()} == {
            "healthz": 200, "readyz": 503, "status": 200, "metrics": 200,
        }  # fmt: skip
        status = json.loads(pages["status"][1])
        assert not status["ready"]
        assert [reason["code"] for reason in status["reasons"]] == ["RECOVERING"]
    assert {code for code, _ in started.values()} == {200}
    assert not [each for each in caplog.records if each.exc_info]
