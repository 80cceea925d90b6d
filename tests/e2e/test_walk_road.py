"""The first lines of docs/interface.md#13-a-walk, typed as there: good input, then bad input."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters

from tests.support.broker_process import (
    BrokerDied,
    BrokerProcess,
    client_environment,
    danube_command,
    free_ports,
    refusal,
    run_danube,
)

Make = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines as a system's log has them, and what a line may be besides: empty, very long, not UTF-8, with \\r."""
    rng = random.Random(1)
    lines = [
        f"2026-01-31 12:{i // 60 % 60:02}:{i % 60:02} status installed lib{rng.randrange(10**6)}".encode()
        for i in range(5000)
    ]
    lines[17] = b""
    lines[18] = b"\r"
    lines[19] = bytes(range(1, 10)) + bytes(range(11, 256))
    lines[20] = b"x" * 300_000
    path = tmp_path_factory.mktemp("logs") / "dpkg.log"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def web(method: str, url: str, **options: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.request(method, url, **options)


# -- good input ----------------------------------------------------------------------------------------------


def test_a_file_goes_in_and_comes_out_byte_for_byte_and_lag_survives_a_kill(
    make_broker: Make, log_file: Path
) -> None:
    with make_broker() as broker:
        lines = log_file.read_bytes().count(b"\n")
        is_ready = web("GET", f"{broker.metrics}/readyz").json()
        assert (is_ready["ready"], is_ready["reasons"]) == (True, [])

        sent = broker.json_command("produce", "logs", "-f", str(log_file))
        assert (sent["topic"], sent["sent"], sent["acknowledged"], sent["failed"]) == (
            "/default/logs",
            lines,
            lines,
            0,
        )
        assert sent["durability"] == "fsynced"
        assert sent["bytes"] == log_file.stat().st_size - lines
        assert sent["ranges"] == [{"partition": None, "first_offset": 0, "last_offset": lines - 1}]
        assert sent["messages_per_s"] > 0

        def read_all() -> bytes:
            return broker.command("consume", "logs", "--exit", "--format", "raw").stdout

        def lag() -> dict[str, Any]:
            items = broker.json_command("subscriptions", "lag", "--topic", "logs")["items"]
            assert len(items) == 1
            item: dict[str, Any] = items[0]
            return item

        assert read_all() == log_file.read_bytes()
        ten = broker.command("consume", "logs", "-s", "billing", "--count", "10", "--for", "60s").stdout
        assert ten.splitlines() == log_file.read_bytes().splitlines()[:10]
        before = lag()
        assert (before["subscription"], before["lag_messages"], before["next_unacked"]) == (
            "billing",
            lines - 10,
            10,
        )
        assert before["next_offset"] == lines
        assert before["oldest_unread_age_s"] > 0

        pid = web("GET", f"{broker.metrics}/status").json()["pid"]
        assert pid == broker.pid
        broker.kill()
        broker.start()
        assert broker.info["recovered"]["records"] > 0
        assert web("GET", f"{broker.metrics}/readyz").status_code == 200
        assert read_all() == log_file.read_bytes()
        after = lag()
        assert (after["lag_messages"], after["next_unacked"]) == (lines - 10, 10)
        more = broker.command(
            "consume", "logs", "-s", "billing", "--count", "10", "--for", "60s", "--format", "raw"
        ).stdout
        assert more.split(b"\n")[:10] == log_file.read_bytes().split(b"\n")[10:20], "the cursor goes on at 10"

        call = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions.lag", "params": {"topic": "logs"}}
        answer = web("POST", f"{broker.http}/rpc", json=call)
        item = answer.json()["result"]["items"][0]
        assert (answer.status_code, item["subscription"], item["lag_messages"]) == (
            200,
            "billing",
            lines - 20,
        )
        assert set(item) >= {
            "topic", "partition", "subscription", "type", "consumers", "next_offset", "next_unacked",
            "lag_messages", "lag_bytes", "oldest_unread_age_s", "age_quality", "in_flight",
        }  # fmt: skip
        broker.check_log()


def test_empty_lines_and_a_last_line_without_an_end_are_messages(broker: BrokerProcess) -> None:
    broker.command("produce", "edges", stdin=b"\n\na\r\n\xff\xfe\nlast")
    done = broker.command("consume", "edges", "--exit", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    payloads = [row.get("payload", row.get("payload_base64")) for row in rows]
    assert payloads == ["", "", "a\r", "//4=", "last"]
    assert set(rows[0]) >= {
        "topic", "partition", "offset", "append_time", "publish_time", "producer", "delivery_count",
        "schema_subject", "schema_version", "key", "attributes",
    }  # fmt: skip
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", rows[0]["append_time"])


def test_keys_attributes_compression_count_and_positions(broker: BrokerProcess) -> None:
    sent = broker.json_command(
        "produce", "keyed", "-m", "hello", "--count", "5", "--key", "k", "-a", "x=1", "-a", "y=",
        "--compression", "zstd",
    )  # fmt: skip
    assert sent["acknowledged"] == 5
    row = json.loads(broker.command("consume", "keyed", "--from", "offset:4", "--exit", "--json").stdout)
    assert (row["offset"], row["payload"], row["key"], row["attributes"]) == (
        4,
        "hello",
        "k",
        {"x": "1", "y": ""},
    )
    two = broker.command("consume", "keyed", "--from", "offset:1", "--until", "offset:3", "--format", "raw")
    assert two.stdout == b"hello\n" * 2
    assert broker.command("consume", "keyed", "--from", "latest", "--exit").stdout == b""
    assert broker.command("consume", "keyed", "--from", "time:-1h", "--exit").stdout == b"hello\n" * 5


def test_partitions_are_made_filled_and_listed(broker: BrokerProcess) -> None:
    broker.command("topics", "create", "parted", "--partitions", "3")
    sent = broker.json_command("produce", "parted", "-m", "x", "--count", "9", "--partitions", "3")
    assert sent["acknowledged"] == 9
    described = broker.json_command("topics", "describe", "parted")
    assert (described["partitions"], described["messages"]) == (3, 9)
    assert broker.command("consume", "parted", "--exit", "--format", "raw").stdout == b"x\n" * 9


def test_mcp_print_config_names_a_program_that_exists(broker: BrokerProcess) -> None:
    done = run_danube("mcp", "--print-config", "claude-desktop")
    assert done.returncode == 0, done.stderr
    server = json.loads(done.stdout)["mcpServers"]["danube"]
    program = Path(server["command"])
    assert program.is_absolute()
    assert program.is_file()


@pytest.mark.anyio
async def test_an_mcp_client_over_stdio_lists_the_topic_and_its_lag(broker: BrokerProcess) -> None:
    broker.command("produce", "asked", "-m", "x", "--count", "7")
    broker.command("consume", "asked", "-s", "slow", "--count", "3", "--for", "60s")
    server = StdioServerParameters(
        command=danube_command()[0],
        args=["mcp", *broker.client_arguments()],
        env=client_environment(),
    )
    with anyio.fail_after(120):
        async with Client(server) as client:
            await _asks(client)


@pytest.mark.anyio
async def test_an_mcp_client_over_http_lists_the_topic_and_its_lag(broker: BrokerProcess) -> None:
    broker.command("produce", "asked-http", "-m", "x", "--count", "7")
    broker.command("consume", "asked-http", "-s", "slow", "--count", "3", "--for", "60s")
    with anyio.fail_after(120):
        async with Client(f"{broker.http}/mcp") as client:
            await _asks(client, "asked-http")


async def _asks(client: Client, topic: str = "asked") -> None:
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert names >= {
        "list_topics",
        "describe_topic",
        "create_topic",
        "list_subscriptions",
        "get_consumer_lag",
    }
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) for name in names)
    listed = (await client.call_tool("list_topics", {})).structured_content
    assert listed is not None
    assert f"/default/{topic}" in [item["topic"] for item in listed["items"]]
    lag = (await client.call_tool("get_consumer_lag", {"topic": topic})).structured_content
    assert lag is not None
    assert [(item["subscription"], item["lag_messages"]) for item in lag["items"]] == [("slow", 4)]
    wrong = await client.call_tool("describe_topic", {"topic": "nowhere"})
    assert wrong.is_error
    assert wrong.structured_content is not None
    assert wrong.structured_content["error"]["code"] == "TOPIC_NOT_FOUND"


def test_bench_e2e_verifies_every_message(broker: BrokerProcess) -> None:
    done = broker.command(
        "bench", "e2e", "--json", "--messages", "4000", "--runs", "1",
        "--assert", "verified.missing == 0", "--assert", "verified.duplicates == 0",
        "--assert", "median.messages_per_s > 1000000000000",
        check=False, timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 6, done.stderr
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert "messages_per_s" in error["message"]
    assert "verified" not in error["message"], "these two hold"
    result = json.loads(done.stdout)
    assert (result["verified"]["sent"], result["verified"]["missing"]) == (result["verified"]["received"], 0)
    assert result["durability"] == "fsynced"


def test_metrics_have_the_documented_names(broker: BrokerProcess) -> None:
    broker.command("produce", "measured", "-m", "x", "--count", "4")
    broker.command("consume", "measured", "-s", "some", "--count", "1", "--for", "60s")
    text = web("GET", f"{broker.metrics}/metrics").text
    for name in (
        "danube_subscription_oldest_unread_age_seconds", "danube_journal_fsync_seconds_bucket",
        "danube_journal_bytes", "danube_journal_read_only", "danube_build_info",
        "danube_subscription_lag_messages", "danube_topic_messages_in_total", "danube_topic_bytes_in_total",
    ):  # fmt: skip
        assert re.search(rf"^{name}(\{{| )", text, re.MULTILINE), name
    assert 'danube_subscription_lag_messages{subscription="some",topic="/default/measured"} 3.0' in text
    assert "danube_journal_read_only 0.0" in text
    syncs = re.search(r"^danube_journal_fsync_seconds_count (\S+)$", text, re.MULTILINE)
    assert syncs is not None
    assert float(syncs[1]) > 0
    calls = re.findall(r"^danube_grpc_calls_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    assert any('service="danube.stream.Stream"' in labels and float(count) > 0 for labels, count in calls)
    done = broker.command("produce", "measured", "--delimiter", "none", stdin=bytes(5_000_000), check=False)
    assert done.returncode == 2
    assert web("GET", f"{broker.metrics}/healthz").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""])
@pytest.mark.parametrize("page", ["metrics", "status", "readyz"])
def test_a_foreign_page_in_a_browser_reads_nothing_of_the_broker(
    broker: BrokerProcess, page: str, host: str
) -> None:
    refused = web("GET", f"{broker.metrics}/{page}", headers={"host": host})
    assert refused.status_code == 403
    assert refused.json()["error"]["details"]["field"] == "host"
    assert web("GET", f"{broker.metrics}/{page}", headers={"host": "localhost:9040"}).status_code == 200


def test_status_is_the_broker_s_status(broker: BrokerProcess) -> None:
    status = web("GET", f"{broker.metrics}/status").json()
    assert status["pid"] == broker.pid
    assert (status["durability"], status["read_only"], status["reasons"]) == ("fsynced", False, [])
    by_command = broker.json_command("brokers", "status")
    assert by_command.keys() == status.keys()
    assert by_command["pid"] == broker.pid


def test_the_http_port_refuses_other_types_hosts_and_sizes(broker: BrokerProcess) -> None:
    rpc = f"{broker.http}/rpc"
    call = {"jsonrpc": "2.0", "id": 1, "method": "topics.list", "params": {}}
    assert web("POST", rpc, json=call).status_code == 200
    assert (
        web("POST", rpc, content=json.dumps(call), headers={"content-type": "text/plain"}).status_code == 415
    )
    assert web("POST", rpc, json=call, headers={"host": "evil.example"}).status_code == 403
    assert web("POST", rpc, json=call, headers={"origin": "https://evil.example"}).status_code == 403
    big = b'{"jsonrpc":"2.0","id":1,"method":"topics.list","params":{"filter":"' + b"x" * (4 << 20) + b'"}}'
    headers = {"content-type": "application/json"}
    assert web("POST", rpc, content=big, headers=headers).status_code == 413
    note = {"jsonrpc": "2.0", "method": "topics.list", "params": {}}
    assert web("POST", rpc, json=note).status_code == 204
    bad = web("POST", rpc, content=b"{", headers=headers).json()
    assert bad["error"]["code"] == -32700
    missing = web("POST", rpc, json={**call, "method": "topics.dance"}).json()
    assert missing["error"]["code"] == -32601
    unknown = web("POST", rpc, json={**call, "method": "topics.describe", "params": {"topic": "nowhere"}})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (200, -32000)
    assert unknown.json()["error"]["data"]["code"] == "TOPIC_NOT_FOUND"


def test_rpc_command_prints_the_result_and_exits_by_the_error(broker: BrokerProcess) -> None:
    assert broker.json_command("rpc", "topics.list", "--params", "{}")["items"] is not None
    done = broker.command("rpc", "topics.describe", "--params", '{"topic":"nowhere"}', "--json", check=False)
    refusal(done, 1, "TOPIC_NOT_FOUND")


# -- starting and stopping -----------------------------------------------------------------------------------


def test_sigterm_ends_with_0_within_the_grace_and_the_next_start_has_nothing_torn(make_broker: Make) -> None:
    broker = make_broker(arguments=["--grace", "20s"])
    broker.start()
    broker.command("produce", "t", "-m", "x", "--count", "100")
    assert broker.stop() == 0
    info = broker.start()
    assert info["recovered"]["torn_bytes"] == 0
    assert broker.command("consume", "t", "--exit", "--format", "raw").stdout == b"x\n" * 100
    broker.signal(signal.SIGINT)
    assert broker.wait() == 0
    broker.check_log()


def test_sigterm_ends_a_broker_with_a_follower_attached(make_broker: Make) -> None:
    with make_broker(arguments=["--grace", "10s"]) as broker:
        broker.command("produce", "t", "-m", "x")
        with subprocess.Popen(
            [*danube_command(), "consume", "t", "-s", "s", "--timeout", "1s", *broker.client_arguments()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=client_environment(),
        ) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"x\n"
            assert broker.stop() == 0
            assert follower.wait(120) == 3, "it says UNAVAILABLE when its patience ends"
        broker.check_log()


def test_a_second_sigint_ends_at_once_with_130(make_broker: Make) -> None:
    broker = make_broker(arguments=["--grace", "60s"])
    broker.start()
    broker.command("produce", "t", "-m", "kept")
    # Its sync helper is stopped, so that the orderly end has to wait, for longer than this test.
    helper = broker.helper_running()[0]
    os.kill(helper, signal.SIGSTOP)
    try:
        broker.signal(signal.SIGINT)
        _until(lambda: "broker_stopping" in broker.log())
        broker.signal(signal.SIGINT)
        process = broker.process
        assert process is not None
        assert process.wait(60) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGCONT)
    assert broker.wait() == 130
    broker.start()
    assert (
        broker.command("consume", "t", "--count", "1", "--for", "60s", "--format", "raw").stdout == b"kept\n"
    )


def _until(condition: Callable[[], bool], deadline_s: float = 90) -> None:
    import time

    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def test_a_memory_broker_says_so(make_broker: Make) -> None:
    with make_broker(memory=True) as broker:
        assert (broker.info["durability"], broker.info["data_dir"]) == ("memory", None)
        sent = broker.json_command("produce", "t", "-m", "x")
        assert (sent["acknowledged"], sent["durability"]) == (1, "memory")
        assert broker.command("consume", "t", "--exit", "--format", "raw").stdout == b"x\n"
        assert broker.json_command("brokers", "status")["durability"] == "memory"
        assert broker.stop() == 0


def test_port_0_takes_free_ones_and_the_ready_file_tells(tmp_path: Path) -> None:
    ready = tmp_path / "r.json"
    with subprocess.Popen(
        [
            *danube_command(), "up", "--memory", "--grpc-port", "0", "--admin-port", "0", "--metrics-port", "0",
            "--http-port", "0", "--ready-file", str(ready), "--json",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=client_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            line = json.loads(process.stdout.readline())
            assert json.loads(ready.read_text()) == line
            assert list(line) == [
                "event", "version", "format_version", "broker_id", "pid", "data_dir", "grpc", "admin", "metrics",
                "http", "durability", "recovered",
            ]  # fmt: skip
            assert web("GET", f"{line['metrics']}/readyz").status_code == 200
            listed = run_danube(
                "topics", "list", "--json", "--broker", line["grpc"], "--admin", line["admin"]
            )
            assert json.loads(listed.stdout)["items"] == []
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_port_offset_moves_all_four_ports(tmp_path: Path) -> None:
    # The default ports moved to where nothing listens; the offset is below the lowest outgoing port.
    for offset in random.sample(range(100, 9000), 20):
        ports = [base + offset for base in (6650, 9040, 8765)]
        admin = 50_051 + offset
        if all(map(_free, [*ports, admin])):
            break
    with subprocess.Popen(
        [*danube_command(), "up", "--memory", "--port-offset", str(offset), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=client_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            line = json.loads(process.stdout.readline())
            assert [line[name] for name in ("grpc", "metrics", "http", "admin")] == [
                f"http://127.0.0.1:{port}" for port in (*ports, admin)
            ]
        finally:
            process.terminate()
            assert process.wait(60) == 0


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_broker_alone_leaves_8765_closed(make_broker: Make) -> None:
    with make_broker(face="broker") as broker:
        assert broker.info["http"] is None
        assert broker.json_command("topics", "list")["items"] == []


# -- bad input -----------------------------------------------------------------------------------------------


def test_a_bad_name_is_2_invalid_name(broker: BrokerProcess) -> None:
    error = refusal(
        broker.command("produce", "bad name!", "-m", "x", "--json", check=False), 2, "INVALID_NAME"
    )
    assert "bad name!" in error["message"]


def test_a_message_too_large_is_2_and_nothing_is_stored(broker: BrokerProcess) -> None:
    broker.command("produce", "limited", "-m", "fits")
    done = broker.command(
        "produce", "limited", "--delimiter", "none", "--json", stdin=bytes(5_000_000), check=False
    )
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == "MESSAGE_TOO_LARGE"
    assert "4000000" in json.dumps(error["details"]) or "4000000" in error["message"].replace(",", "")
    assert broker.json_command("topics", "describe", "limited")["messages"] == 1


def test_a_data_dir_in_use_is_1_and_names_the_pid(broker: BrokerProcess) -> None:
    error = refusal(
        run_danube(
            "up", "--data-dir", str(broker.data_dir), "--json", "--grpc-port", "0", "--admin-port", "0",
            "--metrics-port", "0", "--http-port", "0",
        ),
        1,
        "DATA_DIR_LOCKED",
    )  # fmt: skip
    assert str(broker.pid) in error["message"]
    assert broker.command("topics", "list", check=True)


@pytest.mark.parametrize("flag", ["--grpc-port", "--admin-port", "--metrics-port", "--http-port"])
def test_a_port_in_use_is_1_and_names_port_and_flag(broker: BrokerProcess, tmp_path: Path, flag: str) -> None:
    taken = broker.info[{"--grpc-port": "grpc", "--admin-port": "admin"}.get(flag, flag[2:-5])].rpartition(
        ":"
    )[2]
    ports = dict.fromkeys(("--grpc-port", "--admin-port", "--metrics-port", "--http-port"), "0")
    ports[flag] = taken
    words = [word for pair in ports.items() for word in pair]
    error = refusal(
        run_danube("up", "--data-dir", str(tmp_path / "other"), "--json", *words), 1, "PORT_IN_USE"
    )
    assert taken in error["message"]
    assert flag in error["message"]
    assert "--port-offset" in error["message"]


def test_a_public_address_is_1_insecure_bind_unless_asked_for(make_broker: Make, tmp_path: Path) -> None:
    error = refusal(
        run_danube("up", "--data-dir", str(tmp_path / "d"), "--host", "0.0.0.0", "--json"), 1, "INSECURE_BIND"
    )
    assert "--insecure-bind" in error["message"]
    assert not (tmp_path / "d").exists()
    with make_broker(arguments=["--host", "0.0.0.0", "--insecure-bind"]) as broker:
        assert " warning insecure_bind " in broker.log()


def test_consume_of_a_missing_topic_is_1_and_says_what_next(broker: BrokerProcess) -> None:
    error = refusal(
        broker.command("consume", "nowhere", "--exit", "--json", check=False), 1, "TOPIC_NOT_FOUND"
    )
    assert error["next"][0]["operation"] == "topics.create"
    assert "danube topics create" in error["next"][0]["command"]
    plain = broker.command("consume", "nowhere", "--exit", check=False)
    assert plain.returncode == 1
    assert b"topics create" in plain.stderr


def test_an_unreachable_broker_is_exit_3_unavailable_within_the_timeout() -> None:
    done = run_danube(
        "topics", "list", "--broker", "http://127.0.0.1:1", "--admin", "http://127.0.0.1:1", "--timeout", "1s",
        "--json",
    )  # fmt: skip
    error = refusal(done, 3, "UNAVAILABLE")
    assert error["retryable"] is True
    for command in (["consume", "t", "--exit"], ["produce", "t", "-m", "x"]):
        done = run_danube(*command, "--broker", "http://127.0.0.1:1", "--timeout", "1s", "--json")
        assert done.returncode == 3, done.stderr
        assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "UNAVAILABLE"


def test_a_typo_in_the_configuration_is_2_with_a_suggestion_and_the_line(tmp_path: Path) -> None:
    config = tmp_path / "typo.toml"
    config.write_text("[server]\nhost = '127.0.0.1'\n\n[journal]\nsegment_byte = '1MiB'\n")
    error = refusal(run_danube("config", "check", "--config", str(config), "--json"), 2, "INVALID_ARGUMENT")
    assert "segment_bytes" in error["message"]
    assert "5" in error["message"], "the line"
    broken = tmp_path / "broken.toml"
    broken.write_text("[server\n")
    refusal(run_danube("config", "check", "--config", str(broken), "--json"), 2, "INVALID_ARGUMENT")
    refusal(run_danube("up", "--config", str(config), "--json"), 2, "INVALID_ARGUMENT")
    good = tmp_path / "good.toml"
    good.write_text("[server]\nhost = '127.0.0.1'\n")
    assert run_danube("config", "check", "--config", str(good)).returncode == 0


def test_a_count_not_reached_in_time_is_6(broker: BrokerProcess) -> None:
    broker.command("produce", "few", "-m", "one")
    done = broker.command("consume", "few", "--count", "2", "--for", "1s", "--format", "raw", check=False)
    assert (done.returncode, done.stdout) == (6, b"one\n")
    done = broker.command("consume", "few", "-s", "s", "--count", "2", "--for", "1s", "--json", check=False)
    assert done.returncode == 6
    assert json.loads(done.stderr.splitlines()[-1])["error"]["details"]["received"] == 1


def test_from_is_refused_for_a_subscription_that_exists(broker: BrokerProcess) -> None:
    broker.command("produce", "moved", "-m", "x", "--count", "3")
    broker.command("consume", "moved", "-s", "s", "--count", "1", "--for", "60s")
    done = broker.command(
        "consume", "moved", "-s", "s", "--from", "earliest", "--exit", "--json", check=False
    )
    error = refusal(done, 2, "INVALID_ARGUMENT")
    assert error["next"][0]["operation"] == "subscriptions.seek"


def test_wrong_words_are_2_and_never_a_stack_trace(broker: BrokerProcess) -> None:
    for words in (
        ["consume", "t", "--from", "yesterday"],
        ["consume", "t", "--for", "soon"],
        ["produce", "t", "--count", "-1", "-m", "x"],
        ["produce", "t", "-m", "x", "-f", "/etc/hosts"],
        ["topics", "list", "--limit", "0"],
        ["topics", "list", "--page", "nonsense"],
        ["topics", "create", "t9", "--partitions", "-3"],
        ["topics", "create", "t9", "--dispatch-strategy", "sometimes"],
    ):
        done = broker.command(*words, "--json", check=False)
        assert done.returncode == 2, (words, done)
        assert b"Traceback" not in done.stderr, words
    refusal(run_danube("produce", "t", "-m", "x", "--broker", "no url", "--json"), 2, "INVALID_ARGUMENT")


def test_a_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "journal").mkdir(parents=True)
    (data / "format.json").write_text('{"format_version": 99}\n')
    (data / "journal" / "x").write_bytes(b"from the future")
    before = _tree(data)
    error = refusal(run_danube("up", "--data-dir", str(data), "--json", *_ANY_PORTS), 1, "FORMAT_TOO_NEW")
    assert "99" in error["message"]
    assert _tree(data) == before


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    before = _tree(tmp_path)
    refusal(run_danube("up", "--data-dir", str(tmp_path), "--json", *_ANY_PORTS), 1, "DATA_DIR_FOREIGN")
    assert _tree(tmp_path) == before


_ANY_PORTS = ("--grpc-port", "0", "--admin-port", "0", "--metrics-port", "0", "--http-port", "0")


def _tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def test_a_broker_that_dies_at_its_start_leaves_no_process(make_broker: Make) -> None:
    port = free_ports(1)[0]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        broker = make_broker()
        broker.ports = (port, *free_ports(3))
        broker.lives = 1  # so that it does not look for other ports
        with pytest.raises(BrokerDied) as died:
            broker.start()
        assert died.value.exit_code == 1
    assert broker.helpers() == []


def test_a_closed_pipe_ends_a_command_quietly(broker: BrokerProcess) -> None:
    broker.command("produce", "piped", "-m", "x" * 1000, "--count", "5000")
    with subprocess.Popen(
        [*danube_command(), "consume", "piped", *broker.client_arguments()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=client_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_nothing_of_this_left_a_trace_in_the_broker_s_log(broker: BrokerProcess) -> None:
    broker.check_log()
    assert sys.platform  # the broker of this module served all tests above
