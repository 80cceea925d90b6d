"""The lone broker's walks with its metadata on etcd: the same tests, typed at another broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_walk_clients, test_walk_road
from tests.e2e.test_walk_clients import incompatible, orders
from tests.e2e.test_walk_road import log_file
from tests.support.broker_process import BrokerProcess, broker_processes_fixture
from tests.support.etcd import EtcdMembers

__all__ = ["incompatible", "log_file", "orders"]  # fixtures of the walks

# What is of a broker's own metadata, or of no broker at all
_NOT_HERE = (
    "memory",
    "port_0",
    "port_offset",
    "data_dir_in_use",
    "newer_format",
    "foreign_directory",
    "typo",
)

pytestmark = pytest.mark.long  # tests/broker/home/test_metadata_home.py has the quick ones

_make_lone = broker_processes_fixture()


class OnEtcd:
    """Makes brokers whose metadata is on etcd, each under a prefix of its own."""

    def __init__(self, etcd: EtcdMembers) -> None:
        self._etcd = etcd
        self._made = 0

    def options(self, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        self._made += 1
        url = self._etcd.url(f"/walk-{self._made}")
        return {
            **options,
            "arguments": ["--metadata", url, *options.get("arguments", ())],
            "environment": {"DANUBE_TIER__URL": str(folder / "objects"), **options.get("environment", {})},
        }


@pytest.fixture(scope="module")
def on_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnEtcd]:
    with EtcdMembers(tmp_path_factory.mktemp("etcd")) as etcd:
        yield OnEtcd(etcd)


@pytest.fixture(scope="module")
def broker(on_etcd: OnEtcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder, **on_etcd.options(folder, {})) as process:
        yield process


@pytest.fixture
def make_broker(on_etcd: OnEtcd, _make_lone: Any, tmp_path: Path) -> Any:
    return lambda **options: _make_lone(**on_etcd.options(tmp_path, options))


for _module in (test_walk_road, test_walk_clients):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and not any(words in _name for words in _NOT_HERE):
            globals().setdefault(_name, _test)
