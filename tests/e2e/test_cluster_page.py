"""docs/cluster.md and docs/cluster-metadata.md: their commands do what the pages say, as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerDied, BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.pages import ROOT

PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("cluster.md", "cluster-metadata.md"))
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]

OTHER = {"broker_id": "7", "life": "x", "place": "1", "host": "elsewhere", "data_dir": "/other"}


def test_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    """On free ports, and in a folder of the test's: nothing else is changed."""
    with EtcdMembers(tmp_path / "etcd") as etcd:
        up = next(words for words in COMMANDS if words[0] == "./danube")
        metadata = up[up.index("--metadata") + 1].replace("127.0.0.1:2379", etcd.endpoints[0])
        assert metadata.endswith("/production")
        exports = dict(words[1].split("=", 1) for words in COMMANDS if words[0] == "export")
        name, value = next(each for each in exports.items() if "TIER" in each[0])
        broker = BrokerProcess(
            tmp_path / "broker",
            arguments=["--metadata", metadata, "--zone", "eu-1a"],
            environment={name: value.replace("$PWD", str(tmp_path))},
        )
        with broker:
            broker.command("produce", "orders", "-m", "hello")
            assert broker.command("consume", "orders", "--exit", "--format", "raw").stdout == b"hello\n"
            listed = json.loads(broker.command("brokers", "list", "--json").stdout)
            assert [each["zone"] for each in listed["items"]] == ["eu-1a"]
            for words in COMMANDS:
                if words[0] == "etcdctl":
                    etcd.control(
                        *(str(tmp_path / word) if word.endswith(".snapshot") else word for word in words[1:])
                    )
            assert (tmp_path / "etcd.snapshot").stat().st_size > 0
            ready = json.loads((tmp_path / "broker" / "ready.json").read_text())
            key = f"/production/cluster/brokers/{ready['broker_id']}"
            etcd.control("put", key, json.dumps(OTHER))
            assert broker.wait() == 1
            assert "FENCED" in broker.log()
            with pytest.raises(BrokerDied) as died:
                broker.start()
            assert "CLUSTER_MISMATCH" in died.value.log
        assert etcd.control("get", "--prefix", "/production/cluster/", "--keys-only").split() == [
            key,
            "/production/cluster/identity",
            "/production/cluster/name",
        ]
