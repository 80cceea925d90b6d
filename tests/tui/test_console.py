"""A person's hands on a real broker: go, narrow, sort, mark, read, copy; and the connection that goes and comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydanube_core.errors import Unavailable
from pydanube_tui.actions import ACTIONS
from pydanube_tui.cluster import FASTEST_S, Cluster, Options, State
from pydanube_tui.console import Console
from pydanube_tui.dialogs import Choosing, Reading
from pydanube_tui.page import Target
from pydanube_tui.views import place
from rich.cells import cell_len
from rich.color import ColorType
from textual import events
from textual.widgets import Input, Static

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_subscription, add_topic
from tests.tui.consoles import client_of, keys_shown, opened, said, screen, send_key

pytestmark = pytest.mark.anyio


async def test_the_overview_is_useful_before_a_key_is_pressed(cluster: Administered) -> None:
    async with opened(cluster) as (app, _):
        shown = screen(app)
        assert "slowest subscriptions" in shown
        assert "/default/orders › billing" in shown
        assert "40 unread" in shown
        assert "read-only" in shown


async def test_enter_goes_to_the_detail_and_escape_back(cluster: Administered) -> None:
    async with opened(cluster, "subscriptions") as (app, press):
        await press("/", *"stats", "enter")
        assert keys_shown(app) == ["/shop/clicks stats"]
        await press("enter")
        assert app.target == Target(
            view="subscription", arguments={"topic": "/shop/clicks", "subscription": "stats"}
        )
        assert keys_shown(app) == ["0", "1", "2"]
        assert "12 unread" in screen(app)
        await press("escape")
        assert app.target.view == "subscriptions"


async def test_the_way_back_leads_to_the_filter_and_the_row(cluster: Administered) -> None:
    for number in range(5):
        await add_topic(cluster, f"/default/t{number}", messages=number)
    async with opened(cluster, "topics") as (app, press):
        await press("/", *"default/t", "enter", "down", "down", "enter")
        assert app.target == Target(view="topic", arguments={"topic": "/default/t2"})
        await press("escape")
        assert keys_shown(app) == [f"/default/t{number}" for number in range(5)]
        assert app.grid.selected is not None
        assert app.grid.selected.key == "/default/t2"
        await press("escape", ":", *"clients", "enter", "-")
        assert app.filter is None, "a new visit begins at the top"
        assert app.grid.cursor == 0


async def test_lists_begin_with_their_sums(cluster: Administered) -> None:
    for number in (1, 2):
        await add_topic(cluster, f"/default/t{number}", messages=number)
    async with opened(cluster, "topics") as (app, press):
        messages = sum(row.item["messages"] for row in app.page.rows)
        assert f"{len(app.page.rows)} topics · {messages} messages" in screen(app)
        await press(":", *"lag", "enter")
        unread = sum(row.item["lag_messages"] for row in app.page.rows)
        assert f"{len(app.page.rows)} subscriptions · {unread} unread" in screen(app)


async def test_the_letter_that_sorts_is_marked_in_the_title(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, _):
        titles = app.grid.render_line(len(app.page.head))
        marked = [each.text for each in titles if each.style is not None and each.style.bold]
        shown = [
            column.key for column in app.grid.columns if column.key.casefold() in column.title.casefold()
        ]
        assert [each.upper() for each in marked] == shown


async def test_history_and_the_view_before(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        await press(":", *"lag", "enter")
        assert app.target.view == "subscriptions"
        await press("-")
        assert app.target.view == "topics"
        await press("-")
        assert app.target.view == "subscriptions"
        await press("[")
        assert app.target.view == "topics"
        await press("]")
        assert app.target.view == "subscriptions"


async def test_what_was_typed_comes_back_in_the_line(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        await press(":", *"lag", "enter", ":", *"clients", "enter", ":", "up", "up", "up", "enter")
        assert app.target.view == "subscriptions"
        await press(":", "up", "down", "enter")
        assert app.target.view == "subscriptions"
        assert app.said[-1] == "lag"


async def test_keys_that_come_together_keep_their_order(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        typed = [*":lag", "enter", *"/bil", "enter", "y"]
        for key in typed:
            send_key(app, key)
        await press()
        assert app.target.view == "subscriptions"
        assert app.filter is not None
        assert app.filter.text == "bil"


async def test_a_word_that_is_no_view_is_answered_and_nothing_moves(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        await press(":", *"topcis", "enter")
        assert app.target.view == "topics"
        assert said(app) == ["there is no view topcis. Did you mean topics?"]


async def test_filter_sort_and_marks(cluster: Administered) -> None:
    for number in range(5):
        await add_topic(cluster, f"/default/t{number}", messages=number)
    async with opened(cluster, "topics") as (app, press):
        await press("/", *"default/t", "enter")
        assert keys_shown(app) == [f"/default/t{number}" for number in range(5)]
        await press("M")
        assert keys_shown(app) == [f"/default/t{number}" for number in (4, 3, 2, 1, 0)]
        await press("home", "space", "space")
        assert app.marked == {"/default/t4", "/default/t3"}
        assert "2 marked" in screen(app)
        await press("escape")
        assert app.filter is None
        await press("escape")
        assert app.marked == set()


async def test_a_letter_of_the_filter_narrows_with_its_key_and_not_a_frame_later(
    cluster: Administered,
) -> None:
    async with opened(cluster, "topics") as (app, press):
        await press("/")
        await app.on_event(events.Key("z", "z"))
        assert app.query_one("#prompt", Input).value == "z"
        assert app.grid.rows == []


async def test_rows_that_a_filter_left_out_are_not_said_to_be_none(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        await press("/", *"nosuch", "enter")
        assert "no row is in the filter. Escape clears it" in screen(app)
        await press("escape")
        assert "/default/orders" in screen(app)


def test_no_flag_asks_a_broker_without_a_pause() -> None:
    here = Cluster(name="test", admin_url="http://127.0.0.1:1", broker_url="http://127.0.0.1:1")
    assert Console([here], Options(refresh_s=0.0)).refresh_s == FASTEST_S


async def test_a_broken_filter_says_so_and_the_rows_stay(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        before = keys_shown(app)
        await press("/", *"bytes:>x", "enter")
        assert keys_shown(app) == before
        assert "no number" in said(app)[0]


async def test_through_a_refresh_the_row_stays_selected_at_its_line(cluster: Administered) -> None:
    for number in range(60):
        await add_topic(cluster, f"/default/t{number:02}")
    async with opened(cluster, "topics") as (app, press):
        await press(*["down"] * 40)
        selected, line = app.grid.selected, app.grid.cursor - app.grid.scroll_offset.y
        assert selected is not None
        await add_topic(cluster, "/default/a-new-one")
        app.settled.clear()
        await press("r")
        assert "/default/a-new-one" in keys_shown(app)
        assert app.grid.selected is not None
        assert app.grid.selected.key == selected.key
        assert app.grid.cursor - app.grid.scroll_offset.y == line


async def test_a_number_that_grew_is_marked_for_one_refresh(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        await cluster.publish("/default/orders", b"one", b"two")
        app.settled.clear()
        await press("r")
        assert "52↑" in screen(app)
        app.settled.clear()
        await press("r")
        assert "52↑" not in screen(app)


async def test_the_row_as_json_and_copied_into_a_file(cluster: Administered, tmp_path: Path) -> None:
    async with opened(cluster, "topics", files=tmp_path) as (app, press):
        await press("y")
        assert isinstance(app.screen, Reading)
        assert '"dispatch_strategy": "reliable"' in screen(app)
        await press("escape", "ctrl+j")
        item = json.loads((tmp_path / "danube-copied.txt").read_text())
        assert item["topic"] == "/default/orders"
        assert "bytes, also in" in said(app)[0]


async def test_export_writes_what_is_in_the_filter(cluster: Administered, tmp_path: Path) -> None:
    async with opened(cluster, "topics", files=tmp_path) as (app, press):
        await press("/", *"orders", "enter", "e")
        assert isinstance(app.screen, Choosing)
        await press("enter")
        lines = (tmp_path / "danube-topics.csv").read_text().splitlines()
        assert lines[0].startswith("topic,health,parts,messages")
        assert [line.split(",")[0::2][:2] for line in lines[1:]] == [["/default/orders", "0"]]
        assert [line.split(",")[3] for line in lines[1:]] == ["50"]


async def test_columns_are_chosen_and_remembered(cluster: Administered, tmp_path: Path) -> None:
    state = tmp_path / "console.json"
    async with opened(cluster, "topics", state_file=state, size=(160, 30)) as (app, press):
        await press("t", *"bytes", "enter", "escape", "escape")
        assert "bytes" not in [column.name for column in app.grid.columns]
    async with opened(cluster, "topics", state_file=state, size=(160, 30)) as (app, _):
        assert "bytes" not in [column.name for column in app.grid.columns]


async def test_the_palette_carries_out_what_is_chosen(cluster: Administered) -> None:
    async with opened(cluster) as (app, press):
        await press("ctrl+p", *"go.topics", "enter")
        assert app.target.view == "topics"


async def test_help_opens_and_leaves(cluster: Administered) -> None:
    async with opened(cluster, "subscriptions", size=(80, 24)) as (app, press):
        await press("?")
        assert "the same without a screen" in screen(app)
        assert "esc back" in screen(app), "a long text does not push the last line out of sight"
        await press("escape")
        assert not isinstance(app.screen, Reading)


async def test_a_name_like_markup_is_drawn_as_it_is(cluster: Administered) -> None:
    await add_subscription(cluster, "/default/orders", "[red]订单[b]")
    async with opened(cluster, "subscriptions", size=(160, 30)) as (app, press):
        assert "[red]订单[b]" in screen(app)
        await press("/", *"red", "enter", "enter")
        assert "[red]订单[b]" in screen(app)


class Cut:
    """A client whose broker can be gone."""

    def __init__(self, cluster: Administered) -> None:
        self._client = client_of(cluster)
        self.gone = False

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        if self.gone:
            raise Unavailable("nobody listens")
        return await self._client.call(operation, arguments, plan_token=plan_token)


async def test_a_lost_connection_is_said_and_comes_back_by_itself(cluster: Administered) -> None:
    caller = Cut(cluster)
    async with opened(cluster, "topics", caller=caller) as (app, press):
        assert app.standing.state is State.LIVE
        caller.gone = True
        app.settled.clear()
        await press("r")
        assert app.standing.state is State.LOST
        assert "connection lost, 1 try" in screen(app)
        assert "/default/orders" in screen(app), "what was seen stays, dimmed"
        assert app.grid.stale
        caller.gone = False
        app.settled.clear()
        await app.settled.wait()
        assert app.standing.state is State.LIVE
        assert not app.grid.stale


async def test_what_the_cluster_refuses_is_shown(cluster: Administered) -> None:
    async with opened(cluster, "topic nobody") as (app, _):
        assert app.standing.state is State.REFUSED
        assert "TOPIC_NOT_FOUND" in screen(app)


async def test_every_tone_of_every_theme_draws(cluster: Administered) -> None:
    async with opened(cluster, "overview") as (app, press):
        for theme in ("light", "contrast", "colour-blind", "ansi", "dark"):
            await press("f2")
            assert app.theme == theme
            assert "slowest subscriptions" in screen(app)


def colours(app: Console) -> set[ColorType]:
    """The kinds of colour that are on the screen; none where the terminal's own is left."""
    styles = [
        segment.style
        for strip in app.screen._compositor.render_strips()
        for segment in strip
        if segment.style
    ]
    inks = [ink for style in styles for ink in (style.color, style.bgcolor) if ink is not None]
    return {ink.type for ink in inks}


async def test_sixteen_colours_are_the_terminals_own_and_no_colour_is_none(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(cluster, "subscriptions", theme="ansi") as (app, _):
        assert colours(app) == {ColorType.DEFAULT, ColorType.STANDARD}
    async with opened(cluster, "subscriptions") as (app, _):
        assert ColorType.TRUECOLOR in colours(app)
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(cluster, "subscriptions", no_colour=True) as (app, press):
        assert colours(app) == {ColorType.DEFAULT}
        await press("f2")
        assert colours(app) == {ColorType.DEFAULT}, "another theme has none either"
        await press("?")
        assert colours(app) == {ColorType.DEFAULT}


async def test_another_cluster_is_gone_to_by_name_and_nothing_of_the_first_stays(
    cluster: Administered,
) -> None:
    async with administered(**{"telemetry.enabled": False}) as other:
        await add_topic(other, "/default/sold")
        test, shop = (
            Cluster(
                name=name, admin_url=each.url, broker_url=each.broker.broker_url, production=name == "shop"
            )
            for name, each in (("test", cluster), ("shop", other))
        )
        app = Console([test, shop], Options(refresh_s=60.0), start=place(["topics"]))
        async with app.run_test(size=(100, 30)) as pilot:
            for name, topic in (
                ("shop", "/default/sold"),
                ("test", "/default/orders"),
                ("shop", "/default/sold"),
            ):
                app.settled.clear()
                await pilot.press(":", *f"cluster {name}", "enter")
                await app.settled.wait()
                await pilot.pause()
                assert topic in keys_shown(app)
                assert ("/default/orders" in keys_shown(app)) == (name == "test")
                assert screen(app).startswith(f" {name} ")
                danger = app.screen.get_style_at(1, 0).bgcolor == app.look.production.bgcolor
                assert danger == (name == "shop")
            await pilot.press(":", *"cluster nobody", "enter")
            assert said(app) == ["there is no cluster nobody. There are test, shop"]


async def test_ascii_draws_nothing_else(cluster: Administered) -> None:
    await add_subscription(cluster, "/default/orders", "订单")
    for words in ("overview", "subscriptions", "topic orders"):
        async with opened(cluster, words, ascii_only=True, size=(160, 40)) as (app, _):
            assert screen(app).isascii()


async def test_ascii_holds_for_dialogs_scroll_bars_and_the_header(cluster: Administered) -> None:
    for number in range(30):
        await add_topic(cluster, f"/default/topic{number}")
    async with opened(cluster, "topics", ascii_only=True, size=(80, 24)) as (app, press):
        for keys in (("?",), ("escape", "ctrl+p"), ("escape", "y"), ("escape", "t")):
            await press(*keys)
            assert screen(app).isascii()
        await press("escape", *"jjj")
        assert screen(app).isascii()
        app.cluster = replace(app.cluster, name="生产")
        app.bars()
        top = str(app.screen_stack[0].query_one("#top", Static).render())
        assert top.isascii()
        assert len(top) == 80
        assert top.endswith("read-only ")


async def test_a_cluster_that_never_answered_says_why() -> None:
    nobody = Cluster(name="nobody", admin_url="http://127.0.0.1:1", broker_url="http://127.0.0.1:1")
    app = Console([nobody], Options(refresh_s=60.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.settled.wait()
        await pilot.pause()
        assert "no broker answers at http://127.0.0.1:1" in screen(app)
        assert "connection lost" in screen(app)


async def test_a_session_that_nobody_uses_ends(cluster: Administered) -> None:
    time = [1_000.0]
    async with opened(cluster, idle_s=60.0, now=lambda: time[0]) as (app, press):
        await press(":")  # a key that a line of its own takes is one too
        for used in (lambda: press("x"), lambda: press("escape"), lambda: press("down")):
            time[0] += 59
            await used()
            app.tick()
            assert not app._exit
        time[0] += 61
        app.tick()
        assert app._exit


async def test_nothing_of_the_header_is_lost_on_a_narrow_screen(cluster: Administered) -> None:
    async with opened(cluster, "subscription orders billing", size=(60, 20)) as (app, _):
        top = app.screen_stack[0].query_one("#top", Static)
        assert "read-only" in str(top.render())


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_the_header_says_which_subscription_however_narrow(
    cluster: Administered, size: tuple[int, int]
) -> None:
    await add_topic(cluster, "/default/purchases-of-the-whole-week", messages=1)
    await add_subscription(cluster, "/default/purchases-of-the-whole-week", "结算")
    async with opened(cluster, "subscription purchases-of-the-whole-week 结算", size=size) as (app, _):
        top = str(app.screen_stack[0].query_one("#top", Static).render())
        assert "› 结算 " in top
        assert cell_len(top) == size[0]


async def test_a_refusal_is_told_to_its_end(cluster: Administered) -> None:
    async with opened(cluster, "objects ../..", size=(80, 24)) as (app, _):
        told = " ".join(screen(app).split())
        assert "INVALID_NAME" in told
        assert str(app.standing.error) in told


@pytest.mark.parametrize("gone", ["Grid", "#top", "#bottom"])
async def test_a_tick_finds_no_screen_after_the_end(cluster: Administered, gone: str) -> None:
    async with opened(cluster, "topics") as (app, _):
        await app.screen.query(gone).remove()
        app.tick()
        app.draw()


async def test_keys_that_come_faster_than_a_dialog_closes_end_nothing(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        for keys in (
            ("ctrl+p", *"json", "enter", "enter"),
            ("y", "escape", "escape"),
            ("e", "enter", "enter"),
        ):
            await press(keys[0])
            dialog = app.screen
            for key in keys[1:]:  # all of them for the dialog, as they come in one read of a slow terminal
                dialog.post_message(events.Key(key, key if len(key) == 1 else None))
            await press()
            assert app.is_running
            while len(app.screen_stack) > 1:
                await press("escape")


async def test_what_is_typed_in_a_dialog_is_on_the_screen(cluster: Administered) -> None:
    async with opened(cluster, "topics", size=(80, 24)) as (app, press):
        await press("ctrl+p", *"runboo")
        assert "runboo" in [line.strip(" │") for line in screen(app).splitlines()]


class Mangled:
    """Answers as the cluster does, with one field gone or of another kind."""

    def __init__(self, cluster: Administered, name: str, value: object) -> None:
        self._inner, self._name, self._value = client_of(cluster), name, value
        self.off = False

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        answer = await self._inner.call(operation, arguments)
        return answer if self.off else {**answer, self._name: self._value}


@pytest.mark.parametrize(
    ("view", "name", "value"),
    [
        ("topics", "items", [{}]),
        ("topics", "as_of", 7),
        ("overview", "findings", [{}]),
        ("subscriptions", "items", ["x"]),
        ("brokers", "not_seen", "xy"),
        ("overview", "uptime_s", float("inf")),
        ("topic orders", "parts", None),
    ],
)
async def test_an_answer_of_another_shape_is_said_and_ends_nothing(
    cluster: Administered, view: str, name: str, value: object
) -> None:
    caller = Mangled(cluster, name, value)
    async with opened(cluster, view, caller=caller) as (app, press):
        await press("down", "y", "escape", "enter", "escape")
        assert app.is_running
        caller.off = True
        for _ in range(50):
            app.settled.clear()
            app.wake.set()
            await press()
            if app.standing.state is State.LIVE:
                break
        assert app.standing.state is State.LIVE


async def test_the_selected_row_stays_selected_before_any_key_moved_the_cursor(cluster: Administered) -> None:
    async with opened(cluster, "topics") as (app, press):
        assert app.grid.selected is not None
        first = app.grid.selected.key
        await add_topic(cluster, "/default/aaa-comes-before")
        app.settled.clear()
        app.wake.set()
        await app.settled.wait()
        await press()
        assert keys_shown(app)[0] == "/default/aaa-comes-before"
        assert app.grid.selected.key == first
        assert app.grid.scroll_offset.y == 0, "the top stays in sight"
        await press("v")
        assert app.grid.cursor == 0, "what was sorted by hand is looked at from its beginning"


async def test_what_the_caller_has_no_right_to_is_not_offered(cluster: Administered) -> None:
    caller = Mangled(cluster, "permissions", ["topics:*", "subscriptions:read"])
    async with opened(cluster, "topics", caller=caller, allow_writes=True, size=(160, 30)) as (app, press):
        for _ in range(200):
            await press()
            if "*" not in app.held:
                break
        offered = {choice.id for choice in app.operating.choices_of([*ACTIONS.values()])}
        assert {"topics.delete", "go.topics", "go.subscriptions", "row.copy", "screen.help"} <= offered
        assert "go.schemas" in offered  # every known caller may list subjects
        assert not {"go.audit", "go.journal"} & offered
        app.go(Target(view="namespaces"))
        await press()
        assert "namespaces.delete" not in {
            choice.id for choice in app.operating.choices_of([*ACTIONS.values()])
        }
        assert "new namespace" not in screen(app)
        await press("ctrl+d")
        assert "no right" in said(app)[-1]
