"""Requests and results of `reports.*`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.models import Request, Result


class ReportRequest(Request):
    since: Annotated[
        str, Field(min_length=1, max_length=64, description="A length before until, such as 24h, or a time")
    ] = "24h"
    until: Annotated[str | None, Field(max_length=64, description="A time; without it, now")] = None
    topic: Annotated[str | None, Field(max_length=512, description="Glob of topics")] = None
    compare: Annotated[
        Literal["previous"] | None, Field(description="With the time of the same length before it")
    ] = None
    rows: Annotated[
        int, Field(ge=1, le=1000, description="How many rows to answer with, the worst first")
    ] = 20


class ReportResult(Result):
    """A report over the telemetry in the object store; docs/spark.md has the fields of its rows."""

    report: str
    cluster: str
    since: str
    until: str
    as_of: str
    data_age_s: float
    engine: str
    took_s: float
    summary: dict[str, Any]
    previous: dict[str, Any] | None = None
    rows: list[dict[str, Any]]
    rows_total: int
