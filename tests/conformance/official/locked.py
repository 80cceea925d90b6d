"""A broker that `danube security init` has locked, for the official clients: TLS on every port, and a token with few rights."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

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
