from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydanube_core.errors import InvalidArgument
from pydanube_core.extras import install_command
from pydanube_mcp import find_program, print_config

PROGRAM = Path("/opt/my danube/bin/danube")


@pytest.mark.parametrize("client", ["claude-desktop", "cursor", "windsurf"])
def test_clients_that_read_mcp_servers(client: str) -> None:
    text = print_config(client, arguments=["--read-only"], env={"DANUBE_PRINCIPAL": "ann"}, program=PROGRAM)
    assert json.loads(text) == {
        "mcpServers": {
            "danube": {
                "command": str(PROGRAM),
                "args": ["mcp", "--read-only"],
                "env": {"DANUBE_PRINCIPAL": "ann"},
            }
        }
    }


def test_visual_studio_code_names_the_type() -> None:
    assert json.loads(print_config("vscode", program=PROGRAM)) == {
        "servers": {"danube": {"type": "stdio", "command": str(PROGRAM), "args": ["mcp"]}}
    }


def test_claude_code_is_a_command_that_survives_the_shell() -> None:
    words = shlex.split(print_config("claude-code", env={"A": "b c"}, program=PROGRAM))
    assert words == [
        *["claude", "mcp", "add", "--env", "A=b c", "--transport", "stdio", "danube"],
        *["--", str(PROGRAM), "mcp"],
    ]


def test_a_server_that_runs_already_is_given_by_its_address() -> None:
    """Started by the client with --transport http, a server would serve a port and say nothing on stdout."""
    url = "http://127.0.0.1:8766/mcp"
    assert json.loads(print_config("cursor", url=url)) == {"mcpServers": {"danube": {"url": url}}}
    assert json.loads(print_config("windsurf", url=url)) == {"mcpServers": {"danube": {"serverUrl": url}}}
    assert json.loads(print_config("vscode", url=url)) == {
        "servers": {"danube": {"type": "http", "url": url}}
    }
    assert print_config("claude-code", url=url) == f"claude mcp add --transport http danube {url}"
    with pytest.raises(InvalidArgument, match="leave --transport http out"):
        print_config("claude-desktop", url=url)


def test_a_token_is_named_and_not_written_down() -> None:
    url = "https://broker.example:8765/mcp"
    assert print_config("claude-code", url=url, token=True) == (
        f'claude mcp add --transport http danube {url} --header "Authorization: Bearer $DANUBE_TOKEN"'
    )
    for client in ("cursor", "windsurf"):
        entry = json.loads(print_config(client, url=url, token=True))["mcpServers"]["danube"]
        assert entry["headers"] == {"Authorization": "Bearer ${env:DANUBE_TOKEN}"}
    found = json.loads(print_config("vscode", url=url, token=True))
    assert found["servers"]["danube"]["headers"] == {"Authorization": "Bearer ${input:danube-token}"}
    assert [(each["id"], each["password"]) for each in found["inputs"]] == [("danube-token", True)]


def test_another_client_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidArgument, match="did you mean claude-desktop"):
        print_config("claude-destop", program=PROGRAM)


def test_the_program_is_an_absolute_path_that_exists_and_runs() -> None:
    program = find_program()
    assert program.is_absolute()
    assert subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0


def test_the_program_that_runs_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "danube"
    mine.write_text("#!/bin/sh\n")
    assert find_program(str(mine)) != mine  # not executable, so not it
    mine.chmod(0o755)
    assert find_program(str(mine)) == mine
    monkeypatch.chdir(tmp_path)
    assert find_program("./danube") == mine
    assert find_program(sys.executable) != Path(sys.executable)


def test_without_the_sdk_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None\n"
        "import pydanube_mcp\n"
        "from pydanube_core.errors import MissingExtra\n"
        "assert pydanube_mcp.print_config\n"
        "try:\n    pydanube_mcp.run_stdio\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert install_command("mcp") in done.stdout, done.stderr


def test_the_command_passes_on_where_a_token_lies(tmp_path: Path) -> None:
    environment = {**os.environ, "DANUBE_TOKEN_FILE": str(tmp_path / "token"), "DANUBE_CA": "ca.crt"}
    del environment["DANUBE_BROKER_URL"]  # the printed text names an address only if it is not the default
    words = [sys.executable, "-m", "pydanube_cli.main", "mcp", "--print-config", "cursor"]

    def printed(*more: str) -> dict[str, object]:
        done = subprocess.run(
            [*words, *more], env=environment, cwd=tmp_path, capture_output=True, check=True, timeout=60
        )
        found: dict[str, object] = json.loads(done.stdout)["mcpServers"]["danube"]
        return found

    assert printed()["env"] == {
        "DANUBE_TOKEN_FILE": str(tmp_path / "token"),
        "DANUBE_CA": str(tmp_path / "ca.crt"),
    }
    remote = printed("--transport", "http", "--host", "b.example", "--admin", "https://b.example:50051")
    assert remote == {
        "url": "https://b.example:8765/mcp",
        "headers": {"Authorization": "Bearer ${env:DANUBE_TOKEN}"},
    }
