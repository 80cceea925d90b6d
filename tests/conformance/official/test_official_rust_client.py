"""The official Rust client (crate `danube-client` 0.16.0), unmodified, in the program under `rust/`.

Built once into .tools/ (a few minutes); only where there is a Rust toolchain. Its build asks for `protoc`, which
grpcio-tools brings along, so none has to be installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.official.conftest import Scenario
from tests.conformance.official.locked import Locked
from tests.support.broker_process import BrokerProcess
from tests.support.pinned_packages import TOOLS

pytestmark = pytest.mark.long

PROGRAM: Final = Path(__file__).with_name("rust")
UNREACHABLE: Final = (
    "Could not resolve host",
    "failed to download",
    "Unable to update registry",
    "network failure",
)


def protoc(folder: Path) -> str:
    """A `protoc` for the build: the system's, or the one inside grpcio-tools as a program."""
    found = os.environ.get("PROTOC") or shutil.which("protoc")
    if found:
        return found
    spec = importlib.util.find_spec("grpc_tools")
    if spec is None or spec.origin is None:
        pytest.skip("NOT RUN: the official Rust client needs protoc or grpcio-tools")
    include = Path(spec.origin).with_name("_proto")
    script = folder / "protoc"
    script.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m grpc_tools.protoc "-I{include}" "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture(scope="module")
def rust_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built program."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        pytest.skip("NOT RUN: the official Rust client needs cargo, and there is none here")
    target = TOOLS / "rust-target"
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        "PROTOC": protoc(tmp_path_factory.mktemp("protoc")),
    }
    done = subprocess.run(
        [cargo, "build", "--locked", "--quiet"],
        cwd=PROGRAM,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip("NOT RUN: the crates of the official Rust client cannot be reached")
    assert done.returncode == 0, done.stderr[-6000:]
    return str(target / "debug" / "official-rust-client")


@pytest.mark.timeout(4000)  # the first one builds the program
@pytest.mark.parametrize(
    "name", ["reliable", "non_reliable", "partitions", "nack", "failover", "key_filters", "mistakes"]
)
def test_official_rust_client(rust_client: str, broker: BrokerProcess, topic: str, name: str) -> None:
    with Scenario(name, broker.url, topic, program=[rust_client]):
        pass


@pytest.mark.timeout(4000)
@pytest.mark.parametrize("name", ["reliable", "partitions", "nack", "failover"])
def test_official_rust_client_over_tls_with_a_token(
    rust_client: str, locked: Locked, topic: str, name: str
) -> None:
    environment = locked.environment(locked.token)
    with Scenario(name, locked.broker.url, topic, program=[rust_client], environment=environment):
        pass


@pytest.mark.timeout(4000)
def test_official_rust_client_goes_on_after_the_broker_was_killed(
    rust_client: str, tmp_path: Path, topic: str
) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        Scenario("restart", broker.url, topic, program=[rust_client]) as scenario,
    ):
        scenario.wait_for("kill")
        broker.kill()
        broker.start()
        scenario.go_on()
