"""What a release is checked for before anything is built."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tools.release import NotReadyError, checked_version, checksums, notes, registry_entry

LOG = "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [0.2.0] - 2026-11-23\n\n### Added\n\n- x\n\n## [0.1.0]\n\n"


def test_notes_are_the_section_of_the_version() -> None:
    assert notes(LOG, "0.2.0") == "### Added\n\n- x\n"


@pytest.mark.parametrize(("version", "why"), [("0.3.0", "no section"), ("0.1.0", "empty")])
def test_a_version_without_notes_is_refused_by_name(version: str, why: str) -> None:
    with pytest.raises(NotReadyError, match=rf"{why}|{version}"):
        notes(LOG, version)


def test_the_tag_is_the_version_of_the_project() -> None:
    assert checked_version("v1.2.3", '[project]\nversion = "1.2.3"\n') == "1.2.3"
    with pytest.raises(NotReadyError, match=r"'v1.2.4' is not v1.2.3"):
        checked_version("v1.2.4", '[project]\nversion = "1.2.3"\n')


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    first, second = checksums(tmp_path).splitlines()
    assert first == f"{hashlib.sha256(b'1').hexdigest()}  a"
    assert second.endswith("  b")


def test_the_registrys_entry_names_the_bundle_and_its_checksum(tmp_path: Path) -> None:
    bundle = tmp_path / "danube-1.2.3.mcpb"
    bundle.write_bytes(b"zip")
    entry = registry_entry("1.2.3", "https://github.com/us/danube-py", bundle)
    [package] = entry["packages"]
    assert entry["name"] == "io.github.us/danube-py"
    assert len(entry["description"]) <= 100, "the registry's bound"
    assert package["identifier"].endswith("/us/danube-py/releases/download/v1.2.3/danube-1.2.3.mcpb")
    assert package["fileSha256"] == hashlib.sha256(b"zip").hexdigest()
    with pytest.raises(NotReadyError, match=r"example\.org/x' of Source"):
        registry_entry("1.2.3", "https://example.org/x", bundle)
