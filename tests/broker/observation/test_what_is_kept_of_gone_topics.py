"""Counters and list changes are bounded by the topics there are, however many came and went."""

from __future__ import annotations

from collections import Counter

from pydanube_broker.status.metrics import OTHER, BrokerMetrics, within
from pydanube_broker.topics.list_changes import MOST_NOTED, ListChanges


def test_topics_that_are_gone_have_no_counters() -> None:
    metrics = BrokerMetrics(topic_series_limit=2)
    for number in range(5):
        for counter in (metrics.rejected, metrics.rejected_messages, metrics.dropped, metrics.validations):
            counter[f"/default/t{number}", "X"] += 1
        metrics.validation_failures[f"/default/t{number}", "X"] += 1
    metrics.forget({f"/default/t{number}" for number in range(1, 5)})
    assert list(metrics.rejected) == [("/default/t0", "X")]
    assert list(metrics.validation_failures) == [("/default/t0", "X")]


def test_series_beyond_the_limit_are_summed() -> None:
    counter = Counter({("/default/a", "X"): 1, ("/default/b", "X"): 2, ("/default/c", "X"): 3})
    assert dict(within({"/default/a"}, counter)) == {("/default/a", "X"): 1, (OTHER, "X"): 5}


def test_changes_that_nobody_asks_for_are_bounded() -> None:
    changes = ListChanges(most=10_000)
    mark = changes.mark()
    for number in range(60_000):
        changes.note(f"/default/t{number}")
        if number % 1_000 == 0:
            changes.keep_within()
            assert changes.size <= 10_000 + MOST_NOTED + 1_000
    assert changes.since(mark) is None, "too old: the whole list is read"
