"""Reports as operations: what the process is asked, and what comes of what it says."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube_admin.operations import reports
from pydanube_admin.operations.reports import ReportRequest
from pydanube_core.errors import InvalidArgument, LimitReached, MissingExtra

pytestmark = pytest.mark.anyio

TIER = {"enabled": True, "url": "/objects", "cluster": "c", "endpoint": None, "path_style": True}
SAID = {
    **{
        "report": "lag",
        "cluster": "c",
        "since": "a",
        "until": "b",
        "known_from": "a",
        "as_of": "b",
        "took_s": 1.0,
    },
    **{"data_age_s": 3.0, "engine": "python"},
    "summary": {"subscriptions": 3},
    "rows": [{"n": 1}, {"n": 2}, {"n": 3}],
}


def context(tier: dict[str, Any]) -> Any:
    async def status() -> Any:
        return SimpleNamespace(tier=tier)

    async def settings() -> Any:
        names = {"diagnosis.stuck_after": "10.0", "diagnosis.close_after": "3", "tier.url": "/objects"}
        return [SimpleNamespace(name=name, value=value) for name, value in names.items()]

    return SimpleNamespace(port=SimpleNamespace(status=status, settings=settings))


async def test_the_process_is_told_where_the_store_is_and_what_the_broker_calls_stuck_and_its_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def process(arguments: list[str], progress: Any) -> dict[str, Any]:
        asked.extend(arguments)
        return SAID

    monkeypatch.setattr(reports, "run_process", process)
    found = await reports.run_lag_report(context(TIER), ReportRequest(since="2h", topic="o*", rows=2))
    assert asked == [
        "lag",
        "--tier=/objects",
        "--tier-cluster=c",
        "--since=2h",
        "--topic=o*",
        "--path-style=true",
        "--stuck-after=10.0",
        "--close-after=3",
    ]
    assert (found.rows, found.rows_total) == ([{"n": 1}, {"n": 2}], 3)


async def test_one_report_at_a_time_and_the_next_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def process(arguments: list[str], progress: Any) -> dict[str, Any]:
        begun.set()
        await end.wait()
        return SAID

    monkeypatch.setattr(reports, "run_process", process)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reports.run_lag_report, context(TIER), ReportRequest())
            await begun.wait()
            with pytest.raises(LimitReached):
                await reports.run_balance_report(context(TIER), ReportRequest())
            end.set()
    assert not reports.running


async def test_what_the_process_fails_with_is_raised_whatever_else_it_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\necho 'WARN noise' >&2\n"
        'echo \'{"error": {"code": "INVALID_ARGUMENT", "message": "no telemetry", "details": {}}}\' >&2\nexit 2\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(InvalidArgument) as caught:
        await reports.run_lag_report(context(TIER), ReportRequest())
    assert "no telemetry" in caught.value.message


async def test_without_spark_or_a_store_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument):
        await reports.run_lag_report(context({"enabled": False, "reason": "off"}), ReportRequest())
    monkeypatch.setattr(reports, "NEEDED", ("no_such_module",))
    with pytest.raises(MissingExtra):
        await reports.run_lag_report(context(TIER), ReportRequest())
