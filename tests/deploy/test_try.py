"""`try.sh` with `full.yaml`, where a program that runs processes stands for `docker compose`."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY
from tests.support.broker_process import BrokerProcess, client_environment, danube_command
from tests.support.etcd import EtcdMembers

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SERVICES = ("broker", "broker-2", "broker-3")
# What try.sh asks of compose, for services whose pid, folder and variables are in files
COMPOSE = """#!/bin/bash
set -euo pipefail
here=$(dirname "$0")
echo "$*" >>"$here/asked"
shift 4 # -p danube-try -f FILE
case $1 in
    config) printf '%s\\n' etcd broker broker-2 broker-3 ;;
    up | down | logs) ;;
    exec) service=$3; shift 4; . "$here/$service"; exec "$DANUBE" "$@" ;;
    kill) . "$here/$4"; kill -KILL "$PID" ;;
    run) . "$here/$6"; rm -rf "$FOLDER" ;;
    *) echo "unknown: $*" >&2; exit 2 ;;
esac
"""


def test_the_owner_is_killed_with_its_volume_and_another_broker_has_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    shim = tmp_path / "compose"
    shim.write_text(COMPOSE)
    shim.chmod(0o755)
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdMembers(tmp_path / "etcd"))
        for service in SERVICES:
            environment = {
                "DANUBE_METADATA__URL": f"etcd://127.0.0.1:{etcd.ports[0]}/danube",
                "DANUBE_TIER__URL": f"file://{tmp_path / 'objects'}",
                "DANUBE_POLICIES__DURABILITY": "stored",
            }
            broker = stack.enter_context(BrokerProcess(tmp_path / f"data-{service}", environment=environment))
            (tmp_path / service).write_text(
                f"PID={broker.pid} FOLDER={broker.data_dir} DANUBE={danube_command()[0]}\n"
                f"export DANUBE_BROKER_URL={broker.url} DANUBE_ADMIN_ENDPOINT={broker.admin}\n"
            )
        done = subprocess.run(
            [DEPLOY / "compose" / "try.sh", DEPLOY / "compose" / "full.yaml"],
            env=client_environment({"COMPOSE": str(shim), "MESSAGES": "4000"}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        asked = (tmp_path / "asked").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + asked
    assert "nothing lost" in done.stdout
    assert "rm -rf /var/lib/danube" in asked
