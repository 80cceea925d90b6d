"""The charts of traffic: what is measured now goes before history, and sums of some brokers only are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydanube_tui.snapshot import draw
from pydanube_tui.view import Situation
from pydanube_tui.views.charts import traffic
from pydanube_tui.views.overview import VIEW

from tests.admin.real_broker import Administered
from tests.tui.consoles import console_of, opened, screen

MINUTE_S = 60.0


def chart(brokers_at: list[int] | None, moments: int = 4) -> dict[str, Any]:
    rates = {f"{name}_rate": [None, 1.0, 2.0, 3.0] for name in ("messages_in", "messages_out", "bytes_in")}
    found = {
        **rates,
        "bytes_out_rate": [None, 10.0, 20.0, 2048.0],
        "lag_messages": [0, 1, 2, 3],
        "age_s": [MINUTE_S * (moments - 1 - at) for at in range(moments)],
    }
    return found | ({} if brokers_at is None else {"brokers_at": brokers_at})


def shown(answers: dict[str, Any], series: dict[str, Any] | None = None, width: int = 120) -> list[str]:
    times = [0, 2000]
    there = Situation(
        view=VIEW, arguments={}, answers=answers, now_ms=2000, series=series or {}, times=times, width=width
    )
    return ["".join(text for text, _ in each) for each in traffic(there)]


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ([1, 1, 2, 2], "2 brokers for 1m00s, 1 broker before: sums differ by that"),
        ([1, 3, 2, 3], "3 brokers for 0s, 1 to 3 brokers before: sums differ by that"),
    ],
)
def test_sums_that_are_not_of_the_same_brokers_throughout_name_their_number(at: list[int], told: str) -> None:
    assert any(told in each for each in shown({"chart": chart(at)})), shown({"chart": chart(at)})
    assert len(shown({"chart": chart(None)})) == len(shown({"chart": chart(at)})) - 1


def test_bytes_out_are_those_since_the_last_refresh_and_history_only_before_there_are_two() -> None:
    (_, out, *_) = shown({"chart": chart(None)})
    assert "2.0KiB/s" in out
    (_, out, *_) = shown({"chart": chart(None)}, {"bytes_out": [(0, 0.0), (2000, 1_048_576.0)]})
    assert "512KiB/s" in out


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_chart_names_its_peak_and_fits_the_line(width: int) -> None:
    long = {
        name: [None, 84_321.0, *[1234.0] * 119]
        for name in ("messages_in_rate", "messages_out_rate", "bytes_in_rate")
    }
    answer = {**long, "bytes_out_rate": long["bytes_in_rate"], "lag_messages": [1_234_567] * 121}
    lines = shown({"chart": {**answer, "age_s": [30.0 * (120 - at) for at in range(121)]}}, width=width)
    assert ["peak 84.3k/s in 1h00m" in each for each in lines] == [True, True, False]
    assert "peak 1.2M in 1h00m" in lines[2]
    assert max(map(len, lines)) <= width


def test_a_peak_is_never_below_what_is_shown_as_now() -> None:
    there = Situation(
        view=VIEW, arguments={}, answers={"chart": chart(None)}, now_ms=2000, times=[0, 2000], width=120,
        series={"messages_in": [(0, 0.0), (2000, 100.0)]},
    )  # fmt: skip
    come, _, behind = ("".join(text for text, _ in each) for each in traffic(there, 34_800))
    assert "50/s" in come
    assert "peak 50/s in 3m00s" in come
    assert "34.8k" in behind
    assert "peak 34.8k" in behind


def test_a_backlog_that_grew_a_moment_ago_is_drawn_by_its_height() -> None:
    surge = {**chart(None, 66), "lag_messages": [1] * 60 + [5, 6, 7, 8, 9, 10]}
    (*_, behind) = shown({"chart": surge}, width=56 + 67)
    assert "▲" not in behind
    assert "▅▆▆▇▇██" in behind


@pytest.mark.anyio
async def test_enter_on_a_broker_shows_its_own_charts_and_topics(cluster: Administered) -> None:
    broker_id = (await cluster("brokers.list"))["items"][0]["broker_id"]
    async with opened(cluster, "brokers", size=(120, 40)) as (app, press):
        await press("enter")
        assert app.target.view == "broker"
        text = screen(app)
        assert "/default/orders" in text
        assert all(title in text for title in (" in ", " out ", " behind ", "✓ ready"))
        assert broker_id not in text, "a name, not nineteen digits"
    asked = console_of(cluster, f"broker {broker_id}")
    assert json.loads(await draw(asked, "json", (80, 24), timeout_s=30))["view"] == "broker"


@pytest.mark.anyio
async def test_metrics_count_the_bytes_that_consumers_got(cluster: Administered) -> None:
    before = await cluster("cluster.metrics")
    next(iter(cluster.broker.registry.topics)).sent(3, 300)
    after = await cluster("cluster.metrics")
    assert after["bytes_out"] - before["bytes_out"] == 300
