"""What a table of messages or alerts shows: the payload and whom it is about, not only numbers around them."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.answers import row_of
from pydanube_cli.command import Common
from pydanube_cli.operations import COLUMNS, _call, show
from pydanube_cli.render import print_pairs, print_table

MESSAGE = {
    "topic": "/default/t",
    "offset": 3,
    "payload_bytes": 5,
    "untrusted": {"text": "hello", "key": "k", "attributes": {}, "producer": "p"},
}


def test_a_message_shows_its_key_and_payload(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([row_of(MESSAGE)], COLUMNS["messages.peek"])
    head, line = capsys.readouterr().out.splitlines()
    assert {"offset", "key", "payload"} <= set(head.split())
    assert {"3", "k", "hello"} <= set(line.split())


def test_a_long_or_binary_payload_is_cut_and_said_to_be_so() -> None:
    assert row_of(MESSAGE | {"untrusted": {"text": "x" * 500}})["payload"] == "x" * 60 + "…"
    assert row_of(MESSAGE | {"untrusted": {"base64": "AAAA"}})["payload"] == "base64 AAAA"


def test_what_others_wrote_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([row_of(MESSAGE | {"untrusted": {"text": "a\x1b[2J\nb\rc"}})], COLUMNS["messages.peek"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out
    assert len(out.splitlines()) == 2


def test_an_alert_says_whom_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    alert = {
        "alert_id": "f",
        "rule": "no_consumers",
        "subject": {"topic": "/default/t", "subscription": "s"},
        "severity": "warning",
        "opened_at": "x",
        "closed_at": None,
    }
    print_table([row_of(alert)], COLUMNS["alerts.list"])
    assert "/default/t s" in capsys.readouterr().out


def show_common() -> Common:
    return Common(as_json=False, timeout_s=1.0, timeout_given=False, broker=None, admin=None, principal=None)


def test_only_what_is_there_of_others_has_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = {"face": "mcp", "by": "ann", "untrusted": {"reason": "it loops"}}
    show(OPERATIONS["faces.list"], {"items": [frozen]}, show_common())
    assert capsys.readouterr().out.split() == ["face", "by", "reason", "mcp", "ann", "it", "loops"]


def test_lines_of_a_log_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"2026-01-31T12:00:00.000Z info {'x' * 100}\x1b[2J"
    item = {
        "time": "2026-01-31T12:00:00.000Z",
        "level": "info",
        "worker": "w1",
        "untrusted": {"text": line},
    }
    show(OPERATIONS["connectors.logs"], {"items": [item]}, show_common())
    out = capsys.readouterr().out
    assert f"w1  {line.removesuffix(chr(27) + '[2J')}" in out
    assert "\x1b" not in out


def test_a_text_of_several_lines_is_shown_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs({"connector": "crm", "definition": 'name = "crm"\ntopic = "t"\x1b[2J\n', "kind": "sink"})
    out = capsys.readouterr().out
    assert '  name = "crm"\n  topic = "t"' in out
    assert "\x1b" not in out


def test_the_end_that_was_waited_for_keeps_the_ids_of_its_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, Any] = {
        "call_id": "c1",
        "plan_id": "p1",
        "undo_until": None,
        "topic": "/default/t",
        "moves": [],
        "task_id": "t1",
    }
    ended = begun | {"plan_id": "", "task_id": None, "moves": [{"topic": "/default/t", "to": "7"}]}
    answers = {
        "topics.move": begun,
        "tasks.get": {"state": "done", "error": None, "result": ended, "work": []},
    }
    monkeypatch.setattr(Common, "call", lambda self, operation, *_, **__: answers[operation])
    _call(operation=OPERATIONS["topics.move"], common=show_common(), arg_topic="t", option_wait=True)
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert (shown["plan_id"].strip(), shown["task_id"].strip()) == ("p1", "t1")


def test_dead_letters_show_why() -> None:
    row = row_of(MESSAGE | {"untrusted": {"text": "x", "reason": "unreadable"}})
    assert row["reason"] == "unreadable"
    assert "reason" in COLUMNS["dead_letters.list"]


@pytest.mark.parametrize("items", [[], [{"topic": "/default/t"}]])
def test_a_list_says_whose_part_is_not_in_it(
    items: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    common = Common(
        as_json=False, timeout_s=1.0, timeout_given=False, broker=None, admin=None, principal=None
    )
    silent = {
        "broker_id": "7",
        "why": "it is not registered, and 7 topics wait for it\x1b[2J",
        "gone_since": "2026-01-31T12:00:00.000Z",
        "topics": [f"/default/{name}" for name in "abcdefg"],
        "topic_count": 9,
    }
    show(OPERATIONS["topics.list"], {"items": items, "not_seen": [silent]}, common)
    said = capsys.readouterr().err
    assert "the items of broker 7 are missing: it is not registered, and 7 topics wait for it" in said
    assert "since 2026-01-31T12:00:00.000Z: /default/a, " in said
    assert "/default/e and 4 more" in said
    assert "\x1b" not in said


def test_an_empty_list_says_why_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    common = Common(
        as_json=False, timeout_s=1.0, timeout_given=False, broker=None, admin=None, principal=None
    )
    show(OPERATIONS["messages.peek"], {"items": [], "items_reason": "nothing is behind offset 5"}, common)
    assert capsys.readouterr().err == "no messages found: nothing is behind offset 5\n"
