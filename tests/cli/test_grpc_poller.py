"""Processes of the command use gRPC's own polling, where the installed gRPC still has it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pydanube_cli.grpc_poller import EXPERIMENTS, VARIABLE, choose_grpc_poller


@pytest.mark.parametrize(
    ("grpcio", "expected"),
    [
        ("1.77.0", None),
        ("1.78.1", EXPERIMENTS),
        ("1.85.1", EXPERIMENTS),
        ("1.86.0", None),
        ("2.0", None),
        ("odd", None),
    ],
)
def test_it_is_set_for_versions_that_know_it(grpcio: str, expected: str | None) -> None:
    environ: dict[str, str] = {}
    choose_grpc_poller(environ, grpcio=grpcio)
    assert environ.get(VARIABLE) == expected


def test_what_the_user_set_stays() -> None:
    environ = {VARIABLE: ""}
    choose_grpc_poller(environ, grpcio="1.85.1")
    assert environ == {VARIABLE: ""}


def test_the_installed_grpc_knows_what_it_is_told() -> None:
    """gRPC complains of an experiment that it does not know, on stderr, when it is first used."""
    program = (
        "import os\n"
        "from pydanube_cli.grpc_poller import choose_grpc_poller\n"
        "choose_grpc_poller(os.environ)\n"
        "import grpc\n"
        "grpc.insecure_channel('127.0.0.1:1').close()\n"
        "print('used')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )
    assert done.stdout == "used\n"
    assert "experiment" not in done.stderr.lower()


def test_the_command_chooses_before_it_imports_grpc() -> None:
    program = (
        "import sys\n"
        "import pydanube_cli.main as main\n"
        "assert 'grpc' not in sys.modules\n"
        "sys.argv = ['danube', '--version']\n"
        "try:\n"
        "    main.main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "import os\n"
        "print(os.environ.get('GRPC_EXPERIMENTS'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == EXPERIMENTS
