"""The file `cluster.json` of a data directory: which prefix on etcd it belongs to. `metadata_home` explains the scheme.

A directory without the file has never been on etcd. This module loads little, because `danube doctor` reads the file as
well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from pydanube_core.errors import ClusterMismatch
from pydanube_core.known_fields import known_fields

from pydanube_broker.cluster.claim import Claim
from pydanube_broker.home.data_dir import write_synced

CLUSTER_FILE: Final = "cluster.json"
SQLITE: Final = "metadata.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A directory's record of its prefix on etcd: the content of `cluster.json`."""

    cluster_id: str
    metadata: str  # the URL, for operators
    revision: int = 0
    life: str = ""
    next_life: str = ""
    recovery: str = ""  # the last recovery that the directory took part in
    released: bool = False  # the broker is about to continue alone (`release`)

    @staticmethod
    def read(folder: Path) -> Home | None:
        """Return None for a directory that has never been on etcd."""
        file = folder / CLUSTER_FILE
        try:
            return Home(**known_fields(Home, json.loads(file.read_bytes())))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ClusterMismatch(
                f"{file} cannot be read ({error}). It names the cluster of this directory. Restore it from a backup of the "
                "directory",
                field="data.dir",
                value=str(folder),
            ) from error

    @property
    def claim(self) -> Claim[str]:
        """The lives that the prefix may have for this directory."""
        return Claim(held=self.life or None, begun=self.next_life or None)

    def claiming(self, claim: Claim[str]) -> Home:
        """Return this with another claim."""
        return replace(self, life=claim.held or "", next_life=claim.begun or "")

    def write(self, folder: Path) -> None:
        said = {name: value for name, value in asdict(self).items() if value}
        write_synced(folder / CLUSTER_FILE, json.dumps(said) + "\n")


def check_embedded(home: Home | None, folder: Path) -> None:
    check_not_between(home, folder)
    if home is not None:
        raise mismatch(
            f"{folder} belongs to the cluster on {home.metadata}, where its metadata is: start with --metadata {home.metadata}. The "
            f"last broker of a cluster can go on without etcd: danube cluster release {folder} --metadata {home.metadata}",
            folder,
        )


def check_not_between(home: Home | None, folder: Path) -> None:
    """Raise `ClusterMismatch` if an adoption or release of the directory was interrupted."""
    if home is not None and (home.released or (folder / SQLITE).exists()):
        way, command = ("from", "release") if home.released else ("to", "adopt")
        raise mismatch(
            f"{folder} is being moved {way} the cluster on {home.metadata}, and that was interrupted: go on with "
            f"danube cluster {command} {folder} --metadata {home.metadata}",
            folder,
        )


def mismatch(message: str, folder: Path) -> ClusterMismatch:
    return ClusterMismatch(message, field="metadata.url", data_dir=str(folder))
