"""What other tools open, one a line; and the line that says how far long work is."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydanube_cli.answers import ReplayAccount, all_paths, lines_of, progress_line, waiting, with_progress
from pydanube_core.errors import TopicNotFound, Unavailable


def pages(*sizes: int) -> tuple[list[dict[str, Any]], Any]:
    asked: list[dict[str, Any]] = []

    def ask(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(dict(arguments))
        number = int(arguments.get("page", 0))
        following = str(number + 1) if number + 1 < len(sizes) else None
        return {"items": [{"path": f"p{number}-{i}"} for i in range(sizes[number])], "next_page": following}

    return asked, ask


def test_every_page_is_followed_unless_one_was_asked_for() -> None:
    asked, ask = pages(2, 2, 1)
    assert all_paths(ask, {"topic": "t"}) == ["p0-0", "p0-1", "p1-0", "p1-1", "p2-0"]
    assert all(each["limit"] == 1000 for each in asked)
    _, ask = pages(2, 2, 1)
    assert all_paths(ask, {"topic": "t", "limit": 2}) == ["p0-0", "p0-1"]


def test_a_glob_is_one_line_a_folder() -> None:
    paths = ["s3://b/t-part-0/7/a.parquet", "s3://b/t-part-0/7/b.parquet", "s3://b/t-part-1/8/c.parquet"]
    assert lines_of(paths, "paths") == paths
    assert lines_of(paths, "glob") == ["s3://b/t-part-0/7/*.parquet", "s3://b/t-part-1/8/*.parquet"]
    assert lines_of([], "glob") == lines_of([], "sql") == []


def test_sql_is_one_list_of_globs_whatever_the_partitions() -> None:
    paths = ["s3://b/t-part-0/7/a.parquet", "s3://b/t-part-0/7/b.parquet", "/it's/8/c.parquet"]
    assert lines_of(paths, "sql") == ["['s3://b/t-part-0/7/*.parquet', '/it''s/8/*.parquet']"]


WORK = {"operation": "objects.verify", "topic": "/default/t", "unit": "objects", "running_s": 3.4}


def test_the_line_says_how_far_it_is() -> None:
    status = {"tier": {"work": [{**WORK, "done": 1200, "total": 3400}]}}
    assert progress_line(status, "objects.verify") == "objects verify /default/t: 1,200 of 3,400 objects, 3 s"
    assert progress_line(status, "objects.compact") == ""
    assert progress_line({"tier": {"enabled": False}}, "objects.verify") == ""
    unknown = {"tier": {"work": [{**WORK, "done": 7, "total": None}]}}
    assert progress_line(unknown, "objects.verify") == "objects verify /default/t: 7 objects, 3 s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_it_while_the_call_waits_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    answers: list[Any] = [Unavailable("not yet"), {"tier": {"work": [{**WORK, "done": 1, "total": 2}]}}]

    def status() -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        if "1 of 2" in terminal.getvalue():
            shown.set()
        return answer

    assert with_progress(lambda: shown.wait(60), lambda: progress_line(status(), "objects.verify"))
    assert terminal.getvalue().endswith("\r")
    assert "objects verify /default/t: 1 of 2 objects" in terminal.getvalue()


def test_a_terminal_sees_that_a_call_waits_for_a_broker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = waiting("topics.list")

    def seen() -> str:
        text = line()
        if terminal.getvalue():
            shown.set()
        return text

    assert with_progress(lambda: shown.wait(60), seen)
    assert "waiting for the answer to topics.list, 1 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_without_a_terminal_nobody_is_asked_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)

    def status() -> Any:
        raise AssertionError("nobody looks")

    assert with_progress(lambda: 7, status) == 7
    assert quiet.getvalue() == ""


class Copies:
    """A target topic as `messages.peek` shows it."""

    def __init__(self) -> None:
        self.heads: dict[str, int] = {}
        self.of: dict[str, str] = {}

    def __call__(self, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        assert operation == "messages.peek"
        if not self.heads:
            raise TopicNotFound("there is no topic", topic=arguments["topic"])
        if arguments["from"] == "latest":
            return {"items": [], "next_offsets": self.heads}
        assert arguments["from"] == f"offset:{self.heads[arguments['topic']] - 1}"
        return {"items": [{"untrusted": {"attributes": {"x-replayed-from": self.of[arguments["topic"]]}}}]}


def test_an_interrupted_replay_is_told_from_its_copies() -> None:
    copies = Copies()
    account = ReplayAccount(copies, "/default/again")
    assert account.copied_until() == {}
    copies.heads = {"/default/again": 8}
    copies.of = {"/default/again": "/default/logs@41"}
    assert account.copied_until() == {"/default/logs": 42}
    later = ReplayAccount(copies, "/default/again")
    assert later.copied_until() == {}  # what an earlier replay copied is not told again
    copies.heads = {"/default/again-part-0": 1, "/default/again-part-1": 2}
    copies.of = {"/default/again-part-0": "/default/a-part-0@5", "/default/again-part-1": "by hand"}
    assert later.copied_until() == {"/default/a-part-0": 6}
