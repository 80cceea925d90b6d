"""Lists of the console after the first answer: only what changed is asked for, and what is shown is what is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import pytest
from pydanube_tui import source
from pydanube_tui.source import Feed
from pydanube_tui.views import VIEWS

from tests.admin.real_broker import Administered
from tests.support.filled_cluster import add_subscription, add_topic

pytestmark = pytest.mark.anyio


class Counting:
    """Asks the cluster, and counts the items that came."""

    def __init__(self, cluster: Administered) -> None:
        self.came = 0
        self._cluster = cluster

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        answer = await self._cluster(operation, **(arguments or {}))
        self.came += len(answer["items"])
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
    series = feed.series
    for now_ms in (1000, 3000):
        await feed.refresh(now_ms)
    await cluster.publish("/default/orders", b"x", b"y")
    for now_ms in (5000, 7000, 9000, 11_000):
        await feed.refresh(now_ms)
    await cluster.publish("/default/orders", b"z")
    await feed.refresh(13_000)
    moments = list(series["/default/orders"])
    assert [(after[1] - before[1], after[0] - before[0]) for before, after in itertools.pairwise(moments)][
        -4:
    ] == [(2, 2000), (0, 2000), (0, 4000), (1, 2000)]


async def test_ages_grow_while_nothing_changes(
    cluster: Administered, asking: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_topic(cluster, "/many/late", messages=1)
    await add_subscription(cluster, "/many/late", "s")
    feed = Feed(asking, VIEWS["subscriptions"], {})
    await feed.refresh(1000)
    age_s = shown(feed)["/many/late"]["oldest_unread_age_s"]
    later_s = time.monotonic() + 100
    monkeypatch.setattr(source, "monotonic", lambda: later_s)
    await feed.refresh(3000)
    assert 99 <= shown(feed)["/many/late"]["oldest_unread_age_s"] - age_s <= 130
