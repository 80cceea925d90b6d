"""`danube cluster adopt|release|recover|snapshot` with what they cannot work with: a sentence with the remedy, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_broker.home.data_dir import DataDir

from tests.cli.running import Danube

ETCD = "etcd://127.0.0.1:9/production"


@pytest.mark.parametrize("command", ["adopt", "release", "recover"])
def test_bad_input_is_refused_with_what_to_do(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("DANUBE_TIER__URL", str(tmp_path / "objects"))
    folder = tmp_path / "data"
    refused = danube("cluster", command, str(folder), "--metadata", ETCD, "--json")
    assert (refused.code, refused.error["code"]) == (2, "INVALID_ARGUMENT")
    assert "name one that a broker has used" in refused.error["message"]
    assert not folder.exists()
    with DataDir(folder):
        for url, remedy in (("http://h:1/p", "it begins with etcd://"), ("embedded", "--metadata etcd://")):
            refused = danube("cluster", command, str(folder), "--metadata", url, "--json")
            assert (refused.code, refused.error["details"]["field"]) == (2, "metadata.url")
            assert remedy in refused.error["message"]
        used = danube("cluster", command, str(folder), "--metadata", ETCD, "--json")
        assert used.error["code"] == "DATA_DIR_LOCKED"
    monkeypatch.setenv("DANUBE_TIER__URL", str(folder / "objects"))
    assert (
        danube("cluster", command, str(folder), "--metadata", ETCD, "--json").error["code"]
        == "TIER_NOT_SHARED"
    )


def test_a_snapshot_is_read_of_a_directory_that_a_broker_has_used(danube: Danube, tmp_path: Path) -> None:
    refused = danube("cluster", "snapshot", str(tmp_path), "--verify", "--json")
    assert (refused.code, refused.error["details"]["field"]) == (2, "data.dir")
    refused = danube("cluster", "snapshot", str(tmp_path), "--json")
    assert (refused.code, refused.error["details"]["field"]) == (2, "tier.url")
