"""The official Python client against a broker that `danube security init` has locked: TLS on every port, a token with few rights."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conformance.official.conftest import Scenario
from tests.support.broker_process import BrokerProcess, client_environment, danube_command


@dataclass(frozen=True)
class Locked:
    """A locked broker. `token` may produce, consume and manage schemas in the namespace default; `stranger` nothing."""

    broker: BrokerProcess
    ca: str
    token: str
    stranger: str

    def environment(self, token: str) -> dict[str, str]:
        return {"OFFICIAL_CA": self.ca, "OFFICIAL_TOKEN": token}


def danube(*words: str, **environment: str) -> dict[str, str]:
    done = subprocess.run(
        [*danube_command(), *words, "--json"],
        capture_output=True,
        check=False,
        env=client_environment(environment),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    made = danube("security", "init", "--data-dir", f"{folder}/data", "--dir", f"{folder}/keys")
    with BrokerProcess(folder, environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}) as broker:
        # what only the operator on the machine may do: over the socket, without a token
        socket = ("--admin", f"unix:{broker.data_dir}/admin.sock")
        danube("roles", "create", "app", "--permissions", "Produce,Consume,ManageSchema", *socket)
        danube(
            "roles", "create", "schemas", "--permissions", "ManageSchema", *socket
        )  # subjects have no namespace
        danube(
            "bindings", "create", "app-default", "app", "--roles", "app", "--scope", "namespace", "--resource", "default",
            *socket,
        )  # fmt: skip
        danube("bindings", "create", "app-schemas", "app", "--roles", "schemas", *socket)
        token = danube("tokens", "create", "app", *socket)["token"]
        stranger = danube("tokens", "create", "stranger", *socket)["token"]
        yield Locked(broker, made["ca"], token, stranger)
        broker.check_log()


@pytest.mark.parametrize("name", ["reliable", "shared", "key_shared", "partitions", "nack", "schemas"])
def test_official_python_client_over_tls_with_a_token(locked: Locked, topic: str, name: str) -> None:
    with Scenario(name, locked.broker.url, topic, environment=locked.environment(locked.token)):
        pass


def test_whoever_holds_nothing_is_refused(locked: Locked, topic: str) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="PERMISSION_DENIED"),
        Scenario("reliable", locked.broker.url, topic, environment=locked.environment(locked.stranger)),
    ):
        pass
