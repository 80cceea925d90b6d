"""Keys by which pages of topics and of lag are chosen, and changes of lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TopicKey(NamedTuple):
    """The key of a topic in a list."""

    topic: str  # as people name it: a partitioned one without its partitions
    owners: Sequence[str | None]  # of the logs with its messages


class LagKey(NamedTuple):
    """The key of a subscription of one log in a list of lag."""

    topic: str  # as people name it
    log: str  # of a partition its own name
    partition: int | None
    subscription: str

    @property
    def place(self) -> tuple[str, str, int]:
        """The sort key: by topic, then by subscription, then partitions in order."""
        return self.topic, self.subscription, -1 if self.partition is None else self.partition


class LagKeysOfStatus(NamedTuple):
    """The subscriptions of one broker that have a status."""

    keys: Sequence[LagKey]
    judged: int  # number that it serves: all of them, if none is between two brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class ListChanges:
    """The topics and subscriptions of one broker's lists that changed after a mark."""

    life: str  # the broker's, of whose start the marks are
    mark: int  # for the next call
    # As people name them. None: there was no mark of this start, or it is too old
    topics: Sequence[str] | None
    subscriptions: Sequence[LagKey] = ()  # also every one of a topic that changed
