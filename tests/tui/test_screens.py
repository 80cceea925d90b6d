"""Every view as it looks, compared with the pictures beside this file, drawn from recorded answers of a real broker.

pytest tests/tui/test_screens.py --snapshot-update      draw them anew; then look at them
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydanube_core.errors import PermissionDenied, Unavailable
from pydanube_tui.cluster import Cluster, Options, State
from pydanube_tui.console import Console
from pydanube_tui.files import picture
from pydanube_tui.grid import SEEN
from pydanube_tui.page import Cell, Item, Tone, line
from pydanube_tui.source import Caller, Feed
from pydanube_tui.tail import Tail
from pydanube_tui.view import Situation
from pydanube_tui.views import VIEWS, place
from pytest_textual_snapshot import SVGImageExtension
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from tests.tui.consoles import send_key
from tests.tui.recording import ROUNDS, Played, words_of

pytestmark = pytest.mark.anyio
SMALL, LARGE = (80, 24), (160, 48)
STATES = ("topics", "subscriptions", "messages /default/orders")
REFUSED = PermissionDenied("ann may not read topics", field="operation", value="topics.list")


class Screened(Console):
    """A console of the recorded cluster: the clock stands, and messages are those that were recorded."""

    def __init__(self, played: Played, words: str, caller: Caller, **options: Any) -> None:
        self.played = played
        self.passed_s = 0.0
        here = Cluster(name="shop", admin_url="http://127.0.0.1:1", broker_url="http://127.0.0.1:1")
        given = Options(refresh_s=60.0, now=lambda: played.now_s + self.passed_s, **options)
        super().__init__([here], given, start=place(words.split()), caller=caller)

    def _feed(self) -> Feed | Tail:
        arguments = self.target.arguments
        if not (self.view.live and arguments.get("topic")):
            return super()._feed()
        state = self.caller.state if isinstance(self.caller, Otherwise) else ""
        tail = Tail(self.caller, self.cluster.broker_url, arguments["topic"], None)
        items = [] if state in ("empty", "loading", "error") else self.played.messages
        for number in range(10_000 if state == "many" else len(items)):
            item = items[number % len(items)]
            tail.received += 1
            tail.put({**item, "offset": number})
        tail.failure = REFUSED if state == "error" else None
        return tail


@asynccontextmanager
async def screened(
    words: str, size: tuple[int, int], *, caller: Caller | None = None, rounds: int = 1, **options: Any
) -> AsyncIterator[Screened]:
    played = Played()
    app = Screened(played, words, caller or played, **options)
    async with app.run_test(size=size) as pilot:
        if getattr(caller, "state", "") != "loading":
            await app.settled.wait()
        for _ in range(rounds - 1):
            app.passed_s += 2.0
            app.settled.clear()
            app.wake.set()
            await app.settled.wait()
        for _ in range(3):  # whether there is a scroll bar is found by one layout, and drawn by the next
            app.screen.refresh(layout=True)
            await (
                app.screen.wait_for_refresh()
            )  # pauses of the pilot end when a busy machine gives us no time
        await pilot.pause()
        yield app


@pytest.fixture
def drawn(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(SVGImageExtension)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("view", VIEWS)
async def test_view(view: str, size: tuple[int, int], drawn: SnapshotAssertion) -> None:
    async with screened(words_of(view, Played().known), size, rounds=ROUNDS) as app:
        assert app.standing.state is State.LIVE, app.standing.error
        assert picture(app, "svg") == drawn


@pytest.mark.parametrize("view", ["overview", "subscriptions"])
async def test_light(view: str, drawn: SnapshotAssertion) -> None:
    async with screened(view, SMALL, rounds=ROUNDS, theme="light") as app:
        assert picture(app, "svg") == drawn


class Otherwise:
    """Answers as recorded, but for lists: none, as many as are wanted, a refusal; or nobody is there."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._played = Played()

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        if self.state == "loading":
            await asyncio.Event().wait()
        if self.state == "gone":
            raise Unavailable("nobody listens")
        if self.state == "error":
            raise REFUSED
        known = {name: value for name, value in (arguments or {}).items() if name != "page"}
        answer = await self._played.call(operation, known)
        if self.state == "empty":
            return {**answer, "items": [], "next_page": None}
        if self.state == "many":
            first = int((arguments or {}).get("page") or 0)
            items = [_numbered(answer["items"], number) for number in range(first, first + 1000)]
            return {**answer, "items": items, "next_page": None if first == 9000 else str(first + 1000)}
        return answer


async def test_a_key_among_ten_thousand_rows_makes_the_cells_that_are_in_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    cell = Situation.cell

    def counted(self: Situation, item: Item, at: int) -> Cell:
        made.append(at)
        return cell(self, item, at)

    async with screened("topics", LARGE, caller=Otherwise("many")) as app:
        assert len(app.grid.rows) == 10_000
        assert all(row.folded for row in app.page.rows)
        monkeypatch.setattr(Situation, "cell", counted)
        columns, lines = len(app.grid.columns), app.grid.size.height
        for key, most in (("down", 2), ("end", lines), ("/", lines), ("7", lines), ("M", lines)):
            made.clear()
            send_key(app, key)
            await Pilot(app).pause()
            assert len(made) <= most * columns + SEEN, key


def _numbered(items: list[dict[str, Any]], number: int) -> dict[str, Any]:
    item = items[number % len(items)]
    return {**item, "topic": f"/load/topic-{number:05}", "partition": None}


@pytest.mark.parametrize("state", ["empty", "loading", "error", "stale", "many"])
@pytest.mark.parametrize("view", STATES, ids=lambda view: view.split()[0])
async def test_state(view: str, state: str, drawn: SnapshotAssertion) -> None:
    caller = Otherwise("" if state == "stale" else state)
    async with screened(view, SMALL, caller=caller) as app:
        if state == "stale":
            caller.state = "gone"
            if isinstance(app.feed, Tail):
                app.feed.failure = Unavailable("nobody listens")
            app.passed_s = 25.0
            app.settled.clear()
            app.wake.set()
            await app.settled.wait()
            assert app.grid.stale
        assert picture(app, "svg") == drawn


@pytest.mark.parametrize("ansi", [False, True], ids=["colours", "sixteen"])
async def test_a_dialog_lies_over_the_table_that_it_was_opened_from(ansi: bool) -> None:
    options: dict[str, Any] = {"theme": "ansi"} if ansi else {}
    async with screened("topics", LARGE, rounds=ROUNDS, **options) as app:
        table = picture(app, "text").splitlines()
        app.read("a dialog", [line("every key")])
        await app.screen.wait_for_refresh()
        dialog = picture(app, "text").splitlines()
    beside = [line[:10] for line in dialog[2:8]]
    assert beside == [line[:10] for line in table[2:8]]
    assert any(each.strip() for each in beside)
    assert "every key" in "\n".join(dialog)


@pytest.mark.parametrize("view", [view.name for view in VIEWS.values() if view.faults])
async def test_one_key_leaves_the_rows_that_are_not_well(view: str) -> None:
    async with screened(view, LARGE) as app:
        every = [row.key for row in app.grid.rows]
        for _ in range(2):
            app.perform(app.keys_here["!"])
            assert app.filter is not None
            left = [row.key for row in app.grid.rows]
            tones = {row.key: {cell.tone for cell in map(row.cell, range(2))} for row in app.page.rows}
            assert left == [key for key in every if not tones[key] & {Tone.GOOD}]
            app.perform(app.keys_here["!"])
            assert [row.key for row in app.grid.rows] == every
        assert left != every or view == "connectors"  # none of the recorded connectors is well
