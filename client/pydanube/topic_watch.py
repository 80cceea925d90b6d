"""The topics that a consumer receives from: one, a list or a pattern, looked up again from time to time.

Topics and partitions created later join automatically, from their first message. Deleted topics leave. The cost is
bounded: one call per `refresh_s` for all of them, and never more than `max_topics`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError, Fatal, InvalidArgument, TopicNotFound
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

MOST_TOPICS: Final = 1000  # maximum of one answer of a broker

#: (index, concrete topic) of each. Index None: the topic has no partitions
Partitions = list[tuple[int | None, str]]

_log = logging.getLogger("pydanube")


class TopicChoice:
    """The requested topics: names, or a pattern.

    Args:
        topics: names, in any form.
        pattern: instead of names.

    Raises:
        InvalidArgument: both, none, too many, or a name twice.
        InvalidName: an invalid name or pattern.
    """

    def __init__(self, topics: Sequence[str] | None, pattern: str | None, max_topics: int) -> None:
        if (topics is None) == (pattern is None):
            raise InvalidArgument(
                "give topics or a pattern, one of them", field="pattern", value=repr(pattern)[:200]
            )
        self.names: tuple[str, ...] = ()
        if pattern is not None:
            self.patterns: tuple[str, ...] = (str(TopicPattern.parse(pattern)),)
        else:
            assert topics is not None
            self.names = tuple(str(TopicName.parse(topic)) for topic in topics)
            if not self.names or len(set(self.names)) < len(self.names) or len(self.names) > max_topics:
                raise InvalidArgument(
                    f"topics are 1 to {max_topics} different ones (max_topics), got {len(self.names)}",
                    field="topic",
                    value=list(self.names)[:20],
                )
            self.patterns = self.names

    def __str__(self) -> str:
        shown = ", ".join(self.patterns[:3])
        return shown if len(self.patterns) <= 3 else f"{shown} and {len(self.patterns) - 3} more"


class TopicWatch:
    """Finds and follows the topics of one consumer.

    Args:
        choice: the requested topics.
        match: returns the existing names with their numbers of partitions (0: none), and whether there were more than
            requested.
        prepare: returns a topic's full name and partitions. Creates it if requested.
        create: create topics of the list that do not exist.
        max_topics: maximum number of topics.
        refresh_s: time between two checks.
        several: False: one topic, whose partitions are watched.
    """

    def __init__(
        self,
        choice: TopicChoice,
        *,
        match: Callable[[Sequence[str], int], Coroutine[Any, Any, tuple[dict[str, int], bool]]],
        prepare: Callable[[str, bool], Coroutine[Any, Any, tuple[str, Partitions]]],
        create: bool,
        max_topics: int,
        refresh_s: float,
        several: bool,
    ) -> None:
        self.choice = choice
        self.several = several
        self._match = match
        self._prepare = prepare
        self._create = create
        self._max_topics = max_topics
        self._refresh_s = refresh_s
        self._told = False

    def may_leave(self, partition: int | None) -> tuple[type[ClusterError], ...]:
        """Return the errors of one topic that do not end the consumer, which continues with the others.

        For a single topic, partitions may be removed again, except the first, which is removed only with the topic.
        """
        if self.several and not self.choice.names:
            return (Fatal,)
        return (TopicNotFound,) if self.several or partition else ()

    async def first(self) -> dict[str, Partitions]:
        """Return the topics at the opening. Raises `TopicNotFound` if one of a list is missing."""
        if self.choice.names:
            return dict([await self._prepare(name, self._create) for name in self.choice.names])
        return await self._look({})

    async def following(self, known: Callable[[], Mapping[str, int]]) -> dict[str, Partitions]:
        """Wait, then look again. Return topics that are new, or have other partitions than in `known`."""
        await asyncio.sleep(self._refresh_s * random.uniform(0.8, 1.2))  # spreads the calls of many consumers
        return await self._look(known())

    async def _look(self, known: Mapping[str, int]) -> dict[str, Partitions]:
        names, more = await self._match(self.choice.patterns, self._max_topics)
        fresh = [name for name in names if name not in known]
        grown = [name for name, count in names.items() if count and count != known.get(name, count)]
        room = max(0, self._max_topics - len(known))
        if (more or len(fresh) > room) and not self._told:
            self._told = True
            _log.warning(
                "%s is more than %d topics: the others are not consumed. Give a larger max_topics, %d at most",
                self.choice,
                self._max_topics,
                MOST_TOPICS,
            )
        found: dict[str, Partitions] = {}
        for name in [*grown, *fresh[:room]]:
            try:
                topic, partitions = await self._prepare(name, False)
            except TopicNotFound:  # just deleted
                continue
            found[topic] = partitions
        return found
