"""The files that docs/connect.md shows are files that `danube connect run` takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydanube_connect.file import read_file

PAGE = Path(__file__).resolve().parents[2] / "docs" / "connect.md"
FILES = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_shows_files() -> None:
    assert len(FILES) >= 6


@pytest.mark.parametrize("text", FILES, ids=[text.split('"')[1] for text in FILES])
def test_a_shown_file_is_taken_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", text):
        monkeypatch.setenv(name, "x")
    file = tmp_path / "shown.toml"
    file.write_text(text, encoding="utf-8")
    shown = read_file(file)
    assert f'name = "{shown.name}"' in text
