"""`produce` and `consume` on a real broker: bytes come back, acks follow the output, endings are what they say."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Danube, command_line
from tests.support.broker_process import BrokerProcess, client_environment


def lag(live: Danube, topic: str) -> int:
    [item] = live("subscriptions", "lag", "--topic", topic, "--json").result["items"]
    return int(item["lag_messages"])


def numbered(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def begin(broker: BrokerProcess, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command_line(*words, *broker.client_arguments()), env=client_environment(), **more
    )


def test_file_comes_back_byte_for_byte(live: Danube, tmp_path: Path) -> None:
    source = random.Random(7)
    parts = [b"plain", b"", b"\r", b"\xff\x00\x80", b"x" * 70_000, "grüße".encode()]
    data = b"".join(source.choice(parts) + b"\n" for _ in range(500))
    file = tmp_path / "f"
    file.write_bytes(data)
    summary = live("produce", "bytes", "-f", str(file), "--json").result
    assert summary["sent"] == summary["acknowledged"] == 500
    assert summary["failed"] == 0
    assert summary["durability"] == "fsynced"
    assert summary["ranges"] == [{"partition": None, "first_offset": 0, "last_offset": 499}]
    assert summary["bytes"] == len(data) - 500
    assert live("consume", "bytes", "--exit", "--format", "raw").raw == data


def test_stdin_last_line_without_end_and_whole_input(live: Danube) -> None:
    live("produce", "stdin", stdin=b"one\n\nthree")
    assert live("consume", "stdin", "--exit", "--format", "raw").raw == b"one\n\nthree\n"
    live("produce", "whole", "--delimiter", "none", stdin=b"one\n\nthree")
    assert live("consume", "whole", "--exit", "--format", "raw").raw == b"one\n\nthree\n"
    assert live("topics", "list", "--filter", "*whole", "--json").result["items"][0]["messages"] == 1


def test_a_null_payload_is_sent_and_shown_as_such(live: Danube) -> None:
    live("produce", "nulls", "-m", "", "--key", "a")
    assert live("produce", "nulls", "--key", "a", "--null", "--json").result["acknowledged"] == 1
    lines = live("consume", "nulls", "--exit", "--format", "json").raw.splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["", None]
    ran = live("consume", "nulls", "--exit", "--format", "raw")
    assert ran.raw == b"\n"
    assert "1 null payloads were left out" in ran.err
    assert [
        row["untrusted"]["text"] for row in live("messages", "peek", "nulls", "--json").result["items"]
    ] == ["", None]
    for words in (("--null",), ("--null", "--key", "a", "-m", "x")):
        refused = live("produce", "nulls", *words, "--json")
        assert (refused.code, refused.error["details"]["field"]) == (2, "null")


def test_too_large_input_is_refused_and_nothing_is_stored(live: Danube) -> None:
    ran = live("produce", "large", "--delimiter", "none", "--json", stdin=bytes(5_000_000))
    assert (ran.code, ran.error["code"]) == (2, "MESSAGE_TOO_LARGE")
    assert ran.raw == b""
    assert live("consume", "large", "--exit").raw == b""


def test_part_of_the_input_that_was_stored_is_told_when_the_rest_fails(live: Danube) -> None:
    ran = live("produce", "part", "--json", stdin=b"a\nb\n" + b"x" * 4_500_000 + b"\nc\n")
    assert (ran.code, ran.error["code"]) == (2, "MESSAGE_TOO_LARGE")
    stored = ran.result["acknowledged"] if ran.raw else 0
    assert live("consume", "part", "--exit", "--format", "raw").raw == b"a\nb\n"[: 2 * stored]


def test_key_attributes_and_repetition_are_in_the_json(live: Danube) -> None:
    live("produce", "dressed", "-m", "hi", "--count", "3", "--key", "k", "-a", "a=1", "-a", "b=x=y")
    lines = [json.loads(line) for line in live("consume", "dressed", "--exit", "--json").out.splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2]
    assert all(line["key"] == "k" and line["attributes"] == {"a": "1", "b": "x=y"} for line in lines)
    assert all(line["payload"] == "hi" and line["delivery_count"] == 1 for line in lines)


def test_each_text_of_the_command_line_is_a_message(live: Danube) -> None:
    assert (
        live("produce", "texts", "-m", "a", "-m", "", "-m", "c", "--count", "2", "--json").result["sent"] == 6
    )
    assert live("consume", "texts", "--exit", "--format", "raw").raw == b"a\n\nc\n" * 2


def test_reading_from_and_until_positions(live: Danube) -> None:
    live("produce", "places", stdin=numbered(10))
    assert live("consume", "places", "--from", "offset:3", "--until", "offset:6").raw == b"3\n4\n5\n"
    assert live("consume", "places", "--exit", "--count", "2").raw == b"0\n1\n"
    assert live("consume", "places", "--exit", "--until", "offset:2").raw == b"0\n1\n"
    assert live("consume", "places", "-s", "until", "--until", "offset:2").raw == b"0\n1\n"
    assert live("consume", "places", "--from", "latest", "--exit").raw == b""
    assert lag(live, "places") == 8


def test_a_start_before_the_beginning_is_told(live: Danube) -> None:
    live("produce", "clamped", stdin=numbered(10))
    assert live("topics", "truncate", "clamped", "--before", "offset:4", "--yes").code == 0
    ran = live("consume", "clamped", "--from", "offset:1", "--exit")
    assert ran.raw == b"4\n5\n6\n7\n8\n9\n"
    assert "/default/clamped begins at offset 4" in ran.err
    said = json.loads(live("consume", "clamped", "--from", "offset:1", "--exit", "--json").err)
    assert said == {"clamped": {"topic": "/default/clamped", "partition": None, "asked": 1, "begins": 4}}
    assert live("consume", "clamped", "--from", "offset:4", "--exit").err == ""


def test_the_subject_of_a_schema_is_in_the_json(live: Danube, tmp_path: Path) -> None:
    (tmp_path / "any.json").write_text("{}")
    made = live(
        "schemas",
        "register",
        "subject-shown",
        "--schema-type",
        "json_schema",
        "--file",
        str(tmp_path / "any.json"),
    )
    assert made.code == 0, made.err
    live("produce", "shown", "-m", "{}", "--count", "2", "--schema-subject", "subject-shown")
    lines = [json.loads(line) for line in live("consume", "shown", "--exit", "--json").out.splitlines()]
    assert [(line["schema_subject"], line["schema_version"]) for line in lines] == [("subject-shown", 1)] * 2


def test_rate_is_kept(live: Danube) -> None:
    assert live("produce", "slow", "--rate", "100", "--json", stdin=numbered(20)).result["elapsed_s"] >= 0.15


def test_partitioned_topic_is_read_whole(live: Danube) -> None:
    data = [b"%d" % n for n in range(3000)]
    live("produce", "parts", "--partitions", "3", stdin=b"\n".join(data))
    got = live("consume", "parts", "--exit", "--format", "raw").raw.splitlines()
    assert sorted(got) == sorted(data)
    got = live("consume", "parts", "-s", "s", "--exit", "--format", "raw").raw.splitlines()
    assert sorted(got) == sorted(data)


def test_subscription_remembers_exactly_what_was_written(live: Danube) -> None:
    live("produce", "cursor", stdin=numbered(100))
    assert live("consume", "cursor", "-s", "s", "--count", "10", "--for", "60s").raw == numbered(10)
    assert lag(live, "cursor") == 90
    assert live("consume", "cursor", "-s", "s", "--count", "5", "--ack", "none").raw == numbered(15)[20:]
    rest = live("consume", "cursor", "-s", "s", "--exit").raw
    assert rest == numbered(100)[20:]
    assert lag(live, "cursor") == 0
    assert live("consume", "cursor", "-s", "s", "--exit").raw == b""


def test_start_of_an_existing_subscription_is_refused_and_names_seek(live: Danube) -> None:
    live("produce", "again", "-m", "x")
    assert live("consume", "again", "-s", "s", "--from", "latest", "--exit").raw == b""
    ran = live("consume", "again", "-s", "s", "--from", "earliest", "--exit", "--json")
    assert ran.code == 2
    assert ran.error["next"][0]["operation"] == "subscriptions.seek"


def test_count_that_does_not_come_in_time_is_6(live: Danube) -> None:
    live("produce", "few", "-m", "x")
    ran = live("consume", "few", "--count", "2", "--for", "500ms", "--json")
    assert ran.code == 6
    assert ran.error["details"] == {"received": 1, "wanted": 2}
    assert len(ran.raw.splitlines()) == 1


def test_missing_topic_is_not_created_by_reading(live: Danube) -> None:
    for words in (["consume", "nowhere", "--exit"], ["consume", "nowhere", "-s", "s"]):
        ran = live(*words, "--json")
        assert (ran.code, ran.error["code"]) == (1, "TOPIC_NOT_FOUND")
        assert ran.error["next"][0]["operation"] == "topics.create"
    assert live("topics", "list", "--filter", "*nowhere", "--json").result["items"] == []


def test_reader_of_a_pipe_that_leaves_ends_it_quietly_and_unwritten_is_not_acked(
    live: Danube, broker: BrokerProcess
) -> None:
    live("produce", "pipe", stdin=b"".join(b"%06d %s\n" % (n, b"x" * 90) for n in range(50_000)))
    process = begin(broker, "consume", "pipe", "-s", "s", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    read = process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (0, b"")
    assert read.startswith(b"000000 ")
    behind = lag(live, "pipe")
    assert behind > 0
    rest = live("consume", "pipe", "-s", "s", "--exit", "--format", "raw").raw.splitlines()
    assert len(rest) == behind
    assert rest[-1].startswith(b"049999 ")


def wait_for(live: Danube, topic: str, count: int) -> bytes:
    """Read until `count` messages are there; the topic may not exist yet."""
    end = time.monotonic() + 60
    while (ran := live("consume", topic, "--count", str(count), "--for", "30s")).code == 1:
        assert time.monotonic() < end
    assert ran.code == 0, ran
    return ran.raw


def test_interrupted_produce_says_what_is_stored(live: Danube, broker: BrokerProcess) -> None:
    words = ("produce", "stopped", "--json")
    process = begin(broker, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(numbered(1000))
    process.stdin.flush()  # and it stays open: without the signal it would wait for more
    assert wait_for(live, "stopped", 1000) == numbered(1000)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    summary = json.loads(out)
    assert summary["interrupted"] is True
    assert summary["lines_acknowledged"] == summary["acknowledged"] == 1000
    assert summary["ranges"] == [{"partition": None, "first_offset": 0, "last_offset": 999}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_consume_is_130_and_keeps_its_acks(
    live: Danube, broker: BrokerProcess, number: signal.Signals
) -> None:
    topic = f"interrupted-{number.name}"
    live("produce", topic, stdin=b"a\nb\nc\n")
    process = begin(broker, "consume", topic, "-s", "s", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")
    assert lag(live, topic) == 0


def test_a_background_job_that_ignores_interrupts_ends_when_it_is_asked_to(
    live: Danube, broker: BrokerProcess
) -> None:
    """`danube consume … & kill $!` in a script: the shell starts such a job with SIGINT ignored."""
    live("produce", "background", stdin=b"a\n")
    words = ("consume", "background", "-s", "s")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is ignored stays so in the new process
    try:
        process = begin(broker, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")
    assert lag(live, "background") == 0


def test_typed_lines_are_sent_as_they_are_entered(live: Danube, broker: BrokerProcess) -> None:
    ours, theirs = pty.openpty()
    process = begin(broker, "produce", "typed", stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(theirs)
    os.write(ours, b"first\n")
    assert wait_for(live, "typed", 1) == b"first\n"  # although the input is still open
    os.write(ours, b"\x04")  # Ctrl-D
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert b"1 message acknowledged in /default/typed (fsynced), offset 0" in out
