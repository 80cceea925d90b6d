"""`danube report lag|balance`: reports over the telemetry in the object store, which need no running broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydanube_core.errors import ClusterError, ConditionNotMet, InvalidArgument, Unavailable
from pydanube_core.units import counted

from pydanube_cli.command import Common, command
from pydanube_cli.failures import printable
from pydanube_cli.parameters import option
from pydanube_cli.render import print_json, print_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options that every report takes."""

    since: Annotated[str, option("--since", "TIME", "A length before --until, or a time.")] = "24h"
    until: Annotated[str | None, option("--until", "TIME", "A time [default: now]")] = None
    topic: Annotated[str | None, option("--topic", "GLOB", "Only these topics.")] = None
    out: Annotated[Path | None, option("--out", "DIR", "Write Parquet, JSON, HTML and PNG there.")] = None
    master: Annotated[
        str | None,
        option("--master", "URL", "Spark's master. Default: Spark is used if there is much to read"),
    ] = None
    compare: Annotated[
        str | None,
        option("--compare", "previous", "Also the time of the same length before, and what changed"),
    ] = None
    tier: Annotated[
        str | None, option("--tier", "URL", "Object store [default: that of the broker or its settings]")
    ] = None
    tier_cluster: Annotated[
        str | None, option("--tier-cluster", "NAME", "Which cluster of the store, if it holds several.")
    ] = None
    fail_on: Annotated[str | None, option("--fail-on", "warning", "Exit 6 if anything is in trouble.")] = None

    def __post_init__(self) -> None:
        if self.fail_on not in (None, "warning"):
            raise InvalidArgument(
                f"--fail-on {self.fail_on}: there is only warning", field="fail-on", value=self.fail_on
            )


#: settings that decide a status: the broker's if it is reachable, else those of the environment
_RULES: Final = ("stuck_after", "sample_interval", "window", "open_after", "close_after")
_TROUBLE: Final = ("DATA_LOST", "AT_RISK", "STUCK", "FALLING_BEHIND", "SLOW")


@command(
    examples=[
        "danube report lag --since 24h --out report",
        "danube report lag --tier s3://bucket/prefix --topic 'orders*' --json",
        "danube report lag --since 7d --fail-on warning",
    ]
)
def lag(*, common: Common, options: ReportOptions) -> int:
    """Report how far each subscription was behind, hour by hour, and which are in trouble."""
    result = _run("lag", common, options)
    if not common.as_json:
        print_lag(result)
    trouble = {name: count for name, count in result["summary"]["statuses"].items() if name in _TROUBLE}
    if options.fail_on and trouble:
        what = ", ".join(f"{count} {name}" for name, count in trouble.items())
        raise ConditionNotMet(f"subscriptions in trouble: {what}", statuses=trouble)
    return 0


@command(
    examples=[
        "danube report balance --since 24h --out report",
        "danube report balance --tier s3://bucket/prefix --json",
    ]
)
def balance(*, common: Common, options: ReportOptions) -> int:
    """Report how evenly the brokers are loaded, which moves would help, and when they are full."""
    result = _run("balance", common, options)
    summary = result["summary"]
    if not common.as_json:
        print_balance(result)
    if options.fail_on and summary["verdict"] != "BALANCED":
        raise ConditionNotMet(
            f"the cluster is {summary['verdict']}: {summary['because']}", verdict=summary["verdict"]
        )
    return 0


def _run(report: str, common: Common, options: ReportOptions) -> dict[str, Any]:
    from pydanube_spark.reports.process import check_installed, run_in_process

    check_installed()
    store = _store(common) if options.tier is None else {"tier": options.tier, **_connection(), **_rules()}
    given = {
        **store,
        "since": options.since,
        "until": options.until,
        "topic": options.topic,
        "out": None if options.out is None else str(options.out.absolute()),
        "master": options.master,
        "compare": options.compare,
        "tier-cluster": options.tier_cluster or store.get("tier-cluster"),
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    result = run_in_process([report, *words], _progress())
    if common.as_json:
        print_json(result)
    return result


def _store(common: Common) -> dict[str, str | None]:
    """Return the options of the object store: the broker's, or those in the settings here if it is not reachable."""
    try:
        tier = common.call("brokers.status")["tier"]
    except Unavailable as error:
        return _store_of_settings(error)
    if not tier.get("enabled"):
        raise InvalidArgument(
            f"the broker has no object store: {tier.get('reason')}", field="tier", value=None
        )
    settings = common.call("brokers.config")["settings"]
    values = {each["name"]: each["value"] for each in settings}
    rules = {name.replace("_", "-"): values.get(f"diagnosis.{name}") for name in _RULES}
    connection = {
        "endpoint": tier["endpoint"],
        "region": tier["region"],
        "path-style": _switch(tier["path_style"]),
    }
    own = {name: value for name, value in _connection().items() if value is not None}
    return {"tier": tier["url"], "tier-cluster": tier["cluster"], **connection, **own, **rules}


def _store_of_settings(unavailable: Unavailable) -> dict[str, str | None]:
    settings = _settings()
    url = settings.tier.url or (None if settings.data.dir is None else str(settings.data.dir / "objects"))
    if url is None or ("://" not in url and not Path(url).is_dir()):
        raise InvalidArgument(
            f"no broker answers ({unavailable.details.get('url')}), and there is no object store at {url}: "
            "give its place with --tier",
            field="tier",
            value=url,
        )
    return {"tier": url, **_connection(), **_rules()}


def _settings() -> Any:
    try:
        from pydanube_broker.settings.load import load_settings
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            "give the place of the object store with --tier", field="tier", value=None
        ) from error
    return load_settings(None, os.environ)


def _connection() -> dict[str, str | None]:
    """Return the options of the connection to the store, from the settings in the environment."""
    try:
        tier = _settings().tier
    except ClusterError:
        return {}
    return {
        "endpoint": tier.endpoint,
        "region": tier.region,
        "path-style": _switch(tier.path_style),
        "profile": tier.profile,
        "role": tier.role,
        "anonymous": "true" if tier.anonymous else None,
    }


def _switch(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()


def _rules() -> dict[str, str | None]:
    """Return the settings of `_RULES` from the environment."""
    try:
        diagnosis = _settings().diagnosis
    except ClusterError:
        return {}
    return {name.replace("_", "-"): str(getattr(diagnosis, name)) for name in _RULES}


def _progress() -> Callable[[str, float], None]:
    if not sys.stderr.isatty():
        return lambda what, share: None

    def show(what: str, share: float) -> None:
        text = "" if share >= 1 else f"{share:4.0%} {what} …"
        sys.stderr.write("\r" + text.ljust(60) + ("\r" if share >= 1 else ""))
        sys.stderr.flush()

    return show


def _why(row: Mapping[str, Any]) -> str | None:
    """Return the reason of a status in a few words, or None if it needs none."""
    from pydanube_spark.reports.pages.time_texts import age_text

    if row["stuck_reason"]:
        return str(row["stuck_reason"]).replace("_", " ")
    if row["status"] == "DATA_LOST":
        return f"{row['lost_messages']:,} lost"
    if row["status"] == "AT_RISK":
        return f"{age_text(row['retention_headroom_s'])} left"
    if row["status"] in ("FALLING_BEHIND", "SLOW") and row["velocity"] is not None:
        return f"{row['velocity']:+,.1f}/s"
    return None


def print_lag(result: Mapping[str, Any]) -> None:
    from pydanube_core.telemetry.tables import FRESH_S
    from pydanube_spark.reports.pages.time_texts import age_text

    print_table(
        [
            {
                "status": row["status"],
                "topic": row["log"],
                "subscription": row["subscription"],
                "unread": row["lag_messages"],
                "oldest": age_text(row["oldest_unread_age_s"]),
                "why": _why(row),  # before the rates: if there is little room, those are dropped first
                "in_per_s": None if row["produce_rate"] is None else round(row["produce_rate"], 1),
                "out_per_s": None if row["consume_rate"] is None else round(row["consume_rate"], 1),
            }
            for row in result["rows"][:50]
        ]
    )
    summary = result["summary"]
    counts = ", ".join(f"{count} {name}" for name, count in summary["statuses"].items())
    gone = f"; {summary['gone']} deleted" if summary["gone"] else ""
    since, begin = result["since"], result["known_from"]
    begins = "" if begin[:19] == since[:19] else f" (telemetry begins {begin})"
    if result["data_age_s"] > FRESH_S:
        begins += f", newest sample {age_text(result['data_age_s'])} old"
    print(
        f"\n{counted(summary['subscriptions'], 'subscription')} from {since} to {result['until']}{begins}: {counts}{gone}"
    )
    _print_files(result)


def print_balance(result: Mapping[str, Any]) -> None:
    def busiest(row: Mapping[str, Any]) -> str | None:
        # A load is a share only of a known capacity. Without one, brokers are compared by max ÷ mean.
        resource = row["resources"].get(row["bottleneck"], {})
        return f"{row['highest_used']:.0%}" if resource.get("capacity_known") else None

    print_table(
        [
            {
                "hour": row["hour"][:16] + "Z",
                "verdict": row["verdict"],
                "score": None if row["score"] is None else round(row["score"]),
                "bottleneck": row["bottleneck"],
                "max_over_mean": None if row["max_over_mean"] is None else round(row["max_over_mean"], 2),
                "busiest": busiest(row),
                "moves": len(row["moves"]),
            }
            for row in result["rows"][-24:]
        ]
    )
    print("\n" + printable(f"{result['summary']['verdict']}: {result['summary']['because']}"))
    _print_files(result)


def _print_files(result: Mapping[str, Any]) -> None:
    for text in result["summary"]["damaged_files"]:
        print(printable(f"damaged: {text}"))
    for path in result["files"].values():
        print(path)
