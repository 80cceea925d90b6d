"""Lists in another order, cut to the first few, and what they say when nothing is there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin.engine.models import Page, SortedListRequest
from pydanube_admin.engine.paging import cut, sort_place
from pydanube_admin.operations.topics import ListTopicsRequest
from pydanube_admin.registry import OPERATIONS

from tests.admin.conftest import Administered

pytestmark = pytest.mark.anyio

VALUES = st.one_of(st.none(), st.integers(-5, 5), st.floats(-5, 5, allow_nan=False))


@given(values=st.lists(VALUES, max_size=30), limit=st.integers(1, 40), falling=st.booleans())
def test_pages_of_a_sorted_list_are_the_list_in_that_order(
    values: list[float | None], limit: int, falling: bool
) -> None:
    rows = list(enumerate(values))
    seen: list[tuple[int, float | None]] = []
    page: str | None = None
    while True:
        part = cut(
            rows,
            key=lambda row: sort_place(row[1], (row[0],)),
            operation="topics.list",
            request=ListTopicsRequest(limit=limit, page=page, sort="bytes"),
            falling=falling,
        )
        seen += part.items
        page = part.next_page
        if page is None:
            break
    known = [row for row in rows if row[1] is not None]
    known.sort(key=lambda row: -row[1] if falling else row[1])  # type: ignore[operator]
    assert seen == known + [row for row in rows if row[1] is None]  # unknown last, equals in their own order


@pytest.fixture
async def sizes(cluster: Administered) -> Administered:
    for topic, messages in (("t-small", 1), ("t-large", 7), ("t-middle", 3), ("t-empty", 0)):
        await cluster("topics.create", topic=topic)
        for _ in range(messages):
            await cluster("messages.publish", topic=topic, payload="x" * 100)
    return cluster


async def test_which_topics_cost_most_is_one_call(sizes: Administered) -> None:
    most = await sizes("topics.list", filter="t-*", sort="-bytes", top=2)
    assert [item["topic"] for item in most["items"]] == ["/default/t-large", "/default/t-middle"]
    assert (most["next_page"], most["total"]) == (None, 4)
    rising = await sizes("topics.list", filter="t-*", sort="messages")
    assert [item["messages"] for item in rising["items"]] == [0, 1, 3, 7]


async def test_a_sorted_list_goes_on_where_its_page_ended(sizes: Administered) -> None:
    arguments: dict[str, Any] = {"filter": "t-*", "sort": "-messages", "limit": 3}
    first = await sizes("topics.list", **arguments)
    second = await sizes("topics.list", **arguments, page=first["next_page"])
    assert [item["messages"] for item in first["items"] + second["items"]] == [7, 3, 1, 0]
    refused = await sizes.refused("topics.list", **arguments | {"sort": "messages"}, page=first["next_page"])
    assert refused.code == "PAGE_INVALID"


async def test_the_subscription_furthest_behind_is_one_call(sizes: Administered) -> None:
    for topic in ("t-small", "t-large", "t-middle"):
        await sizes("subscriptions.create", topic=topic, subscription="s", start="earliest")
    for operation in ("subscriptions.list", "subscriptions.lag"):
        worst = await sizes(operation, filter="s", sort="-lag_messages", top=1)
        assert [(item["topic"], item["lag_messages"]) for item in worst["items"]] == [("/default/t-large", 7)]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"sort": "byte"}, "sort"),
        ({"sort": "owner_reason"}, "sort"),
        ({"sort": "-"}, "sort"),
        ({"top": 0}, "top"),
        ({"top": 1, "page": "x"}, "top"),
    ],
)
async def test_what_cannot_be_sorted_by_is_refused(
    cluster: Administered, arguments: dict[str, Any], field: str
) -> None:
    refused = await cluster.refused("topics.list", **arguments)
    assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", field)
    if arguments.get("sort") == "byte":
        assert refused.details["did_you_mean"] == ["bytes"]


async def test_what_matches_nothing_says_so(sizes: Administered) -> None:
    none = await sizes("topics.list", filter="zz*")
    assert none["items"] == []
    assert "'zz*'" in none["items_reason"]
    assert "items_reason" not in await sizes("topics.list", filter="t-*")
    refused = await sizes.refused("topics.list", broker="b99")
    assert "broker 'b99'" in refused.message
    refused = await sizes.refused("topics.list", namespace="defualt")
    assert (refused.code, refused.details["did_you_mean"]) == ("NAMESPACE_NOT_FOUND", ["default"])


async def test_the_audit_is_asked_by_the_names_of_operations_and_tools(sizes: Administered) -> None:
    by_name = await sizes("audit.query", operation="topics.create", topic="t-small")
    by_tool = await sizes("audit.query", operation="create_topic", topic="t-small")
    assert by_name["items"]
    assert by_tool["items"] == by_name["items"]
    refused = await sizes.refused("audit.query", operation="topics.creat")
    assert (refused.code, refused.details["did_you_mean"][0]) == ("INVALID_ARGUMENT", "topics.create")


@pytest.mark.parametrize(
    "since", ["15m", "-15m", "time:-15m", "1970-01-01T00:00:00Z", "time:1970-01-01T00:00:00Z"]
)
async def test_since_takes_lengths_and_times_everywhere(cluster: Administered, since: str) -> None:
    await cluster("topics.create", topic="t")
    assert (await cluster("audit.query", since=since))["items"]
    await cluster("brokers.logs", since=since)


async def test_since_that_is_neither_is_refused(cluster: Administered) -> None:
    for operation in ("audit.query", "brokers.logs"):
        refused = await cluster.refused(operation, since="latest")
        assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", "since")


def test_every_list_in_memory_takes_sort_and_top() -> None:
    read_from_a_log = {"audit.query", "messages.search", "dead_letters.list"}
    lists = {each.name for each in OPERATIONS.values() if issubclass(each.result, Page)}
    unsorted = {name for name in lists if not issubclass(OPERATIONS[name].request, SortedListRequest)}
    assert unsorted <= read_from_a_log
    assert len(lists) > 15
