"""`danube up`: the ready line, the ports behind it, and the ways to stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

from tests.cli.running import command_line
from tests.support.broker_process import BrokerProcess, client_environment, run_danube

# docs/interface.md#3-starting-and-stopping, in its order
READY_FIELDS = (
    "event", "version", "format_version", "broker_id", "pid", "data_dir", "grpc", "admin", "metrics", "http",
    "durability", "recovered",
)  # fmt: skip


def post(url: str, body: bytes) -> dict[str, object]:
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def test_ready_says_where_everything_answers(broker: BrokerProcess) -> None:
    assert broker.info["event"] == "ready"
    assert tuple(broker.info) == READY_FIELDS
    assert json.loads(broker.ready_file.read_text()) == broker.info
    with urllib.request.urlopen(f"{broker.metrics}/readyz", timeout=30) as answer:
        assert json.load(answer)["ready"] is True
    call = b'{"jsonrpc":"2.0","id":1,"method":"brokers.status"}'
    assert post(f"{broker.http}/rpc", call)["result"]["pid"] == broker.pid  # type: ignore[index]
    status = json.loads(broker.command("brokers", "status", "--json").stdout)
    assert status["broker_id"] == broker.info["broker_id"]


def test_a_broker_starts_no_threads_of_linear_algebra(tmp_path: Path) -> None:
    unset = ("env", "-u", "OPENBLAS_NUM_THREADS")
    with BrokerProcess(tmp_path, memory=True, within=unset) as broker:
        inherited = Path(f"/proc/{broker.helper_running()[0]}/environ").read_bytes().split(b"\0")
        assert b"OPENBLAS_NUM_THREADS=1" in inherited


def test_second_broker_on_the_same_data_or_ports_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("admin", "metrics", "http")]

    def refused(*words: str) -> dict[str, object]:
        done = run_danube("up", *words, *ports, "--json", timeout_s=60)
        assert done.returncode == 1
        assert done.stdout == b""
        error: dict[str, object] = json.loads(done.stderr.splitlines()[-1])["error"]
        return error

    error = refused("--data-dir", str(broker.data_dir), "--grpc-port", "0")
    assert error["code"] == "DATA_DIR_LOCKED"
    assert str(broker.pid) in str(error["message"])
    port = broker.url.rpartition(":")[2]
    error = refused("--data-dir", str(tmp_path / "other"), "--grpc-port", port)
    assert error["code"] == "PORT_IN_USE"
    assert port in str(error["message"])
    assert "--grpc-port" in str(error["message"])
    assert not (tmp_path / "other").exists(), "a start that was refused leaves nothing behind"
    ports = [*ports[:-1], "--http-port", broker.http.rpartition(":")[2]]
    error = refused("--data-dir", str(tmp_path / "other"), "--grpc-port", "0")
    assert error["code"] == "PORT_IN_USE"
    assert not (tmp_path / "other").exists()


def test_taken_http_port_is_refused_by_its_own_flag(broker: BrokerProcess) -> None:
    port = broker.http.rpartition(":")[2]
    words = [
        "up",
        "--memory",
        "--http-port",
        port,
        *(f"--{name}-port=0" for name in ("grpc", "admin", "metrics")),
    ]
    done = run_danube(*words, "--json", timeout_s=60)
    assert done.returncode == 1
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["code"], error["details"]["flag"]) == ("PORT_IN_USE", "--http-port")


def test_an_address_of_another_machine_is_not_a_taken_port() -> None:
    words = ["broker", "--memory", "--host", "203.0.113.7", "--insecure-bind", "--json"]
    done = run_danube(*words, timeout_s=60)
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert (error["details"]["field"], error["details"]["value"]) == ("host", "203.0.113.7")


def test_stops_by_signals_in_order_or_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, memory=True, arguments=["--log-format", "json"]) as broker:
        # A request whose body never comes holds the HTTP face for a moment: time for the second signal.
        host, _, port = broker.http.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as held:
            held.sendall(
                b"POST /rpc HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n"
            )
            post(f"{broker.http}/rpc", b'{"jsonrpc":"2.0","id":1,"method":"topics.list"}')
            broker.terminate()
            while "broker_stopping" not in broker.log():
                assert broker.running
            broker.signal(signal.SIGINT)
            assert broker.wait() == 130
        # Alone, one is enough.
        broker.start()
        broker.signal(signal.SIGINT)
        assert broker.wait() == 0
        events = [json.loads(line)["event"] for line in broker.log().splitlines() if line.startswith("{")]
        assert "broker_ready" in events
        assert not any(
            json.loads(line)["level"] == "error" for line in broker.log().splitlines() if line.startswith("{")
        )


def test_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    """Whenever it comes: the process ends by itself, and the data directory is free again."""
    words = [
        "up",
        "--data-dir",
        str(tmp_path / "data"),
        *(f"--{name}-port=0" for name in ("grpc", "admin", "metrics", "http")),
    ]
    process = subprocess.Popen(
        command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=client_environment()
    )
    try:
        while process.poll() is None and not (tmp_path / "data").exists():
            os.sched_yield()
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM), said
        assert b"Traceback" not in said
    finally:
        process.kill()
    with BrokerProcess(tmp_path, face="broker") as broker:
        assert broker.info["http"] is None  # that port is only `up`'s
        assert broker.stop() == 0
