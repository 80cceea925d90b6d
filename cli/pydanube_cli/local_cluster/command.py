"""`danube cluster local`: three brokers in a minute."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.units import counted

from pydanube_cli.command import Common, command
from pydanube_cli.local_cluster import control
from pydanube_cli.local_cluster.child import etcd_binary
from pydanube_cli.local_cluster.cluster import MOST_BROKERS, LocalCluster, prepared
from pydanube_cli.parameters import argument, option
from pydanube_cli.ready import program_name, replace_file
from pydanube_cli.render import print_json, print_table

_FOLDER: Final = Path("danube-cluster")


@command(
    examples=[
        "danube cluster local",
        "danube cluster local --brokers 5 --data-dir ./cluster --port-offset 1000",
        "danube cluster local status   # in another terminal",
        "danube cluster local kill 2",
        "danube cluster local start 2",
    ]
)
def local(
    *,
    common: Common,
    action: Annotated[
        str | None,
        argument(help="status, add, stop N, start N or kill N, of the cluster that runs. None starts it."),
    ] = None,
    number: Annotated[int | None, argument(metavar="[N]", help="Which broker, from 1.")] = None,
    brokers: Annotated[
        int | None, option("--brokers", min=1, max=MOST_BROKERS, help="How many [default: 3]")
    ] = None,
    etcd: Annotated[int | None, option("--etcd", help="Members of etcd, 1 or 3 [default: 1]")] = None,
    data_dir: Annotated[Path, option("--data-dir", "DIR", "Where all of it lives.")] = _FOLDER,
    port_offset: Annotated[
        int | None, option("--port-offset", "N", "Of broker 1. Each further one has 100 more [default: 0]")
    ] = None,
    ready_file: Annotated[
        Path | None, option("--ready-file", "PATH", "Write the ready line here, atomically.")
    ] = None,
) -> int:
    """Run etcd and several brokers on this machine until Ctrl-C, or steer them from another terminal."""
    folder = data_dir.expanduser().absolute()
    if action is not None:
        return _steer(folder, action, number, as_json=common.as_json)
    if etcd not in (None, 1, 3):
        raise InvalidArgument(f"--etcd {etcd}: use 1 or 3", field="etcd", value=etcd)
    etcd_binary()  # before anything is made
    state = prepared(folder, brokers=brokers, etcd=etcd, port_offset=port_offset)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return asyncio.run(_run(LocalCluster(folder, state, say), ready_file, as_json=common.as_json))


def _steer(folder: Path, action: str, number: int | None, *, as_json: bool) -> int:
    if action not in control.ACTIONS:
        raise InvalidArgument(
            f"{action!r}: use one of {', '.join(control.ACTIONS)}, or nothing to start the cluster",
            field="action",
            value=action,
        )
    if (action in control.NUMBERED) is (number is None):
        takes = "takes the number of a broker" if number is None else "takes no number"
        raise InvalidArgument(f"{action} {takes}", field="number", value=number)
    result = control.ask(folder, action, number)
    if as_json:
        print_json(result)
    else:
        print_table(
            result.get("brokers", [result]), ["n", "state", "broker_id", "pid", "grpc", "admin", "http"]
        )
    return 0


async def _run(cluster: LocalCluster, ready_file: Path | None, *, as_json: bool) -> int:
    """Start, print the addresses, and wait for Ctrl-C or SIGTERM. Then stop everything in order."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    server = await control.serve(cluster)
    cluster.state.pid = os.getpid()
    cluster.state.write(cluster.folder)
    ended = asyncio.create_task(ending.wait())
    starting = asyncio.create_task(cluster.start())
    try:
        await asyncio.wait({ended, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            _raise_first(starting)
            line = json.dumps(cluster.status(), ensure_ascii=False)
            if ready_file is not None:
                replace_file(ready_file, f"{line}\n".encode())
            print(line if as_json else _text(cluster.status()), flush=True)
            await ended
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        server.close()
        await cluster.stop()
        cluster.state.port, cluster.state.pid = 0, 0
        cluster.state.write(cluster.folder)
        ended.cancel()
    return 0


def _raise_first(task: asyncio.Task[None]) -> None:
    """Raise the first error of the concurrent starts."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error


def _text(status: dict[str, Any]) -> str:
    program = program_name()
    first, last = status["brokers"][0], status["brokers"][-1]
    folder = f" --data-dir {status['data_dir']}"
    return "\n".join(
        [
            f"{counted(len(status['brokers']), 'broker is', 'brokers are')} ready, with data in {status['data_dir']}",
            "",
            *(
                f"  broker {each['n']}   {each['grpc']}   administration {each['admin']}   MCP {each['http']}/mcp"
                for each in status["brokers"]
            ),
            "",
            "Next, in another terminal: any broker will do, clients are sent to a topic's owner",
            f'  {program} produce hello -m "first message" --broker {first["grpc"]}',
            f"  {program} consume hello --exit --broker {last['grpc']}",
            f"  {program} cluster local status{folder}",
            f"  {program} cluster local kill 2{folder}    # nothing acknowledged is lost",
            f"  {program} cluster local start 2{folder}",
            "",
            "Ctrl-C stops all of it. Acknowledged messages stay.",
        ]
    )
