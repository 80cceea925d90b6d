"""Run a report in a process of its own, so that its JVM does not share the broker's loop and memory.

Each broker runs one report at a time, because two would slow each other down. The process ends with the call that waits
for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.errors import ClusterError, Internal, InvalidArgument, LimitReached, MissingExtra
from pydanube_core.extras import install_command

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Request, Result
from pydanube_admin.engine.operation import operation

NEEDED: Final = ("numpy", "pyarrow")
_NOISE_LINES: Final = 20
_LINE_BYTES: Final = 16 << 20
#: settings that decide a status → option of the report's program
_RULES: Final = {
    "diagnosis.stuck_after": "stuck-after",
    "diagnosis.sample_interval": "sample-interval",
    "diagnosis.window": "window",
    "diagnosis.open_after": "open-after",
    "diagnosis.close_after": "close-after",
}
running: set[str] = set()
Progress = Callable[[float, str], None]  # the share that is done, the present step


class ReportRequest(Request):
    since: Annotated[
        str, Field(min_length=1, max_length=64, description="A length before until, or a time")
    ] = "24h"
    until: Annotated[str | None, Field(max_length=64, description="End, a time. Default: now")] = None
    topic: Annotated[str | None, Field(max_length=512, description="Glob over topics. Default: all")] = None
    compare: Annotated[Literal["previous"] | None, Field(description="Also the time before, as long")] = None
    rows: Annotated[int, Field(ge=1, le=1000, description="Most rows")] = 20


class ReportResult(Result):
    """A report over the telemetry in the object store. docs/spark.md has the fields of its rows."""

    report: str
    cluster: str
    since: str
    until: str
    known_from: str
    as_of: str
    data_age_s: float
    engine: str
    took_s: float
    summary: dict[str, Any]
    previous: dict[str, Any] | None = None
    rows: list[dict[str, Any]]
    rows_total: int


@operation(
    "reports.lag",
    effect=Effect.READ,
    title="Run the lag report",
    permission="reports:run",
    summary="Report from telemetry how far each subscription was behind, with status, since when and why. Takes "
    "seconds to minutes.",
    long_running=True,
    resumable=True,
    examples=(Example({"since": "24h", "topic": "orders*"}, "last night"),),
)
async def run_lag_report(context: Context, request: ReportRequest) -> ReportResult:
    return await _run("lag", context, request)


@operation(
    "reports.balance",
    effect=Effect.READ,
    title="Run the balance report",
    permission="reports:run",
    summary="Report from telemetry how evenly brokers are loaded, which moves would help, and when they are full. "
    "Takes seconds to minutes.",
    long_running=True,
    resumable=True,
    examples=(Example({"since": "24h"}, "is a broker missing"),),
)
async def run_balance_report(context: Context, request: ReportRequest) -> ReportResult:
    return await _run("balance", context, request)


@operation(
    "reports.traffic",
    effect=Effect.READ,
    title="Run the traffic report",
    permission="reports:run",
    summary="Report messages and bytes in and out of topics over hours or days, also against the time before.",
    long_running=True,
    resumable=True,
    examples=(
        Example({"since": "24h", "topic": "orders"}, "hour by hour"),
        Example({"since": "7d", "compare": "previous"}, "this week against the last"),
    ),
)
async def run_traffic_report(context: Context, request: ReportRequest) -> ReportResult:
    return await _run("traffic", context, request)


async def _run(report: str, context: Context, request: ReportRequest) -> ReportResult:
    for module in NEEDED:
        if find_spec(module) is None:
            raise MissingExtra(
                f"reports read Parquet, and {module} is not installed beside the broker: {install_command('spark')}",
                extra="spark",
                module=module,
            )
    if running:
        raise LimitReached(
            f"the {next(iter(running))} report is being made: try again when it is done", retry_after_ms=5000
        )
    tier = (await context.port.status()).tier
    if not tier.get("enabled"):
        raise InvalidArgument(
            f"this broker has no object store, so no telemetry: {tier.get('reason')}",
            field="tier",
            value=None,
        )
    store = {name: tier.get(name) for name in ("endpoint", "region", "profile", "role")}
    given = {
        "tier": tier["url"],
        "tier-cluster": tier["cluster"],
        "since": request.since,
        "until": request.until,
        "topic": request.topic,
        "compare": request.compare,
        "path-style": None if tier.get("path_style") is None else str(tier["path_style"]).lower(),
        **store,
        **{_RULES[each.name]: each.value for each in await context.port.settings() if each.name in _RULES},
    }
    running.add(report)
    try:
        result = await run_process(
            [report, *(f"--{name}={value}" for name, value in given.items() if value is not None)],
            lambda share, doing: context.executor.tasks.report_progress(
                context.call_id, _work(report, share, doing)
            ),
        )
    finally:
        running.discard(report)
    rows = result["rows"][::-1] if report == "balance" else result["rows"]
    return ReportResult.model_validate({**result, "rows": rows[: request.rows], "rows_total": len(rows)})


def _work(report: str, share: float, doing: str) -> dict[str, Any]:
    """Return the progress of a report, in the form of the broker's long work."""
    return {
        "operation": f"reports.{report}",
        "topic": None,
        "unit": "percent",
        "done": round(share * 100),
        "total": 100,
        "doing": doing,
    }


async def run_process(arguments: list[str], progress: Progress = lambda share, doing: None) -> dict[str, Any]:
    """Return the result of `pydanube_spark.reports.main`, or raise its error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pydanube_spark.reports.main", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,  # the JVM is its child, so that one signal to the group ends both
    )
    assert process.stdout is not None
    assert process.stderr is not None
    noise: deque[str] = deque(maxlen=_NOISE_LINES)
    try:
        answer, failure = await asyncio.gather(
            process.stdout.read(), _failure(process.stderr, noise, progress)
        )
        code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if failure is not None:
        raise failure
    if code:
        raise Internal(f"the report's process ended with {code}", exit_code=code, log=list(noise))
    result: dict[str, Any] = json.loads(answer.decode().strip().splitlines()[-1])
    return result


async def _failure(
    stream: asyncio.StreamReader, noise: deque[str], progress: Progress
) -> ClusterError | None:
    found: ClusterError | None = None
    async for line in stream:
        text = line.decode(errors="replace").rstrip()
        if text.startswith('{"error"'):
            with contextlib.suppress(ValueError):
                found = ClusterError.from_dict(json.loads(text)["error"])
        elif text.startswith('{"progress"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                result = json.loads(text)
                progress(float(result["progress"]), str(result["doing"])[:200])
        else:
            noise.append(text)
    return found
