"""Changes: shown as a plan, Cancel focused, the name typed, undo offered; and none without --allow-writes."""

from __future__ import annotations

import pytest
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ReadOnly
from pydanube_tui import operating
from pydanube_tui.actions import ACTIONS
from pydanube_tui.console import Console
from pydanube_tui.dialogs import Form, Reading
from pydanube_tui.plans import Consent, name_to_type
from textual.widgets import Button, Input

from tests.admin.real_broker import Administered
from tests.support.filled_cluster import add_topic, topics_of
from tests.tui.consoles import Press, client_of, opened, said, screen

pytestmark = pytest.mark.anyio


async def until_dialog(app: Console, press: Press, kind: type, *, after: object = None) -> None:
    """Wait for the dialog that an action in the background opens; `after`: the one before it, of the same kind."""
    for _ in range(2000):
        if isinstance(app.screen, kind) and app.screen is not after:
            await press()
            return
        await press()
    raise AssertionError(f"{app.screen} is no {kind.__name__}; said: {said(app)}")


async def settled(app: Console, press: Press) -> None:
    """Wait for the action in the background to end."""
    if working := [each for each in app.workers if each.group == "action"]:
        await app.workers.wait_for_complete(working)
    await press()


def test_every_action_that_changes_is_held_by_the_one_check() -> None:
    changing = {action.id for action in ACTIONS.values() if action.changes}
    assert changing == {
        action.id
        for action in ACTIONS.values()
        if action.operation and OPERATIONS[action.operation].effect is not Effect.READ
    }
    assert {"topics.delete", "subscriptions.seek", "messages.publish", "changes.undo"} <= changing


@pytest.mark.parametrize(
    "action", [each for each in ACTIONS.values() if each.changes], ids=lambda each: each.id
)
async def test_no_change_without_allow_writes(cluster: Administered, action: object) -> None:
    view = {"topic": "topic orders", "subscription": "subscription orders billing", "schema": "topics"}
    words = view.get(action.views[0], action.views[0])  # type: ignore[attr-defined]
    words = "topics" if words in ("plan", "objects") else words
    async with opened(cluster, words) as (app, press):
        app.perform(action)  # type: ignore[arg-type]
        await settled(app, press)
        assert "only reads" in said(app)[0]
        assert len(app.screen_stack) == 1


async def test_the_admin_core_refuses_too(cluster: Administered) -> None:
    with pytest.raises(ReadOnly):
        await client_of(cluster).call("topics.create", {"topic": "/default/x"})


async def test_a_topic_is_deleted_after_its_name_was_typed_and_comes_back_by_undo(
    cluster: Administered,
) -> None:
    async with opened(cluster, "topics", allow_writes=True) as (app, press):
        await press("/", *"orders", "enter", "ctrl+d")
        await until_dialog(app, press, Consent)
        assert "50 messages" in screen(app)
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await press("enter")
        await settled(app, press)
        assert "/default/orders" in await topics_of(cluster)
        assert said(app) == ["nothing was changed"]

        await press("ctrl+d")
        await until_dialog(app, press, Consent)
        assert app.screen.query_one("#apply", Button).disabled, "the name is not there"
        await press(*"/default/orders", "enter", "enter")
        await settled(app, press)
        assert "/default/orders" not in await topics_of(cluster)
        assert "ctrl+z undoes it" in said(app)[-1]

        await press("ctrl+z")
        await until_dialog(app, press, Consent)
        await press("tab", "enter")
        await settled(app, press)
        assert "/default/orders" in await topics_of(cluster)


async def test_what_changed_while_somebody_read_its_plan_is_shown_and_asked_about_again(
    cluster: Administered,
) -> None:
    async with opened(cluster, "topics", allow_writes=True) as (app, press):
        await press("/", *"orders", "enter", "ctrl+d")
        await until_dialog(app, press, Consent)
        first = app.screen
        await cluster("subscriptions.create", topic="/default/orders", subscription="late")
        await press(*"/default/orders", "enter", "enter")
        await until_dialog(app, press, Consent, after=first)
        assert "2 subscriptions, 50 messages" in screen(app)
        assert "/default/orders" in await topics_of(cluster)
        await press("escape")
        await settled(app, press)
        assert said(app)[-1] == "nothing was changed"


def test_what_moves_topics_of_many_is_named_before_it_is_done() -> None:
    plan = {"operation": "cluster.rebalance", "arguments": {"max_moves": None}, "effect": "change"}
    assert name_to_type([plan]) == "rebalance"
    assert name_to_type([{**plan, "operation": "brokers.unload", "arguments": {"broker_id": "7"}}]) == "7"


async def test_marked_rows_are_one_plan_and_the_number_is_typed(cluster: Administered) -> None:
    for number in range(3):
        await add_topic(cluster, f"/default/gone{number}", messages=2)
    async with opened(cluster, "topics", allow_writes=True) as (app, press):
        await press("/", *"gone", "enter", "ctrl+a", "ctrl+d")
        await until_dialog(app, press, Consent)
        assert "topics=/default/gone0, /default/gone1, /default/gone2" in screen(app), (
            "one plan with one token"
        )
        assert "3 changes" in screen(app)
        assert "6 messages" in screen(app)
        await press(*"3", "enter", "enter")
        await settled(app, press)
        assert not [topic for topic in await topics_of(cluster) if "gone" in topic]
        await press("ctrl+z")
        await until_dialog(app, press, Consent)
        await press("tab", "enter")
        await settled(app, press)
        assert len([topic for topic in await topics_of(cluster) if "gone" in topic]) == 3


async def test_of_more_marks_than_one_plan_takes_it_says_so_and_the_others_stay(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "MOST_TOGETHER", 2)
    for number in range(3):
        await add_topic(cluster, f"/default/gone{number}")
    async with opened(cluster, "topics", allow_writes=True) as (app, press):
        await press("/", *"gone", "enter", "ctrl+a", "ctrl+d")
        await until_dialog(app, press, Consent)
        assert "3 rows are marked: this is of the first 2" in said(app)
        await press(*"2", "enter", "enter")
        await settled(app, press)
        assert [topic for topic in await topics_of(cluster) if "gone" in topic] == ["/default/gone2"]
        assert app.marked == {"/default/gone2"}


async def test_the_buttons_stay_in_sight_of_many_plans(cluster: Administered) -> None:
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    async with opened(cluster, "topics", allow_writes=True, size=(80, 24)) as (app, press):
        app.push_screen(Consent(app.look, [plan] * 60))
        await press()
        assert "60 changes" in screen(app)
        assert "Cancel" in screen(app)
        assert "Apply" in screen(app)
        assert "type 60 to go on" in screen(app)


async def test_a_seek_asks_where_to_and_shows_what_it_skips(cluster: Administered) -> None:
    async with opened(cluster, "subscription orders billing", allow_writes=True) as (app, press):
        await press("s")
        await until_dialog(app, press, Form)
        assert "/default/orders › billing" in screen(app), "a row may have moved since it was looked at"
        await press(*"latest", "enter")
        await until_dialog(app, press, Consent)
        assert "subscriptions.seek" in screen(app)
        await press(*"billing", "enter", "enter")
        await settled(app, press)
        lag = await cluster("subscriptions.lag", topic="/default/orders", subscription="billing")
        assert lag["items"][0]["lag_messages"] == 0


async def test_what_the_cluster_refuses_is_told_with_what_would_help(cluster: Administered) -> None:
    async with opened(cluster, "topics", allow_writes=True) as (app, press):
        await press("n")
        await until_dialog(app, press, Form)
        await press(*"/default/orders", "enter", "enter", "enter")
        await until_dialog(app, press, Reading)
        assert "ALREADY_EXISTS" in screen(app)


async def test_a_form_that_cannot_be_read_comes_again_with_what_was_typed(cluster: Administered) -> None:
    async with opened(cluster, "namespaces", allow_writes=True) as (app, press):
        await press("n")
        await until_dialog(app, press, Form)
        await press(*"made", "enter", *"keep=x", "enter")
        while not said(app):
            await press()
        await until_dialog(app, press, Form)
        assert [each.value for each in app.screen.query(Input)] == ["made", "keep=x"]
        assert "NAME=COUNT" in said(app)[0]
        await press("escape")
        await settled(app, press)
        assert len(app.screen_stack) == 1


async def test_a_form_wants_what_must_be_given_and_leaves_with_escape(cluster: Administered) -> None:
    async with opened(cluster, "namespaces", allow_writes=True) as (app, press):
        await press("n")
        await until_dialog(app, press, Form)
        await press("enter", "enter")
        assert "namespace must be given" in screen(app)
        await press("escape")
        await settled(app, press)
        assert len(app.screen_stack) == 1
