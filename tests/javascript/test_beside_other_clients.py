"""Keys go to the same partitions from every client, and messages of one client are read by another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube.routing import Router, Routing

from tests.conformance.grpc.go_tools import go_program
from tests.javascript.conftest import run
from tests.support.broker_process import BrokerProcess
from tests.support.official_client import official_client_environment

pytestmark = pytest.mark.timeout(300)
KEYS = [*(f"order-{n}" for n in range(60)), "", "é", "日本", "🙂", "a" * 300]


def test_a_key_goes_to_the_partition_of_the_official_python_client(
    node: list[str], broker: BrokerProcess, topic: str
) -> None:
    keys = json.dumps(KEYS)
    program = str(Path(__file__).with_name("official_routing.py"))
    with subprocess.Popen(
        [sys.executable, program, broker.url, topic, keys],
        env=official_client_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as official:  # fmt: skip
        try:
            assert official.stdout is not None
            assert official.stdin is not None
            assert official.stdout.readline() == "subscribed\n"
            run([*node, "routed", broker.url, topic, keys], Path(node[1]).parent)
            official.stdin.write("\n")
            official.stdin.flush()
            found = json.loads(official.stdout.readline())
        finally:
            official.kill()
    assert len(found) == len(KEYS)
    assert [key for key, parts in found.items() if len(parts) != 2 or len(set(parts)) != 1] == []
    router = Router(Routing.KEY, 7)
    assert {key: parts[0] for key, parts in found.items()} == {
        key: f"{topic}-part-{router.pick(key, None)}" for key in KEYS
    }


def test_a_key_goes_to_the_partition_of_the_official_go_client(client: Path) -> None:
    """That client is in no registry that can be reached from here. It takes the hash of Go's library, and so does this."""
    program = go_program("routing", Path(__file__).with_name("go_routing"))
    keys = json.dumps(KEYS)
    script = """
        import { partitionOf } from "./dist/names.js";
        for (const key of JSON.parse(process.argv[2])) console.log(partitionOf(key, Number(process.argv[1])));
    """
    for count in ("1", "3", "7", "10000"):
        mine = run(["node", "--input-type=module", "-e", script, count, keys], client)
        assert mine.split() == run([str(program), count, keys], client).split()
