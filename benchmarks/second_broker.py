"""What a second broker process on one machine gives to official clients.

    python benchmarks/second_broker.py [--seconds 4] [--rounds 4] [--json]

A broker is bound by its loop, which takes one core. Here are two brokers on one etcd (data on disk, fsynced) and two topics
of each. The load is `benchmarks/go_load`, built by `go`: two programs at once, each with half of the producers and consumers and
a topic of its own. In turns, both topics are of the first broker, or one of each. Figures are sums of both programs: messages sent
a second, and received meanwhile. The load, etcd and the disk share the cores with the brokers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube_cli.bench.own_cluster import own_cluster

from benchmarks.measuring import parser_of
from benchmarks.wire_speed import build

#: producers and consumers of both programs together
LOADS: Final = ((4, 0), (16, 0), (16, 2), (64, 0))
FIGURES: Final = {"sent": "sends_per_s", "received": "received_meanwhile_per_s"}


async def _load(
    program: Path, places: Sequence[tuple[str, str]], producers: int, consumers: int, seconds: float
) -> dict[str, float]:
    """Run one program for each (address, topic) at the same time. Return the sums of their figures."""
    share = ["-producers", str(producers // len(places)), "-consumers", str(consumers // len(places))]
    running = [
        await asyncio.create_subprocess_exec(
            *(
                str(program),
                "-address",
                address,
                "-topic",
                f"/default/{topic}",
                "-seconds",
                str(seconds),
                *share,
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        for address, topic in places
    ]
    told = [json.loads((await each.communicate())[0]) for each in running]
    if errors := sum(each["errors"] for each in told):
        raise SystemExit(f"{errors} calls failed")
    return {name: sum(each[figure] for each in told) for name, figure in FIGURES.items()}


async def measure(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Return the figures of each load, by one broker and by two."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        async with own_cluster(None, brokers=2) as cluster:
            topics = await cluster.topics_of((1, 2), each=2)
            address = {n: cluster.broker(n).url.removeprefix("http://") for n in topics}
            both = [(address[1], topics[1][0]), (address[1], topics[1][1])]
            apart = [(address[1], topics[1][0]), (address[2], topics[2][0])]
            for producers, consumers in LOADS:
                pairs = [
                    [await _load(program, each, producers, consumers, seconds) for each in (both, apart)]
                    for _ in range(rounds)
                ]
                for name in FIGURES if consumers else ("sent",):
                    one, two = ([round(pair[side][name]) for pair in pairs] for side in (0, 1))
                    ratio = round(median(b / a for a, b in zip(one, two, strict=True)), 2)
                    found.append(
                        {"producers": producers, "consumers": consumers, "figure": name}
                        | {"one": one, "two": two, "ratio": ratio}
                    )
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.seconds, options.rounds))
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "loads": found}))
        return
    for each in found:
        print(
            f"{each['producers']:3} producers, {each['consumers']} consumers, {each['figure']} a second:"
            f" one broker {each['one']}, two {each['two']}: {each['ratio']} times (median of pairs)"
        )


if __name__ == "__main__":
    main()
