"""`config`, `doctor`, and what `up` refuses before it starts anything."""

from __future__ import annotations

import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.sections import Settings
from pydanube_cli.config import commented_file
from pydanube_cli.doctor import redacted
from pydanube_cli.ready import ready_text, replace_file
from pydanube_cli.serve import offset_ports
from pydanube_core.errors import InvalidArgument
from pydanube_core.extras import install_command

from tests.cli.running import Danube


def test_check_names_the_line_and_the_nearest(danube: Danube, tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text("[server]\n\ngrpc_prot = 6651\n")
    ran = danube("config", "check", "--config", str(file), "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT")
    assert ran.error["details"]["line"] == 3
    assert ran.error["details"]["suggestion"] == "grpc_port"
    text = danube("config", "check", "--config", str(file)).err
    assert f"{file}:3" in text
    assert "did you mean grpc_port?" in text


def test_check_refuses_what_could_not_start(danube: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_SERVER__HOST", "0.0.0.0")
    ran = danube("config", "check", "--json")
    assert (ran.code, ran.error["code"]) == (1, "INSECURE_BIND")


def test_show_says_where_each_value_came_from(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "danube.toml"
    file.write_text('[journal]\nsegment_bytes = "16MiB"\n')
    monkeypatch.setenv("DANUBE_LOG__LEVEL", "debug")
    shown = danube("config", "show", "--config", str(file), "--json").result
    assert shown["journal"]["segment_bytes"] == {"value": "16MiB", "source": f"{file}:2"}
    assert shown["log"]["level"] == {"value": "debug", "source": "env DANUBE_LOG__LEVEL"}
    assert shown["server"]["host"] == {"value": "127.0.0.1", "source": "default"}


def test_show_folds_to_the_columns_that_are_set_also_in_a_pipe(
    danube: Danube, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = danube("config", "show").out.splitlines()
        assert max(map(len, lines)) <= width
    monkeypatch.delenv("COLUMNS")
    assert len(danube("config", "show").out.splitlines()) < len(lines)


def test_written_file_sets_nothing_and_holds_when_everything_is_uncommented(
    danube: Danube, tmp_path: Path
) -> None:
    file = tmp_path / "danube.toml"
    assert danube("config", "init", str(file)).code == 0
    assert dict(load_settings(file).sources) == {}
    again = danube("config", "init", str(file), "--json")
    assert (again.code, again.error["code"]) == (1, "ALREADY_EXISTS")
    assert danube("config", "init", str(file), "--force").code == 0
    lines = commented_file().splitlines()
    file.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    everything = load_settings(file)
    assert {e.name: e.value for e in everything.entries()} == {e.name: e.value for e in Settings().entries()}
    assert everything.is_set("server.host")


def test_offset_moves_all_ports_but_leaves_any_free_one() -> None:
    moved = offset_ports(load_settings(None, {}, {"server.http_port": 0}), 100)
    server = moved.server
    assert (server.grpc_port, server.admin_port, server.metrics_port, server.http_port) == (
        6750,
        50151,
        9140,
        0,
    )
    assert str(moved.source("server.grpc_port")) == "flag --port-offset 100"
    with pytest.raises(InvalidArgument):
        offset_ports(Settings(), 20_000)


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["--host", "0.0.0.0"], 1, "INSECURE_BIND"),
        (["--memory", "--data-dir", "x"], 2, "INVALID_ARGUMENT"),
        (["--grpc-port", "70000"], 2, "INVALID_ARGUMENT"),
        (["--config", "/nonexistent.toml"], 2, "INVALID_ARGUMENT"),
        (["--log-level", "loud"], 2, "INVALID_ARGUMENT"),
        (["--grace", "soon"], 2, "INVALID_ARGUMENT"),
        (["--port-offset", "60000"], 2, "INVALID_ARGUMENT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_up_refuses(danube: Danube, words: list[str], exit_code: int, code: str, tmp_path: Path) -> None:
    where = [] if "--memory" in words else ["--data-dir", str(tmp_path / "data")]
    ran = danube("up", *where, *words, "--json")
    assert (ran.code, ran.error["code"]) == (exit_code, code)
    assert not (tmp_path / "data").exists()


def test_up_is_refused_on_windows_by_name(danube: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube_cli.serve.sys.platform", "win32")
    ran = danube("up", "--json")
    assert (ran.code, ran.error["code"]) == (1, "UNSUPPORTED_PLATFORM")


def test_missing_extra_is_named(danube: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pydanube_cli.runtime.find_spec", lambda name: None if name == "starlette" else object()
    )
    ran = danube("broker", "--json")
    assert (ran.code, ran.error["code"]) == (1, "MISSING_EXTRA")
    assert install_command("broker") in ran.error["message"]


INFO = {
    "version": "0.1.0",
    "format_version": 2,
    "broker_id": "42",
    "pid": 7,
    "data_dir": "/data",
    "grpc": "http://127.0.0.1:6650",
    "admin": "http://127.0.0.1:50051",
    "metrics": "http://127.0.0.1:9040",
    "http": None,
    "durability": "fsynced",
    "recovered": {"records": 0, "torn_bytes": 0, "seconds": 0.0},
}


def test_ready_file_appears_whole(tmp_path: Path) -> None:
    replace_file(tmp_path / "ready.json", b'{"event": "ready"}\n')
    assert (tmp_path / "ready.json").read_text() == '{"event": "ready"}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["ready.json"]


def test_ready_text_shows_lines_to_paste() -> None:
    text = ready_text(INFO, program="./danube")
    assert "./danube consume hello --exit\n" in text
    assert "MCP" not in text
    moved = ready_text(INFO | {"grpc": "http://127.0.0.1:7650"}, program="danube")
    assert "danube consume hello --exit --broker http://127.0.0.1:7650\n" in moved


def test_doctor_finds_a_port_in_use_and_exits_6(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name in ("ADMIN", "METRICS", "HTTP"):
            monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", "0")
        monkeypatch.setenv("DANUBE_SERVER__GRPC_PORT", str(port))
        monkeypatch.setenv("DANUBE_DATA__DIR", str(tmp_path / "data"))
        ran = danube("doctor", "--json", "--admin", "http://127.0.0.1:1", "--timeout", "1s")
    assert (ran.code, ran.error["code"]) == (6, "CONDITION_NOT_MET")
    assert not ran.result["ok"]
    [problem] = [f for f in ran.result["findings"] if f["level"] == "problem"]
    assert problem["check"] == "ports"
    assert f"port {port}" in problem["summary"]
    assert {f["check"] for f in ran.result["findings"]} >= {
        "config",
        "versions",
        "ports",
        "disk",
        "fsync",
        "limits",
        "clock",
    }


@pytest.mark.parametrize(("age", "warned"), [("300s", False), ("301s", True)])
def test_doctor_warns_of_telemetry_that_reports_would_call_old(
    danube: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, age: str, *, warned: bool
) -> None:
    monkeypatch.setenv("DANUBE_TELEMETRY__FLUSH_AGE", age)
    for name in ("GRPC", "ADMIN", "METRICS", "HTTP"):
        monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", "0")
    where = ("--data-dir", str(tmp_path / "d"), "--admin", "http://127.0.0.1:1")
    ran = danube("doctor", "--json", *where, "--timeout", "1s")
    found = [f for f in ran.result["findings"] if f["check"] == "telemetry"]
    assert [f["level"] for f in found] == ["warning"] * warned
    assert all("telemetry.flush_age is 301 s" in f["summary"] for f in found)


@pytest.mark.parametrize(("words", "port"), [((), 50_058), (("--admin", "http://127.0.0.1:1"), 1)])
def test_doctor_looks_for_the_broker_where_its_settings_put_it_unless_told_where(
    danube: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], port: int
) -> None:
    monkeypatch.delenv("DANUBE_BROKER_URL")
    where = ("--data-dir", str(tmp_path / "d"), "--port-offset", "7")
    ran = danube("doctor", "--json", *where, "--timeout", "1s", *words)
    [broker] = [f for f in ran.result["findings"] if f["check"] == "broker"]
    assert broker["summary"] == f"none answers at http://127.0.0.1:{port} (UNAVAILABLE)"


def test_doctor_refuses_a_secret_in_a_url_and_packs_none(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GRPC", "ADMIN", "METRICS", "HTTP"):
        monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", "0")
    monkeypatch.setenv("DANUBE_DATA__DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DANUBE_TIER__URL", "s3://key:hunter2@bucket/x")
    monkeypatch.setenv("DANUBE_TOKEN", "hunter2")
    log = tmp_path / "log"
    log.write_text(
        "info tier_opened url=s3://key:hunter2@bucket/x\ninfo asked authorization: Bearer hunter2hunter2\n"
    )
    bundle = tmp_path / "help.tar.gz"
    ran = danube(
        "doctor",
        "--bundle",
        str(bundle),
        "--log",
        str(log),
        "--admin",
        "http://127.0.0.1:1",
        "--timeout",
        "1s",
    )
    assert ran.code == 6
    assert "tier.url holds a user or password" in ran.err
    assert "hunter2" not in ran.out + ran.err
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            assert b"hunter2" not in content.read(), member.name
    assert {"danube-doctor/findings.json", "danube-doctor/settings.json", "danube-doctor/broker.log"} <= set(
        names
    )


def test_redaction_goes_by_name() -> None:
    assert redacted({"DANUBE_TOKEN": "x", "PORT": 1}) == {"DANUBE_TOKEN": "redacted", "PORT": 1}


@pytest.mark.parametrize(
    "words",
    [
        ("up", "--metadata", "etcd://root:hunter2@"),
        ("up", "--metadata", "etcd://root:hunter2/x@127.0.0.1:1/p"),
        ("up", "--metadata", "http://root:h@hunter2@127.0.0.1:1/p"),
        ("topics", "list", "--broker", "http://ann:hunter2/x@127.0.0.1:1"),
        ("topics", "list", "--admin", "https://hunter2@127.0.0.1:1/p"),
        ("config", "show"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_command_refuses_is_quoted_without_its_password(
    danube: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], as_json: bool
) -> None:
    if words[0] == "config":
        monkeypatch.setenv("DANUBE_TIER__STORE", "s3://key:hunter2@bucket/x")
    monkeypatch.setenv("DANUBE_DATA__DIR", str(tmp_path / "data"))
    for port in ("GRPC", "ADMIN", "METRICS", "HTTP"):
        monkeypatch.setenv(f"DANUBE_SERVER__{port}_PORT", "0")
    ran = danube(*words, *(["--json"] if as_json else []))
    assert (ran.code, "hunter2" in ran.out + ran.err) == (2, False)


def test_a_broker_alone_does_not_import_what_serves_the_http_port_nor_the_libraries_of_schemas() -> None:
    program = (
        "import sys, pydanube_cli.composition\n"
        "sys.exit(bool({'mcp', 'pydanube_mcp', 'fastavro', 'jsonschema_rs'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
