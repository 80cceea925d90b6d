"""Every view on a real broker; messages by a reader that no subscription feels; runbooks; schemas."""

from __future__ import annotations

import json

import pytest
from pydanube_tui.dialogs import Form, Reading
from pydanube_tui.snapshot import draw
from pydanube_tui.tail import RING_MESSAGES, Tail, item_of, start_of
from pydanube_tui.views import VIEWS
from pydanube_tui.views.subscriptions import merged

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic
from tests.tui.consoles import Press, client_of, console_of, keys_shown, opened, screen
from tests.tui.test_changes import settled, until_dialog

pytestmark = pytest.mark.anyio

ARGUMENTS = {
    "topic": "topic orders",
    "subscription": "subscription orders billing",
    "objects": "objects orders",
    "schema": "schema orders-value",
    "plan": "plan {plan}",
    "change": "change {call}",
    "connector": "connector to-shop",
    "broker": "broker {broker}",
}
SINK = "connector = 'http-sink'\ntopic = '/default/orders'\n[settings]\nurl = 'https://shop.example/in'\n"
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}


async def facts(cluster: Administered) -> dict[str, str]:
    """A schema, a plan, a change and a connector, for the views that show one."""
    await cluster(
        "schemas.register",
        subject="orders-value",
        schema_type="json_schema",
        schema_definition=json.dumps(SCHEMA),
    )
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    made = await cluster("namespaces.create", namespace="made")
    if not (await cluster("connectors.list"))["items"]:
        await cluster("connectors.create", connector="to-shop", definition=SINK)
    broker = (await cluster("brokers.list"))["items"][0]["broker_id"]
    return {"plan": plan["plan_id"], "call": made["call_id"], "broker": broker}


@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_draws_a_real_broker_and_has_its_rows_as_json(
    cluster: Administered, view: str
) -> None:
    words = ARGUMENTS.get(view, view).format(**await facts(cluster))
    app = console_of(cluster, words)
    assert VIEWS[view].title in await draw(app, "text", (80, 24), timeout_s=30)
    body = json.loads(await draw(console_of(cluster, words), "json", (80, 24), timeout_s=30))
    assert body["view"] == view
    if view not in ("alerts", "clients", "connector", "dead-letters", "journal", "logs", "objects"):
        assert body["rows"], "nothing to see of a broker that has it"
    for at, column in enumerate(VIEWS[view].columns):
        if column.name == "made":
            assert "–" not in [row["cells"][at] for row in body["rows"]], (
                "a field that the answer does not have"
            )


async def test_messages_come_by_themselves_and_touch_no_subscription(cluster: Administered) -> None:
    before = await cluster("subscriptions.describe", topic="orders", subscription="billing")
    async with opened(cluster, "messages orders") as (app, press):
        await until_rows(app, press, 50)
        await cluster.publish("/default/orders", b'{"id": 7}')
        await until_rows(app, press, 51)
        while app.grid.cursor != 50:  # the end comes into sight after the rows
            await press()
        assert app.grid.selected is not None
        assert app.grid.selected.item["offset"] == 50, "it follows"
        await press("enter")
        assert isinstance(app.screen, Reading)
        assert '"id": 7' in screen(app)
        await press("escape")
    after = await cluster("subscriptions.describe", topic="orders", subscription="billing")
    for name in ("next_unacked", "in_flight", "consumers"):
        assert after["parts"][0][name] == before["parts"][0][name]


async def test_a_topic_that_is_not_there_is_read_once_it_is(cluster: Administered) -> None:
    async with opened(cluster, "messages later") as (app, press):
        assert "TOPIC_NOT_FOUND" in screen(app)
        await add_topic(cluster, "/default/later")
        await cluster.publish("/default/later", b"one", b"two")
        await until_rows(app, press, 2)
        assert keys_shown(app) == ["None 0", "None 1"]


async def test_a_tail_goes_on_where_its_connection_was_lost(cluster: Administered) -> None:
    async with opened(cluster, "messages orders") as (app, press):
        await until_rows(app, press, 50)
        app.workers.cancel_group(app, "tail")
        await cluster.publish("/default/orders", b"one", b"two")
        assert isinstance(app.feed, Tail)
        app.run_worker(app.feed.read(), group="tail")  # as after an error
        await until_rows(app, press, 52)
        assert [key.rpartition(" ")[2] for key in keys_shown(app)] == [str(offset) for offset in range(52)]


async def until_rows(app: object, press: Press, count: int) -> None:
    for _ in range(3000):
        if len(app.grid.rows) >= count:  # type: ignore[attr-defined]
            return
        await press()
    raise AssertionError(f"{len(app.grid.rows)} rows")  # type: ignore[attr-defined]


async def test_a_payload_full_of_escapes_is_shown_as_they_are_written(cluster: Administered) -> None:
    await cluster.publish(
        "/default/orders", b"\x1b]52;c;AAAA\x07[bold]x[/] \xd7\x90\xe2\x80\xae", b"\xff\x00"
    )
    async with opened(cluster, "messages orders", size=(140, 30)) as (app, press):
        await until_rows(app, press, 52)
        # The end comes into sight after the rows, and is drawn after that.
        while app.grid.cursor != 51 or "AAAA" not in screen(app):
            await press()
        shown = screen(app)
        assert "␛]52;c;AAAA␇[bold]x[/]" in shown
        assert "\x1b" not in shown
        assert "\\u202e" in shown
        await press("d", "d")
        app.settled.clear()
        await press()
        assert "ff 00" in screen(app)


async def test_a_jump_begins_where_it_is_told(cluster: Administered) -> None:
    async with opened(cluster, "messages orders") as (app, press):
        await press("w")
        await until_dialog(app, press, Form)
        await press(*"offset:40", "enter")
        await settled(app, press)
        await until_rows(app, press, 10)
        assert keys_shown(app)[0].endswith(" 40")


async def test_what_left_the_ring_unseen_is_counted(cluster: Administered) -> None:
    tail = Tail(client_of(cluster), "http://127.0.0.1:1", "/default/orders", None)
    item = {"payload_bytes": 10, "untrusted": {}}
    for _ in range(RING_MESSAGES):
        tail.put(dict(item))
    await tail.refresh(0)
    for _ in range(30):
        tail.put(dict(item))
    assert tail.dropped == 0, "those were on the screen"
    for _ in range(RING_MESSAGES):
        tail.put(dict(item))
    assert tail.dropped == 30
    for _ in range(3):
        tail.put({"payload_bytes": 64 << 10, "untrusted": {}})
    assert len(tail.ring) == RING_MESSAGES
    assert item_of is not None


def test_a_tail_begins_with_the_last_messages_of_every_partition() -> None:
    assert start_of({"start_offset": 0, "next_offset": 1_000}) == "offset:900"
    assert start_of({"start_offset": 980, "next_offset": 1_000}) == "offset:980"
    parts = [{"start_offset": 0, "next_offset": 5_000}, {"start_offset": 0, "next_offset": 20}]
    assert start_of({"parts": parts}) == "offset:0"
    far = [{"start_offset": 0, "next_offset": 900_000}, {"start_offset": 0, "next_offset": 20}]
    assert start_of({"parts": far}) == "time:-1m"


async def test_versions_of_a_schema_are_compared(cluster: Administered) -> None:
    await facts(cluster)
    wider = {"type": "object", "properties": {"id": {"type": "integer"}, "total": {"type": "number"}}}
    await cluster(
        "schemas.register",
        subject="orders-value",
        schema_type="json_schema",
        schema_definition=json.dumps(wider),
    )
    async with opened(cluster, "schema orders-value") as (app, press):
        await press("d")
        await until_dialog(app, press, Reading)
        assert '+    "total": {' in screen(app)


def test_a_letter_that_a_long_list_leaves_out_is_not_shown_as_empty() -> None:
    left_out = {"truncated": True, "payload_bytes": 6000, "untrusted": {"text": ""}}
    payload = VIEWS["dead-letters"].columns[-1]
    assert payload.cell is not None
    assert "5.9KiB" in payload.cell(left_out, None).text
    empty = {"truncated": False, "payload_bytes": 0, "untrusted": {"text": ""}}
    assert payload.cell(empty, None).text == ""


async def test_a_runbook_runs_step_by_step(cluster: Administered) -> None:
    async with opened(cluster, "runbooks", size=(120, 40)) as (app, press):
        await press("enter")
        await until_dialog(app, press, Reading)
        await settled(app, press)
        shown = screen(app)
        assert "diagnose.cluster" in shown
        assert "✓" in shown


def test_partitions_of_a_subscription_are_one_item_with_sums_and_the_worst_of_them() -> None:
    known = {
        "topic": "/default/wide",
        "subscription": "all",
        "blocked_by": None,
        "retention_headroom_s": None,
    }
    calm = {
        **known,
        "partition": 0,
        "status": "SLOW",
        "lag_messages": 2,
        "oldest_unread_age_s": 9.0,
        "eta_s": 4.0,
    }
    late = {
        **known,
        "partition": 1,
        "status": "STUCK",
        "lag_messages": 3,
        "oldest_unread_age_s": 5.0,
        "eta_s": None,
    }
    late |= {"next_offset": 7, "blocked_by": "offset 4"}
    alone = {**calm, "subscription": "other", "partition": None}
    whole, other = merged([calm, alone, late])
    assert other is alone
    assert (whole["status"], whole["lag_messages"], whole["oldest_unread_age_s"]) == ("STUCK", 5, 9.0)
    assert (whole["eta_s"], whole["retention_headroom_s"], whole["blocked_by"]) == (None, None, "offset 4")
    assert whole["parts"] == [calm, late]
    assert whole.keys().isdisjoint({"partition", "next_offset"}), "they are of one partition"
    settled = [{**each, "lag_messages": 0} for each in (calm, late)]
    assert merged(settled)[0]["eta_s"] is None
    assert merged([calm, {**late, "eta_s": 60.0}])[0]["eta_s"] == 60.0


async def test_the_view_of_one_broker_takes_its_id_its_name_and_its_address() -> None:
    async with administered(**{"server.name": "east"}) as named:
        await add_topic(named, "/default/orders", messages=1)
        address = named.broker.broker_url.rpartition("://")[2]
        for given, titled in (
            (named.broker_id, f"Broker {named.broker_id[-6:]} "),
            ("east", "Broker east "),
            (address, f"Broker {address} "),
        ):
            async with opened(named, f"broker {given}") as (app, _):
                shown = screen(app)
                assert keys_shown(app) == ["/default/orders"], given
                assert titled in shown
                assert "ready   east, up" in shown
