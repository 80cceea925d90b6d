"""The facts from which balance is judged: loads of brokers and topics at one moment, and the limits of unevenness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MIB: Final = 1 << 20


class Resource(StrEnum):
    CPU = "cpu"  # processors busy
    NETWORK_IN = "network_in"  # bytes a second
    NETWORK_OUT = "network_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """One broker. `capacity`: declared or measured. A resource that is not in it is of unknown capacity."""

    broker_id: str
    load: Mapping[Resource, float]
    capacity: Mapping[Resource, float] = field(default_factory=dict)
    age_s: float = 0.0  # of the sample
    accepts: bool = True  # false: draining or dead, so it must not keep topics
    unknown: str | None = None  # why its load is unknown, which is not a load of 0

    def __post_init__(self) -> None:
        assert all(value >= 0 for value in self.load.values())
        assert all(value > 0 for value in self.capacity.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """One log, its owner, and its load, which leaves the owner when the log moves."""

    topic: str
    broker_id: str
    load: Mapping[Resource, float]
    unread_messages: int = 0
    cooling_down: bool = False  # it moved a moment ago
    group: str | None = None  # the partitioned topic it is a part of: parts are kept apart where that can be


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A broker's report of its own load and of its topics' loads. Topics without load are left out."""

    broker: BrokerLoad
    topics: tuple[TopicLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at one moment. `interval_s`: between two samples of a broker."""

    epoch: int
    brokers: Sequence[BrokerLoad]
    topics: Sequence[TopicLoad]
    interval_s: float

    def __post_init__(self) -> None:
        known = {broker.broker_id for broker in self.brokers}
        assert len(known) == len(self.brokers), "a broker is named once"
        assert all(topic.broker_id in known for topic in self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of an uneven load. Planning starts outside of the wide band and aims inside of the narrow one (hysteresis)."""

    start_band: float = 0.20  # of the mean
    target_band: float = 0.09
    capacity_share: float = 0.8  # of a broker's capacity that may be used
    fresh_share: float = 0.8  # of the brokers must be fresher than two intervals
    min_brokers: int = 2
    max_moves: int = 20
    least_gain: float = 0.01  # of the excess that is left: a move for less is not worth its pause
    pause_s: float = 0.5  # of a topic that moves, about
    floors: Mapping[Resource, float] = field(
        default_factory=lambda: {Resource.CPU: 0.05, Resource.NETWORK_IN: MIB, Resource.NETWORK_OUT: MIB}
    )

    def __post_init__(self) -> None:
        assert 0 < self.target_band < self.start_band
        assert 0 < self.capacity_share <= 1
