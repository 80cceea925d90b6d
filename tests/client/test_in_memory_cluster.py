"""What `pydanube.testing` promises to users' tests: a real broker, as pytest's fixture and without, gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from pydanube import MissingExtra, SchemaIncompatible
from pydanube.admin import connect_admin
from pydanube.testing import InMemoryCluster, brokers

pytestmark = pytest.mark.anyio


async def test_what_fails_again_and_again_becomes_a_dead_letter(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, connect_admin(memory.admin_url) as admin:
        async with client.producer("orders") as producer:
            await producer.send(b"poison")
            await producer.send(b"good")
        await admin.subscriptions.create("orders", "billing", type="shared")
        await admin.subscriptions.set_failure_policy(
            "orders",
            "billing",
            max_redelivery_count=2,
            base_redelivery_delay_ms=1,
            max_redelivery_delay_ms=1,
            poison_policy="dead_letter",
        )
        counts = []

        async def work() -> None:
            async with client.consumer("orders", "billing", type="shared") as consumer:
                async for message in consumer:
                    if message.payload == b"good":
                        await message.ack()
                    else:
                        counts.append(message.delivery_count)
                        await message.nack(reason="cannot be read")

        with anyio.fail_after(60):
            async with (
                client.consumer("orders-dlq-billing", "s", create=True) as dead_letters,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(work)
                dead = await anext(dead_letters)
                tasks.cancel_scope.cancel()
    assert counts == [1, 2, 3]
    assert dead.payload == b"poison"


async def test_schemas_are_compared(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        number = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
        text = '{"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}'
        await client.schemas.register("s", "json_schema", number)
        with pytest.raises(SchemaIncompatible):
            await client.schemas.register("s", "json_schema", text)


async def test_clusters_know_nothing_of_each_other(memory: InMemoryCluster) -> None:
    with InMemoryCluster() as other:
        for cluster, payload in ((memory, b"one"), (other, b"two")):
            async with cluster.connect() as client, client.producer("t") as producer:
                await producer.send(payload)
        assert (memory.payloads("t"), other.payloads("t")) == ([b"one"], [b"two"])


def test_the_fixture_is_there_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import os\n"
        "def test_it(danube_cluster, capsys):\n"
        "    danube_cluster.create_topic('orders')\n"
        "    assert danube_cluster.payloads('orders') == []\n"
        "    from pydanube.testing.brokers import BROKERS\n"
        "    with capsys.disabled(): print('broker', BROKERS._process.pid)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pydanube.pytest_plugin", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pid = int(ran.stdout.partition("broker ")[2].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(Path("/dev/shm").glob(f"danube-memory-{pid}-*"))
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == ["test_mine.py"]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "import pydanube_cli.runtime as runtime\n"
        "found = runtime.find_spec\n"
        "runtime.find_spec = lambda name: None if name == 'uvicorn' else found(name)\n"
        "from pydanube_cli.memory_brokers import main\n"
        "main()\n"
    )
    monkeypatch.setattr(brokers, "COMMAND", (sys.executable, "-c", program))
    monkeypatch.setattr("pydanube.testing.cluster.BROKERS", others := brokers.MemoryBrokers())
    try:
        with pytest.raises(MissingExtra, match=r"\[broker\]") as missing:
            InMemoryCluster()
    finally:
        others.close()
    assert missing.value.details["extras"] == ["broker"]
