"""`--cluster NAME`: clusters a user has named, in `~/.config/danube/clusters.toml`.

    [prod]
    broker = "http://broker.example.org:6650"
    admin = "http://broker.example.org:50051"
    production = true

`DANUBE_CLUSTERS` names another file.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydanube_core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    broker: str | None
    admin: str | None
    production: bool = False  # the console shows it in colour


def clusters_file(env: Mapping[str, str]) -> Path:
    """Return the path of the file that names clusters."""
    if given := env.get("DANUBE_CLUSTERS"):
        return Path(given).expanduser()
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "danube" / "clusters.toml"


def find_cluster(name: str, env: Mapping[str, str]) -> Cluster:
    """Return the cluster of that name.

    Raises:
        InvalidArgument: the file is missing or damaged, or has no such cluster.
    """
    file = clusters_file(env)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidArgument(
            f"--cluster {name}: cannot read {file}: {error.strerror}; write [{name}] with broker and admin in it",
            field="cluster",
            value=name,
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not TOML: {error}", field="cluster", value=name) from None
    body = tree.get(name)
    if not isinstance(body, dict):
        close = difflib.get_close_matches(name, list(tree), n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(tree) or 'none'}"
        raise InvalidArgument(f"{file} has no cluster {name}{hint}", field="cluster", value=name)
    return _cluster(file, name, body)


def all_clusters(env: Mapping[str, str]) -> list[Cluster]:
    """Return every cluster of the file, in order, or none without a file.

    Raises:
        InvalidArgument: the file is damaged.
    """
    file = clusters_file(env)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError:
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not TOML: {error}", field="cluster", value=None) from None
    return [_cluster(file, name, body) for name, body in tree.items() if isinstance(body, dict)]


def _cluster(file: Path, name: str, body: Mapping[str, object]) -> Cluster:
    broker, admin, production = body.get("broker"), body.get("admin"), body.get("production", False)
    if not isinstance(broker, str | None) or not isinstance(admin, str | None):
        raise InvalidArgument(f"{file} [{name}]: broker and admin are texts", field="cluster", value=name)
    if not isinstance(production, bool):
        raise InvalidArgument(f"{file} [{name}]: production is true or false", field="cluster", value=name)
    return Cluster(name=name, broker=broker, admin=admin, production=production)
