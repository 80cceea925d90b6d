"""`danube connect run|worker|list|new`: run connectors, list the installed ones, create the package of a new one."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.units import counted

from pydanube_cli.command import Common, command
from pydanube_cli.failures import report
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import print_json, print_table
from pydanube_cli.runtime import run_async

if TYPE_CHECKING:
    from pydanube_connect.file import Declared
    from pydanube_connect.log_lines import LogLines

#: made since the last look for cycles among them
_NEW_OBJECTS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `danube connect run`."""

    files: Annotated[list[Path], argument(metavar="FILE", help="A connector's file, in TOML.")]
    check: Annotated[bool, option("--check", help="Reach both ends and move nothing.")] = False
    dry_run: Annotated[
        int | None,
        option(
            "--dry-run", "N", "Show N records as they would be written, and write nothing.", min=1, max=1000
        ),
    ] = None
    once: Annotated[bool, option("--once", help="End when nothing is left to move.")] = False
    metrics_port: Annotated[
        int | None,
        option(
            "--metrics-port", "PORT", "Serve /metrics and /healthz there, on 127.0.0.1.", min=0, max=65_535
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.check + (self.dry_run is not None) + self.once > 1:
            raise InvalidArgument(
                "--check, --dry-run and --once exclude each other", field="check", value=None
            )


@command(
    examples=[
        "danube connect run orders-to-pg.toml --check",
        "danube connect run orders-to-pg.toml --dry-run 10",
        "danube connect run orders-to-pg.toml webhooks.toml --metrics-port 9100",
    ]
)
def run(*, common: Common, options: RunOptions) -> int:
    """Run connectors in this process until SIGTERM or Ctrl-C. Each batch that was begun is ended."""
    from pydanube_connect.running import read_files

    found = read_files(list(map(str, options.files)))
    _log(common)
    if options.check or options.dry_run is not None:
        run_async(partial(_look, found, common, options))
        return 0
    run_async(partial(_run, found, common, options))
    return 0


def _log(common: Common) -> LogLines:
    """Log the connectors to stderr, libraries only from `warning` up."""
    from pydanube_broker.status.log import EventFormatter
    from pydanube_connect.log_lines import LogLines

    lines = LogLines(EventFormatter(as_json=common.as_json, tracebacks=False).format, sys.stderr)
    logging.basicConfig(handlers=[lines], force=True)
    logging.getLogger("pydanube.connect").setLevel(logging.INFO)
    return lines


async def _look(found: Sequence[Declared], common: Common, options: RunOptions) -> None:
    """Carry out `--check` and `--dry-run`."""
    from pydanube import Retry, connect
    from pydanube_connect.running import check, dry_run

    retry = Retry(max_elapsed_s=common.timeout_s)
    async with connect(common.broker, principal=common.principal, retry=retry) as client:
        for declared in found:
            if options.dry_run is None:
                facts = await check(declared, client)
                if common.as_json:
                    print_json({"connector": declared.name, "file": declared.path, "found": facts})
                else:
                    print(f"{declared.name}: in order\n" + "".join(f"  {fact}\n" for fact in facts), end="")
                continue
            async for text in dry_run(declared, client, options.dry_run):
                print(json.dumps({"connector": declared.name, "record": text}) if common.as_json else text)


async def _run(found: Sequence[Declared], common: Common, options: RunOptions) -> None:
    from pydanube import Retry, connect
    from pydanube_connect.metrics_port import metrics_port
    from pydanube_connect.running import run_all, runner_of

    stop = anyio.Event()
    # Wait long for an unavailable broker, because the subscription and the positions are kept
    async with (
        connect(common.broker, principal=common.principal, retry=Retry(max_elapsed_s=3_600)) as client,
        AsyncExitStack() as stack,
    ):
        await _reach(common)
        collect_seldom()
        runners = [runner_of(declared, client, stop=stop, once=options.once) for declared in found]
        if options.metrics_port is not None:
            port = await stack.enter_async_context(
                metrics_port("127.0.0.1", options.metrics_port, lambda: [one.statistics for one in runners])
            )
            _say(f"metrics: http://127.0.0.1:{port}/metrics", common)
        for runner in runners:
            facts = runner.statistics
            _say(f"{facts.connector}: {facts.type}, {facts.guarantee.replace('_', ' ')}", common)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_by_signal, stop)
            failed = await run_all(runners)
            tasks.cancel_scope.cancel()
    for runner in runners:
        facts = runner.statistics
        if common.as_json:
            print_json(facts.to_dict())
        else:
            also = [f"{facts.refused} refused"] if facts.refused else []
            also += [f"{facts.repeated} there before"] if facts.repeated else []
            print(", ".join([f"{facts.connector}: {counted(facts.records, 'record')}", *also]))
    for _, error in failed[1:]:
        report(error, as_json=common.as_json)
    if failed:
        raise failed[0][1]


def collect_seldom() -> None:
    """Let CPython look for cycles less often. Records form none, and thousands of them live for one batch."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


async def _reach(common: Common) -> None:
    """Reach the broker within `--timeout`. Raises `Unavailable`."""
    from pydanube import Retry, connect

    first = Retry(max_elapsed_s=common.timeout_s)
    async with connect(common.broker, principal=common.principal, retry=first) as probe:
        await probe.admin.topics.list(limit=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of `danube connect worker`."""

    group: Annotated[str, option("--group", "NAME", "Run the connectors that are declared for it.")] = (
        "default"
    )
    name: Annotated[str | None, option("--name", "NAME", "Of this worker. Unset: host and process.")] = None
    metrics_port: Annotated[
        int | None,
        option(
            "--metrics-port", "PORT", "Serve /metrics and /healthz there, on 127.0.0.1.", min=0, max=65_535
        ),
    ] = None


@command(examples=["danube connect worker", "danube connect worker --group etl --metrics-port 9100"])
def worker(*, common: Common, options: WorkerOptions) -> int:
    """Run declared connectors (danube connectors create), shared with the group's other workers, until SIGTERM or Ctrl-C."""
    run_async(partial(_work, common, options))
    return 0


async def _work(common: Common, options: WorkerOptions) -> None:
    from pydanube import Retry, connect
    from pydanube_connect.metrics_port import metrics_port
    from pydanube_connect.working import GroupWorker

    stop = anyio.Event()
    lines = _log(common)
    name = options.name or f"{socket.gethostname()}-{os.getpid()}"
    async with (
        connect(common.broker, principal=common.principal, retry=Retry(max_elapsed_s=3_600)) as client,
        AsyncExitStack() as stack,
    ):
        await _reach(common)
        collect_seldom()
        group_worker = GroupWorker(client, group=options.group, name=name, stop=stop, lines=lines)
        if options.metrics_port is not None:
            port = await stack.enter_async_context(
                metrics_port("127.0.0.1", options.metrics_port, group_worker.statistics)
            )
            _say(f"metrics: http://127.0.0.1:{port}/metrics", common)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_by_signal, stop)
            _say(f"worker {name} of the group {options.group}", common)
            await group_worker.run()
            tasks.cancel_scope.cancel()


async def _stop_by_signal(stop: anyio.Event) -> None:
    """Set `stop` at the first SIGINT or SIGTERM. The second raises `KeyboardInterrupt`."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()


def _say(text: str, common: Common) -> None:
    if not common.as_json:
        print(text, file=sys.stderr, flush=True)


@command(
    examples=["danube connect list", "danube connect list http-sink", "danube connect list --json"],
)
def list_connectors(
    *,
    common: Common,
    name: Annotated[str | None, argument(metavar="NAME", help="With its settings.")] = None,
) -> int:
    """Show the connectors that are installed. With a name, its settings."""
    from pydanube_connect.describing import settings_of
    from pydanube_connect.installed import connector_class, installed_connectors

    if name is not None:
        facts = [
            fact._asdict() for fact in settings_of(connector_class(name, path="connect list").settings_model)
        ]
        print_json({"connector": name, "settings": facts}) if common.as_json else print_table(facts)
        return 0
    rows: list[dict[str, Any]] = []
    for each in installed_connectors():
        try:
            about = " ".join(
                (sys.modules[connector_class(each, path="connect list").__module__].__doc__ or "").split()
            )
            row = {"connector": each, "installed": True, "about": about.partition(": ")[2].partition(".")[0]}
        except ClusterError as error:
            row = {"connector": each, "installed": False, "about": error.message.partition(": ")[2]}
        rows.append(row)
    print_json({"items": rows}) if common.as_json else print_table(rows)
    return 0


@command(examples=["danube connect new sink my_target", "danube connect new source my_files"])
def new(
    *,
    common: Common,
    kind: Annotated[Literal["source", "sink"], argument(metavar="source|sink")],
    name: Annotated[str, argument(metavar="NAME", help="Of the package: letters, digits, _.")],
) -> int:
    """Write a package with a connector, its settings, a test and a file that runs it."""
    from pydanube_connect.scaffold import scaffold

    made = [str(path) for path in scaffold(kind, name, Path.cwd())]
    if common.as_json:
        print_json({"files": made})
        return 0
    print("\n".join(made))
    print(
        f"try: cd {name} && python -m pytest, then danube connect run {name.replace('_', '-')}.toml --check"
    )
    return 0
