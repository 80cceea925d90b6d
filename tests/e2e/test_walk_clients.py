"""docs/interface.md#13-a-walk, official clients and schemas, typed as there: good input, then bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, refusal
from tests.support.official_client import official_client_environment

OBJECT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["id"],
}
OTHER_TYPE = {**OBJECT, "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}}

#: docs/research/client-matrix.md#61-python: what an application does with the client, nothing of ours imported
SMOKE = """
import asyncio, sys
from danube import DanubeClientBuilder, DispatchStrategy, SubType

async def main(url, topic, n=5):
    client = await DanubeClientBuilder().service_url(url).build()
    prod = (client.new_producer().with_topic(topic).with_name("smoke-p")
            .with_dispatch_strategy(DispatchStrategy.RELIABLE).build())
    await prod.create()
    cons = (client.new_consumer().with_topic(topic).with_consumer_name("smoke-c")
            .with_subscription("smoke-s").with_subscription_type(SubType.EXCLUSIVE).build())
    await cons.subscribe()
    inbox = await cons.receive()
    for i in range(n):
        await prod.send(f"m{i}".encode(), {"i": str(i)})
    for i in range(n):
        msg = await asyncio.wait_for(inbox.get(), 60)
        assert msg.payload == f"m{i}".encode(), msg
        await cons.ack(msg)
    await cons.close()
    await prod.close()
    print("ok", n)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    return written(tmp_path / "orders.json", OBJECT)


@pytest.fixture
def incompatible(tmp_path: Path) -> Path:
    return written(tmp_path / "incompatible.json", OTHER_TYPE)


def written(path: Path, schema: Any) -> Path:
    path.write_text(json.dumps(schema))
    return path


def register(broker: BrokerProcess, subject: str, file: Path, schema_type: str = "json_schema") -> Any:
    return broker.json_command(
        "schemas", "register", subject, "--schema-type", schema_type, "--file", str(file)
    )


def test_the_official_python_client_sends_and_receives(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, broker.url, "/default/smoke"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=official_client_environment(),
    )
    assert (done.returncode, done.stdout) == (0, "ok 5\n"), done.stderr
    # our own faces see the same messages
    assert broker.command("consume", "smoke", "--exit", "--format", "raw").stdout == b"m0\nm1\nm2\nm3\nm4\n"
    (lag,) = broker.json_command("subscriptions", "lag", "--topic", "smoke")["items"]
    assert (lag["subscription"], lag["lag_messages"]) == ("smoke-s", 0)


def test_a_schema_is_registered_once_and_the_same_again_is_its_version(
    broker: BrokerProcess, orders: Path
) -> None:
    made = register(broker, "orders-value", orders)
    assert (made["version"], made["is_new_version"]) == (1, True)
    assert re.fullmatch("[1-9][0-9]*", made["schema_id"])
    again = register(broker, "orders-value", orders)
    of_the_call = {"call_id": None, "plan_id": None, "undo_until": None, "undo_until_reason": None}
    assert {**again, **of_the_call} == {**made, "is_new_version": False, **of_the_call}
    shown = broker.json_command("schemas", "get", "orders-value")
    assert json.loads(shown["untrusted"]["schema_definition"]) == OBJECT
    assert broker.json_command("schemas", "get-by-id", made["schema_id"])["subject"] == "orders-value"
    assert [item["subject"] for item in broker.json_command("schemas", "list-subjects")["items"]] == [
        "orders-value"
    ]


def test_an_incompatible_schema_is_6_with_every_difference_and_is_not_registered(
    broker: BrokerProcess, orders: Path, incompatible: Path
) -> None:
    register(broker, "checked", orders)
    words = ["checked", "--schema-type", "json_schema", "--file", str(incompatible), "--json"]
    done = broker.command("schemas", "check", *words, check=False)
    verdict = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (6, b"")
    assert verdict["is_compatible"] is False
    assert verdict["differences"] == [
        {"path": "/properties/id/type", "rule": "type_narrowed", "before": "string", "after": "integer"}
    ]
    error = refusal(broker.command("schemas", "register", *words, check=False), 1, "SCHEMA_INCOMPATIBLE")
    assert error["details"]["differences"] == verdict["differences"]
    assert "compatibility mode" in error["message"], "what to do"
    assert len(broker.json_command("schemas", "versions", "checked")["items"]) == 1
    # the mode lets it in
    broker.command("schemas", "set-compatibility", "checked", "--mode", "none")
    assert broker.command("schemas", "check", *words).returncode == 0
    assert register(broker, "checked", incompatible)["version"] == 2


def test_a_subject_s_schema_holds_a_topic_s_messages(broker: BrokerProcess, orders: Path) -> None:
    register(broker, "held", orders)
    broker.command("topics", "create", "held", "--schema-subject", "held")
    broker.command(
        "topics", "configure-schema", "held", "held", "--validation-policy", "enforce",
        "--enable-payload-validation",
    )  # fmt: skip
    broker.command("produce", "held", "-m", '{"id": "a"}', "--schema-subject", "held")
    for words, code in (
        (["-m", '{"id": 7}', "--schema-subject", "held"], "PAYLOAD_INVALID"),
        (["-m", '{"id": "a"}'], "SCHEMA_MISMATCH"),
    ):
        done = broker.command("produce", "held", *words, "--json", check=False)
        assert done.returncode != 0
        assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == code
    assert broker.json_command("topics", "describe", "held")["messages"] == 1
    text = metrics(broker)
    assert 'danube_schema_validation_total{policy="enforce",topic="/default/held"} 3.0' in text
    for reason in ("missing_schema_id", "payload_invalid"):
        assert (
            f'danube_schema_validation_failures_total{{reason="{reason}",topic="/default/held"}} 1.0' in text
        )


def metrics(broker: BrokerProcess) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{broker.metrics}/metrics", timeout=60) as response:
        found: str = response.read().decode()
        return found


def test_deleting_a_version_needs_a_yes(broker: BrokerProcess, orders: Path) -> None:
    register(broker, "deleted", orders)
    error = refusal(
        broker.command("schemas", "delete-version", "deleted", "1", "--json", check=False), 4, "PLAN_REQUIRED"
    )
    assert error["details"]["plan"]["diff"][0]["path"] == "schemas/deleted/versions/1"
    assert broker.command("schemas", "get", "deleted").returncode == 0, "nothing was changed"
    broker.command("schemas", "delete-version", "deleted", "1", "--yes")
    refusal(broker.command("schemas", "get", "deleted", "--json", check=False), 1, "SCHEMA_NOT_FOUND")


# -- bad input -----------------------------------------------------------------------------------------------

NESTED = '{"properties":{"a":' * 9000 + "{}" + "}}" * 9000


@pytest.mark.parametrize(
    ("kind", "text", "needle"),
    [
        ("json_schema", '{"type": "objec', "line 1"),
        ("json_schema", '{"type": "objekt"}', "/type"),
        ("json_schema", "5", "true or false"),
        ("json_schema", '{"$ref": "file:///etc/passwd"}', "$defs"),
        ("json_schema", NESTED, "nested too deeply"),
        ("avro", "", "line 1"),
        ("avro", '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "intt"}]}', "intt"),
        ("protobuf", 'syntax = "proto3";\nmessage M { int32 x = 1 \n', "line 3"),
        ("protobuf", 'syntax = "proto3";\nimport "/etc/passwd";', "/etc/passwd"),
    ],
    ids=["json", "type", "number", "file", "deep", "empty avro", "avro type", "proto", "import"],
)
def test_a_schema_that_is_none_is_2_and_says_where(
    broker: BrokerProcess, tmp_path: Path, kind: str, text: str, needle: str
) -> None:
    file = tmp_path / "schema"
    file.write_text(text)
    done = broker.command(
        "schemas", "register", "none", "--schema-type", kind, "--file", str(file), "--json", check=False
    )
    error = refusal(done, 2, "SCHEMA_INVALID")
    assert needle in error["message"]
    assert error["details"]["field"] == "schema_definition"


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "needle"),
    [
        (["register", "s", "--schema-type", "xml", "--file", "F"], 2, "INVALID_ARGUMENT", "json_schema"),
        (["register", "s", "--file", "F"], 2, "INVALID_ARGUMENT", "--schema-type"),
        (["register", "s", "--schema-type", "avro"], 2, "INVALID_ARGUMENT", "--file"),
        (["register", "s", "--schema-type", "avro", "--file", "F-gone"], 2, "INVALID_ARGUMENT", "F-gone"),
        (["register", "", "--schema-type", "json_schema", "--file", "F"], 2, "INVALID_ARGUMENT", "subject"),
        (["check", "nosuch", "--schema-type", "avro", "--file", "F"], 1, "SCHEMA_NOT_FOUND", "Register"),
        (["get", "nosuch"], 1, "SCHEMA_NOT_FOUND", "nosuch"),
        (["get-by-id", "77"], 1, "SCHEMA_NOT_FOUND", "77"),
        (["get-by-id", "abc"], 2, "INVALID_ARGUMENT", "[0-9]"),
        (["set-compatibility", "s", "--mode", "sideways"], 2, "INVALID_ARGUMENT", "backward"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_wrong_words_are_refused_with_what_would_be_right(
    broker: BrokerProcess, orders: Path, words: list[str], exit_code: int, code: str, needle: str
) -> None:
    done = broker.command(
        "schemas", *(word.replace("F", str(orders)) if word.startswith("F") else word for word in words),
        "--json", check=False,
    )  # fmt: skip
    error = refusal(done, exit_code, code)
    if needle == "F-gone":
        needle = f"{orders}-gone"
    assert needle in error["message"]


def test_a_producer_of_an_unknown_subject_leaves_no_topic_behind(broker: BrokerProcess) -> None:
    done = broker.command("produce", "unborn", "-m", "x", "--schema-subject", "nosuch", "--json", check=False)
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "SCHEMA_NOT_FOUND"
    refusal(
        broker.command("topics", "describe", "unborn", "--json", check=False),
        1,
        "TOPIC_NOT_FOUND",
    )


def test_nothing_of_this_left_a_trace_in_the_broker_s_log(broker: BrokerProcess) -> None:
    broker.check_log()
