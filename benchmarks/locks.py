"""What TLS and permissions cost: one decision, and messages from end to end beside a plain broker in the same run.

    python benchmarks/locks.py [--runs 3] [--messages 200000] [--bindings 1000] [--principals 10000] [--json]

* decision: nanoseconds of `Grants.decide` among so many bindings and principals, asked for the first time and again;
* end to end: `danube bench e2e` against a broker as it starts, and against one that `danube security init` has locked
  (TLS 1.3, a token with a role on the topic's namespace), taking turns; medians, and the share that the locks leave.

Data is on the disk of the temporary folder, and fsynced.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pydanube_core.security.permissions import Binding, Grants, Principal, Resource, Scope

DANUBE = str(Path(sys.executable).with_name("danube"))


def decisions(bindings: int, principals: int) -> dict[str, float]:
    """Nanoseconds of one decision, the first time and again."""
    dice = random.Random(7)
    grants = Grants.of(
        (),
        [
            Binding(
                id=f"b{number}", principal=Principal(f"p{dice.randrange(principals)}"), roles=("producer",),
                scope=Scope.TOPIC, resource=f"/n{number % 50}/t{number}*",
            )
            for number in range(bindings)
        ],
    )  # fmt: skip
    asked = [
        (Principal(f"p{number}"), Resource(f"n{number % 50}", f"t{dice.randrange(bindings)}"))
        for number in range(principals)
    ]
    found = {}
    for name in ("first", "again"):
        began = time.perf_counter()
        for principal, resource in asked:
            grants.decide(principal, "data:produce", resource)
        found[f"{name}_ns"] = round((time.perf_counter() - began) / len(asked) * 1e9)
    return found


def danube(*words: str, environment: Mapping[str, str] | None = None) -> Any:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
    done = subprocess.run(
        [DANUBE, *words, "--json"], env=clean | dict(environment or {}), capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"danube {' '.join(words)}: {done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout)


@contextmanager
def broker(folder: Path) -> Iterator[dict[str, Any]]:
    """A broker on the folder's data, on free ports; what its ready line says."""
    ports = [word for flag in ("grpc", "admin", "metrics", "http") for word in (f"--{flag}-port", "0")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [DANUBE, "up", "--data-dir", str(folder / "data"), *ports, "--json"],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the broker did not start: {folder / 'log'}")
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait(60)


def locked(folder: Path, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str]]:
    """A locked broker, and the environment of a client with a token for the namespace default."""
    made = danube("security", "init", "--data-dir", str(folder / "data"), "--dir", str(folder / "keys"))
    ready = stack.enter_context(broker(folder))
    socket = ("--admin", f"unix:{folder}/data/admin.sock")
    danube(
        "bindings", "create", "load", "load", "--roles", "admin", "--scope", "namespace", "--resource", "default", *socket
    )  # fmt: skip
    token = danube("tokens", "create", "load", *socket)["token"]
    return ready, {"DANUBE_CA": made["ca"], "DANUBE_TOKEN": token}


def end_to_end(folder: Path, runs: int, messages: int) -> dict[str, Any]:
    (folder / "plain").mkdir()
    (folder / "locked").mkdir()
    with ExitStack() as stack:
        sides = {
            "plain": (stack.enter_context(broker(folder / "plain")), {}),
            "locked": locked(folder / "locked", stack),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(runs):
            for name, (ready, environment) in sides.items():
                where = ("--broker", ready["grpc"], "--admin", ready["admin"])
                result = danube(
                    "bench", "e2e", "--runs", "1", "--messages", str(messages), *where, environment=environment
                )  # fmt: skip
                found[name].append(result["median"]["messages_per_s"])
    shown = {f"{name}_messages_per_s": round(median(values)) for name, values in found.items()}
    return {**shown, "left_percent": round(100 * median(found["locked"]) / median(found["plain"]), 1)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bindings", type=int, default=1000)
    parser.add_argument("--principals", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    found: dict[str, Any] = {
        "decision": decisions(given.bindings, given.principals),
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="danube-locks-") as folder:
        found["end_to_end"] = end_to_end(Path(folder), given.runs, given.messages)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    decision, both = found["decision"], found["end_to_end"]
    print(f"a decision: {decision['first_ns']} ns the first time, {decision['again_ns']} ns again")
    print(
        f"end to end: {both['plain_messages_per_s']:,} messages/s plain, {both['locked_messages_per_s']:,} locked: "
        f"{both['left_percent']} % are left (load {found['load']:.1f} when it began)"
    )


if __name__ == "__main__":
    main()
