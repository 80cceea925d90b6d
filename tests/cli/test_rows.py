"""What a table of messages or alerts shows: the payload and whom it is about, not only numbers around them."""

from __future__ import annotations

import pytest
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.answers import row_of
from pydanube_cli.command import Common
from pydanube_cli.operations import COLUMNS, show
from pydanube_cli.render import print_table

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
    assert "not listed is what broker 7 has: it is not registered, and 7 topics wait for it" in said
    assert "since 2026-01-31T12:00:00.000Z: /default/a, " in said
    assert "/default/e and 4 more" in said
    assert "\x1b" not in said


def test_an_empty_list_says_why_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    common = Common(
        as_json=False, timeout_s=1.0, timeout_given=False, broker=None, admin=None, principal=None
    )
    show(OPERATIONS["messages.peek"], {"items": [], "items_reason": "nothing is behind offset 5"}, common)
    assert capsys.readouterr().err == "no messages found: nothing is behind offset 5\n"
