"""This broker's load and its topics', from rounds of the sampler: rates over the last interval or two.

A topic's processor time is its share of the broker's, by bytes. It is not measured per topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydanube_core.balance import Resource
from pydanube_core.observation import BrokerSample, HeadSample, Round

from pydanube_broker.telemetry.writer import usable_cpus

MOST_TOPICS: Final = 500  # reported of one broker, those with the most traffic


class TopicRate(NamedTuple):
    """Bytes per second of one log, and its share of the broker's processor time, in processors."""

    topic: str
    topic_id: int
    cpu: float
    bytes_in_s: float
    bytes_out_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a period that ended at `taken_at_ms`."""

    taken_at_ms: int
    broker: Mapping[Resource, float]
    topics: tuple[TopicRate, ...]  # the heaviest first, none without traffic


class _Mark(NamedTuple):
    broker: BrokerSample
    topics: Mapping[int, tuple[int, int]]  # bytes in and out


class LoadMeter:
    """Observes the sampler. `interval_s`: the shortest time that rates cover. Single user: the loop."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ms = interval_s * 1000
        self._heads: dict[int, HeadSample] = {}
        self._marks: list[_Mark] = []  # rates begin at the older one
        self._last: BrokerSample | None = None

    def take(self, found: Round) -> None:
        """Process a round of the sampler."""
        for topic_id in found.gone_topics:
            self._heads.pop(topic_id, None)
        for head in found.heads:
            self._heads[head.topic_id] = head
        self._last = found.broker
        if self._marks and found.broker.taken_at_ms - self._marks[-1].broker.taken_at_ms < self._interval_ms:
            return
        topics = {topic_id: (head.bytes_in, head.bytes_out) for topic_id, head in self._heads.items()}
        self._marks = [*self._marks[-1:], _Mark(found.broker, topics)]

    def rates(self) -> Rates | None:
        """Return the rates. None before the end of the first interval."""
        if self._last is None or not self._marks:
            return None
        mark, last = self._marks[0], self._last
        span_s = (last.taken_at_ms - mark.broker.taken_at_ms) / 1000
        if span_s * 1000 < self._interval_ms:
            return None
        before = mark.broker
        cpu = max(0.0, last.cpu_s - before.cpu_s) / span_s
        broker = {
            Resource.CPU: cpu,
            Resource.NETWORK_IN: max(0, last.bytes_in - before.bytes_in) / span_s,
            Resource.NETWORK_OUT: max(0, last.bytes_out - before.bytes_out) / span_s,
        }
        return Rates(last.taken_at_ms, broker, self._topics(mark.topics, span_s, cpu))

    def busy(self) -> Mapping[str, float] | None:
        """Return this broker's share of its processors, and bytes per second. None before the first interval's end."""
        rates = self.rates()
        if rates is None:
            return None
        load: dict[str, float] = dict(rates.broker.items())
        return load | {Resource.CPU: rates.broker[Resource.CPU] / (usable_cpus() or 1)}

    def _topics(
        self, before: Mapping[int, tuple[int, int]], span_s: float, cpu: float
    ) -> tuple[TopicRate, ...]:
        rises: list[tuple[int, int, HeadSample]] = []
        total = 0
        for topic_id, head in self._heads.items():
            then_in, then_out = before.get(topic_id, (0, 0))
            if then_in > head.bytes_in or then_out > head.bytes_out:
                then_in = then_out = 0  # it was away, and its counters restarted
            rises.append((head.bytes_in - then_in, head.bytes_out - then_out, head))
            total += head.bytes_in - then_in + head.bytes_out - then_out
        heaviest = heapq.nlargest(MOST_TOPICS, rises, key=lambda each: each[0] + each[1])
        return tuple(
            TopicRate(
                topic=head.topic,
                topic_id=head.topic_id,
                cpu=cpu * (risen_in + risen_out) / total,
                bytes_in_s=risen_in / span_s,
                bytes_out_s=risen_out / span_s,
            )
            for risen_in, risen_out, head in heaviest
            if risen_in + risen_out
        )
