"""One process of a benchmark: gets its role by one JSON line on stdin, and answers by JSON lines on stdout.

    → {"role": …, …}    the role and its arguments
    ← {"ready": true}   connected, waiting
    → go                start
    → stop              end early (roles without a number of messages)
    ← {"result": {…}}   or {"error": {…}}

Times are `time.monotonic_ns()`, which the processes of a machine share.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from pydanube_cli.bench import consuming, official, producing
from pydanube_cli.bench.role import Spec, Start, say
from pydanube_cli.bench.sampling import Sampler
from pydanube_cli.failures import cluster_error
from pydanube_cli.messages.lines import LineSource, split_lines, stdin_pieces
from pydanube_cli.runtime import run_async

ROLES: Final[dict[str, Callable[[Spec, Start], Awaitable[dict[str, Any]]]]] = {
    role.__name__: role
    for role in (
        producing.produce_many,
        producing.produce_each,
        producing.send_lone,
        producing.send_await,
        consuming.consume_batches,
        consuming.consume_each,
        consuming.consume_share,
        official.send_unary,
        official.consume_unary,
        consuming.fill_topics,
        consuming.drain_topics,
    )
}


async def run_role(spec: Spec, lines: LineSource) -> None:
    """Run the role. Return its result and processor time."""
    sampler = Sampler() if spec.get("sampled") else None
    start = Start(lines, sampler)
    try:
        result = await ROLES[spec["role"]](spec, start)
    except Exception as error:
        say({"error": cluster_error(error).to_dict()})
    else:
        samples = {} if sampler is None else {"samples": sampler.stop()}
        say({"result": {"cpu_s": start.cpu_s()} | samples | result})
    finally:
        start.close()


async def _main() -> None:
    # Each line is a word of its own: a piece may hold several.
    async with LineSource(
        lambda: ([line] for lines in split_lines(stdin_pieces()) for line in lines)
    ) as lines:
        gathered = await lines.take()
        if gathered is None:
            return
        gc.freeze()  # modules and their functions: not garbage, and not part of the measurement
        await run_role(json.loads(gathered.payloads[0]), lines)


if __name__ == "__main__":
    try:
        run_async(partial(_main))
    except KeyboardInterrupt:
        sys.exit(130)
