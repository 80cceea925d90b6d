"""The image and the compose files, with real containers.

Building the image takes minutes: `DANUBE_TEST_IMAGE=localhost/danube:dev` tries one that is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY
from tests.deploy.containers import Containers
from tests.support.broker_process import free_ports

pytestmark = pytest.mark.timeout(1800)
MOST_COMPRESSED = 250 << 20
BUILD = str(DEPLOY / "image" / "build.sh")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    return Containers(tmp_path_factory.mktemp("containers"))


@pytest.fixture(scope="module")
def image(containers: Containers) -> str:
    given = os.environ.get("DANUBE_TEST_IMAGE")
    if given:
        return given
    name = "localhost/danube:test"
    built = containers.run(BUILD, "--tag", name, timeout_s=1500)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-4000:]
    return name


def test_the_build_names_what_it_does_not_know() -> None:
    done = subprocess.run([BUILD, "--tagg", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0][:36]) == (2, "error: unknown argument '--tagg': se")


def test_the_image_is_small_and_its_user_is_nobody_special(
    containers: Containers, image: str, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    assert (
        containers.run(
            "buildah", "push", "--quiet", image, f"oci-archive:{archive}", timeout_s=600
        ).returncode
        == 0
    )
    assert archive.stat().st_size <= MOST_COMPRESSED
    config = json.loads(containers.run("podman", "inspect", "--type", "image", image).stdout)[0]
    assert config["Config"]["User"] == "10001:10001"
    assert config["Config"]["StopSignal"] == "SIGTERM"
    assert "/readyz" in " ".join(config["Healthcheck"]["Test"])
    found = containers.run(
        "podman", "run", "--rm", "--entrypoint", "sh", image, "-c", "command -v gcc cc pip || echo none"
    )
    assert found.stdout.strip() == "none", found.stdout + found.stderr


def test_a_read_only_container_serves_is_healthy_and_drains(
    containers: Containers, image: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    name = f"danube-test-{port}"
    begun = time.monotonic()
    started = containers.run(
        "podman", "run", "--detach", "--name", name, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
        "--publish", f"127.0.0.1:{port}:{port}", "--env", f"DANUBE_SERVER__GRPC_PORT={port}",
        "--env", f"DANUBE_BROKER_URL=http://127.0.0.1:{port}", image,
    )  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        health = ["/opt/danube/bin/python", "-c"]
        health += ["import urllib.request; urllib.request.urlopen('http://127.0.0.1:9040/readyz', timeout=2)"]
        while containers.run("podman", "exec", name, *health).returncode != 0:
            assert time.monotonic() - begun < 60, containers.run("podman", "logs", name).stderr
        command = [sys.executable, "-m", "pydanube_cli.main"]
        address = ["--broker", f"http://127.0.0.1:{port}"]
        sent = containers.run("podman", "exec", name, "danube", "produce", "t", "-m", "hello")
        assert sent.returncode == 0, sent.stderr
        outside = subprocess.run(
            [*command, "topics", "list", "--json", *address], capture_output=True, check=False
        )
        assert outside.returncode == 0, outside.stderr
        assert containers.run("podman", "exec", name, "touch", "/opt/x").returncode != 0
        assert containers.run("podman", "stop", "--time", "30", name).returncode == 0
        state = json.loads(containers.run("podman", "inspect", name).stdout)[0]["State"]
        assert state["ExitCode"] == 0
    finally:
        containers.run("podman", "rm", "--force", "--volumes", name)


def test_a_kill_in_the_middle_loses_nothing(containers: Containers, image: str) -> None:
    venv = Path(os.environ.get("PODMAN_COMPOSE", Path(sys.executable).with_name("podman-compose")))
    if not venv.exists():
        pytest.skip("podman-compose is not installed: pip install podman-compose")
    ports = dict(zip(("GRPC", "ADMIN", "METRICS", "HTTP"), map(str, free_ports(4)), strict=True))
    environment = {"DANUBE_IMAGE": image, "COMPOSE": str(venv)} | {
        f"DANUBE_{name}_PORT": port for name, port in ports.items()
    }
    done = containers.run(str(DEPLOY / "compose" / "try.sh"), environment=environment, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost" in done.stdout


def test_a_secret_that_is_missing_is_named(containers: Containers) -> None:
    program = os.environ.get("PODMAN_COMPOSE") or Path(sys.executable).with_name("podman-compose")
    if not Path(program).exists():
        pytest.skip("podman-compose is not installed: pip install podman-compose")
    file = str(DEPLOY / "compose" / "full.yaml")
    done = containers.run(str(program), "-f", file, "config", environment={"DANUBE_S3_SECRET": ""})
    assert done.returncode != 0
    assert (
        "DANUBE_S3_SECRET" in done.stdout + done.stderr or "secret key between" in done.stdout + done.stderr
    )
    assert (
        containers.run(str(program), "-f", file, "config", environment={"DANUBE_S3_SECRET": "x"}).returncode
        == 0
    )
