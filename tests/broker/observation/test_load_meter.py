"""Rates of a broker and its topics, from rounds of the sampler."""

from __future__ import annotations

from pydanube_broker.observation.load_meter import MOST_TOPICS, LoadMeter
from pydanube_core.balance import Resource
from pydanube_core.observation import BrokerSample, HeadSample, Round


def head(n: int, bytes_in: int, bytes_out: int = 0) -> HeadSample:
    return HeadSample(f"/default/t{n}", n, None, 0, 0, 0, 0, bytes_in, 0, bytes_out, 0, 0, 0)


def a_round(at_s: float, heads: list[HeadSample], *, cpu_s: float = 0.0, gone: tuple[int, ...] = ()) -> Round:
    broker = BrokerSample(
        taken_at_ms=int(at_s * 1000),
        broker_id="1",
        uptime_s=at_s,
        topics=0,
        subscriptions=0,
        cpu_s=cpu_s,
        rss_bytes=0,
        disk_free_bytes=None,
        disk_total_bytes=None,
        disk_guard_bytes=None,
        journal_bytes=0,
        journal_read_only=False,
        tier_backlog_bytes=0,
        tier_errors=0,
        store_error=None,
        messages_in=0,
        bytes_in=sum(each.bytes_in for each in heads),
        messages_out=0,
        bytes_out=sum(each.bytes_out for each in heads),
    )
    return Round(
        number=1,
        taken_at_ms=int(at_s * 1000),
        interval_s=1,
        broker=broker,
        heads=heads,
        cursors=(),
        consumers=(),
        gone_topics=gone,
        gone_subscriptions=(),
    )


def test_nothing_is_said_before_a_whole_interval_was_seen() -> None:
    meter = LoadMeter(10)
    assert meter.rates() is None
    meter.take(a_round(0, [head(1, 0)]))
    meter.take(a_round(9, [head(1, 900)]))
    assert meter.rates() is None
    meter.take(a_round(10, [head(1, 1000)]))
    assert meter.rates() is not None


def test_rates_are_of_the_last_interval_or_two_and_processor_time_is_shared_by_bytes() -> None:
    meter = LoadMeter(10)
    for second in range(0, 31, 5):
        busy = second > 15
        meter.take(
            a_round(
                second,
                [head(1, 3000 * second if busy else 0, 0), head(2, 0, 1000 * second), head(3, 7)],
                cpu_s=second / 2,
            )
        )
    found = meter.rates()
    assert found is not None
    assert found.taken_at_ms == 30_000
    assert found.broker[Resource.CPU] == 0.5
    rates = {each.topic: each for each in found.topics}
    assert rates.keys() == {"/default/t1", "/default/t2"}, "none without traffic"
    assert rates["/default/t2"].bytes_out_s == 1000
    assert rates["/default/t1"].bytes_in_s == 3000
    assert abs(sum(each.cpu for each in found.topics) - 0.5) < 1e-9


def test_counters_that_began_anew_and_topics_that_went() -> None:
    meter = LoadMeter(10)
    meter.take(a_round(0, [head(1, 50_000), head(2, 5)]))
    meter.take(a_round(10, [head(1, 100), head(2, 500)], gone=(2,)))
    found = meter.rates()
    assert found is not None
    assert {each.topic: each.bytes_in_s for each in found.topics} == {
        "/default/t1": 10.0,
        "/default/t2": 49.5,
    }
    meter.take(a_round(20, [], gone=(2,)))
    found = meter.rates()
    assert found is not None
    assert found.topics == ()


def test_heaviest_are_told_and_no_more_than_the_bound() -> None:
    meter = LoadMeter(1)
    count = MOST_TOPICS + 50
    meter.take(a_round(0, [head(n, 0) for n in range(count)]))
    meter.take(a_round(1, [head(n, n) for n in range(count)]))
    found = meter.rates()
    assert found is not None
    assert len(found.topics) == MOST_TOPICS
    assert found.topics[0].topic == f"/default/t{count - 1}"
