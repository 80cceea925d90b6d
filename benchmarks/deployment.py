"""Sizes and times of what is deployed: wheel, image, cold start of a container, memory with the chart's smallest values.

    .venv/bin/python benchmarks/deployment.py [--image localhost/danube:dev]

Prints a line of JSON. Without `--image` (deploy/image/build.sh makes one; podman, root) the image's figures are null. The memory
is that of the broker and its helpers, as they were at their largest, while 200 000 messages of 128 B go through.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import processor_s, resident_bytes
from tests.deploy.containers import Containers
from tests.support.broker_process import BrokerProcess, free_ports

ROOT = Path(__file__).resolve().parents[1]
MESSAGES = 200_000
# As deploy/helm/danube/ci/small-values.yaml has them.
SMALL = {"DANUBE_JOURNAL__TAIL_CACHE_BYTES": "8MiB", "DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}


def wheel_bytes(folder: Path) -> int:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel.stat().st_size


def image_figures(folder: Path, image: str) -> dict[str, Any]:
    """Compressed size, and the time from `podman run` to the first answer of /readyz."""
    containers = Containers(folder)
    archive = folder / "image.tar"
    containers.run("buildah", "push", "--quiet", image, f"oci-archive:{archive}", timeout_s=600)
    (port,) = free_ports(1)
    name = f"danube-bench-{port}"
    begun = time.monotonic()
    words = ["podman", "run", "--rm", "--name", name, "--read-only", "--tmpfs", "/tmp", "--no-healthcheck"]
    words += ["--detach", image, "up", "--grpc-port", str(port)]
    started = containers.run(*words)
    assert started.returncode == 0, started.stderr
    ran_s = time.monotonic() - begun
    try:
        while "broker_ready" not in containers.run("podman", "logs", name).stderr:
            assert time.monotonic() - begun < 60
        ready_s = time.monotonic() - begun
        shown = containers.run("podman", "inspect", "--format", "{{.State.Pid}}", name).stdout
        cpu_s = round(processor_s(int(shown)), 2)
    finally:
        containers.run("podman", "stop", "--time", "20", name)
    return {
        "image_archive_bytes": archive.stat().st_size,
        "container_started_s": round(ran_s, 2),
        "ready_s": round(ready_s, 2),
        "broker_cpu_s": cpu_s,  # of a start; what a busy machine changes little
    }


def _peak_bytes(broker: BrokerProcess) -> int:
    return sum(resident_bytes(pid, peak=True) for pid in (broker.pid, *broker.helpers()))


def memory_with_small_values(folder: Path) -> dict[str, int]:
    with BrokerProcess(folder, environment=SMALL) as broker:
        at_rest = _peak_bytes(broker)
        broker.command("produce", "t", "-m", "x" * 128, "--count", str(MESSAGES))
        broker.command(
            "consume", "t", "-s", "s", "--count", str(MESSAGES), "--for", "120s", "--format", "raw"
        )
        return {"at_rest_bytes": at_rest, "peak_bytes": _peak_bytes(broker)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image")
    image = parser.parse_args().image
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found: dict[str, Any] = {
            "wheel_bytes": wheel_bytes(folder),
            "image": image_figures(folder, image) if image else None,
            "small": memory_with_small_values(folder / "broker"),
            "machine": {"cpus": os.cpu_count(), "load_after": os.getloadavg()[0]},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
