"""`danube GROUP VERB` against the real admin core: arguments, rendering, and consent before destroying."""

from __future__ import annotations

import re
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import pytest
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.answers import describe
from pydanube_cli.operations import command_of

from tests.cli.running import Danube


def test_list_is_the_raw_result_with_json_and_a_table_without(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "list", "--admin", admin_url, "--json")
    assert ran.code == 0
    assert ran.result["items"][0]["topic"] == "/default/orders"
    assert ran.result["items"][0]["messages"] == 500
    table = danube("topics", "list", "--admin", admin_url)
    assert "/default/orders" in table.out
    assert "8.0 KiB" in table.out


def test_words_of_the_original_work(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "subscriptions", "orders", "--output", "json", "--admin", admin_url)
    assert [item["subscription"] for item in ran.result["items"]] == ["billing"]
    ran = danube("namespaces", "topics", "default", "--json", "--admin", admin_url)
    assert [item["topic"] for item in ran.result["items"]] == ["/default/orders"]
    ran = danube("admin", "topics", "list", "--json", "--admin", admin_url)
    assert ran.result["total"] == 1


def test_admin_address_comes_from_the_environment_too(
    danube: Danube, admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_ADMIN_ENDPOINT", admin_url)
    assert danube("subscriptions", "lag", "--json").result["items"][0]["lag_messages"] == 40


def test_create_passes_flags_by_the_arguments_name(danube: Danube, admin_url: str) -> None:
    ran = danube(
        "topics",
        "create",
        "clicks",
        "--partitions",
        "3",
        "--dispatch-strategy",
        "reliable",
        "--json",
        "--admin",
        admin_url,
    )
    assert ran.code == 0
    assert (ran.result["topic"], ran.result["partitions"]) == ("/default/clicks", 3)
    again = danube("topics", "create", "clicks", "--json", "--admin", admin_url)
    assert (again.code, again.error["code"]) == (1, "ALREADY_EXISTS")


def test_dry_run_of_a_create_changes_nothing(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "create", "clicks", "--dry-run", "--json", "--admin", admin_url)
    assert ran.code == 0
    assert ran.result["operation"] == "topics.create"
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == 1


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (("topics", "delete", "orders"), r"1 topic, 1 subscription, 500 messages, [\d.]+ KiB"),
        (
            ("topics", "truncate", "orders", "--before", "offset:20"),
            r"20 messages, [\d.]+ (B|KiB) now, of 1 topic, 1 subscription",
        ),
        (("subscriptions", "purge", "orders", "billing"), r"40 messages now, of 1 subscription"),
    ],
    ids=["delete", "truncate", "purge"],
)
def test_a_refused_plan_names_only_lost_things_as_destroyed(
    danube: Danube, admin_url: str, words: tuple[str, ...], lost: str
) -> None:
    error = danube(*words, "--json", "--admin", admin_url).error
    assert re.search(f"destroys: {lost}\\.", error["message"]), error["message"]
    plan = error["details"]["plan"]
    with redirect_stderr(StringIO()) as shown:
        describe(OPERATIONS[plan["operation"]], plan["arguments"], plan)
    assert re.search(f"would destroy: {lost}\n", shown.getvalue()), shown.getvalue()


def test_delete_without_consent_is_refused_and_shows_the_plan(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "delete", "orders", "--json", "--admin", admin_url)
    assert (ran.code, ran.error["code"]) == (4, "PLAN_REQUIRED")
    radius = ran.error["details"]["plan"]["blast_radius"]
    assert (radius["topics"], radius["subscriptions"], radius["messages"]) == (1, 1, 500)
    assert "--plan-token" in ran.error["next"][0]["command"]
    for step in ran.error["next"]:
        assert f" --admin {admin_url}" in step["command"], "without it the command goes to another broker"
    assert ran.error["next"][-1]["command"] == f"danube topics delete orders --admin {admin_url} --yes"
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == 1


def test_delete_without_a_terminal_names_the_command_to_type(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "delete", "orders", "--admin", admin_url)
    assert ran.code == 4
    line = f"danube topics delete orders --admin {admin_url} --yes"
    assert "would destroy: " in ran.err
    assert f"Nothing was changed. To do it, type: {line}\n" in ran.err
    for word in ("details", "in next"):
        assert word not in ran.err, "there is no JSON on this screen"


def test_commands_that_are_proposed_name_the_broker_as_it_was_named(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "describe", "ordres", "--json", "--broker", admin_url, "--admin", admin_url)
    assert ran.error["next"]
    for step in ran.error["next"]:
        assert step["command"].endswith(f" --broker {admin_url} --admin {admin_url}"), step
    found = danube("diagnose", "cluster", "--json", "--admin", admin_url).result
    for finding in found["findings"]:
        assert all(step["command"].endswith(f" --admin {admin_url}") for step in finding["next"])
    plan = danube("topics", "delete", "orders", "--dry-run", "--admin", admin_url).out
    assert f"danube topics delete orders --admin {admin_url} --plan-token" in plan


def test_delete_without_a_terminal_is_refused_without_json_too(danube: Danube, admin_url: str) -> None:
    ran = danube("topics", "delete", "orders", "--admin", admin_url)
    assert ran.code == 4
    assert "1 topic, 1 subscription, 500 messages" in ran.err
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == 1


def test_delete_with_yes_is_done(danube: Danube, admin_url: str) -> None:
    assert danube("topics", "delete", "orders", "--yes", "--admin", admin_url).code == 0
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == 0


def test_yes_does_not_go_with_dry_run(danube: Danube, admin_url: str) -> None:
    assert danube("topics", "delete", "orders", "--yes", "--dry-run", "--admin", admin_url).code == 2
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == 1


@pytest.mark.parametrize(
    ("typed", "code", "left"), [("yes\n", 0, 0), ("no\n", 1, 1), ("\n", 1, 1), ("", 1, 1)]
)
def test_delete_on_a_terminal_asks(
    danube: Danube, admin_url: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, left: int
) -> None:
    monkeypatch.setattr("pydanube_cli.operations._on_a_terminal", lambda: True)
    ran = danube("topics", "delete", "orders", "--admin", admin_url, stdin=typed.encode())
    assert ran.code == code
    assert "500 messages" in ran.err
    assert danube("topics", "list", "--json", "--admin", admin_url).result["total"] == left


def test_arguments_that_were_not_given_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def call(_url: str, name: str, arguments: dict[str, Any], **_more: Any) -> dict[str, Any]:
        seen.append(arguments)
        return {"items": [], "next_page": None, "total": 0, "as_of": ""}

    monkeypatch.setattr("pydanube_admin.remote.call_sync", call)
    command_of(OPERATIONS["topics.list"]).main("topics list", [])
    command_of(OPERATIONS["topics.list"]).main("topics list", ["--limit", "7", "--broker-id", "12"])
    assert seen == [{}, {"limit": 7, "broker": "12"}]


def test_principal_and_timeout_reach_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def call(url: str, _name: str, _arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        seen.append({"url": url, **more})
        return {"items": [], "next_page": None, "total": 0, "as_of": ""}

    monkeypatch.setenv("DANUBE_PRINCIPAL", "ada")
    monkeypatch.setattr("pydanube_admin.remote.call_sync", call)
    command = command_of(OPERATIONS["topics.list"])
    command.main("topics list", ["--timeout", "2500ms", "--admin", "http://h:1"])
    command.main("topics list", ["--as", "grace"])
    assert seen[0].pop("program").name == "danube"
    assert seen[0] == {"url": "http://h:1", "timeout_s": 2.5, "face": "cli", "principal": "ada"}
    assert seen[1]["principal"] == "grace"


def test_names_with_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_args: Any, **_more: Any) -> dict[str, Any]:
        item = {"topic": "/default/x", "subscription": "a\x1b]0;title\x07b", "type": "exclusive"}
        return {"items": [item], "next_page": None, "total": 1, "as_of": ""}

    import contextlib
    import io

    out = io.StringIO()
    monkeypatch.setattr("pydanube_admin.remote.call_sync", call)
    with contextlib.redirect_stdout(out):
        command_of(OPERATIONS["subscriptions.list"]).main("subscriptions list", [])
    assert "\x1b" not in out.getvalue()
    assert "\\x1b]0;title" in out.getvalue()


def test_rpc_prints_the_result_and_exits_by_the_error(danube: Danube, admin_url: str) -> None:
    ran = danube("rpc", "subscriptions.lag", "--params", '{"topic": "orders"}', "--admin", admin_url)
    assert ran.result["items"][0]["subscription"] == "billing"
    ran = danube("rpc", "topics.describe", "--params", '{"topic": "none"}', "--admin", admin_url, "--json")
    assert (ran.code, ran.error["code"]) == (1, "TOPIC_NOT_FOUND")
    ran = danube("rpc", "topics.lst", "--admin", admin_url, "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT")
    for params in ("{", "[1]", "@/nonexistent"):
        assert danube("rpc", "topics.list", "--params", params).code == 2


def test_cluster_by_name(
    danube: Danube, admin_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(f'[prod]\nbroker = "http://127.0.0.1:1"\nadmin = "{admin_url}"\n')
    monkeypatch.setenv("DANUBE_CLUSTERS", str(file))
    assert danube("topics", "list", "--cluster", "prod", "--json").result["total"] == 1
    ran = danube("topics", "list", "--cluster", "prd", "--json")
    assert ran.code == 2
    assert "did you mean prod?" in ran.error["message"]
