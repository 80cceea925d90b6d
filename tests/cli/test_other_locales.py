"""Where the locale is not UTF-8, or the user has no name and no HOME, commands answer as elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube_cli.messages.produce import ProduceOptions
from pydanube_cli.operations import long_text

DANUBE = Path(sys.executable).parent / "danube"


NAMELESS = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups")


def run(
    *words: str, encoding: str = "utf-8", before: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*before, str(DANUBE), *words],
        env=(os.environ if env is None else env) | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_output_falls_back_and_json_is_ascii(encoding: str) -> None:
    wanted = ("config", "check", "--config", "/nowhere/é€😀.toml")
    for_people = run(*wanted, encoding=encoding)
    assert for_people.returncode == 2
    assert b"INTERNAL" not in for_people.stderr
    assert rb"\u20ac\U0001f600.toml" in for_people.stderr
    for_programs = run(*wanted, "--json", encoding=encoding)
    assert "é€😀.toml" in json.loads(for_programs.stderr.decode("ascii"))["error"]["message"]


def test_output_in_utf_8_is_as_it_was() -> None:
    assert "é€😀.toml" in run("config", "check", "--config", "/nowhere/é€😀.toml").stderr.decode()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="another user id needs root and setpriv"
)
def test_user_without_a_name_and_a_home() -> None:
    for words in (("topics", "list", "--cluster", "x"), ("tui", "--snapshot", "overview", "--cluster", "x")):
        ended = run(*words, before=NAMELESS, env={"PATH": os.environ["PATH"]})
        assert b"INTERNAL" not in ended.stderr
        assert ended.returncode in (2, 3), ended.stderr


def test_byte_order_mark_of_a_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_bytes(b'\xef\xbb\xbf{"type": "string"}')
    assert long_text("schema_definition", None, str(tmp_path / "a.avsc")) == '{"type": "string"}'
    (tmp_path / "a.toml").write_bytes(b'\xef\xbb\xbf[log]\nlevel = "debug"\n')
    assert run("config", "check", "--config", str(tmp_path / "a.toml")).returncode == 0


def test_a_dash_is_stdin() -> None:
    assert ProduceOptions(topic="t", file=Path("-")).from_stdin
