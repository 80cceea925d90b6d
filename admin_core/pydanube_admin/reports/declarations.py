"""The reports."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.operation import Example, Operation
from pydanube_admin.reports.handlers import run_balance_report, run_lag_report
from pydanube_admin.reports.models import ReportRequest, ReportResult

REPORT_OPERATIONS: Final = (
    Operation(
        name="reports.lag",
        tool="run_lag_report",
        title="Run the lag report",
        effect=Effect.READ,
        permission="reports:run",
        reversible=None,
        summary="Report from telemetry how far each subscription was behind, with status, since when and why; takes a "
        "minute or more.",
        request=ReportRequest,
        result=ReportResult,
        handler=run_lag_report,
        examples=(Example(arguments={"since": "24h", "topic": "orders*"}, note="last night"),),
        default_profile=False,
        long_running=True,
        resumable=True,
    ),
    Operation(
        name="reports.balance",
        tool="run_balance_report",
        title="Run the balance report",
        effect=Effect.READ,
        permission="reports:run",
        reversible=None,
        summary="Report from telemetry how evenly brokers are loaded, which moves would help, and when they are full; "
        "takes a minute or more.",
        request=ReportRequest,
        result=ReportResult,
        handler=run_balance_report,
        examples=(Example(arguments={"since": "24h"}, note="is a broker missing"),),
        default_profile=False,
        long_running=True,
        resumable=True,
    ),
)
