"""Lists of the console after the first answer: only what changed is asked for, and what is shown is what is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydanube_tui import source
from pydanube_tui.filters import parse
from pydanube_tui.source import Feed
from pydanube_tui.view import Situation
from pydanube_tui.views import VIEWS
from pydanube_tui.views.subscriptions import age_s, headroom_s
from pydanube_tui.views.wording import STATUS

from tests.admin.real_broker import Administered
from tests.support.filled_cluster import add_topic
from tests.tui.consoles import client_of, opened, screen

pytestmark = pytest.mark.anyio


class Counting:
    """Asks the cluster, and counts the topics that came."""

    def __init__(self, cluster: Administered) -> None:
        self.came = 0
        self._cluster = cluster

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        answer = await self._cluster(operation, **(arguments or {}))
        if operation == "topics.list":
            self.came += len(answer["items"])
        return answer


class Watched:
    """A client whose answers about topics are looked at."""

    def __init__(self, cluster: Administered) -> None:
        self._client = client_of(cluster)
        self.answers: list[tuple[Mapping[str, Any], dict[str, Any]]] = []

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        answer = await self._client.call(operation, arguments, plan_token=plan_token)
        if operation == "topics.list":
            self.answers.append((arguments or {}, answer))
        return answer


def shown(feed: Feed, name: str = "list") -> dict[str, Any]:
    answer = feed.answers[name]
    assert isinstance(answer, Mapping)
    return {item["topic"]: item for item in answer["items"]}


@pytest.fixture
async def asking(cluster: Administered) -> Counting:
    return Counting(cluster)


async def test_only_what_changed_comes_again(
    cluster: Administered, asking: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PAGE_ITEMS", 2)
    for number in range(5):
        await add_topic(cluster, f"/many/t{number}")
    feed = Feed(asking, VIEWS["topics"], {})
    await feed.refresh(1000)
    everything = len(shown(feed))
    assert asking.came == everything >= 7
    await feed.refresh(3000)
    assert asking.came == everything
    await cluster.publish("/many/t3", b"x", b"y")
    await cluster.apply("topics.delete", topic="/many/t4")
    await add_topic(cluster, "/many/new")
    await feed.refresh(5000)
    assert asking.came == everything + 2
    rows = shown(feed)
    assert rows["/many/t3"]["messages"] == 2
    assert "/many/t4" not in rows
    assert "/many/new" in rows


async def test_a_topic_at_rest_has_no_growth_any_more(cluster: Administered, asking: Counting) -> None:
    feed = Feed(asking, VIEWS["topics"], {})
    for now_ms in (1000, 3000):
        await feed.refresh(now_ms)
    await cluster.publish("/default/orders", b"x", b"y")
    for now_ms in (5000, 7000, 9000, 11_000):
        await feed.refresh(now_ms)
    await cluster.publish("/default/orders", b"z")
    await feed.refresh(13_000)
    situation = Situation(
        view=feed.view, arguments={}, answers={}, now_ms=0, series=feed.series, times=feed.times
    )
    moments = situation.moments("/default/orders")
    assert [(after[1] - before[1], after[0] - before[0]) for before, after in itertools.pairwise(moments)][
        -5:
    ] == [(2, 2000), (0, 2000), (0, 2000), (0, 2000), (1, 2000)]


async def test_what_did_not_change_is_not_made_anew_and_a_rate_comes_to_rest(cluster: Administered) -> None:
    caller = Watched(cluster)
    async with opened(cluster, "topics", caller=caller) as (app, press):

        async def refreshed() -> set[str]:
            caller.answers.clear()
            app.settled.clear()
            await press("r")
            [(asked, answer)] = caller.answers
            assert asked["changed_since"]
            return {item["topic"] for item in (*answer["items"], *answer["gone"])}

        first = app.page
        await refreshed()
        assert await refreshed() == set()
        still = app.page
        assert await refreshed() == set()
        assert app.page is still
        assert still.rows[0] is first.rows[0]
        await cluster.publish("/default/orders", b"one")
        assert await refreshed() == {"/default/orders"}
        rate_at = [column.name for column in app.page.columns].index("in")
        assert app.page.rows[0].value(rate_at)
        await refreshed()
        assert app.page.rows[0].value(rate_at) == 0
        assert " · in 0/s · " in screen(app), "the sum of all topics, though none of them came again"


def test_the_key_for_faults_leaves_as_many_rows_as_are_counted() -> None:
    """It also left those of an unknown status."""
    items = [
        {
            "topic": "/default/orders",
            "subscription": status,
            "partition": None,
            "status": status,
            "lag_messages": 1,
            "consume_rate": None,
            "oldest_unread_age_s": None,
        }
        for status in STATUS
    ]
    view = VIEWS["subscriptions"]
    page = view.page(Situation(view=view, arguments={}, answers={"list": {"items": items}}, now_ms=0))
    left = parse(view.faults, page.columns).of(page.rows)
    assert f"{len(left)} not well" in str(page.head)
    assert len(left) == len(items) - 3


def test_ages_go_on_without_a_change_and_brokers_that_do_not_answer_are_named() -> None:
    asked = {"partition": None, "status": "SLOW", "lag_messages": 3, "oldest_unread_age_s": 10.0}
    item = {**asked, "topic": "/default/orders", "subscription": "billing", "retention_headroom_s": 4.0}
    item |= {"as_of": "2026-01-31T12:00:00.000Z"}
    situation = Situation(
        view=VIEWS["subscriptions"],
        arguments={},
        answers={
            "list": {
                "items": [item],
                "as_of": "2026-01-31T12:00:05.000Z",
                "not_seen": [{"broker_id": "7", "why": "it does not answer"}],
            }
        },
        now_ms=0,
    )
    assert age_s(item, situation) == 15.0
    assert headroom_s(item, situation) == 0.0
    [line] = (
        VIEWS["topics"]
        .page(
            replace(situation, view=VIEWS["topics"], answers={"list": {**situation.of("list"), "items": []}})
        )
        .head
    )
    assert line[0][0] == " ▼ not seen  broker 7: it does not answer"
