"""What others wrote, and what stands in the way, ends no console: payloads made to hurt, patterns without end, folders that take nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydanube_tui import board
from pydanube_tui.board import within
from pydanube_tui.console import Console
from pydanube_tui.dialogs import MAX_CHARS, Form, Reading
from pydanube_tui.filters import FilterError
from pydanube_tui.page import MISREAD, Item
from pydanube_tui.plans import Consent
from pydanube_tui.tail import KEPT_BYTES, item_of
from pydanube_tui.view import Situation
from pydanube_tui.views import VIEWS
from pydanube_tui.views.messages import message_lines
from textual import events
from textual.widgets import Input

from tests.admin.real_broker import Administered
from tests.tui.consoles import Press, opened, said, screen
from tests.tui.test_changes import settled, until_dialog
from tests.tui.test_views import until_rows

pytestmark = pytest.mark.anyio

DEEP = 900  # levels that a parser takes, and the writer of JSON, below the frames of an application, may not
PAYLOADS = (
    b"[" * 60_000,
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b'{"a": "\\ud800"}',
    b'{"n": ' + b"9" * 6000 + b"}",
    b'{"x": 1e999, "y": NaN}',
    b"",
)


async def opened_and_left(app: Console, press: Press, *keys: str) -> None:
    await press(*keys)
    assert isinstance(app.screen, Reading)
    await press("escape")


async def test_no_payload_ends_the_console(cluster: Administered, tmp_path: Path) -> None:
    await cluster.publish("/default/orders", *PAYLOADS)
    async with opened(cluster, "messages orders offset:50", files=tmp_path) as (app, press):
        await until_rows(app, press, len(PAYLOADS))
        await press("/", *"$.a:x", "enter", "escape", "g")
        for _ in PAYLOADS:
            await opened_and_left(app, press, "enter", "c")
            await opened_and_left(app, press, "y", "c")
            await press("ctrl+j", "j")
        await press("e", "enter")  # CSV
        await press("e", "down", "enter")
        assert "1e999" in screen(app), "as it was written"
    letters = json.loads((tmp_path / "danube-messages.json").read_text())
    assert [each["offset"] for each in letters] == list(range(50, 50 + len(PAYLOADS)))
    assert "\\ud800" in (tmp_path / "danube-copied-9.txt").read_text(), "what no file takes is escaped"


class _Message:
    """A message as the client of messages gives it, with the fields that an item is made of."""

    topic, partition, offset, key, producer = "/default/orders", None, 1, None, "p"
    attributes: dict[str, str] = {}  # noqa: RUF012
    schema, payload, is_null = None, b"\x00", False
    append_time = publish_time = datetime(2026, 1, 31, tzinfo=UTC)


def test_values_that_json_has_no_word_for_are_shown() -> None:
    item: Item = item_of(_Message(), {"raw": b"\xff", "at": datetime(2026, 1, 31, tzinfo=UTC)})
    view = VIEWS["messages"].instead({"topic": "orders"}) or VIEWS["messages"]
    situation = Situation(view=view, arguments={}, answers={}, now_ms=0, form="decoded")
    at = [column.name for column in view.columns].index("payload")
    assert "2026-01-31" in situation.cell(item, at).text
    assert any("2026-01-31" in text for spans in message_lines(item, "decoded") for text, _ in spans)


async def test_a_text_of_megabytes_is_cut_in_sight_and_copied_whole(
    cluster: Administered, tmp_path: Path
) -> None:
    lines = [f"{number} " + "x" * 990 for number in range(1000)]
    await cluster.publish("/default/orders", json.dumps([[each] for each in range(20_000)]).encode())
    async with opened(cluster, "messages orders offset:50", files=tmp_path) as (app, press):
        await until_rows(app, press, 1)
        app.read("long", [((each, "plain"),) for each in lines])  # type: ignore[misc]
        await press("c", "end")
        assert len(app.screen.query_one("#text").visual.plain) < MAX_CHARS + 2000  # type: ignore[attr-defined]
        assert "more lines" in screen(app)
    assert (tmp_path / "danube-copied.txt").read_text().split("\n") == lines


async def test_a_pattern_without_end_is_stopped_and_said(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "FILTER_S", 0.2)
    await cluster.publish("/default/orders", b"a" * 400)
    async with opened(cluster, "messages orders") as (app, press):
        await until_rows(app, press, 51)
        await press("/", *"/(a+)+b/")
        assert app.filter is None
        assert sum("took longer than" in each for each in said(app)) == 1
        assert len(app.grid.rows) == 51


def test_who_takes_the_interruption_for_an_error_of_its_own_is_interrupted_again() -> None:
    def stubborn() -> None:
        with within(0.05, FilterError("too long")):
            with suppress(*MISREAD):
                while True:
                    pass
            while True:
                pass

    with pytest.raises(FilterError):
        stubborn()


async def test_a_folder_that_takes_no_file_is_said(cluster: Administered, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    async with opened(cluster, "topics", files=gone) as (app, press):
        await press("c")
        await press("e", "enter")
        await press("f3")
        told = said(app)
    assert any("in no file" in each for each in told)
    assert sum("cannot be written: No such file" in each for each in told) == 3


async def test_what_is_published_again_is_shown_harmless_and_goes_as_it_was(cluster: Administered) -> None:
    payload = " one\ntwo\x1b[2J\x1b]52;c;AAAA\x07 \u202e\n"
    await cluster.publish("/default/orders", payload.encode())
    async with opened(cluster, "messages orders offset:50", allow_writes=True) as (app, press):
        await until_rows(app, press, 1)
        await press("b")
        await until_dialog(app, press, Form)
        assert "one␊two␛[2J␛]52;c;AAAA \ufffd␊" in screen(app)
        assert not set(screen(app)) & {"\x1b", "\x07", "\u202e"}
        await press("enter")  # in the key, which is the first that is empty and the last line
        await until_dialog(app, press, Consent)
        await press("tab", "enter")
        await settled(app, press)
        found = await cluster("messages.peek", topic="orders", **{"from": "offset:51"}, limit=1)
        assert found["items"][0]["untrusted"]["text"] == payload


async def test_no_part_of_a_payload_is_published_for_the_whole(cluster: Administered) -> None:
    await cluster.publish("/default/orders", b"x" * (KEPT_BYTES + 1))
    async with opened(cluster, "messages orders offset:50", allow_writes=True) as (app, press):
        await until_rows(app, press, 1)
        await press("b")
        await until_dialog(app, press, Reading)
        assert "only the first 64.0KiB are here" in screen(app)


async def test_whatever_is_said_or_typed_reaches_the_terminal_without_control_characters(
    cluster: Administered,
) -> None:
    async with opened(cluster, "topics") as (app, press):
        app.say("\x1b[2Jsaid")
        await press("/")
        app.query_one("#prompt", Input).value = "\x1b[2Jtyped"
        await press("enter")
        assert said(app) == ["␛[2Jsaid"]
        assert "/␛[2Jtyped" in screen(app)
        assert "\x1b" not in screen(app)


async def test_a_payload_of_many_lines_is_pasted_whole(cluster: Administered) -> None:
    async with opened(cluster, "messages orders", allow_writes=True) as (app, press):
        await until_rows(app, press, 50)
        await press("n")
        await until_dialog(app, press, Form)
        payload = next(each for each in app.screen.query(Input) if not each.value)
        payload.post_message(events.Paste('{\r  "total": 1\r}\r'))
        await press()
        assert payload.value == '{\n  "total": 1\n}'
        assert '{␊  "total": 1␊}' in screen(app)
