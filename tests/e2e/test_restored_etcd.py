"""etcd goes back to an older snapshot under two brokers, and `danube cluster recover` lets them go on."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerDied, BrokerProcess, client_environment, run_danube
from tests.support.etcd import EtcdMembers

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]


def test_a_cluster_goes_on_with_an_older_etcd(tmp_path: Path) -> None:
    environment = {"DANUBE_TIER__URL": str(tmp_path / "objects")}
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdMembers(tmp_path / "etcd"))
        url = etcd.url("/cluster")
        one, two = (
            stack.enter_context(
                BrokerProcess(tmp_path / name, arguments=["--metadata", url], environment=environment)
            )
            for name in ("one", "two")
        )

        def produce(topic: str, text: str) -> None:
            one.command("produce", topic, "-m", text)

        def recover(broker: BrokerProcess) -> Any:
            words = ["cluster", "recover", str(broker.data_dir), "--metadata", url, "--json"]
            done = run_danube(*words, environment=client_environment(environment))
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        topics = [f"t{n}" for n in range(6)]
        for topic in topics:
            produce(topic, "before")
        etcd.save(tmp_path / "snapshot")
        for topic in topics:
            produce(topic, "after")
        two.ask("brokers.unload", broker_id=two.info["broker_id"])
        produce("made-afterwards", "x")
        etcd.restore(tmp_path / "snapshot")
        for broker in (one, two):
            assert broker.wait() == 1
            assert "CLUSTER_MISMATCH" in broker.log()
        for lease in etcd.control("lease", "list").splitlines()[1:]:
            etcd.control("lease", "revoke", lease)
        first = recover(one)
        assert first["waiting"] == [two.info["broker_id"]]
        with pytest.raises(BrokerDied, match="is recovered now"):
            one.start()
        assert recover(two)["waiting"] == []
        for broker in (one, two):
            broker.start()
        for topic in topics:
            produce(topic, "again")
            read = one.command("consume", topic, "--from", "earliest", "--exit", "--format", "raw").stdout
            assert read.split() == [b"before", b"after", b"again"]
        verified = one.ask("audit.verify")
        assert verified["intact"], verified
