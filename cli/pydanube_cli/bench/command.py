"""`danube bench SCENARIO`: rates and latencies beside the machine's own limits, every message checked."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydanube_core.errors import (
    ClusterError,
    ConditionNotMet,
    CorruptJournal,
    InvalidArgument,
)
from pydanube_core.names import SUBSCRIPTION_TYPES
from pydanube_core.units import parse_duration_s

from pydanube_cli.bench import catalogue
from pydanube_cli.bench.result import Expression
from pydanube_cli.command import Common, command
from pydanube_cli.failures import report
from pydanube_cli.overview import unknown_word
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import cell, print_json, print_table, prose
from pydanube_cli.runtime import require, terminate_like_interrupt

if TYPE_CHECKING:
    from pydanube_cli.bench.catalogue import Plan


EXIT_DAMAGE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The scenario of `danube bench`, its measures, and where the broker is."""

    scenario: Annotated[
        str,
        argument(
            metavar="SCENARIO",
            help="e2e, publish, consume, latency, await, unary, backlog, topics, replay, tier, stored, profile. Of three brokers: move, failover, "
            "cluster. Of two: link",
        ),
    ]
    road: Annotated[
        str | None, argument(metavar="[ROAD]", help="Of profile: unary or each. Processor time by stage.")
    ] = None
    size: Annotated[int, option("--size", "BYTES", "Of a payload.", min=8, max=3_000_000)] = 128
    messages: Annotated[
        int | None, option("--messages", "N", "A run's messages [default: by scenario]", min=1)
    ] = None
    producers: Annotated[
        int | None,
        option("--producers", "N", "await: coroutines [default: 1, await 256, unary 4]", min=1, max=1024),
    ] = None
    consumers: Annotated[int | None, option("--consumers", "N", "[default: 1, unary 0]", min=1, max=64)] = (
        None
    )
    sub_type: Annotated[
        str,
        option(
            "--sub-type",
            "TYPE",
            "exclusive: a subscription each. shared, failover, key-shared: one for all consumers.",
        ),
    ] = "exclusive"
    keys: Annotated[
        int | None,
        option(
            "--keys",
            "N",
            "Messages have one of N keys [default: none, key-shared 1000]",
            min=1,
            max=1_000_000,
        ),
    ] = None
    ack_delay: Annotated[
        str, option("--ack-delay", "DURATION", "Acknowledge so much later, and read on.")
    ] = "0ms"
    topics: Annotated[
        int | None,
        option(
            "--topics",
            "N",
            "Of the scenarios topics, move, failover, cluster and link [default: 10000, move and link 1000, failover 100]",
            min=1,
            max=catalogue.MAX_TOPICS,
        ),
    ] = None
    each: Annotated[bool, option("--each", help="Message by message instead of in batches.")] = False
    runs: Annotated[int | None, option("--runs", "N", "[default: 5, backlog 3, move 50]", min=1, max=100)] = (
        None
    )
    compression: Annotated[Literal["none", "lz4", "zstd"], option("--compression")] = "none"
    data_dir: Annotated[
        Path | None, option("--data-dir", "DIR", "Where a broker of our own gets its folder [default: here]")
    ] = None
    assertions: Annotated[
        list[str] | None, option("--assert", "EXPR", "Exit 6 unless this holds of the result.")
    ] = None


@command(
    examples=[
        "danube bench e2e",
        "danube bench e2e --each --runs 3 --json",
        "danube bench latency --assert 'median.p50_ms <= raw.fdatasync_p50_ms + 0.9'",
        "danube bench e2e --broker http://127.0.0.1:6650 --assert 'verified.missing == 0'",
        "danube bench backlog --messages 5000000",
        "danube bench e2e --sub-type shared --consumers 4 --assert 'ratio.messages_per_s_to_exclusive >= 0.7'",
        "danube bench e2e --sub-type key-shared --keys 1000 --consumers 4",
        "danube bench e2e --ack-delay 10ms --assert 'ratio.messages_per_s_to_exclusive >= 0.5'",
        "danube bench backlog --sub-type key-shared --keys 1000 --consumers 4 --messages 1000000",
        "danube bench topics --topics 10000 --assert 'median.topics.ready_s.after_kill <= 15'",
        "danube bench replay --assert 'median.tier.share_of_pyarrow >= 0.05'",
        "danube bench tier --size 1024 --messages 200000",
        "danube bench stored --assert 'median.stored.share_of_fsynced >= 0.7' --assert 'median.stored.idle_puts == 0'",
        "danube bench profile unary --producers 16 --size 1024",
        "danube bench move --assert 'ratio.pause_p99_to_bound <= 1' --assert 'ratio.drain_s_to_bound <= 1'",
        "danube bench failover --assert 'ratio.leader_to_bound <= 1'",
        "danube bench link --assert 'ratio.top_to_sdk >= 0.8' --assert 'ratio.quiet_to_bound <= 1'",
        "danube bench cluster --assert 'ratio.relayed_batched >= 0.6' --assert 'ratio.relayed_single >= 0.4'",
    ]
)
def bench(*, common: Common, options: BenchOptions) -> int:
    """Measure one scenario; without --broker, against a broker of its own on this disk."""
    plan = _plan(options, common)
    # A typing mistake must not cost the measurement
    conditions = [Expression(text) for text in options.assertions or []]
    several = plan.scenario in catalogue.OF_A_CLUSTER
    tier = ("tier",) if several or plan.scenario in catalogue.OF_THE_TIER else ()
    require("broker", *tier, what="danube bench")
    runs = options.runs or catalogue.DEFAULT_RUNS.get(options.scenario, 5)
    with terminate_like_interrupt():  # the broker of its own must not outlive it
        result = (
            _measure_several(plan, runs, options.data_dir)
            if several
            else _measure(plan, runs, common, options.data_dir)
        )
    if common.as_json:
        print_json(result)
    elif several:
        _print_several(result)
    else:
        _print(result)
    return _judge(result, conditions, as_json=common.as_json)


def _plan(options: BenchOptions, common: Common) -> Plan:
    scenario, size = options.scenario, options.size
    profiled = scenario == "profile"
    if profiled:
        scenario = _profiled_scenario(options, common)
    elif options.road is not None:
        raise InvalidArgument(
            f"there is an argument too many: {options.road}, only profile has two",
            field="road",
            value=options.road,
        )
    if scenario not in catalogue.DEFAULT_MESSAGES:
        raise unknown_word(scenario, [*catalogue.DEFAULT_MESSAGES, "profile"], group="bench")
    if scenario in ("latency", "await", "backlog", "unary") and size < 16:
        raise InvalidArgument(f"--size {size}: {scenario} needs 16 or more", field="size", value=size)
    if scenario in ("topics", *catalogue.OF_THE_TIER, *catalogue.OF_A_CLUSTER) and common.broker is not None:
        raise InvalidArgument(
            f"bench {scenario} stops, kills and starts brokers: leave --broker (DANUBE_BROKER_URL) out, and it has its own",
            field="broker",
            value=common.broker,
        )
    of_type = options.sub_type.replace("_", "-")
    if of_type not in SUBSCRIPTION_TYPES:
        raise InvalidArgument(
            f"--sub-type {options.sub_type!r}: give {', '.join(SUBSCRIPTION_TYPES)}",
            field="sub_type",
            value=options.sub_type,
        )
    if options.each and of_type != "exclusive":
        raise InvalidArgument(
            "--each measures exclusive consumers only. Leave --each or --sub-type out",
            field="each",
            value=True,
        )
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise InvalidArgument(
            f"--data-dir: there is no folder {options.data_dir}",
            field="data_dir",
            value=str(options.data_dir),
        )
    return catalogue.Plan(
        scenario=scenario,
        size=size,
        messages=options.messages or catalogue.DEFAULT_MESSAGES[scenario],
        producers=options.producers or catalogue.DEFAULT_PRODUCERS.get(scenario, 1),
        consumers=(options.consumers or (1 if profiled else catalogue.DEFAULT_CONSUMERS.get(scenario, 1))),
        each=options.each or options.road == "each",
        compression=options.compression,
        timeout_s=common.timeout_s,
        sub_type=of_type,
        keys=options.keys or (catalogue.DEFAULT_KEYS if of_type == "key-shared" else 0),
        ack_delay_s=parse_duration_s(options.ack_delay, field="ack_delay"),
        profiled=profiled,
        topics=options.topics or catalogue.DEFAULT_TOPICS.get(scenario, 10_000),
    )


def _profiled_scenario(options: BenchOptions, common: Common) -> str:
    """Return the scenario of `profile ROAD`."""
    if options.road not in catalogue.PROFILES:
        raise InvalidArgument(
            f"profile {options.road or ''}: give the road, {' or '.join(catalogue.PROFILES)}",
            field="road",
            value=options.road,
        )
    if common.broker is not None or sys.platform == "win32":
        raise InvalidArgument(
            "bench profile samples a broker that it starts, on Linux and macOS: leave --broker (DANUBE_BROKER_URL) out",
            field="broker",
            value=common.broker,
        )
    return catalogue.PROFILES[options.road]


def _measure(plan: Plan, runs: int, common: Common, data_dir: Path | None) -> dict[str, Any]:
    from pydanube_cli.bench.fleet import broker_at, broker_of_our_own
    from pydanube_cli.bench.raw import raw_reference
    from pydanube_cli.bench.result import assemble, machine
    from pydanube_cli.bench.scenarios import run as run_scenario

    facts = machine()
    running = (
        broker_of_our_own(data_dir, sampled=plan.profiled)
        if common.broker is None
        else broker_at(common.broker_url, common.admin_url, timeout_s=common.timeout_s)
    )
    with running as broker:
        prose("measuring the machine itself ...")
        raw = raw_reference(broker.data_dir)
        topic = f"bench-{plan.scenario}-{secrets.token_hex(4)}"
        done: list[dict[str, Any]] = []
        for number in range(runs):
            run = run_scenario(plan, broker, f"{topic}-{number}")
            beside = f", {run['share_of_reference']:.0%} of exclusive" if "reference" in run else ""
            prose(f"run {number + 1} of {runs}: {run['messages_per_s']:,.0f} messages/s{beside}")
            done.append(run)
        if not broker.own:
            names = [f"{topic}-{number}" for number in range(runs)]
            if plan.about_a_subscription:
                names += [f"{name}-exclusive" for name in names]
            elif plan.scenario == "backlog":
                names.append(f"{topic}-full")
            _clean_up(names, common)
        of_the_plan = (
            "size",
            "messages",
            "producers",
            "consumers",
            "each",
            "compression",
            "sub_type",
            "keys",
        )
        config = {
            **{name: getattr(plan, name) for name in of_the_plan},
            "ack_delay_ms": round(plan.ack_delay_s * 1000, 3),
            "topics": plan.topics if plan.scenario == "topics" else None,
            "runs": runs,
            "broker": broker.url,
            "own_broker": broker.own,
            "data_dir": None if broker.data_dir is None else str(broker.data_dir),
        }
    words = ["danube", *sys.argv[1:]]
    return assemble(
        scenario=plan.scenario, command=shlex.join(words), config=config, runs=done, raw=raw, machine=facts
    )


def _measure_several(plan: Plan, runs: int, data_dir: Path | None) -> dict[str, Any]:
    """Measure a scenario of three brokers. The result has the fields of one broker's, as far as they apply."""
    from pydanube_cli.bench.cluster_scenarios import CLUSTER_SCENARIOS
    from pydanube_cli.bench.result import machine
    from pydanube_cli.local_cluster.child import etcd_binary

    etcd_binary()  # before anything is made
    facts = machine()
    found = asyncio.run(CLUSTER_SCENARIOS[plan.scenario](plan, runs, data_dir))
    config = {"messages": plan.messages or None, "topics": plan.topics, "runs": runs, "size": plan.size}
    words = shlex.join(["danube", *sys.argv[1:]])
    return {
        "scenario": plan.scenario,
        "command": words,
        "config": config,
        "runs": [],
        **found,
        "machine": facts,
    }


def _clean_up(names: list[str], common: Common) -> None:
    """Delete the topics made on an already running broker. Failures are ignored."""
    for name in names:
        with suppress(ClusterError):
            plan = common.call("topics.delete", {"topic": name, "plan_only": True})
            common.call("plans.apply", {"plan_token": plan["plan_token"]})


def _judge(result: dict[str, Any], conditions: list[Expression], *, as_json: bool) -> int:
    """Return the exit code: 5 if acknowledged messages are missing, 6 if a condition does not hold."""
    missing = result["verified"]["missing"]
    missing += sum(run["reference"]["verified"]["missing"] for run in result["runs"] if "reference" in run)
    if missing:
        error = CorruptJournal(
            f"{missing} acknowledged messages were not delivered. Keep the data directory and report this",
            missing=missing,
            scenario=result["scenario"],
        )
        report(error, as_json=as_json)
        return EXIT_DAMAGE
    failed = [condition for condition in conditions if not condition.holds(result)]
    if failed:
        raise ConditionNotMet(
            "; ".join(f"not so: {condition.text} {_values(condition, result)}" for condition in failed),
            failed=[
                {"expression": condition.text, "values": condition.values(result)} for condition in failed
            ],
        )
    return 0


def _values(condition: Expression, result: dict[str, Any]) -> str:
    return "(" + ", ".join(f"{name} = {value}" for name, value in condition.values(result).items()) + ")"


def _print(result: dict[str, Any]) -> None:
    middle, raw = result["median"], result["raw"]
    rows = [{"run": str(number), **_figures(run)} for number, run in enumerate(result["runs"], 1)]
    print_table([*rows, {"run": "median", **_figures(middle)}])
    print()
    if (beside := middle.get("beside")) is not None:
        lone, writers = beside["lone_send"], beside["producers"]
        print(f"beside the reader: a lone send p50 {lone['p50_ms']} ms, p99 {lone['p99_ms']} ms; ", end="")
        print(f"{writers['count']:.0f} producers {writers['share']:.0%} of their rate alone")
    if (share := result["ratio"]["messages_per_s_to_exclusive"]) is not None:
        print(f"beside one exclusive consumer, run by run: {share:.0%} ", end="")
        print(f"of {middle['reference_messages_per_s']:,.0f} messages/s")
    if (many := middle.get("topics")) is not None:
        rows = [
            {
                "": name.replace("_", " "),
                "resident": cell("x_bytes", value),
                "ready_s": many["ready_s"].get(name),
            }
            for name, value in many["rss_bytes"].items()
        ]
        print(f"{many['count']:,.0f} topics:")
        print_table(rows)
    for name, sampled in (result["runs"][-1].get("profile") or {}).items():
        print(f"{name}: {sampled['us_per_message']} µs of processor a message in the last run")
        print_table(
            [
                {
                    "stage": one["stage"],
                    "share": f"{one['share']:.1%}",
                    "us": one["us_per_message"],
                    "most in": one["functions"][0]["function"].partition("/")[2],
                }
                for one in sampled["stages"]
            ]
        )
    if (cold := middle.get("tier")) is not None:
        print(", ".join(f"{name.replace('_', ' ')} {cell(name, value)}" for name, value in cold.items()))
    if (kept := middle.get("stored")) is not None:
        print(", ".join(f"{name.replace('_', ' ')} {cell(name, value)}" for name, value in kept.items()))
    checked = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in result["verified"].items())
    print(f"verified: {checked}, durability {result['durability']}")
    server = result["server"]
    print(f"broker: {cell('', server['cpu_us_per_message'])} µs of processor a message, peak memory ", end="")
    print(cell("rss_peak_bytes", server["rss_peak_bytes"]))
    known = [f"{name} {cell(name, value)}" for name, value in raw.items() if not name.endswith("_reason")]
    print(f"this machine: {', '.join(known)}")


def _print_several(result: dict[str, Any]) -> None:
    for name, value in (result["raw"] | result["median"]).items():
        told = value if isinstance(value, dict) else {"": value}
        print(
            f"{name.replace('_', ' ')}: {', '.join(f'{word} {figure}'.strip() for word, figure in told.items())}"
        )
    print()
    print_table([{"ratio": name, "value": value} for name, value in result["ratio"].items()])


def _figures(run: dict[str, Any]) -> dict[str, Any]:
    names = ("messages_per_s", "megabytes_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms")
    return {name: run[name] for name in names}
