"""Brokers in memory for tests: one process for all of them, controlled by lines of JSON on stdin.

    {"start": {"topics.auto_create": false}}   ->   {"broker": 1, "grpc": "http://…", "admin": "http://…"}
    {"stop": 1}                                     no answer

A failed start is answered with {"error": the error object}. Each broker is like one of `danube broker
--memory`, on free ports of its own and with the defaults of all other settings. A start takes a tenth of a
second, and with a process of its own it would take ten. The end of stdin ends all, so they never outlive
their user, `pydanube.testing`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread
from pydanube_core.errors import ClusterError, UnsupportedPlatform

from pydanube_cli.runtime import require, run_async

FIXED: Final = {
    "data.dir": ":memory:",
    "server.grpc_port": 0,
    "server.admin_port": 0,
    "server.metrics_port": 0,
    "journal.segment_bytes": 16 << 20,  # containers have a RAM disk of 64 MiB, and several brokers share it
}


def main() -> None:
    """Serve stdin until it ends."""
    run_async(_serve)


async def _serve() -> None:
    stops: dict[int, anyio.Event] = {}
    numbers = itertools.count(1)
    async with anyio.create_task_group() as lives:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            wish = json.loads(line)
            if "stop" in wish:
                stops.pop(wish["stop"]).set()
                continue
            number, stop = next(numbers), anyio.Event()
            try:
                answer = {"broker": number, **await lives.start(_live, wish["start"], stop)}
                stops[number] = stop
            except ClusterError as error:
                answer = {"error": error.to_dict()}
            print(json.dumps(answer), flush=True)
        for stop in stops.values():
            stop.set()


async def _live(
    settings: Mapping[str, Any], stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[dict[str, str]]
) -> None:
    """Run one broker until `stop` is set. Report its addresses once it is ready.

    Raises:
        MissingExtra, UnsupportedPlatform, InvalidArgument: it cannot be started here, or not with these
            settings.
    """
    if sys.platform == "win32":
        raise UnsupportedPlatform("a broker in memory runs on Linux and macOS", platform=sys.platform)
    require("broker", what="a cluster in memory")
    from pydanube_broker.settings.load import load_settings
    from pydanube_broker.status.log import configure_logging

    from pydanube_cli.composition import administered

    configure_logging(level="error", format="text")
    async with administered(load_settings(None, {}, {**settings, **FIXED})) as (broker, _):
        task_status.started({"grpc": broker.broker_url, "admin": broker.admin_url})
        await stop.wait()


if __name__ == "__main__":
    main()
