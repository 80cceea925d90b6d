"""Podman and buildah as they run here: also inside a sandbox without systemd, with limits that cannot be raised."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.deploy.conftest import tool

# crun refuses a hybrid cgroup tree and needs none when it sets no limits: it gets an empty one, in a mount namespace of its own.
WITHOUT_CGROUPS = 'umount -R -l /sys/fs/cgroup; mount -t tmpfs tmpfs /sys/fs/cgroup; exec "$@"'
DEBIAN = "apt-get install podman buildah mmdebstrap crun"


class Containers:
    """Runs programs that run containers; `folder` takes the configuration."""

    def __init__(self, folder: Path) -> None:
        for name in ("podman", "buildah"):
            tool(name, DEBIAN)
        if os.geteuid() != 0:
            pytest.skip("containers are tried as root only")
        files = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        self._conf = folder / "containers.conf"
        self._conf.write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=9000:9000"]\ncgroups = "disabled"\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        tried = self.run("podman", "info")
        if tried.returncode != 0:
            pytest.skip(f"podman does not run here: {tried.stderr.strip()[-200:]}")

    def run(
        self, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", WITHOUT_CGROUPS, "sh", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**os.environ, "CONTAINERS_CONF": str(self._conf), **(environment or {})},
        )
