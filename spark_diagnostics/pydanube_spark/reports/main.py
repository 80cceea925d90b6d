"""Reports as a program: for spark-submit, and for callers that run them as a process.

    spark-submit --master spark://host:7077 main.py lag --tier s3://bucket/prefix --since 24h --out DIR
    python -m pydanube_spark.reports.main lag --tier ./danube-data/objects --out DIR --master local[2]

The result is one JSON object on stdout. On stderr each step is a line `{"progress": 0.25, "doing": …}`, an error a line
`{"error": {code, message, …}}`; the exit code is the error's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.errors import InvalidArgument
from pydanube_core.units import parse_duration_s
from pydanube_storage.topics.located import STORE, store_options

from pydanube_spark.failures import failure_of
from pydanube_spark.reports.balance.report import BALANCE
from pydanube_spark.reports.lag.report import LAG
from pydanube_spark.reports.progress import say_progress
from pydanube_spark.reports.run import ReportRequest, run_report
from pydanube_spark.reports.traffic import TRAFFIC

_REPORTS = {report.name: report for report in (LAG, BALANCE, TRAFFIC)}
#: options for the settings of the broker's diagnosis that decide a status → field of `DiagnosisOptions`
_DURATIONS = {"stuck-after": "stuck_after_s", "sample-interval": "sample_interval_s", "window": "window_s"}
_COUNTS = ("open-after", "close-after")


def request_of(arguments: Sequence[str]) -> tuple[str, ReportRequest]:
    """Return (report, request) from a command line. argparse exits with 2 for an invalid one."""
    parser = argparse.ArgumentParser(prog="pydanube_spark.reports.main", description=__doc__)
    parser.add_argument("report", choices=sorted(_REPORTS))
    parser.add_argument("--tier", required=True, help="folder or s3:// URL of the object store")
    parser.add_argument("--tier-cluster", help="which cluster of the store, if it holds several")
    parser.add_argument("--since", default="24h", help="a length before --until, or a time")
    parser.add_argument("--until", help="a time (default: now)")
    parser.add_argument("--topic", help="glob of topics")
    parser.add_argument("--out", type=Path, help="folder for the report's files")
    parser.add_argument(
        "--master", help="Spark's master URL. Without it, Spark runs where there is much to read"
    )
    parser.add_argument("--compare", metavar="previous", help="with the time of the same length before")
    for name in STORE:
        parser.add_argument(f"--{name.replace('_', '-')}", help="of an S3-compatible store")
    for name in (*_DURATIONS, *_COUNTS):
        parser.add_argument(f"--{name}", help=f"diagnosis.{name.replace('-', '_')} of the broker")
    given = parser.parse_args(arguments)
    return given.report, ReportRequest(
        store=store_options(
            given.tier, {name: value for name in STORE if (value := getattr(given, name)) is not None}
        ),
        cluster=given.tier_cluster,
        since=given.since,
        until=given.until,
        topic=given.topic,
        out=given.out,
        master=given.master,
        compare=given.compare,
        rules=_rules(vars(given)),
    )


def _rules(given: Mapping[str, Any]) -> DiagnosisOptions:
    found: dict[str, Any] = {}
    for name, field in _DURATIONS.items():
        text = given[name.replace("-", "_")]
        if text is not None:
            found[field] = _positive(name, parse_duration_s(text, field=name))
    for name in _COUNTS:
        text = given[name.replace("-", "_")]
        if text is not None:
            found[name.replace("-", "_")] = _positive(name, int(text) if text.isdecimal() else 0)
    return DiagnosisOptions(**found)


def _positive(name: str, value: float) -> float:
    if value <= 0:
        raise InvalidArgument(f"--{name}: write more than 0", field=name, value=value)
    return value


def main(arguments: Sequence[str]) -> int:
    """Run one report and return the exit code."""
    try:
        name, request = request_of(arguments)
        result = run_report(_REPORTS[name], request, say_progress)
    except Exception as error:
        failure = failure_of(error)
    else:
        print(json.dumps(result, default=str))
        return 0
    print(json.dumps({"error": failure.to_dict()}), file=sys.stderr)
    return failure.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
